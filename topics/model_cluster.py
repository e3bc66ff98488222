"""The model's broker: topics, coordinators and a virtual clock. Deterministic and single-threaded.

Nothing here knows real time; randomness is whatever ``random.Random`` the test hands in. Events that are due
(markers under way, transaction and session time-outs) happen inside :meth:`ModelCluster.advance`, in order of
their time. Client calls that block, with a ``timeout_s``, move the clock by themselves as far as they wait;
polls do not: they return with what is there, unless the test gives an ``on_wait`` hook.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from perdure.topics import model_compaction
from perdure.topics.errors import LogMisuse, Unavailable
from perdure.topics.log import Outgoing, Record, TopicInfo, TopicPartition
from perdure.topics.model_codes import Code
from perdure.topics.model_faults import Faults, GroupLog, MarkerTarget
from perdure.topics.model_group import GroupCoordinator
from perdure.topics.model_identity import ProducerIdentity
from perdure.topics.model_partition import NO_PRODUCER, Entry, Marker, ModelPartition
from perdure.topics.model_transaction import TransactionCoordinator
from perdure.topics.table import PRODUCED_BYTES_MAX, TOPIC_BYTES_MAX

OFFSETS_TOPIC = "__consumer_offsets"
RECORD_OVERHEAD_BYTES = 70  # batch and record framing, rounded
OFFSETS_RETENTION_MS = 7 * 86_400_000  # Kafka's default for offsets.retention.minutes
DELETE_RETENTION_MS = 86_400_000  # Kafka's default for delete.retention.ms


@dataclass(slots=True)
class ModelTopic:
    """One incarnation of a topic. ``config`` holds Kafka's own names and string values."""

    topic_id: str
    config: dict[str, str]
    partitions: list[ModelPartition] = field(default_factory=list[ModelPartition])

    def number(self, name: str, default: int) -> int:
        return int(self.config.get(name, default))


