"""The orchestrator's host: poll, batch, decide, commit, follow. One step at a time, no threads, no sleeps.

Owning partition p of run-commands is owning the runs of partition p: run-results p is added by hand, so
that no assignor can hand the two to different members. A transaction is never open between two polls.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from perdure.processors.clock import Clock, Entropy
from perdure.processors.definitions import Definitions
from perdure.processors.orchestrator.assignment import Assignment, Phase
from perdure.processors.orchestrator.batch import Means
from perdure.processors.orchestrator.forgetting import Forgetter, NothingToForget
from perdure.processors.orchestrator.pace import Pace
from perdure.processors.orchestrator.processing import NOT_COMMITTED, Processing
from perdure.processors.orchestrator.retention import delete_consumed
from perdure.processors.orchestrator.settings import OrchestratorSettings
from perdure.processors.ports import NoPrices, Prices
from perdure.processors.store import StoreBroken, StoreFactory
from perdure.processors.watchdog import NoWatchdog, Watchdog
from perdure.schemas.errors import PerdureError, Retry, Stop
from perdure.topics.errors import (
    Fenced,
    OffsetOutOfRange,
    OutcomeUnknown,
    Unavailable,
)
from perdure.topics.log import Consumer, ConsumerSpec, GroupProtocol, Log, Record, TopicPartition
from perdure.topics.table import RUN_COMMANDS

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
        prices: Prices | None = None,
        forgetter: Forgetter | None = None,
    ) -> None:
        self._log = log
        self._stores = stores
        self._clock = clock
        self._definitions = definitions
        self._settings = settings
        self._watchdog = watchdog if watchdog is not None else NoWatchdog()
        self._means = Means(
            settings, definitions, entropy, prices or NoPrices(), forgetter or NothingToForget()
        )
        self._consumer: Consumer | None = None
        self._processing: Processing | None = None
        self._pace = Pace(clock, settings)
        self._must_rejoin = False
        self._next_duties_s = 0.0
        self._next_deletion_s = clock.boot_s() + settings.deletion_interval_ms / 1_000
        self.counts: Counter[str] = Counter()

    # ---- what others may see

    @property
    def _assignment(self) -> Assignment | None:
        return self._processing.assignment if self._processing is not None else None

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
        if self._pace.is_resting:
            return did
        try:
            self._definitions.refresh()
            did = self._advance() or did
            did = self._process() or did
            self._duties()
        except NOT_COMMITTED as error:
            self._rest("transaction_aborted", error)
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
        assignment = Assignment(
            self._log, consumer, numbers, group, self._stores, self._clock, self._settings, self._watchdog
        )
        self._processing = Processing(assignment, self._means, self._clock, self._watchdog, self.counts)
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
        processing, self._processing = self._processing, None
        if processing is not None:
            processing.assignment.close()

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
        room = settings.batch_inputs_max - (self._processing.backlog if self._processing is not None else 0)
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
        """Read; how many records of ours there were. The processing may be another one after the poll."""
        items = consumer.poll(limit, wait_s)
        processing = self._processing
        if processing is None:
            return 0
        return sum(1 for item in items if isinstance(item, Record) and processing.take(item))

    def _wait_s(self) -> float:
        """How long a poll may wait: not past the next due timer, and hardly while there is other work."""
        if self._pace.is_resting:
            return min(self._settings.poll_wait_ms_max / 1_000, self._pace.left_s)
        wait_ms = self._settings.poll_wait_ms_max
        processing = self._processing
        if processing is not None:
            assignment = processing.assignment
            if assignment.is_settled and processing.backlog:
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
        assignment = self._assignment
        if assignment is None or assignment.is_settled:
            return False
        did = assignment.advance()
        if assignment.phase is Phase.PROCESS:
            self._pace.succeeded()
        return did

    def _process(self) -> bool:
        if self._processing is None or not self.ready_partitions:
            return False
        did = self._processing.process()
        if did:
            self._pace.succeeded()
        return did

    # ---- when it fails

    def _start_over(self, error: PerdureError) -> None:
        """Nobody can tell what became of something: all of "on assignment" again, with a new producer."""
        processing = self._processing
        if processing is not None:
            partitions = tuple(processing.assignment.owned)
            processing.start_over()
            processing.assignment.start_over()
            if isinstance(error, StoreBroken):
                for partition in partitions:
                    self._stores.wipe(partition)
        self._rest("started_over", error)

    def _lose(self, error: Fenced) -> None:
        """Somebody else is the owner, or was: nothing of this membership is used again."""
        self.counts["fenced"] += 1
        self._drop()
        self._must_rejoin = True
        self._rest("fenced", error)

    def _rest(self, action: str, error: PerdureError) -> None:
        """Let some time pass before the next try; the loop goes on polling meanwhile."""
        delay_ms = self._pace.failed()
        self.counts[action] += 1
        _log.warning("%s; next try in %d ms", error, delay_ms, extra={"action": action, "reason": error.code})

    # ---- duties

    def _duties(self) -> None:
        """What is done now and then: the store's caught-up time, offsets of idle partitions, deletion."""
        processing, now_s = self._processing, self._clock.boot_s()
        if (
            processing is None
            or processing.assignment.phase is not Phase.PROCESS
            or now_s < self._next_duties_s
        ):
            return
        assignment = processing.assignment
        self._next_duties_s = now_s + self._settings.caught_up_interval_ms / 1_000
        processing.refresh_offsets()
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
