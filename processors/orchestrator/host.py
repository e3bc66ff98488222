"""The orchestrator's host: poll, batch, decide, commit, follow. One step at a time, no threads, no sleeps.

Owning partition p of run-commands is owning the runs of partition p: run-results p is added by hand, so
that no assignor can hand the two to different members. A transaction is never open between two polls.

An aborted batch is not read again: its records are kept and handled once more. (A client may deliver what
it had prefetched before a seek; what was kept can not be out of order.)
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

from perdure.processors.clock import Clock, Entropy
from perdure.processors.definitions import Definitions
from perdure.processors.orchestrator.assignment import Assignment, Phase
from perdure.processors.orchestrator.batch import Batch, Means
from perdure.processors.orchestrator.retention import delete_consumed
from perdure.processors.orchestrator.settings import OrchestratorSettings
from perdure.processors.orchestrator.suspicion import Suspicion, Verdict
from perdure.processors.orchestrator.transaction import commit_transaction
from perdure.processors.store import StoreBroken, StoreFactory
from perdure.processors.watchdog import NoWatchdog, Watchdog
from perdure.schemas.errors import PerdureError, Retry, Stop
from perdure.topics.errors import (
    Fenced,
    OffsetOutOfRange,
    OutcomeUnknown,
    RecordTooLarge,
    TransactionAbortable,
    Unavailable,
)
from perdure.topics.log import Consumer, ConsumerSpec, GroupProtocol, Log, Record, TopicPartition
from perdure.topics.table import RUN_COMMANDS

BACKOFF_DOUBLINGS_MAX: Final = 16
NOT_COMMITTED: Final = (TransactionAbortable, RecordTooLarge)
"""What leaves the producer alive and its transaction open, to be aborted."""

_log = logging.getLogger(__name__)


class SlotTaken(Stop):
    """Another process runs with this slot."""

    code = "slot_taken"
    remedy = "Give every process a slot of its own, and end this one."


class Orchestrator:
    """Owns some partitions of the runs and moves them on.

    Call :meth:`step` again and again from one thread, then :meth:`close`. Raises only ``Stop`` errors.
    """

    def __init__(
        self,
        log: Log,
        stores: StoreFactory,
        clock: Clock,
        entropy: Entropy,
        definitions: Definitions,
        settings: OrchestratorSettings,
        watchdog: Watchdog | None = None,
    ) -> None:
        self._log = log
        self._stores = stores
        self._clock = clock
        self._definitions = definitions
        self._settings = settings
        self._watchdog = watchdog if watchdog is not None else NoWatchdog()
        self._means = Means(settings, definitions, entropy)
        self._consumer: Consumer | None = None
        self._assignment: Assignment | None = None
        self._backlog: list[Record] = []
        self._suspicion = Suspicion(settings)
        self._failures = 0
        self._rest_until_s = 0.0
        self._must_rejoin = False
        self._next_duties_s = 0.0
        self._next_deletion_s = clock.boot_s() + settings.deletion_interval_ms / 1_000
        self._refreshed_s: dict[int, float] = {}
        self.counts: Counter[str] = Counter()

    # ---- what others may see

    @property
    def owned_partitions(self) -> tuple[int, ...]:
        return self._assignment.partitions if self._assignment is not None else ()

    @property
    def ready_partitions(self) -> tuple[int, ...]:
        """Those that are restored and processed."""
        if self._assignment is None:
            return ()
        return tuple(p for p, owned in self._assignment.owned.items() if owned.is_ready)

    @property
    def phase(self) -> Phase | None:
        return self._assignment.phase if self._assignment is not None else None

    # ---- the loop

    def step(self) -> bool:
        """One poll and what follows from it. Whether anything was done."""
        consumer = self._consumer if self._consumer is not None else self._join()
        did = self._poll(consumer)
        if self._must_rejoin:
            self._leave()
            return True
        self._definitions.refresh()
        if self._rests():
            return did
        try:
            did = self._advance() or did
            did = self._process() or did
            self._duties()
        except Retry as error:
            self._rest("asked_again", error)
        except (OutcomeUnknown, StoreBroken, OffsetOutOfRange) as error:
            self._start_over(error)
        except Fenced as error:
            self._lose(error)
        return did

    def close(self) -> None:
        """Leave. What is in the log stays; the rows are kept. Idempotent."""
        self._drop()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    # ---- membership; the callbacks run inside poll and close

    def on_assign(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None:
        """Only note what is ours. Nothing is read before the committed offsets are known."""
        self._drop()
        group = consumer.group_metadata()
        numbers = tuple(sorted(at.partition for at in partitions))
        consumer.assign(())
        if not group.is_member:
            self._must_rejoin = True
            return
        self._assignment = Assignment(
            self._log, consumer, numbers, group, self._stores, self._clock, self._settings, self._watchdog
        )
        _log.info(
            "assigned partitions %s",
            numbers,
            extra={"action": "assigned", "partitions": numbers, "generation": group.generation},
        )

    def on_revoke(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None:  # noqa: ARG002
        self._gone("revoked", partitions)

    def on_lost(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None:  # noqa: ARG002
        self._gone("lost", partitions)

    def _gone(self, action: str, partitions: tuple[TopicPartition, ...]) -> None:
        numbers = tuple(sorted(at.partition for at in partitions))
        _log.info("%s partitions %s", action, numbers, extra={"action": action, "partitions": numbers})
        self._drop()

    def _drop(self) -> None:
        """Forget the assignment and everything that was read under it."""
        assignment, self._assignment = self._assignment, None
        self._backlog = []
        self._suspicion = Suspicion(self._settings)
        if assignment is not None:
            assignment.close()

    def _join(self) -> Consumer:
        settings = self._settings
        consumer = self._log.consumer(
            ConsumerSpec(
                settings.client_id("inputs"),
                group=settings.group,
                protocol=GroupProtocol.RANGE,
                instance_id=settings.instance_id,
                session_timeout_ms=settings.session_timeout_ms,
                heartbeat_interval_ms=settings.heartbeat_interval_ms,
                max_poll_interval_ms=settings.max_poll_interval_ms,
            )
        )
        self._consumer = consumer
        consumer.subscribe([settings.namespace.topic(RUN_COMMANDS)], self)
        return consumer

    def _leave(self) -> None:
        """Become a new member: the old membership is worth nothing."""
        self._must_rejoin = False
        self._drop()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    # ---- reading

    def _poll(self, consumer: Consumer) -> bool:
        settings = self._settings
        room = settings.batch_inputs_max - len(self._backlog)
        try:
            # With a full backlog one more is taken all the same: polling is what keeps us a member.
            taken = self._take(consumer, max(1, room), self._wait_s())
            if settings.batch_busy_inputs <= taken < room:
                self._take(consumer, room - taken, settings.batch_wait_ms_max / 1_000)
        except Fenced as error:
            raise SlotTaken(str(error)) from error
        except OffsetOutOfRange as error:
            self._start_over(error)
            return True
        return taken > 0

    def _take(self, consumer: Consumer, limit: int, wait_s: float) -> int:
        """Add what is ours and new to the backlog; how many there were.

        Nothing that a client delivers is dropped, also if it slips through a pause: it would not come again.
        """
        items = consumer.poll(limit, wait_s)
        assignment = self._assignment
        taken = 0
        for item in items:
            if not isinstance(item, Record) or assignment is None:
                continue
            if assignment.offsets.take(item):
                self._backlog.append(item)
                taken += 1
        return taken

    def _wait_s(self) -> float:
        """How long a poll may wait: not past the next due timer, and hardly while there is other work."""
        if self._rest_until_s > self._clock.boot_s():
            return min(self._settings.poll_wait_ms_max / 1_000, self._rest_until_s - self._clock.boot_s())
        wait_ms = self._settings.poll_wait_ms_max
        assignment = self._assignment
        if assignment is not None:
            if assignment.is_settled and self._backlog:
                return 0.0
            if not assignment.is_settled:
                wait_ms = self._settings.restore_wait_ms if assignment.phase is Phase.RESTORE else 0
            for owned in assignment.owned.values():
                if owned.is_ready and owned.next_due_ms is not None:
                    wait_ms = min(wait_ms, owned.next_due_ms - owned.now_ms())
        return max(0, wait_ms) / 1_000

    # ---- working

    def _advance(self) -> bool:
        """The next step of the assignment, if it is not settled."""
        if self._assignment is None or self._assignment.is_settled:
            return False
        did = self._assignment.advance()
        if self._assignment.phase is Phase.PROCESS:
            self._failures = 0
        return did

    def _process(self) -> bool:
        """One batch, if there is anything to do."""
        assignment = self._assignment
        if assignment is None or not any(owned.is_ready for owned in assignment.owned.values()):
            return False
        size = self._suspicion.size
        records = [each for each in self._backlog if assignment.owned[each.partition].is_ready][:size]
        batch = Batch(self._means, assignment.owned, is_careful=size is not None)
        for record in records:
            batch.add_record(record)
        if size is None:
            batch.add_timers(self._settings.batch_timers_max)
        elif not records:
            batch.add_timers(size)
        if not batch.parts:
            return False
        try:
            self._commit(assignment, batch, records)
        except NOT_COMMITTED as error:
            self._aborted(assignment, batch, records, error)
        else:
            self._suspicion.committed()
            self._failures = 0
        return True

    def _commit(self, assignment: Assignment, batch: Batch, records: list[Record]) -> None:
        moved = assignment.offsets.after(records)
        offsets = assignment.offsets.positions(set(batch.parts), moved)
        tracked = commit_transaction(
            assignment.producer, assignment.group, offsets, batch.outgoing, self._settings, self._watchdog
        )
        assignment.offsets.advance(moved)
        handled = set(map(id, records))
        self._backlog = [each for each in self._backlog if id(each) not in handled]
        for partition in batch.parts:
            self._refreshed_s[partition] = self._clock.boot_s()
        self.counts.update(batch.counts)
        self.counts["transactions"] += 1
        self.counts["inputs"] += len(records)
        batch.write(tracked)

    # ---- when it fails

    def _aborted(
        self, assignment: Assignment, batch: Batch, records: list[Record], error: PerdureError
    ) -> None:
        self.counts["aborts"] += 1
        self._abort(assignment)
        suspects = len(records) or len(batch.timers)
        match self._suspicion.aborted(suspects):
            case Verdict.AGAIN:
                pass
            case Verdict.PROBE:
                probe = Batch(self._means, assignment.owned, is_careful=True)
                probe.part(next(iter(batch.parts)))
                if self._commit_alone(assignment, probe, []):
                    self._suspicion.probed()
            case Verdict.CONDEMN:
                self._condemn(assignment, batch, records, error)
        self._rest("transaction_aborted", error)

    def _condemn(
        self, assignment: Assignment, batch: Batch, records: list[Record], error: PerdureError
    ) -> None:
        """The one input at fault goes to dead-letters, in a transaction of its own; a timer rests."""
        if records:
            # A refused record leaves a gap in the producer's sequence, which costs the next transaction too.
            for _ in range(self._settings.condemn_tries_max):
                alone = Batch(self._means, assignment.owned, is_careful=True)
                alone.set_aside(records[0], "transaction_refused", str(error))
                if self._commit_alone(assignment, alone, records[:1]):
                    self._suspicion.committed()
                    return
            return
        for partition, run_id in batch.timers:
            owned = assignment.owned[partition]
            _log.error(
                "the timer of run %s can not be committed: %s",
                run_id,
                error,
                extra={"action": "timer_failed", "run_id": run_id},
            )
            owned.penalise(run_id, owned.now_ms())
            owned.find_next_due()
        self._suspicion.committed()

    def _commit_alone(self, assignment: Assignment, batch: Batch, records: list[Record]) -> bool:
        try:
            self._commit(assignment, batch, records)
        except NOT_COMMITTED:
            self._abort(assignment)
            return False
        return True

    def _abort(self, assignment: Assignment) -> None:
        settings = self._settings
        try:
            with self._watchdog.guard("abort", settings.hang_ms_max / 1_000):
                assignment.producer.abort(settings.call_timeout_ms / 1_000)
        except TransactionAbortable as error:
            raise OutcomeUnknown(str(error)) from error

    def _start_over(self, error: Exception) -> None:
        """Nobody can tell what became of something: all of "on assignment" again, with a new producer."""
        self._backlog = []
        if isinstance(error, StoreBroken) and self._assignment is not None:
            partitions = tuple(self._assignment.owned)
            self._assignment.start_over()
            for partition in partitions:
                self._stores.wipe(partition)
        elif self._assignment is not None:
            self._assignment.start_over()
        self._rest("started_over", error)

    def _lose(self, error: Fenced) -> None:
        """Somebody else is the owner, or was: nothing of this membership is used again."""
        self.counts["fenced"] += 1
        self._drop()
        self._must_rejoin = True
        self._rest("fenced", error)

    def _rest(self, action: str, error: Exception) -> None:
        """Let some time pass before the next try; the loop goes on polling meanwhile."""
        settings = self._settings
        delay_ms = min(
            settings.retry_delay_ms_max,
            settings.retry_delay_ms_min << min(self._failures, BACKOFF_DOUBLINGS_MAX),
        )
        self._failures += 1
        self._rest_until_s = self._clock.boot_s() + delay_ms / 1_000
        self.counts[action] += 1
        _log.warning(
            "%s; next try in %d ms",
            error,
            delay_ms,
            extra={"action": action, "reason": getattr(error, "code", "")},
        )

    def _rests(self) -> bool:
        return self._rest_until_s > self._clock.boot_s()

    # ---- duties

    def _duties(self) -> None:
        """What is done now and then: the store's caught-up time, offsets of idle partitions, deletion."""
        assignment, now_s = self._assignment, self._clock.boot_s()
        if assignment is None or assignment.phase is not Phase.PROCESS or now_s < self._next_duties_s:
            return
        self._next_duties_s = now_s + self._settings.caught_up_interval_ms / 1_000
        idle_s = self._settings.offsets_refresh_ms / 1_000
        idle = [p for p in assignment.owned if self._refreshed_s.setdefault(p, now_s) + idle_s <= now_s]
        if idle:
            batch = Batch(self._means, assignment.owned, is_careful=True)
            for partition in idle:
                batch.part(partition)
            self._commit_alone(assignment, batch, [])
        for owned in assignment.owned.values():
            owned.refresh_caught_up()
        if now_s >= self._next_deletion_s:
            self._next_deletion_s = now_s + self._settings.deletion_interval_ms / 1_000
            self._delete(assignment)

    def _delete(self, assignment: Assignment) -> None:
        for owned in assignment.owned.values():
            try:
                delete_consumed(self._log, owned, assignment.offsets, self._settings, self._clock.wall_ms())
            except Unavailable as error:
                _log.info("deletion is put off: %s", error, extra={"action": "deletion_put_off"})


def run_forever(orchestrator: Orchestrator, should_stop: Callable[[], bool]) -> None:
    """The loop of a real process. A step waits inside its poll, so this does not spin."""
    try:
        while not should_stop():
            orchestrator.step()
    finally:
        orchestrator.close()
