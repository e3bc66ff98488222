"""One partition of the model log: records and control markers, each at an offset of its own.

Words: the *end* (high watermark, there is one replica) is the next offset to be written; the *last stable
offset* is the first offset of the oldest open transaction, or the end. Offsets never come back, whatever
compaction, retention or aborted transactions do to what stood there (KIP-98, KIP-534).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from perdure.topics.log import Headers, Isolation

NO_PRODUCER = -1


class Marker(Enum):
    """A control record: how a transaction ended."""

    COMMIT = "commit"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Entry:
    """What occupies one offset. ``delete_after_ms``: set by the first compaction that could drop it later."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    producer_id: int = NO_PRODUCER
    marker: Marker | None = None
    delete_after_ms: int | None = None

    @property
    def transactional(self) -> bool:
        return self.producer_id != NO_PRODUCER


@dataclass(frozen=True, slots=True)
class Fetched:
    """``next_offset``: where the fetch position stands then, beyond invisible offsets and markers."""

    entries: tuple[Entry, ...]
    next_offset: int


class ModelPartition:
    """Storage of one partition; no opinion about who may write to it."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.start = 0
        self.end = 0
        self.aborted: set[int] = set()
        self._open: dict[int, int] = {}  # producer id -> first offset of its open transaction here

    @property
    def stable_end(self) -> int:
        """The last stable offset."""
        return max(self.start, min(self._open.values(), default=self.end))

    def end_for(self, isolation: Isolation) -> int:
        return self.stable_end if isolation is Isolation.COMMITTED else self.end

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        producer_id: int = NO_PRODUCER,
    ) -> int:
        """Write a record; with a ``producer_id`` it belongs to that producer's open transaction."""
        offset = self.end
        self.entries.append(Entry(offset, key, value, headers, timestamp_ms, producer_id))
        self.end += 1
        if producer_id != NO_PRODUCER:
            self._open.setdefault(producer_id, offset)
        return offset

    def finish(self, producer_id: int, marker: Marker, timestamp_ms: int) -> None:
        """Write a marker. It takes an offset even where no record of the transaction ever arrived."""
        first = self._open.pop(producer_id, None)
        if marker is Marker.ABORT and first is not None:
            for entry in self._since(first):
                if entry.producer_id == producer_id and entry.marker is None:
                    self.aborted.add(entry.offset)
        self.entries.append(Entry(self.end, None, None, (), timestamp_ms, producer_id, marker))
        self.end += 1

    def in_range(self, offset: int) -> bool:
        """Whether a fetch at ``offset`` is answered; the end itself is (with nothing)."""
        return self.start <= offset <= self.end

    def fetch(self, offset: int, isolation: Isolation, records_max: int) -> Fetched:
        """Visible records from ``offset`` on, at most ``records_max``."""
        limit = self.end_for(isolation)
        found: list[Entry] = []
        for entry in self._since(offset):
            if entry.offset >= limit:
                break
            if len(found) == records_max:
                return Fetched(tuple(found), found[-1].offset + 1)
            if entry.marker is None and (
                isolation is Isolation.UNCOMMITTED or entry.offset not in self.aborted
            ):
                found.append(entry)
        return Fetched(tuple(found), max(offset, limit))

    def open_producers(self) -> Iterable[int]:
        """Producer ids with an open transaction here (DescribeProducers)."""
        return tuple(self._open)

    def trim(self, before: int) -> None:
        """Move the log start up to ``before`` (DeleteRecords, retention); never beyond the end or back."""
        self.start = max(self.start, min(before, self.end))
        self.entries = list(self._since(self.start))
        self.aborted = {offset for offset in self.aborted if offset >= self.start}

    def keep(self, entries: list[Entry]) -> None:
        """Replace what is stored by what compaction left of it; offsets and watermarks stay."""
        kept = {entry.offset for entry in entries}
        self.entries = entries
        self.aborted &= kept

    def _since(self, offset: int) -> Iterator[Entry]:
        first = bisect_left(self.entries, offset, key=lambda entry: entry.offset)
        return (self.entries[index] for index in range(first, len(self.entries)))
