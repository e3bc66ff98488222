"""Purges: which ended runs are forgotten now, a bounded number of records at a time.

1. ``RunPurged``, which says nothing but that the run was there. It stays, so that its id is never used again.
2. Tombstones for the events before it, from the last to the first: what is left of a history is always a
   beginning, whatever compaction has done so far.
3. Before the first event goes, the blobs of its family, if the run is its root (``forgetting``).
4. With the tombstone of the first event, in its transaction, those for the run's other topics.

Everything follows from run-events: a process that takes over in between goes on where the rows say, or
begins with the tombstones again where they were lost. Nothing of run-approvals is left of a run that ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from perdure.processors.machine.inputs import MachineSettings
from perdure.processors.orchestrator.forgetting import Forgetter
from perdure.processors.store_fold import purge_event
from perdure.processors.store_overlay import Overlay
from perdure.processors.store_rows import ENDED, end_of, timed_from, timed_key
from perdure.schemas.keys import FAMILY_MARK, EventKey
from perdure.topics.log import Outgoing
from perdure.topics.table import (
    RUN_COMMANDS,
    RUN_EVENTS,
    RUN_OUTCOMES,
    RUN_SIGNALS,
    RUN_STATUS,
    Namespace,
)

LOOK_INTERVAL_MS: Final = 3_600_000
"""How often it is looked for runs to purge, at least; how soon one that was needed is looked at again."""
LOOK_INTERVAL_MS_MIN: Final = 1_000
BLOBS_WAIT_MS: Final = 250
KEYED_BY_RUN: Final = (RUN_STATUS, RUN_OUTCOMES, RUN_SIGNALS, RUN_COMMANDS)


class Purges:
    """What is to be purged in one partition. ``look_ms``: when to look next, without any input."""

    def __init__(self, settings: MachineSettings) -> None:
        self._kept_ms = settings.finished_runs_retention_ms
        self._from = ENDED
        self.look_ms = 0

    def due(self, rows: Overlay, now_ms: int, limit: int) -> list[str]:
        """The next runs whose time has come, oldest end first; each is told once an interval."""
        before = self._before(now_ms)
        found = list(rows.scan(self._from, before, limit)) if self._from < before else []
        if found:
            self._from = found[-1][0] + b"\0"
        else:
            self._put_off(rows, now_ms)
        return [timed_from(key)[1] for key, _ in found]

    def wait(self, now_ms: int) -> None:
        """Purges were begun and can not go on yet."""
        self.look_ms = now_ms + BLOBS_WAIT_MS

    def find(self, rows: Overlay, now_ms: int) -> None:
        """Put the next look off, if it has come and there is nothing to do."""
        if self.look_ms > now_ms or rows.purging(1):
            return
        before = self._before(now_ms)
        if self._from >= before or not rows.scan(self._from, before, 1):
            self._put_off(rows, now_ms)

    def _before(self, now_ms: int) -> bytes:
        return timed_key(ENDED, max(0, now_ms - self._kept_ms + 1))

    def _put_off(self, rows: Overlay, now_ms: int) -> None:
        self._from = ENDED
        # What ends from now on is not due sooner than this.
        self.look_ms = now_ms + max(LOOK_INTERVAL_MS_MIN, min(LOOK_INTERVAL_MS, self._kept_ms))
        following = rows.scan(self._before(now_ms), end_of(ENDED), 1)
        if following:
            self.look_ms = min(self.look_ms, timed_from(following[0][0])[0] + self._kept_ms)


def tombstones(
    overlay: Overlay, names: Namespace, partition: int, limit: int, forgetter: Forgetter
) -> Iterator[tuple[Outgoing, bool]]:
    """The next tombstones of purges that were begun (record, whether it is of run-events), and the change
    of rows they stand for. None, though there are purges: they wait for the blob store.
    """
    for run_id, newest in overlay.purging(limit):
        for seq in range(newest, max(0, newest - limit), -1):
            if seq == 1 and FAMILY_MARK not in run_id and not forgetter.is_forgotten(run_id):
                break
            limit -= 1
            purge_event(overlay, run_id, seq)
            key = str(EventKey(run_id, seq)).encode()
            yield Outgoing(names.topic(RUN_EVENTS), partition, key, None), True
            if seq == 1:
                for topic in KEYED_BY_RUN:
                    yield Outgoing(names.topic(topic), partition, run_id.encode(), None), False
        if limit <= 0:
            return
