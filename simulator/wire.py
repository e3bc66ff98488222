"""A process's connection: every call to the log is a place where the process may die, stand still, or hear
nothing.

What comes in is told to an observer, who is no part of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Protocol

from perdure.processors.store import StoreBroken
from perdure.processors.store_memory import MemoryRows, MemoryStore, MemoryStores
from perdure.testing.workers import Died
from perdure.topics.errors import Unavailable
from perdure.topics.log import (
    CommitOutcome,
    CommittedOffset,
    ConsumerSpec,
    DeliveryReport,
    GroupMetadata,
    GroupProtocol,
    Isolation,
    Outgoing,
    Polled,
    Position,
    Record,
    TopicInfo,
    TopicPartition,
    Watermarks,
)
from perdure.topics.model_cluster import ModelCluster
from perdure.topics.model_consumer import ModelConsumer
from perdure.topics.model_log import ModelLog
from perdure.topics.model_producer import ModelProducer, Sent
from perdure.topics.model_transactional import ModelTransactionalProducer


class Observer(Protocol):
    def saw(self, process: str, session: int, record: Record) -> None:
        """A process was handed a record. ``session``: one consumer's assignment of its partition."""
        ...


class Wire:
    """What befalls the calls of one process.

    ``fuse``: so many more calls until it dies; ``brake``: until it stands still, in the middle of whatever it
    does (``on_brake``). ``lag``: the share of polls that find nothing although something is there.
    ``deafness``: the share of questions to the cluster that nobody answers. ``disk_faults``: the share of
    writes to its disk that fail. ``delay_ms``: how long a produced record is under way, at most.
    """

    def __init__(self, process: str, random: Random, observer: Observer) -> None:
        self.process = process
        self.observer = observer
        self.fuse: int | None = None
        self.brake: int | None = None
        self.on_brake: Callable[[], None] = lambda: None
        self.lag = 0.0
        self.deafness = 0.0
        self.disk_faults = 0.0
        self.delay_ms = 0
        self.sessions = 0
        self._random = random

    def touch(self) -> None:
        """One side of a call. Raises Died."""
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                raise Died
        if self.brake is not None:
            self.brake -= 1
            if self.brake < 0:
                self.brake = None
                self.on_brake()

    def lags(self) -> bool:
        return self.lag > 0 and self._random.random() < self.lag

    def delay(self) -> int:
        return self._random.randint(0, self.delay_ms) if self.delay_ms else 0

    def ask(self) -> None:
        """Raises Unavailable."""
        self.touch()
        if self.deafness > 0 and self._random.random() < self.deafness:
            raise Unavailable("There is no leader at the moment.")

    def write(self) -> None:
        """Raises StoreBroken."""
        self.touch()
        if self.disk_faults > 0 and self._random.random() < self.disk_faults:
            raise StoreBroken("Input/output error.")


class SimConsumer(ModelConsumer):
    def __init__(self, cluster: ModelCluster, spec: ConsumerSpec, wire: Wire) -> None:
        super().__init__(cluster, spec)
        self._wire = wire
        self._sessions: dict[TopicPartition, int] = {}

    def assign(self, positions: Sequence[Position]) -> None:
        super().assign(positions)
        self._begin(positions)

    def incremental_assign(self, positions: Sequence[Position]) -> None:
        super().incremental_assign(positions)
        self._begin(positions)

    def seek(self, position: Position) -> None:
        super().seek(position)
        self._begin([position])

    def poll(self, max_records: int, timeout_s: float) -> list[Polled]:
        self._wire.touch()
        if self._wire.lags():
            self._check_usable()
            if self._broken is not None:
                raise self._broken
            self._member.step()
            return []
        items = super().poll(max_records, timeout_s)
        for item in items:
            if isinstance(item, Record):
                self._wire.observer.saw(self._wire.process, self._sessions.get(item.at, 0), item)
        self._wire.touch()
        return items

    def committed(self, partitions: Sequence[TopicPartition], timeout_s: float) -> list[CommittedOffset]:
        self._wire.ask()
        found = super().committed(partitions, timeout_s)
        self._wire.touch()
        return found

    def commit(self, offsets: Sequence[CommittedOffset]) -> CommitOutcome:
        self._wire.touch()
        outcome = super().commit(offsets)
        self._wire.touch()
        return outcome

    def _begin(self, positions: Sequence[Position]) -> None:
        for position in positions:
            self._wire.sessions += 1
            self._sessions[position.at] = self._wire.sessions


