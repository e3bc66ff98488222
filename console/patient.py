"""What doctor looks at, and how it looks: offsets and records, asked without changing anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, cast

import confluent_kafka as ck
from confluent_kafka import IsolationLevel
from confluent_kafka.admin import AdminClient, OffsetSpec

from perdure.connectors.settings import Settings
from perdure.processors.clock import Clock
from perdure.topics.kafka_admin import answer
from perdure.topics.kafka_log import KafkaLog
from perdure.topics.log import ConsumerSpec, Eof, Isolation, Position, Record, TopicPartition
from perdure.topics.table import TOPICS, Namespace

TIMEOUT_S: Final = 10.0
READ_WAIT_S: Final = 0.25
READ_LOOKS_MAX: Final = 40
SAMPLE_RECORDS: Final = 20
OFFSETS_TOPIC: Final = "__consumer_offsets"


@dataclass(frozen=True, slots=True)
class Patient:
    """What the checks look at, and with what. ``patience_s``: how long an open transaction may stand."""

    settings: Settings
    log: KafkaLog
    clock: Clock
    patience_s: float

    @property
    def namespace(self) -> Namespace:
        return Namespace(self.settings.namespace)

    @property
    def admin(self) -> AdminClient:
        return self.log.admin.client


def all_partitions(patient: Patient) -> list[TopicPartition]:
    names = [patient.namespace.topic(spec.name) for spec in TOPICS]
    found = patient.log.describe([*names, OFFSETS_TOPIC], TIMEOUT_S)
    return [TopicPartition(name, number) for name, info in found.items() for number in range(info.partitions)]


def end_offsets(
    admin: AdminClient, at: Sequence[TopicPartition], isolation: IsolationLevel
) -> Mapping[TopicPartition, int]:
    """End offsets of many partitions, asked in as few requests as there are brokers."""
    if not at:
        return {}
    untyped: Any = admin
    latest: Any = cast("Any", OffsetSpec).latest()
    native = {ck.TopicPartition(each.topic, each.partition): latest for each in at}
    asked: dict[ck.TopicPartition, Future[Any]] = untyped.list_offsets(
        native, isolation_level=isolation, request_timeout=TIMEOUT_S
    )
    return {
        TopicPartition(str(each.topic), int(each.partition)): int(answer(future, TIMEOUT_S).offset)
        for each, future in asked.items()
    }


def newest_records(patient: Patient, name: str) -> list[Record]:
    """About SAMPLE_RECORDS of the newest records of each partition of a topic."""
    topic = patient.namespace.topic(name)
    info = patient.log.describe([topic], TIMEOUT_S).get(topic)
    starts: list[Position] = []
    for number in range(info.partitions if info is not None else 0):
        at = TopicPartition(topic, number)
        marks = patient.log.watermarks(at, Isolation.COMMITTED, TIMEOUT_S)
        if marks.low < marks.end:
            starts.append(Position(at, max(marks.low, marks.end - SAMPLE_RECORDS)))
    return records_from(patient, starts)


def records_from(patient: Patient, starts: Sequence[Position]) -> list[Record]:
    """Every committed record from these positions to the ends."""
    if not starts:
        return []
    consumer = patient.log.consumer(ConsumerSpec("perdure.doctor", eof=True))
    found: list[Record] = []
    behind = {each.at for each in starts}
    try:
        consumer.assign(starts)
        for _ in range(READ_LOOKS_MAX):
            for item in consumer.poll(1_000, READ_WAIT_S):
                match item:
                    case Record():
                        found.append(item)
                    case Eof():
                        behind.discard(TopicPartition(item.topic, item.partition))
            if not behind:
                break
    finally:
        consumer.close()
    return found
