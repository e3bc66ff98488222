"""The Log port: everything perdure asks of Kafka, and nothing more.

Two implementations are held to one contract suite (``tests/contract``): ``topics.kafka_log`` over
confluent-kafka and ``topics.model_log`` in memory, with exact transactional semantics and Kafka's laxness.

Rules that hold for both:

- Reading is always ``read_committed``; ``auto.offset.reset`` is always ``error`` (surfaces as
  :class:`~perdure.topics.errors.OffsetOutOfRange`).
- The partition of every record is chosen by the caller (``topics.partitioner``); the log never picks one.
- All calls on one consumer belong to one thread; listener callbacks run inside :meth:`Consumer.poll`
  or :meth:`Consumer.close`, on that thread.
- Times are seconds when they are waits (``timeout_s``), milliseconds since the epoch when they are instants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias

from perdure.schemas.errors import PerdureError

Headers: TypeAlias = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of one topic (full topic name, namespace included)."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Record:
    """A committed record as read from the log. ``value is None`` is a tombstone."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int

    @property
    def at(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class Eof:
    """The reader stands at the last stable offset: ``offset`` is the next one it would read.

    Reported once each time the end is reached (``enable.partition.eof``), only if asked for in the spec.
    """

    topic: str
    partition: int
    offset: int


Polled: TypeAlias = Record | Eof


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A record to be written to an explicit partition."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Position:
    """Where to start or to go on reading: the next offset to be read, always >= 0."""

    at: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's committed offset; ``offset is None``: none stored. ``metadata``: the free text beside it."""

    at: TopicPartition
    offset: int | None
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """Membership as captured in an assign callback.

    ``native`` is the client's own opaque object, passed back to the same implementation.
    ``generation < 0`` or an empty ``member_id`` is no membership: no transaction may use it.
    """

    group: str
    generation: int
    member_id: str
    native: object = None

    @property
    def is_member(self) -> bool:
        return self.generation >= 0 and self.member_id != ""


class CommitStatus(Enum):
    """What is known about an offset commit."""

    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"  # definite: the coordinator stored nothing of this request
    UNKNOWN = "unknown"  # stored, not stored, or stored later over something newer


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """Result of :meth:`Consumer.commit`; ``reason`` names the broker's error, empty when acknowledged.

    REFUSED is exactly ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, STALE_MEMBER_EPOCH and
    FENCED_MEMBER_EPOCH (design: executor protocol). Everything else that is not an acknowledgement is
    UNKNOWN.
    """

    status: CommitStatus
    reason: str = ""


class GroupProtocol(Enum):
    """How a group assigns partitions."""

    RANGE = "range"  # classic, eager: callbacks carry the whole assignment
    COOPERATIVE = "cooperative-sticky"  # classic, incremental
    CONSUMER = "consumer"  # KIP-848, incremental

    @property
    def incremental(self) -> bool:
        return self is not GroupProtocol.RANGE


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """How to open a consumer.

    ``group is None``: a reader that is assigned by hand and never commits. ``instance_id``: static
    membership. ``eof``: deliver :class:`Eof`. ``commit_retry_backoff_ms``: the client's hidden re-sends of
    a commit come no sooner than this; the executors set it above their lease so that a hidden re-send is
    noticed as late.
    """

    client_id: str
    group: str | None = None
    protocol: GroupProtocol = GroupProtocol.RANGE
    instance_id: str | None = None
    eof: bool = False
    session_timeout_ms: int = 6_000
    heartbeat_interval_ms: int = 1_000
    max_poll_interval_ms: int = 300_000
    queued_records_min: int = 1_000
    fetch_wait_ms: int = 50
    commit_retry_backoff_ms: int = 100


class RebalanceListener(Protocol):
    """What a group member does when its ownership changes.

    RANGE: ``on_assign`` gets the whole assignment and must call :meth:`Consumer.assign` (it may add
    partitions of other topics by hand). Incremental protocols: ``on_assign`` gets the additions and must
    call :meth:`Consumer.incremental_assign`. After ``on_revoke`` (still the owner: may commit) and
    ``on_lost`` (owner no more: must not commit) return, the implementation gives the partitions up by
    itself; with RANGE that is everything assigned, hand-added partitions included.
    """

    def on_assign(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None: ...

    def on_revoke(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None: ...

    def on_lost(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None: ...


class Consumer(Protocol):
    """A reader, alone or as a member of a group. One thread only."""

    def subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        """Join the group; callbacks come from later polls."""
        ...

    def assign(self, positions: Sequence[Position]) -> None:
        """Replace the whole assignment. Also clears pause flags, which in Kafka survive re-assignment."""
        ...

    def incremental_assign(self, positions: Sequence[Position]) -> None: ...

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None: ...

    def poll(self, max_records: int, timeout_s: float) -> list[Polled]:
        """Wait up to ``timeout_s`` for a first item, then take what is there, up to ``max_records``.

        Runs rebalance callbacks. Per partition, offsets ascend. Raises :class:`OffsetOutOfRange`,
        :class:`Fenced` (a static instance id taken over), :class:`ClientFatal`; transient connection
        trouble is not an error, only silence. Items taken before an error are returned first, the error by
        the next call.
        """
        ...

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop delivery. Records already prefetched are thrown away and fetched again after resume."""
        ...

    def resume(self, partitions: Sequence[TopicPartition]) -> None: ...

    def seek(self, position: Position) -> None: ...

    def committed(self, partitions: Sequence[TopicPartition], timeout_s: float) -> list[CommittedOffset]:
        """The group's offsets, require-stable (KIP-447): waits for open transactions, else
        :class:`Unavailable`.
        """
        ...

    def commit(self, offsets: Sequence[CommittedOffset]) -> CommitOutcome:
        """One synchronous OffsetCommit request for all of ``offsets``, metadata included (at most 4,095
        chars each).

        Raises :class:`LogMisuse` for an empty list or an offset that is None or negative.
        """
        ...

    def group_metadata(self) -> GroupMetadata: ...

    def close(self) -> None:
        """Leave the group (``on_revoke`` runs first) and free everything. Idempotent."""
        ...


class TransactionalProducer(Protocol):
    """One transactional.id. Not usable again after :class:`OutcomeUnknown`, :class:`Fenced` or ``close``."""

    def init(self, timeout_s: float) -> None:
        """Fence older holders, finish or abort their transactions. Raises OutcomeUnknown, Fenced."""
        ...

    def begin(self) -> None: ...

    def produce(self, out: Outgoing, *, track: bool = False) -> None:
        """Add a record to the transaction. ``track``: report its offset from :meth:`commit`.

        Raises :class:`RecordTooLarge` or :class:`TransactionAbortable`.
        """
        ...

    def send_offsets(self, offsets: Sequence[Position], group: GroupMetadata, timeout_s: float) -> None:
        """Add consumed offsets. Kafka checks member and generation only if they are set, never ownership,
        and takes an empty list as success: callers assert before they call.

        Raises :class:`TransactionAbortable`, :class:`Fenced`, :class:`OutcomeUnknown`.
        """
        ...

    def commit(self, timeout_s: float) -> Mapping[TopicPartition, int]:
        """Commit; returns the highest tracked offset written per partition.

        Raises :class:`TransactionAbortable` (definitely not committed), :class:`Fenced`,
        :class:`OutcomeUnknown`.
        """
        ...

    def abort(self, timeout_s: float) -> None: ...

    def close(self) -> None:
        """Free the client without finishing an open transaction (the coordinator will time it out)."""
        ...


DeliveryReport: TypeAlias = Callable[[PerdureError | None, int], None]


class Producer(Protocol):
    """An idempotent producer, ``acks=all``. Reports run inside :meth:`poll`, :meth:`flush` of the caller's
    thread.
    """

    def produce(self, out: Outgoing, on_delivery: DeliveryReport | None = None) -> None:
        """Queue a record. ``on_delivery(None, offset)`` means durable; ``(error, -1)`` means not known to
        be.
        """
        ...

    def poll(self, timeout_s: float) -> None: ...

    def flush(self, timeout_s: float) -> int:
        """Wait for all reports; returns how many are still open."""
        ...

    def close(self) -> None: ...


class Isolation(Enum):
    COMMITTED = "read_committed"
    UNCOMMITTED = "read_uncommitted"


@dataclass(frozen=True, slots=True)
class Watermarks:
    """``low``: first offset kept. ``end``: last stable offset (COMMITTED) or high watermark (UNCOMMITTED)."""

    low: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """``topic_id``: the cluster's unique id of this incarnation of the topic (a re-created one differs)."""

    partitions: int
    topic_id: str


class Log(Protocol):
    """A cluster, as a factory of clients and a place to ask."""

    def consumer(self, spec: ConsumerSpec) -> Consumer: ...

    def producer(self, client_id: str) -> Producer: ...

    def transactional(self, transactional_id: str, transaction_timeout_ms: int) -> TransactionalProducer: ...

    def watermarks(self, at: TopicPartition, isolation: Isolation, timeout_s: float) -> Watermarks:
        """Asked of the leader, never from a cache. Raises :class:`Unavailable`."""
        ...

    def describe(self, topics: Sequence[str], timeout_s: float) -> Mapping[str, TopicInfo]:
        """Topics that exist, by name; absent ones are left out. Raises :class:`Unavailable`."""
        ...

    def delete_records(self, before: Sequence[Position], timeout_s: float) -> None:
        """Move the log start of each partition up to ``offset`` (KIP-107). Raises :class:`Unavailable`."""
        ...

    def consumer_protocol(self) -> GroupProtocol:
        """CONSUMER where the cluster supports KIP-848 groups, else COOPERATIVE."""
        ...
