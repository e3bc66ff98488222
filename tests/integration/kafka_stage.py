"""What the tests of the Kafka log share: topics, producers and members on a real broker."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest
from confluent_kafka.admin import NewTopic

from perdure.connectors.local_kafka import LocalKafka
from perdure.schemas.errors import PerdureError
from perdure.topics.kafka_consumer import KafkaConsumer
from perdure.topics.kafka_log import KafkaLog
from perdure.topics.kafka_transaction import KafkaTransaction
from perdure.topics.log import (
    Consumer,
    ConsumerSpec,
    Eof,
    GroupMetadata,
    GroupProtocol,
    Outgoing,
    Polled,
    Position,
    Record,
    TopicPartition,
)

pytestmark = pytest.mark.timeout(120)

ASK_S = 10.0
POLL_S = 0.05
PARTITIONS = 3


def create(log: KafkaLog, name: str, partitions: int = PARTITIONS, **config: str) -> str:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    log.admin.client.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(ASK_S)
    until(lambda: name in log.describe([name], ASK_S))
    return name


def until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"


def write(log: KafkaLog, topic: str, partition: int, *values: bytes) -> None:
    failures: list[PerdureError | None] = []
    producer = log.producer("writer")
    for value in values:
        producer.produce(Outgoing(topic, partition, b"k", value), lambda error, _: failures.append(error))
    assert producer.flush(ASK_S) == 0
    assert failures == [None] * len(values)
    producer.close()


def opened(log: KafkaLog, transactional_id: str, timeout_ms: int = 20_000) -> KafkaTransaction:
    """In a transaction, so that tests may begin where it matters."""
    producer = log.transactional(transactional_id, timeout_ms)
    producer.init(30)
    producer.begin()
    return producer


class Member:
    """A listener that starts each partition at 0 and remembers what happened."""

    def __init__(self, protocol: GroupProtocol, beside: str | None = None) -> None:
        self.protocol = protocol
        self.beside = beside
        self.owned: set[TopicPartition] = set()
        self.captured: GroupMetadata | None = None
        self.seen: list[str] = []

    def on_assign(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None:
        self.seen.append("assign")
        self.captured = consumer.group_metadata()
        self.owned.update(partitions)
        positions = [Position(at, 0) for at in partitions]
        if self.beside is not None:
            positions += [Position(TopicPartition(self.beside, at.partition), 0) for at in partitions]
        if self.protocol.incremental:
            consumer.incremental_assign(positions)
        else:
            consumer.assign(positions)

    def on_revoke(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None:
        self.seen.append("revoke")
        self.owned.difference_update(partitions)

    def on_lost(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None:
        self.seen.append("lost")
        self.owned.difference_update(partitions)

    @property
    def metadata(self) -> GroupMetadata:
        assert self.captured is not None
        return self.captured


def joined(
    log: KafkaLog, spec: ConsumerSpec, topic: str, beside: str | None = None
) -> tuple[KafkaConsumer, Member]:
    consumer, member = log.consumer(spec), Member(spec.protocol, beside)
    consumer.subscribe([topic], member)
    until(lambda: consumer.poll(1, POLL_S) or member.owned)
    return consumer, member


def read_to_end(reader: KafkaConsumer) -> list[Record]:
    items: list[Polled] = []

    def ended() -> bool:
        items.extend(reader.poll(100, POLL_S))
        return any(isinstance(item, Eof) for item in items)

    until(ended)
    return [item for item in items if isinstance(item, Record)]


@contextmanager
def frozen(broker: LocalKafka) -> Generator[None]:
    """The broker takes connections and answers nothing."""
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)
