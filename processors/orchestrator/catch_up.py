"""Timers wait for what lay unread at take-over: a decision or a result that came in time must not lose to a
timer that is only overdue because nobody was there.
"""

from __future__ import annotations

from collections.abc import Mapping

from perdure.processors.clock import Clock
from perdure.topics.log import Record, TopicPartition


class CatchUp:
    """Done once every input was read to where it ended at take-over, or has been silent for ``quiet_s``.

    The silence is for ends that no record stands before: transaction markers and aborted records use
    offsets, too.
    """

    def __init__(self, ends: Mapping[TopicPartition, int], clock: Clock, quiet_s: float) -> None:
        self._ends = dict(ends)
        self._clock = clock
        self._quiet_s = quiet_s
        self._heard_s = clock.boot_s()

    def begin(self) -> None:
        """Reading begins now."""
        self._heard_s = self._clock.boot_s()

    def note(self, record: Record) -> None:
        """A record was handled."""
        if not self._ends:
            return
        self._heard_s = self._clock.boot_s()
        if record.offset + 1 >= self._ends.get(record.at, 0):
            self._ends.pop(record.at, None)

    @property
    def left_s(self) -> float:
        """Seconds for which timers wait at most if nothing more is heard; 0: they do not wait."""
        if self._ends and self._clock.boot_s() - self._heard_s >= self._quiet_s:
            self._ends.clear()
        return self._heard_s + self._quiet_s - self._clock.boot_s() if self._ends else 0.0