class SimProducer(ModelProducer):
    def __init__(self, cluster: ModelCluster, client_id: str, wire: Wire) -> None:
        super().__init__(cluster, client_id)
        self._wire = wire
        self._last_ms = 0

    def produce(self, out: Outgoing, on_delivery: DeliveryReport | None = None) -> None:
        self._wire.touch()
        now_ms = self._cluster.now_ms
        arrives_ms = max(self._last_ms, now_ms + self._wire.delay())
        if arrives_ms <= now_ms:
            super().produce(out, on_delivery)
        else:  # one after the other, also if the process is gone by then
            self._last_ms = arrives_ms
            sent = Sent(out, now_ms, on_delivery)
            self._unanswered.append(sent)
            self._cluster.schedule(arrives_ms - now_ms, partial(self._arrive, sent))
        self._wire.touch()


class SimTransactional(ModelTransactionalProducer):
    def __init__(self, cluster: ModelCluster, transactional_id: str, timeout_ms: int, wire: Wire) -> None:
        super().__init__(cluster, transactional_id, timeout_ms)
        self._wire = wire

    def init(self, timeout_s: float) -> None:
        self._wire.touch()
        super().init(timeout_s)
        self._wire.touch()

    def produce(self, out: Outgoing, *, track: bool = False) -> None:
        self._wire.touch()
        super().produce(out, track=track)

    def send_offsets(self, offsets: Sequence[Position], group: GroupMetadata, timeout_s: float) -> None:
        self._wire.touch()
        super().send_offsets(offsets, group, timeout_s)

    def commit(self, timeout_s: float) -> Mapping[TopicPartition, int]:
        self._wire.touch()
        tracked = super().commit(timeout_s)
        self._wire.touch()
        return tracked

    def abort(self, timeout_s: float) -> None:
        self._wire.touch()
        super().abort(timeout_s)
        self._wire.touch()


class SimLog(ModelLog):
    """One process's connection to the cluster."""

    def __init__(self, cluster: ModelCluster, wire: Wire, protocol: GroupProtocol) -> None:
        super().__init__(cluster, protocol=protocol)
        self._wire = wire

    def consumer(self, spec: ConsumerSpec) -> ModelConsumer:
        consumer = SimConsumer(self.cluster, spec, self._wire)
        self._clients.append(consumer)
        return consumer

    def producer(self, client_id: str) -> ModelProducer:
        producer = SimProducer(self.cluster, client_id, self._wire)
        self._clients.append(producer)
        return producer

    def transactional(self, transactional_id: str, transaction_timeout_ms: int) -> ModelTransactionalProducer:
        producer = SimTransactional(self.cluster, transactional_id, transaction_timeout_ms, self._wire)
        self._clients.append(producer)
        return producer

    def watermarks(self, at: TopicPartition, isolation: Isolation, timeout_s: float) -> Watermarks:
        self._wire.ask()
        return super().watermarks(at, isolation, timeout_s)

    def describe(self, topics: Sequence[str], timeout_s: float) -> Mapping[str, TopicInfo]:
        self._wire.ask()
        return super().describe(topics, timeout_s)

    def delete_records(self, before: Sequence[Position], timeout_s: float) -> None:
        self._wire.ask()
        super().delete_records(before, timeout_s)
        self._wire.touch()


class SimStore(MemoryStore):
    def __init__(self, rows: MemoryRows, wire: Wire) -> None:
        super().__init__(rows)
        self._wire = wire

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        self._wire.write()
        super().write(changes)
        self._wire.touch()


class SimStores(MemoryStores):
    """A disk. ``wire``: of the process that has it."""

    def __init__(self) -> None:
        super().__init__()
        self.wire: Wire | None = None

    def open(self, partition: int) -> MemoryStore:
        assert self.wire is not None
        return SimStore(self.rows_of(partition), self.wire)

    def rows_of(self, partition: int) -> MemoryRows:
        return self._rows.setdefault(partition, MemoryRows())

    @property
    def partitions(self) -> tuple[int, ...]:
        return tuple(sorted(self._rows))
