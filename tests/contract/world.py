"""The stage on which one contract is played by two logs: what a test may do besides calling the port.

A test never sleeps. It waits for a condition with :meth:`World.until`: real time passes on Kafka, virtual
time in the model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias, TypeVar

from perdure.topics.log import (
    Consumer,
    ConsumerSpec,
    Eof,
    GroupMetadata,
    GroupProtocol,
    Log,
    Outgoing,
    Polled,
    Position,
    Producer,
    Record,
    TopicPartition,
    TransactionalProducer,
)
from perdure.topics.model_faults import Api, Fate

T = TypeVar("T")

TIMEOUT_S = 20.0  # for calls that should succeed
POLL_S = 0.05
TRANSACTION_TIMEOUT_MS = 60_000

Happening: TypeAlias = Literal["assign", "revoke", "lost"]


class Owner:
    """A listener that takes what it is given, from the committed offset or from the start, and remembers.

    ``beside``: topics whose partitions are added by hand for each partition assigned (eager protocol only).
    """

    def __init__(self, protocol: GroupProtocol = GroupProtocol.RANGE, beside: Sequence[str] = ()) -> None:
        self.heard: list[tuple[Happening, tuple[TopicPartition, ...]]] = []
        self.owned: set[TopicPartition] = set()
        self.metadata: GroupMetadata | None = None
        self.on_revoked: Callable[[Consumer], None] | None = None
        self._protocol = protocol
        self._beside = tuple(beside)

    @property
    def member(self) -> GroupMetadata:
        assert self.metadata is not None, "not assigned yet"
        return self.metadata

    def times(self, happening: Happening) -> int:
        return sum(1 for kind, _ in self.heard if kind == happening)

    def on_assign(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None:
        self.heard.append(("assign", partitions))
        self.metadata = consumer.group_metadata()
        added = [TopicPartition(topic, at.partition) for topic in self._beside for at in partitions]
        positions = positions_of(consumer, [*partitions, *added])
        if self._protocol.incremental:
            self.owned |= set(partitions)
            consumer.incremental_assign(positions)
        else:
            self.owned = set(partitions)
            consumer.assign(positions)

    def on_revoke(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None:
        self.heard.append(("revoke", partitions))
        if self.on_revoked is not None:
            self.on_revoked(consumer)
        self._forget(partitions)

    def on_lost(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None:
        self.heard.append(("lost", partitions))
        self._forget(partitions)

    def _forget(self, partitions: tuple[TopicPartition, ...]) -> None:
        self.owned = self.owned - set(partitions) if self._protocol.incremental else set()


def positions_of(consumer: Consumer, partitions: Sequence[TopicPartition]) -> list[Position]:
    found = consumer.committed(partitions, TIMEOUT_S) if partitions else []
    return [Position(each.at, each.offset if each.offset is not None else 0) for each in found]


class Remote(ABC):
    """A group member in a process of its own."""

    @abstractmethod
    def owned(self) -> set[TopicPartition]:
        """What it was last assigned."""

    @abstractmethod
    def kill(self) -> None:
        """Kill -9."""


class World(ABC):
    """One cluster, fresh names, and a hand on time and fate."""

    log: Log

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._open: list[Consumer | Producer | TransactionalProducer] = []

    # ---- what differs between the logs

    @abstractmethod
    def until(self, condition: Callable[[], T], timeout_s: float = 30.0) -> T:
        """Ask until the answer is true; that answer. Fails when the time is over."""

    @abstractmethod
    def create_topic(self, topic: str, partitions: int, config: dict[str, str]) -> None: ...

    @abstractmethod
    def recreate(self, topic: str) -> None:
        """Delete the topic and create it again."""

    @abstractmethod
    def remote(self, spec: ConsumerSpec, topics: Sequence[str]) -> Remote:
        """Start a member elsewhere. It is polled by whoever waits for it."""

    @abstractmethod
    def evict(self, group: str, member_id: str) -> None:
        """Let the coordinator remove a member of a classic group that does not know yet."""

    @abstractmethod
    def kill(self, client: Producer | TransactionalProducer) -> None:
        """End a client as if its process had been killed."""

    @abstractmethod
    def inject(self, api: Api, who: str, fate: Fate) -> None:
        """Let the next request of a client of :attr:`faulty` meet a fate."""

    @abstractmethod
    def release(self) -> int:
        """Let held frames arrive; returns how many there were."""

    @property
    @abstractmethod
    def faulty(self) -> Log:
        """The same cluster through a network that :meth:`inject` can disturb."""

    # ---- what is the same

    def name(self, base: str) -> str:
        return f"{self._namespace}.{base}"

    def topic(self, base: str = "topic", partitions: int = 1, **config: str) -> str:
        """Create a topic; ``config`` with underscores for dots. Returns its full name."""
        topic = self.name(base)
        self.create_topic(topic, partitions, {key.replace("_", "."): value for key, value in config.items()})
        return topic

    def consumer(self, spec: ConsumerSpec, log: Log | None = None) -> Consumer:
        consumer = (log or self.log).consumer(spec)
        self._open.append(consumer)
        return consumer

    def member(
        self, owner: Owner, topics: Sequence[str], spec: ConsumerSpec, log: Log | None = None
    ) -> Consumer:
        consumer = self.consumer(spec, log)
        consumer.subscribe(topics, owner)
        return consumer

    def reader(self, *positions: Position, eof: bool = True) -> Consumer:
        consumer = self.consumer(ConsumerSpec(self.name("reader"), eof=eof))
        consumer.assign(positions)
        return consumer

    def consumer_without_assignment(self) -> Consumer:
        return self.consumer(ConsumerSpec(self.name("reader"), eof=True))

    def lone_committer(self, group: str = "group") -> Consumer:
        """A consumer that names a group and never joins it, as tools do."""
        return self.consumer(ConsumerSpec(self.name("committer"), group=self.name(group)))

    def producer(self, base: str = "producer", log: Log | None = None) -> Producer:
        producer = (log or self.log).producer(self.name(base))
        self._open.append(producer)
        return producer

    def transactional(
        self,
        base: str = "slot-0",
        *,
        timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        init: bool = True,
        log: Log | None = None,
    ) -> TransactionalProducer:
        producer = (log or self.log).transactional(self.name(base), timeout_ms)
        self._open.append(producer)
        if init:
            producer.init(TIMEOUT_S)
        return producer

    def write(self, topic: str, *values: bytes, partition: int = 0) -> list[int]:
        """Write plain records, outside of any transaction; their offsets."""
        producer = self.producer("writer")
        offsets: list[int] = []

        def report(error: Exception | None, offset: int) -> None:
            assert error is None
            offsets.append(offset)

        for value in values:
            producer.produce(Outgoing(topic, partition, b"key", value), report)
        assert producer.flush(TIMEOUT_S) == 0
        return offsets

    def write_transaction(self, producer: TransactionalProducer, topic: str, *values: bytes) -> None:
        producer.begin()
        for value in values:
            producer.produce(Outgoing(topic, 0, b"key", value))
        producer.commit(TIMEOUT_S)

    def read(self, consumer: Consumer, records: int) -> list[Record]:
        """Poll until so many records have come; fails if more come at once."""
        found: list[Record] = []

        def enough() -> bool:
            found.extend(records_of(consumer.poll(100, POLL_S)))
            return len(found) >= records

        self.until(enough)
        assert len(found) == records, values_of(found)
        return found

    def read_to_end(self, consumer: Consumer) -> tuple[list[Record], int]:
        """Poll one partition until nothing follows its end; the records before it and its offset."""
        found: list[Polled] = []

        def ended() -> bool:
            found.extend(consumer.poll(100, POLL_S))
            return bool(found) and isinstance(found[-1], Eof)

        self.until(ended)
        return records_of(found), found[-1].offset

    def read_all(self, topic: str, partition: int = 0) -> tuple[list[bytes | None], int]:
        """What a new reader sees from offset 0 to the end: values, and the end's offset."""
        reader = self.reader(Position(TopicPartition(topic, partition), 0))
        records, end = self.read_to_end(reader)
        reader.close()
        return values_of(records), end

    def poll_all(self, consumers: Iterable[Consumer], until: Callable[[], T]) -> T:
        """Poll several members, as their processes would, until something holds."""

        def step() -> T:
            for consumer in consumers:
                consumer.poll(100, POLL_S)
            return until()

        return self.until(step)

    def close(self) -> None:
        for client in reversed(self._open):
            client.close()


def records_of(items: Iterable[Polled]) -> list[Record]:
    return [item for item in items if isinstance(item, Record)]


def values_of(records: Iterable[Record]) -> list[bytes | None]:
    return [record.value for record in records]
