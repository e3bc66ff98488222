"""Where a reader of committed records is done."""

from __future__ import annotations

from perdure.connectors.faust_views.visible import SPAN_OFFSETS, visible_ends
from perdure.processors.clock import SystemClock
from perdure.topics.log import Outgoing, Position, TopicPartition
from perdure.topics.model_cluster import ModelCluster
from perdure.topics.model_log import ModelLog
from perdure.topics.model_transactional import ModelTransactionalProducer

TOPIC = "run-status"
AT = TopicPartition(TOPIC, 0)


def _stage() -> tuple[ModelLog, ModelTransactionalProducer]:
    cluster = ModelCluster()
    cluster.create_topic(TOPIC, 2)
    log = ModelLog(cluster)
    producer = log.transactional("slot", 10_000)
    producer.init(5)
    return log, producer


def _write(producer: ModelTransactionalProducer, *, commit: bool) -> None:
    producer.begin()
    producer.produce(Outgoing(TOPIC, 0, b"run-1", b"x"))
    if commit:
        producer.commit(5)
    else:
        producer.abort(5)


def _end(log: ModelLog) -> int:
    return visible_ends(log, SystemClock(), [AT], "probe")[AT]


def test_markers_and_aborted_records_are_not_waited_for() -> None:
    """The end is behind the last committed record, however much invisible there is after it."""
    log, producer = _stage()
    _write(producer, commit=True)  # 0, marker 1
    for _ in range(SPAN_OFFSETS * 2):
        _write(producer, commit=False)
    assert _end(log) == 1


def test_an_open_transaction_is_not_waited_for() -> None:
    """What may still be committed is no part of what was visible."""
    log, producer = _stage()
    _write(producer, commit=True)
    producer.begin()
    producer.produce(Outgoing(TOPIC, 0, b"run-1", b"x"))
    assert _end(log) == 1


def test_a_log_without_visible_records_ends_where_it_starts() -> None:
    """Empty, or aborted all of it, or trimmed to its end: there is nothing to wait for."""
    log, producer = _stage()
    assert _end(log) == 0
    _write(producer, commit=False)
    assert _end(log) == 0
    _write(producer, commit=True)
    log.delete_records([Position(AT, 4)], 5)
    assert _end(log) == 4


def test_each_partition_has_its_own_end() -> None:
    """Partitions are looked at side by side."""
    log, producer = _stage()
    _write(producer, commit=True)
    _write(producer, commit=True)
    other = TopicPartition(TOPIC, 1)
    assert visible_ends(log, SystemClock(), [AT, other], "probe") == {AT: 3, other: 0}
