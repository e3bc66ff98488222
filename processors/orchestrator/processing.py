"""The work on one assignment: batches out of the backlog, their commits, and what follows when one is
aborted.

An aborted batch is not read again: its records are kept and handled once more. (A client may deliver what
it had prefetched before a seek; what was kept can not be out of order.)
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from perdure.processors.clock import Clock
from perdure.processors.crash_points import crash_point
from perdure.processors.orchestrator.assignment import Assignment
from perdure.processors.orchestrator.batch import Batch, Means
from perdure.processors.orchestrator.suspicion import Suspicion, Verdict
from perdure.processors.orchestrator.transaction import abort_transaction, commit_transaction
from perdure.processors.watchdog import Watchdog
from perdure.schemas.errors import PerdureError
from perdure.topics.errors import RecordTooLarge, TransactionAbortable
from perdure.topics.log import Record

NOT_COMMITTED: Final = (TransactionAbortable, RecordTooLarge)
"""What leaves the producer alive and its transaction open, to be aborted."""

_log = logging.getLogger(__name__)


class Processing:
    """Lives as long as its assignment. ``counts`` outlives it."""

    def __init__(
        self, assignment: Assignment, means: Means, clock: Clock, watchdog: Watchdog, counts: Counter[str]
    ) -> None:
        self.assignment = assignment
        self._means = means
        self._settings = means.settings
        self._clock = clock
        self._watchdog = watchdog
        self._counts = counts
        self._backlog: list[Record] = []
        self._suspicion = Suspicion(means.settings)
        self._committed_s: dict[int, float] = {}

    @property
    def backlog(self) -> int:
        """How many inputs were taken and not handled yet."""
        return len(self._backlog)

    def take(self, record: Record) -> bool:
        """Keep a record until it is handled; False if it is not ours or was taken before.

        Nothing that a client delivers is dropped, also if it slips through a pause: it would not come again.
        """
        if not self.assignment.offsets.take(record):
            return False
        self._backlog.append(record)
        return True

    def start_over(self) -> None:
        """The assignment starts over: what was taken will be read again."""
        self._backlog = []

    def process(self) -> bool:
        """One batch, if there is anything to do. Raises one of ``NOT_COMMITTED`` after it was aborted."""
        owned = self.assignment.owned
        size = self._suspicion.size
        records = [each for each in self._backlog if owned[each.partition].is_ready][:size]
        batch = Batch(self._means, owned, is_careful=size is not None)
        for record in records:
            batch.add_record(record)
        if size is None:
            batch.add_timers(self._settings.batch_timers_max)
        elif not records:
            batch.add_timers(size)
        if not batch.parts:
            return False
        try:
            self._commit(batch, records)
        except NOT_COMMITTED as error:
            self._counts["aborts"] += 1
            self._abort()
            self._suspect(batch, records, error)
            raise
        self._suspicion.committed()
        return True

    def refresh_offsets(self) -> None:
        """Commit the offsets of partitions in which nothing has happened for long, lest they expire."""
        now_s, idle_s = self._clock.boot_s(), self._settings.offsets_refresh_ms / 1_000
        batch = Batch(self._means, self.assignment.owned, is_careful=True)
        for partition in self.assignment.owned:
            if self._committed_s.setdefault(partition, now_s) + idle_s <= now_s:
                batch.part(partition)
        if batch.parts:
            self._commit_alone(batch, [])

    # ---- inside

    def _commit(self, batch: Batch, records: list[Record]) -> None:
        assignment = self.assignment
        moved = assignment.offsets.after(records)
        offsets = assignment.offsets.positions(set(batch.parts), moved)
        tracked = commit_transaction(
            assignment.producer, assignment.group, offsets, batch.outgoing, self._settings, self._watchdog
        )
        assignment.offsets.advance(moved)
        handled = set(map(id, records))
        self._backlog = [each for each in self._backlog if id(each) not in handled]
        self._committed_s.update(dict.fromkeys(batch.parts, self._clock.boot_s()))
        self._counts.update(batch.counts)
        self._counts["transactions"] += 1
        self._counts["inputs"] += len(records)
        batch.write(tracked)
        crash_point("orchestrator.after_store")

    def _abort(self) -> None:
        abort_transaction(self.assignment.producer, self._settings, self._watchdog)

    def _suspect(self, batch: Batch, records: list[Record], error: PerdureError) -> None:
        """Find the input at fault, if one is."""
        match self._suspicion.aborted(len(records) or len(batch.timers)):
            case Verdict.AGAIN:
                return
            case Verdict.PROBE:
                probe = Batch(self._means, self.assignment.owned, is_careful=True)
                probe.part(next(iter(batch.parts)))
                if self._commit_alone(probe, []):
                    self._suspicion.probed()
            case Verdict.CONDEMN if records:
                self._condemn(records[0], error)
            case Verdict.CONDEMN:
                self._penalise(batch, error)

    def _condemn(self, record: Record, error: PerdureError) -> None:
        """The one input at fault goes to dead-letters, in a transaction of its own."""
        # A refused record leaves a gap in the producer's sequence, which costs the next transaction too.
        for _ in range(self._settings.condemn_tries_max):
            alone = Batch(self._means, self.assignment.owned, is_careful=True)
            alone.set_aside(record, "transaction_refused", str(error))
            if self._commit_alone(alone, [record]):
                self._suspicion.committed()
                return

    def _penalise(self, batch: Batch, error: PerdureError) -> None:
        """A timer has no record to set aside: its run rests."""
        for partition, run_id in batch.timers:
            owned = self.assignment.owned[partition]
            owned.penalise(run_id, owned.now_ms())
            owned.find_next_due()
            _log.error(
                "the timer of run %s can not be committed: %s",
                run_id,
                error,
                extra={"action": "timer_failed", "run_id": run_id},
            )
        self._suspicion.committed()

    def _commit_alone(self, batch: Batch, records: list[Record]) -> bool:
        try:
            self._commit(batch, records)
        except NOT_COMMITTED:
            self._abort()
            return False
        return True
