"""A group's committed offsets: stable ones, and those that wait for their transaction's marker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perdure.topics.log import TopicPartition
from perdure.topics.model_partition import Marker, ModelPartition


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """``log_offset``: where the commit stands in the offsets topic; later wins, whenever its marker came."""

    offset: int
    metadata: str
    committed_ms: int
    log_offset: int


class GroupOffsets:
    """Offsets of one group, and the partition of ``__consumer_offsets`` they are written to."""

    def __init__(self, group: str, log: ModelPartition) -> None:
        self._group = group
        self._log = log
        self._stable: dict[TopicPartition, StoredOffset] = {}
        self._pending: dict[int, dict[TopicPartition, StoredOffset]] = {}

    def get(self, at: TopicPartition) -> StoredOffset | None:
        return self._stable.get(at)

    @property
    def oldest_ms(self) -> int | None:
        """When the offset was committed that has not been for longest."""
        return min((each.committed_ms for each in self._stable.values()), default=None)

    def is_unstable(self, at: TopicPartition) -> bool:
        """Whether an open or undelivered transaction holds an offset for this partition (KIP-447)."""
        return any(at in offsets for offsets in self._pending.values())

    def commit(self, at: TopicPartition, offset: int, metadata: str, now_ms: int) -> None:
        log_offset = self._log.append(self._key(at), b"%d" % offset, (), now_ms)
        self._stable[at] = StoredOffset(offset, metadata, now_ms, log_offset)

    def commit_pending(self, producer_id: int, at: TopicPartition, offset: int, now_ms: int) -> None:
        log_offset = self._log.append(self._key(at), b"%d" % offset, (), now_ms, producer_id)
        self._pending.setdefault(producer_id, {})[at] = StoredOffset(offset, "", now_ms, log_offset)

    def finish(self, producer_id: int, marker: Marker, now_ms: int) -> None:
        """The transaction's marker arrives: its offsets become stable, or vanish."""
        self._log.finish(producer_id, marker, now_ms)
        ended = self._pending.pop(producer_id, {})
        if marker is Marker.COMMIT:
            for at, stored in ended.items():
                current = self._stable.get(at)
                if current is None or current.log_offset < stored.log_offset:
                    self._stable[at] = stored

    def forget_topic(self, topic: str) -> None:
        self._stable = {at: stored for at, stored in self._stable.items() if at.topic != topic}
        for offsets in self._pending.values():
            for at in [at for at in offsets if at.topic == topic]:
                del offsets[at]

    def expire(self, is_expired: Callable[[TopicPartition, StoredOffset], bool]) -> None:
        """Drop what is too old; partitions with an offset in an open transaction are left alone."""
        for at, stored in list(self._stable.items()):
            if is_expired(at, stored) and not self.is_unstable(at):
                del self._stable[at]
                self._log.append(self._key(at), None, (), stored.committed_ms)

    def _key(self, at: TopicPartition) -> bytes:
        return f"{self._group}/{at.topic}/{at.partition}".encode()
