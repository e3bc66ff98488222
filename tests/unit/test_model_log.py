"""What the model log alone can show: virtual time, and what lies under the port."""

from __future__ import annotations

from perdure.topics.log import ConsumerSpec, Eof, Outgoing, Position, Record, TopicPartition
from perdure.topics.model_cluster import ModelCluster
from perdure.topics.model_log import ModelLog
from perdure.topics.model_partition import Marker

EVENTS = TopicPartition("run-events", 0)


class Follower:
    """A listener that takes whatever it is given, from offset 0."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, tuple[TopicPartition, ...]]] = []

    def on_assign(self, consumer: object, partitions: tuple[TopicPartition, ...]) -> None:
        self.heard.append(("assign", partitions))

    def on_revoke(self, consumer: object, partitions: tuple[TopicPartition, ...]) -> None:
        self.heard.append(("revoke", partitions))

    def on_lost(self, consumer: object, partitions: tuple[TopicPartition, ...]) -> None:
        self.heard.append(("lost", partitions))


def test_commit_and_abort_write_a_marker_each() -> None:
    """A finished transaction occupies one offset more than it has records, in every partition it touched."""
    cluster = ModelCluster()
    cluster.create_topic("run-events", 1)
    log = ModelLog(cluster)
    producer = log.transactional("slot-1", 10_000)
    producer.init(5)
    producer.begin()
    producer.produce(Outgoing("run-events", 0, b"a", b"1"))
    producer.commit(5)
    producer.begin()
    producer.produce(Outgoing("run-events", 0, b"a", b"2"))
    producer.abort(5)
    assert [entry.marker for entry in cluster.stored("run-events", 0)] == [
        None,
        Marker.COMMIT,
        None,
        Marker.ABORT,
    ]
    assert [record.value for record in cluster.visible("run-events", 0)] == [b"1"]


def test_reader_passes_what_it_may_not_see() -> None:
    """A reader gets the committed records and then one end, which stands behind the last marker."""
    cluster = ModelCluster()
    cluster.create_topic("run-events", 1)
    log = ModelLog(cluster)
    producer = log.transactional("slot-1", 10_000)
    producer.init(5)
    for value in (b"1", b"2"):
        producer.begin()
        producer.produce(Outgoing("run-events", 0, b"a", value))
        producer.commit(5)
    reader = log.consumer(ConsumerSpec("reader", eof=True))
    reader.assign([Position(EVENTS, 0)])
    items = reader.poll(10, 0)
    assert [item.value for item in items if isinstance(item, Record)] == [b"1", b"2"]
    assert [item.offset for item in items if isinstance(item, Eof)] == [4]
    assert reader.poll(10, 0) == []


def test_silent_member_is_evicted_after_its_session() -> None:
    """A killed member keeps its partitions until its session has run out in virtual time, not longer."""
    cluster = ModelCluster()
    cluster.create_topic("run-commands", 2)
    first, second = ModelLog(cluster), ModelLog(cluster)
    old = first.consumer(ConsumerSpec("old", "orchestrator"))
    old.subscribe(["run-commands"], Follower())
    old.poll(1, 0)
    first.kill_all()
    follower = Follower()
    new = second.consumer(ConsumerSpec("new", "orchestrator"))
    new.subscribe(["run-commands"], follower)
    cluster.advance(5_999)
    new.poll(1, 0)
    assert follower.heard == []
    cluster.advance(6_000)
    new.poll(1, 0)
    assert follower.heard == [
        ("assign", (TopicPartition("run-commands", 0), TopicPartition("run-commands", 1)))
    ]
