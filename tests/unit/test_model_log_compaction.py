"""How the model's partitions forget, and what that does to readers."""

from __future__ import annotations

import pytest

from perdure.topics.errors import OffsetOutOfRange
from perdure.topics.log import ConsumerSpec, Eof, Outgoing, Position, Record, TopicPartition
from perdure.topics.model_cluster import ModelCluster
from perdure.topics.model_log import ModelLog

DAY_MS = 86_400_000
AT = TopicPartition("run-status", 0)


def cluster_of(**config: str) -> tuple[ModelCluster, ModelLog]:
    cluster = ModelCluster()
    cluster.create_topic("run-status", 1, {name.replace("_", "."): value for name, value in config.items()})
    return cluster, ModelLog(cluster)


def write(log: ModelLog, *records: tuple[bytes, bytes | None]) -> None:
    producer = log.producer("writer")
    for key, value in records:
        producer.produce(Outgoing("run-status", 0, key, value))


def offsets(cluster: ModelCluster) -> list[int]:
    return [entry.offset for entry in cluster.stored("run-status", 0)]


def test_compaction_keeps_the_last_of_each_key() -> None:
    """A whole pass leaves the newest record of every key at its old offset; the ends stay."""
    cluster, log = cluster_of(cleanup_policy="compact")
    write(log, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"))
    cluster.compact("run-status", 0)
    assert offsets(cluster) == [1, 2, 3]
    assert (cluster.partition(AT).start, cluster.partition(AT).end) == (0, 4)


def test_compaction_of_a_piece_knows_nothing_of_the_rest() -> None:
    """A pass up to some offset removes only what is superseded below it."""
    cluster, log = cluster_of(cleanup_policy="compact")
    write(log, (b"a", b"1"), (b"a", b"2"), (b"b", b"1"), (b"a", b"3"), (b"b", b"2"))
    cluster.compact("run-status", 0, upto=3)
    assert offsets(cluster) == [1, 2, 3, 4]


def test_reader_passes_the_holes() -> None:
    """A reader goes on over offsets that were compacted away and still ends at the end."""
    cluster, log = cluster_of(cleanup_policy="compact")
    write(log, (b"a", b"1"), (b"a", b"2"), (b"a", b"3"))
    cluster.compact("run-status", 0)
    reader = log.consumer(ConsumerSpec("reader", eof=True))
    reader.assign([Position(AT, 1)])
    items = reader.poll(10, 0)
    assert [(type(item), item.offset) for item in items] == [(Record, 2), (Eof, 3)]


def test_compaction_stops_at_the_open_transaction() -> None:
    """Nothing at or above the last stable offset is cleaned."""
    cluster, log = cluster_of(cleanup_policy="compact")
    producer = log.transactional("slot-0", 60_000)
    producer.init(5)
    producer.begin()
    write(log, (b"a", b"1"), (b"a", b"2"))
    producer.produce(Outgoing("run-status", 0, b"a", b"3"))
    write(log, (b"a", b"4"))
    cluster.compact("run-status", 0)
    assert offsets(cluster) == [1, 2, 3]


def test_aborted_records_do_not_supersede() -> None:
    """An aborted record neither survives a pass nor removes an older one of its key."""
    cluster, log = cluster_of(cleanup_policy="compact")
    write(log, (b"a", b"1"))
    producer = log.transactional("slot-0", 60_000)
    producer.init(5)
    producer.begin()
    producer.produce(Outgoing("run-status", 0, b"a", b"never"))
    producer.abort(5)
    cluster.compact("run-status", 0)
    assert [record.value for record in cluster.visible("run-status", 0)] == [b"1"]
    assert 1 not in offsets(cluster)


def test_tombstone_goes_a_retention_after_its_first_pass() -> None:
    """A tombstone outlives the first pass that meets it by delete.retention.ms."""
    cluster, log = cluster_of(cleanup_policy="compact", delete_retention_ms=str(DAY_MS))
    write(log, (b"a", b"1"), (b"a", None), (b"b", b"1"))
    cluster.advance(30 * DAY_MS)
    cluster.compact("run-status", 0)
    assert offsets(cluster) == [1, 2]
    cluster.advance(DAY_MS - 1)
    cluster.compact("run-status", 0)
    assert offsets(cluster) == [1, 2]
    cluster.advance(1)
    cluster.compact("run-status", 0)
    assert offsets(cluster) == [2]


def test_marker_stays_while_its_records_do() -> None:
    """A marker is never removed before the records of its transaction."""
    cluster, log = cluster_of(cleanup_policy="compact", delete_retention_ms="0")
    producer = log.transactional("slot-0", 60_000)
    producer.init(5)
    producer.begin()
    producer.produce(Outgoing("run-status", 0, b"a", b"1"))
    producer.commit(5)
    for _ in range(3):
        cluster.advance(DAY_MS)
        cluster.compact("run-status", 0)
    assert offsets(cluster) == [0, 1]
    write(log, (b"a", b"2"))
    for _ in range(3):
        cluster.advance(DAY_MS)
        cluster.compact("run-status", 0)
    assert offsets(cluster) == [2]


def test_young_records_are_not_compacted() -> None:
    """With min.compaction.lag.ms a superseded record stays until it is old enough."""
    cluster, log = cluster_of(cleanup_policy="compact", min_compaction_lag_ms=str(30 * DAY_MS))
    write(log, (b"a", b"1"), (b"a", b"2"))
    cluster.advance(30 * DAY_MS - 1)
    cluster.compact("run-status", 0)
    assert offsets(cluster) == [0, 1]
    cluster.advance(1)
    cluster.compact("run-status", 0)
    assert offsets(cluster) == [1]


def test_retention_drops_the_head() -> None:
    """Records older than retention.ms go from the front; -1 keeps all."""
    cluster, log = cluster_of(retention_ms="1000")
    write(log, (b"a", b"1"))
    cluster.advance(600)
    write(log, (b"b", b"1"))
    cluster.advance(400)
    cluster.retain("run-status", 0)
    assert (offsets(cluster), cluster.partition(AT).start) == ([1], 1)
    kept, other = cluster_of(retention_ms="-1")
    write(other, (b"a", b"1"))
    kept.advance(365 * DAY_MS)
    kept.retain("run-status", 0)
    assert offsets(kept) == [0]


def test_retention_overtakes_a_lagging_reader_behind_its_queue() -> None:
    """What a reader had prefetched is delivered after its deletion; then the reader is out of range."""
    _, log = cluster_of()
    write(log, *((b"k", b"%d" % n) for n in range(10)))
    reader = log.consumer(ConsumerSpec("reader", queued_records_min=3))
    reader.assign([Position(AT, 0)])
    assert [item.offset for item in reader.poll(1, 0)] == [0]
    log.delete_records([Position(AT, 8)], 1)
    assert [item.offset for item in reader.poll(10, 0)] == [1, 2]
    with pytest.raises(OffsetOutOfRange):
        reader.poll(10, 0)


def test_prefetched_records_survive_a_compaction() -> None:
    """A reader delivers from its queue what compaction removed meanwhile."""
    cluster, log = cluster_of(cleanup_policy="compact")
    write(log, (b"a", b"1"), (b"a", b"2"), (b"a", b"3"))
    reader = log.consumer(ConsumerSpec("reader"))
    reader.assign([Position(AT, 0)])
    reader.poll(1, 0)
    cluster.compact("run-status", 0)
    assert [item.offset for item in reader.poll(10, 0)] == [1, 2]


def test_end_may_be_reported_after_newer_records_came() -> None:
    """An end that waits in the reader's queue is delivered although it is not the end any more."""
    _, log = cluster_of()
    write(log, (b"a", b"1"))
    reader = log.consumer(ConsumerSpec("reader", eof=True))
    reader.assign([Position(AT, 0)])
    assert [type(item) for item in reader.poll(1, 0)] == [Record]
    write(log, (b"a", b"2"))
    assert [(type(item), item.offset) for item in reader.poll(10, 0)] == [(Eof, 1), (Record, 1), (Eof, 2)]
