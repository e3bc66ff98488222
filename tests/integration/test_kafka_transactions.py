"""Transactions of the Kafka log on a real broker: what is known after each way in which they can end."""

from __future__ import annotations

import os
import threading
import time

import pytest

from perdure.topics.errors import (
    Fenced,
    LogMisuse,
    RecordTooLarge,
    TransactionAbortable,
    Unavailable,
)
from perdure.topics.kafka_log import KafkaLog
from perdure.topics.log import (
    CommittedOffset,
    ConsumerSpec,
    Isolation,
    Outgoing,
    Position,
    TopicPartition,
)
from perdure.topics.table import PRODUCED_BYTES_MAX, TOPIC_BYTES_MAX
from tests.integration.kafka_stage import create, joined, opened, read_to_end, until

pytestmark = pytest.mark.timeout(120)

ASK_S = 10.0
POLL_S = 0.05
PARTITIONS = 3


@pytest.fixture
def log(kafka: str) -> KafkaLog:
    return KafkaLog(kafka)


@pytest.fixture
def topic(log: KafkaLog, namespace: str) -> str:
    return create(log, f"{namespace}.topic")


# ---- transactions


def test_closing_leaves_the_transaction_to_its_time_out(log: KafkaLog, topic: str) -> None:
    """The coordinator is told nothing: the records stay open until it aborts them, and never show."""
    at = TopicPartition(topic, 0)
    producer = opened(log, f"{topic}.id", timeout_ms=3_000)
    producer.produce(Outgoing(topic, 0, None, b"x"))
    until(lambda: log.watermarks(at, Isolation.UNCOMMITTED, ASK_S).end == 1)
    started = time.monotonic()
    producer.close()
    assert time.monotonic() - started < 1
    assert log.watermarks(at, Isolation.COMMITTED, ASK_S).end == 0
    until(lambda: log.watermarks(at, Isolation.COMMITTED, ASK_S).end == 2)
    reader = log.consumer(ConsumerSpec("r", eof=True))
    reader.assign([Position(at, 0)])
    assert read_to_end(reader) == []
    reader.close()


@pytest.mark.parametrize("ending", ["commit", "abort", "late"])
def test_an_older_holder_of_a_transactional_id_is_fenced(log: KafkaLog, topic: str, ending: str) -> None:
    """Whether the fence is met by a record, by the end of the transaction or by the next one."""
    older = opened(log, f"{topic}.id")
    if ending != "late":
        older.produce(Outgoing(topic, 0, None, b"old"))
        until(lambda: log.watermarks(TopicPartition(topic, 0), Isolation.UNCOMMITTED, ASK_S).end == 1)
    newer = opened(log, f"{topic}.id")
    if ending == "late":
        older.produce(Outgoing(topic, 0, None, b"old"))
    with pytest.raises(Fenced):
        older.abort(ASK_S) if ending == "abort" else older.commit(ASK_S)
    with pytest.raises(LogMisuse):
        older.begin()
    older.close()
    newer.produce(Outgoing(topic, 0, None, b"new"))
    newer.commit(ASK_S)
    newer.close()
    reader = log.consumer(ConsumerSpec("r", eof=True))
    reader.assign([Position(TopicPartition(topic, 0), 0)])
    assert [record.value for record in read_to_end(reader)] == [b"new"]
    reader.close()


def test_a_transaction_that_the_coordinator_timed_out_is_not_committed(log: KafkaLog, topic: str) -> None:
    """Its producer is fenced, since the coordinator took its epoch away."""
    at = TopicPartition(topic, 0)
    producer = opened(log, f"{topic}.id", timeout_ms=1_000)
    producer.produce(Outgoing(topic, 0, None, b"x"))
    until(lambda: log.watermarks(at, Isolation.COMMITTED, ASK_S).end == 2)
    with pytest.raises(Fenced):
        producer.commit(ASK_S)
    producer.close()


def test_a_record_that_only_the_broker_finds_too_large_aborts_its_transaction(
    log: KafkaLog, topic: str
) -> None:
    """Definitely not committed, and the producer goes on after the abort (on another partition: the refused
    record left a gap in the numbering of its own, which costs one more abort there).
    """
    narrow = create(log, f"{topic}.narrow", max_message_bytes="1000")
    producer = opened(log, f"{topic}.id")
    producer.produce(Outgoing(narrow, 0, None, b"x" * 2_000))
    with pytest.raises(TransactionAbortable, match="MSG_SIZE_TOO_LARGE"):
        producer.commit(ASK_S)
    producer.abort(ASK_S)
    producer.begin()
    producer.produce(Outgoing(narrow, 1, None, b"x"), track=True)
    assert producer.commit(ASK_S) == {TopicPartition(narrow, 1): 0}
    producer.close()


def test_an_abort_does_not_harm_the_next_transaction(log: KafkaLog, topic: str) -> None:
    """Records that were queued and not yet sent when the transaction was aborted leave no gap behind."""
    at = TopicPartition(topic, 0)
    producer = opened(log, f"{topic}.id")
    for attempt in range(5):
        for _ in range(10):
            producer.produce(Outgoing(topic, 0, None, b"dropped" * 100_000))
        producer.abort(ASK_S)
        producer.begin()
        producer.produce(Outgoing(topic, 0, None, b"kept %d" % attempt), track=True)
        assert set(producer.commit(ASK_S)) == {at}
        producer.begin()
    producer.close()
    reader = log.consumer(ConsumerSpec("r", eof=True))
    reader.assign([Position(at, 0)])
    assert [record.value for record in read_to_end(reader)] == [b"kept %d" % attempt for attempt in range(5)]
    reader.close()


def test_what_the_client_accepts_the_topic_accepts(log: KafkaLog, topic: str) -> None:
    """The largest record that produce takes is committed; one byte more is refused before it is sent."""
    wide = create(log, f"{topic}.wide", max_message_bytes=str(TOPIC_BYTES_MAX))
    producer = opened(log, f"{topic}.id")
    noise = os.urandom(PRODUCED_BYTES_MAX)  # compressed, it would say nothing about the limit
    size, refused = PRODUCED_BYTES_MAX - 1_024, PRODUCED_BYTES_MAX
    while refused - size > 1:
        middle = (size + refused) // 2
        try:
            producer.produce(Outgoing(wide, 0, b"k", noise[:middle], (("h", b"v"),)))
        except RecordTooLarge:
            refused = middle
        else:
            size = middle
            producer.abort(ASK_S)
            producer.begin()
    producer.produce(Outgoing(wide, 0, b"k", noise[:size], (("h", b"v"),)), track=True)
    assert producer.commit(30)
    producer.close()


def test_committed_waits_for_the_transaction_that_may_move_it(log: KafkaLog, topic: str) -> None:
    """Unavailable while the transaction is open; once it commits, the answer is its offset."""
    at = TopicPartition(topic, 0)
    consumer, member = joined(log, ConsumerSpec("c", group=f"{topic}.group"), topic)
    producer = opened(log, f"{topic}.id")
    producer.produce(Outgoing(topic, 0, None, b"x"))
    producer.send_offsets([Position(at, 7)], member.metadata, ASK_S)
    with pytest.raises(Unavailable):
        consumer.committed([at], 1.0)
    committing = threading.Thread(target=producer.commit, args=(ASK_S,))
    committing.start()
    assert consumer.committed([at], 30.0) == [CommittedOffset(at, 7)]
    committing.join()
    producer.close()
    consumer.close()
