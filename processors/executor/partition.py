"""What this process knows of one partition while it owns it. Holds sets of offsets and does no I/O."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.processors.offset_map import AGES_MAX, OffsetMap, encode
from perdure.topics.log import CommittedOffset, TopicPartition
from perdure.topics.table import DAY_MS


class Partition:
    """One partition during one ownership.

    ``next``: the next offset to be read. ``open``: read and not done. ``started``: claimed by whomever and
    not done, also beyond ``next``. ``tell_at_s``: boot clock from which suspects may be told. ``is_dirty``:
    a commit would say something new. ``is_blocked``: a Lost record is on its way, nothing may be committed
    before it. ``refused``: a record that the map had no room for; reading goes on at ``next``, not behind
    it.
    """

    def __init__(
        self,
        at: TopicPartition,
        topic_id: str,
        base: int,
        known: OffsetMap,
        *,
        tell_at_s: float,
        now_s: float,
    ) -> None:
        self.at = at
        self.next = base
        self.open: set[int] = set()
        self.started = set(known.started)
        self.done = set(known.done)
        self.doubt_below = known.doubt_below
        self.ages = list(known.ages)
        self.deleted_below = 0
        self.tell_at_s = tell_at_s
        self.committed_s = now_s
        self.committed_base = base
        self.is_dirty = False
        self.is_owned = True
        self.is_blocked = False
        self.refused: int | None = None
        self._topic_id = topic_id
        self._suspects = frozenset(known.started)

    @property
    def base(self) -> int:
        """The first request not done."""
        return min(self.open, default=self.next)

    @property
    def span(self) -> int:
        """How many offsets the map would have to cover for what was read."""
        return self.next - self.base

    def fits(self, offset: int, window: int) -> bool:
        """Whether the map could still cover ``offset`` if it were read now."""
        return offset - min(self.open, default=offset) < window

    def take(self, offset: int, timestamp_ms: int) -> bool:
        """Note that the record at ``offset`` was read; False if it is done."""
        assert offset >= self.next, f"{offset} was read before"
        day = timestamp_ms // DAY_MS
        if not self.ages or day > self.ages[-1][0]:
            self.ages.append((day, offset))
            del self.ages[:-AGES_MAX]
        self.next = offset + 1
        if offset in self.done:
            self.is_dirty = True
            return False
        self.open.add(offset)
        return True

    def is_suspect(self, offsets: Iterable[int]) -> bool:
        """Whether an earlier owner may have started a request of these records."""
        return any(offset in self._suspects or offset < self.doubt_below for offset in offsets)

    def start(self, offsets: Iterable[int]) -> None:
        """Set started bits; a commit has to make them durable."""
        self.started.update(offsets)
        self.is_dirty = True

    def unstart(self, offsets: Iterable[int]) -> None:
        """A claim was refused: it is as if it had not been tried."""
        self.started.difference_update(offsets)
        self.is_dirty = True

    def finish(self, offsets: Iterable[int]) -> None:
        """The result is durable."""
        self.started.difference_update(offsets)
        self.open.difference_update(offsets)
        self.done.update(offsets)
        self.is_dirty = True

    def deletable_below(self, now_ms: int, kept_days: int) -> int:
        """Requests below this offset are done, committed, and older than ``kept_days`` days."""
        oldest_kept = now_ms // DAY_MS - kept_days
        began = max((offset for day, offset in self.ages if day <= oldest_kept), default=0)
        return min(began, self.committed_base)

    def snapshot(self) -> CommittedOffset:
        """What to commit: the base, and the map of what lies beyond it."""
        base = self.base
        # Started bits below the base are of records that were deleted before they could be told.
        self.started = {offset for offset in self.started if offset >= base}
        self.done = {offset for offset in self.done if offset >= base}
        known = OffsetMap(frozenset(self.started), frozenset(self.done), self.doubt_below, tuple(self.ages))
        return CommittedOffset(self.at, base, encode(base, known, self._topic_id))