class ModelCluster:
    """The cluster that any number of :class:`~perdure.topics.model_log.ModelLog` processes share."""

    def __init__(
        self,
        *,
        now_ms: int = 1_700_000_000_000,
        random: Random | None = None,
        on_wait: Callable[[float], None] | None = None,
    ) -> None:
        self.now_ms = now_ms
        self.random = random
        self.on_wait = on_wait
        self.faults = Faults()
        self.offsets_retention_ms = OFFSETS_RETENTION_MS
        self._topics: dict[str, ModelTopic] = {}
        self._topics_created = 0
        self._producer_ids = 0
        self._members = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._events_scheduled = 0
        self.transactions = TransactionCoordinator(self)
        self.groups = GroupCoordinator(self)
        self.create_topic(OFFSETS_TOPIC, 0, {"cleanup.policy": "compact"})

    # ---- time ----------------------------------------------------------------------------------------------

    def schedule(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Let something happen later."""
        self._events_scheduled += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._events_scheduled, action))

    def advance(self, ms: int) -> None:
        """Move the clock, doing everything that falls due on the way."""
        target = self.now_ms + ms
        while True:
            due = self.next_event_ms()
            if due is None or due > target:
                break
            self.now_ms = max(self.now_ms, due)
            self._settle()
        self.now_ms = max(self.now_ms, target)

    def next_event_ms(self) -> int | None:
        """When something will happen by itself; None: never."""
        event_ms = self._events[0][0] if self._events else None
        due = (event_ms, self.transactions.next_deadline_ms(), self.groups.next_deadline_ms())
        return min((ms for ms in due if ms is not None), default=None)

    def _settle(self) -> None:
        while self._events and self._events[0][0] <= self.now_ms:
            _, _, action = heapq.heappop(self._events)
            action()
        self.transactions.expire()
        self.groups.expire()

    def wait(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Block a client call until ``ready``; moves the clock from event to event, at most ``timeout_s``."""
        deadline = self.now_ms + round(timeout_s * 1000)
        while not ready():
            due = self.next_event_ms()
            if due is None or due > deadline:
                self.advance(max(0, deadline - self.now_ms))
                return ready()
            self.advance(max(0, due - self.now_ms))
        return True

    def time_out(self, timeout_s: float) -> None:
        """Let a client wait for an answer that does not come."""
        self.advance(round(timeout_s * 1000))

    # ---- topics --------------------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> str:
        """Create a topic and return its id. ``config``: Kafka's own names, such as ``cleanup.policy``."""
        if name in self._topics:
            raise LogMisuse(f"Topic {name} exists.")
        self._topics_created += 1
        topic = ModelTopic(f"model-{self._topics_created:04d}", dict(config or {}))
        topic.partitions = [ModelPartition() for _ in range(partitions)]
        self._topics[name] = topic
        self.groups.topics_changed(name)
        return topic.topic_id

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and with it the groups' offsets on it, as Kafka does."""
        del self._topics[name]
        self.groups.topic_deleted(name)
        self.groups.topics_changed(name)

    def recreate_topic(self, name: str) -> str:
        """The same name and configuration, another topic id, empty."""
        old = self._topics[name]
        self.delete_topic(name)
        return self.create_topic(name, len(old.partitions), old.config)

    def topic_info(self, name: str) -> TopicInfo | None:
        topic = self._topics.get(name)
        return None if topic is None else TopicInfo(len(topic.partitions), topic.topic_id)

    def partition_count(self, name: str) -> int:
        topic = self._topics.get(name)
        return 0 if topic is None else len(topic.partitions)

    def find(self, at: TopicPartition) -> ModelPartition | None:
        topic = self._topics.get(at.topic)
        if topic is None or not 0 <= at.partition < len(topic.partitions):
            return None
        return topic.partitions[at.partition]

    def partition(self, at: TopicPartition) -> ModelPartition:
        found = self.find(at)
        if found is None:
            raise Unavailable(f"{at.topic}[{at.partition}] does not exist.")
        return found

    def add_offsets_partition(self) -> ModelPartition:
        """A partition of the offsets topic for one group, so that its markers travel by themselves."""
        partitions = self._topics[OFFSETS_TOPIC].partitions
        partitions.append(ModelPartition())
        return partitions[-1]

    # ---- writing -------------------------------------------------------------------------------------------

    def append(self, out: Outgoing, who: ProducerIdentity | None, created_ms: int) -> tuple[Code, int]:
        """A Produce request for one record; returns its offset."""
        at = TopicPartition(out.topic, out.partition)
        partition = self.find(at)
        if partition is None:
            return Code.UNKNOWN_TOPIC_OR_PARTITION, -1
        topic = self._topics[out.topic]
        if size_of(out) > topic.number("max.message.bytes", TOPIC_BYTES_MAX):
            return Code.MESSAGE_TOO_LARGE, -1
        if out.key is None and topic.config.get("cleanup.policy", "") == "compact":
            return Code.INVALID_RECORD, -1
        if who is not None:
            code = self.transactions.verify(who, at)
            if code is not Code.NONE:
                return code, -1
        append_time = topic.config.get("message.timestamp.type") == "LogAppendTime"
        timestamp_ms = self.now_ms if append_time else created_ms
        producer_id = NO_PRODUCER if who is None else who.producer_id
        return Code.NONE, partition.append(out.key, out.value, out.headers, timestamp_ms, producer_id)

    def write_marker(self, target: MarkerTarget, producer_id: int, marker: Marker) -> None:
        """A marker reaches a partition (whose topic may be gone by now) or a group's offsets."""
        match target:
            case TopicPartition():
                partition = self.find(target)
                if partition is not None:
                    partition.finish(producer_id, marker, self.now_ms)
            case GroupLog(group):
                self.groups.finish(group, producer_id, marker)

    def verify(self, who: ProducerIdentity, target: MarkerTarget) -> Code:
        return self.transactions.verify(who, target)

    def release_markers(self, transactional_id: str | None = None, target: MarkerTarget | None = None) -> int:
        """Let markers that are under way arrive now; returns how many."""
        return self.transactions.release(transactional_id, target)

    def next_producer_id(self) -> int:
        self._producer_ids += 1
        return self._producer_ids

    def next_member_id(self, client_id: str) -> str:
        self._members += 1
        return f"{client_id}-{self._members:08d}"

    # ---- forgetting ----------------------------------------------------------------------------------------

    def compact(self, topic: str, partition: int, upto: int | None = None) -> None:
        """One cleaning pass over the offsets below ``upto`` (None: below the last stable offset)."""
        config = self._topics[topic]
        model_compaction.compact(
            config.partitions[partition],
            upto,
            self.now_ms,
            config.number("delete.retention.ms", DELETE_RETENTION_MS),
            config.number("min.compaction.lag.ms", 0),
        )

    def retain(self, topic: str, partition: int) -> None:
        """Apply ``retention.ms`` (-1: keep), whoever may still want to read what goes."""
        config = self._topics[topic]
        retention_ms = config.number("retention.ms", -1)
        if retention_ms >= 0:
            model_compaction.retain(config.partitions[partition], self.now_ms, retention_ms)

    # ---- looking -------------------------------------------------------------------------------------------

    def stored(self, topic: str, partition: int) -> tuple[Entry, ...]:
        """Everything that occupies an offset, markers and aborted records included."""
        return tuple(self._topics[topic].partitions[partition].entries)

    def visible(self, topic: str, partition: int) -> tuple[Record, ...]:
        """The committed records, as a read_committed reader of the whole partition would see them."""
        found = self._topics[topic].partitions[partition]
        return tuple(
            record_of(TopicPartition(topic, partition), entry)
            for entry in found.entries
            if entry.marker is None and entry.offset not in found.aborted and entry.offset < found.stable_end
        )


def record_of(at: TopicPartition, entry: Entry) -> Record:
    return Record(
        at.topic, at.partition, entry.offset, entry.key, entry.value, entry.headers, entry.timestamp_ms
    )


def size_of(out: Outgoing) -> int:
    """A batch of this one record, in bytes, roughly."""
    payload = len(out.key or b"") + len(out.value or b"")
    return payload + sum(len(name) + len(value) for name, value in out.headers) + RECORD_OVERHEAD_BYTES


def is_producible(out: Outgoing) -> bool:
    """Whether the client takes it at all, whatever the topic says."""
    return size_of(out) <= PRODUCED_BYTES_MAX
