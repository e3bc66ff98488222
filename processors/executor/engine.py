"""The executor: one thread, one consumer, many calls; driven step by step by whoever owns the thread.

A step: hear of cancellations, read, collect results, tell suspects, claim and start, commit, bound the
reading. Nothing in here sleeps or starts threads; calls run in the
:class:`~perdure.processors.runner.Runner`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from perdure.processors.cancellations import Cancellations
from perdure.processors.clock import Clock, Entropy
from perdure.processors.executor.actions import Action, extra
from perdure.processors.executor.assignment import TakeOver
from perdure.processors.executor.claims import Claims
from perdure.processors.executor.dispatch import Dispatch
from perdure.processors.executor.exits import Exit, Phase
from perdure.processors.executor.flow import Flow
from perdure.processors.executor.intake import Intake
from perdure.processors.executor.ownership import Ownership
from perdure.processors.executor.partition import Partition
from perdure.processors.executor.results import Results
from perdure.processors.executor.running import Call, Running
from perdure.processors.executor.settings import ExecutorSettings
from perdure.processors.executor.work import Work
from perdure.processors.runner import Runner
from perdure.processors.watchdog import NoWatchdog, Watchdog
from perdure.schemas.errors import PerdureError
from perdure.topics.errors import OffsetOutOfRange
from perdure.topics.log import Consumer, ConsumerSpec, Log, Position, Record, TopicPartition
from perdure.topics.table import DEAD_LETTERS, INPUTS, RUN_RESULTS, RUN_SIGNALS, Namespace

__all__ = ["Executor", "Exit", "Phase"]

logger: Final = logging.getLogger(__name__)

DRAIN_POLL_S: Final = 0.01
IDLE_PART: Final = 10
"""While calls run, a poll waits for this part of the time in which nothing has happened: it costs a call at
most a tenth of its own time, and a call of minutes is not watched a thousand times a second."""


class Executor:
    """One member of a role's group. ``worker``: its name in results, unique among running processes.

    The host calls :meth:`step` until it answers STOPPED, then ends the process with ``exit.value`` (with
    ``os._exit`` if calls were abandoned: their threads would keep the interpreter alive).
    """

    def __init__(
        self,
        log: Log,
        work: Work,
        runner: Runner,
        clock: Clock,
        entropy: Entropy,
        *,
        worker: str,
        namespace: Namespace | None = None,
        settings: ExecutorSettings | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        """Raises Unavailable if the log does not answer."""
        self._watchdog = watchdog if watchdog is not None else NoWatchdog()
        names, role = namespace or Namespace(), work.role
        self._log = log
        self._work = work
        self._clock = clock
        self._settings = settings = settings or ExecutorSettings()
        self.phase = Phase.RUNNING
        self.exit = Exit.ASKED
        self._is_asked = False
        self._heard_s = clock.boot_s()
        self._drain_until_s: float | None = None
        self._told_until_s = 0.0
        self._delete_s = clock.boot_s() + settings.delete_interval_s

        spec = _spec(log, names.client_id(role, worker, "requests"), names.group(role), settings)
        topic = names.topic(INPUTS[role][0])
        active: dict[str, Call] = {}
        self._consumer: Consumer = log.consumer(spec)
        self._results = Results(
            log.producer(names.client_id(role, worker, "results")),
            names.topic(RUN_RESULTS), names.topic(DEAD_LETTERS), worker, clock, entropy,
        )  # fmt: skip
        signals = names.client_id(role, worker, "signals")
        self._cancellations = Cancellations(log, names.topic(RUN_SIGNALS), signals)
        self._running = Running(runner, clock, settings)
        self._claims = Claims(self._consumer, self._results, clock, settings)
        self._intake = Intake(work, self._results, clock, active, settings.window_offsets)
        self._flow = Flow(self._consumer, settings)
        self._dispatch = Dispatch(
            work, self._intake, self._claims, self._running, self._results, self._cancellations,
            clock, settings.slots, active,
        )  # fmt: skip
        self._owned = Ownership(
            TakeOver(log, topic, clock, settings, self._results.poll),
            self._dispatch, self._intake, self._claims, self._results, self._flow,
            is_incremental=spec.protocol.incremental,
            on_unready=lambda: self._end(Exit.UNREADY),
            drain=self._drain,
        )  # fmt: skip
        self._consumer.subscribe([topic], self._owned)

    # ---- what the host calls -------------------------------------------------------------------------------

    def step(self) -> Phase:
        """Do what there is to do and wait for at most ``poll_wait_s_max``; returns the phase reached."""
        if self.phase is Phase.STOPPED:
            return self.phase
        if self._is_asked:
            self._end(Exit.ASKED)
        moved = self._dispatch.hear_cancellations()
        moved |= self._read()
        self._results.poll()
        moved |= self._dispatch.settle()
        if self.phase is Phase.RUNNING:
            self._work.hold(self._owned.count)
            moved |= self._intake.tell_suspects() > 0
            moved |= self._dispatch.start(self._owned)
        self._commit_if_due()
        self._delete_if_due()
        self._flow.update(self._owned, self._intake.load, is_leaving=self.phase is not Phase.RUNNING)
        moved |= self._work.tend()
        if moved:
            self._heard_s = self._clock.boot_s()
        self._look_at_health()
        if self.phase is Phase.DRAINING and self._is_drained():
            self._leave()
        return self.phase

    def drain(self) -> None:
        """SIGTERM is no cancel: start nothing more, let running calls end, commit, leave.

        Only takes note, so that a signal handler may call it in the middle of a step.
        """
        self._is_asked = True

    def close(self) -> None:
        """Leave now. Running calls are not waited for; what is done is committed."""
        if self.phase is not Phase.STOPPED:
            self._drain_until_s = self._clock.boot_s()
            self._leave()

    @property
    def busy(self) -> int:
        """Calls that are not done yet, their results included."""
        return len(self._dispatch.active)

    @property
    def backlog(self) -> int:
        """Requests read and not begun, suspects included."""
        return self._intake.waiting + self._intake.parked + self._intake.held

    @property
    def abandoned(self) -> int:
        """Calls that ignored their abort and still run."""
        return self._dispatch.abandoned

    @property
    def assigned(self) -> tuple[TopicPartition, ...]:
        return self._owned.assigned

    # ---- a step's parts ------------------------------------------------------------------------------------

    def _read(self) -> bool:
        try:
            items = self._consumer.poll(self._settings.poll_records_max, self._wait_s())
        except OffsetOutOfRange as error:
            # Only a take-over can say what was lost, so what is done is committed for the next owner to
            # look at.
            logger.error("reading stands still: %s", error, extra=extra(Action.BROKEN))  # noqa: TRY400
            self._end(Exit.OUT_OF_RANGE)
            return False
        except PerdureError as error:
            logger.error("reading failed: %s", error, extra=extra(Action.BROKEN))  # noqa: TRY400
            self._owned.lose(self._owned.assigned)
            self._end(Exit.BROKEN)
            return False
        if self.phase is not Phase.RUNNING:
            return False
        for item in items:
            if isinstance(item, Record) and (partition := self._owned.get(item.at)) is not None:
                self._intake.read(partition, item)
        return bool(items)

    def _wait_s(self) -> float:
        settings = self._settings
        if self._intake.waiting and self._dispatch.free_slots > 0 and self.phase is Phase.RUNNING:
            return settings.poll_wait_s_min
        if self.busy or self._results.open or not self._cancellations.is_ready:
            idle_s = self._clock.boot_s() - self._heard_s
            return min(max(idle_s / IDLE_PART, settings.poll_wait_s_min), settings.poll_wait_s_max)
        return settings.poll_wait_s_max

    def _commit_if_due(self) -> None:
        now_s = self._clock.boot_s()
        if self._claims.is_tainted or now_s - self._claims.committed_s < self._settings.commit_interval_s:
            return
        for each in self._owned:
            if now_s - each.committed_s >= self._settings.idle_commit_s:
                each.is_dirty = True
        self._claims.commit(self._owned)

    def _delete_if_due(self) -> None:
        """Delete what is done and old. By age alone nothing may go: an outage may last longer than any
        age.
        """
        now_s = self._clock.boot_s()
        if now_s < self._delete_s or self.phase is not Phase.RUNNING:
            return
        self._delete_s = now_s + self._settings.delete_interval_s
        now_ms, kept_days = self._clock.wall_ms(), self._settings.kept_days
        bounds = [(each, each.deletable_below(now_ms, kept_days)) for each in self._owned]
        wanted = [(each, below) for each, below in bounds if below > each.deleted_below]
        if not wanted:
            return
        try:
            positions = [Position(each.at, below) for each, below in wanted]
            self._log.delete_records(positions, self._settings.ask_timeout_s)
        except PerdureError as error:
            logger.warning("old requests are not deleted: %s", error, extra=extra(Action.WAITING))
            return
        for each, below in wanted:
            each.deleted_below = below
            logger.info("deleted requests of %s below %d", each.at, below, extra=extra(Action.DELETED))

    # ---- leaving -------------------------------------------------------------------------------------------

    def _look_at_health(self) -> None:
        if self._claims.is_tainted:
            self._end(Exit.TAINTED)
        elif self._results.failure is not None:
            self._end(Exit.UNWRITABLE)
        elif self.abandoned > self._settings.abandoned_max:
            self._end(Exit.ABANDONED)

    def _end(self, reason: Exit) -> None:
        """Start nothing more. The first reason stays."""
        if self.phase is not Phase.RUNNING:
            return
        logger.info("draining: %s", reason.name, extra=extra(Action.DRAINING))
        self.exit = reason
        self.phase = Phase.DRAINING
        self._told_until_s = self._clock.boot_s() + self._settings.flush_s
        if self._settings.drain_s is not None:
            self._drain_until_s = self._clock.boot_s() + self._settings.drain_s
        self._dispatch.withdraw(lambda _: True)

    def _is_drained(self) -> bool:
        now_s = self._clock.boot_s()
        if self._drain_until_s is not None and now_s >= self._drain_until_s:
            return True
        if next(iter(self._running), None) is not None:
            self._told_until_s = now_s + self._settings.flush_s
            return False
        # Results that are not acknowledged by then must not keep the partitions from another owner.
        is_told = self._results.open == 0 or self._results.failure is not None
        return is_told or now_s >= self._told_until_s

    def _leave(self) -> None:
        # A broken client has nothing left to revoke, and its close may never return (seen after a take-over
        # that failed while a broker was away).
        is_broken = self.exit is Exit.BROKEN or self.exit is Exit.UNREADY
        limit_s = self._settings.broken_close_s if is_broken else self._settings.hang_s
        try:
            with self._watchdog.guard("close", limit_s):
                self._consumer.close()  # revokes what is owned
        except PerdureError as error:
            logger.warning("leaving: %s", error, extra=extra(Action.STOPPED))
        self.phase = Phase.STOPPED
        self._results.close(self._settings.flush_s)
        self._cancellations.close()
        self._running.close()  # before what calls use
        self._work.close()
        logger.info("stopped: %s", self.exit.name, extra=extra(Action.STOPPED))

    def _drain(self, leaving: Sequence[Partition]) -> None:
        """Wait for calls, inside of a callback: other partitions' calls that need no claim still start."""
        limit_s = self._settings.revoke_drain_s
        until_s = self._clock.boot_s() + limit_s
        if self._drain_until_s is not None:
            until_s = min(until_s, self._drain_until_s)
        for _ in range(round(limit_s / DRAIN_POLL_S) + 1):
            self._results.poll()
            self._dispatch.settle()
            active = self._dispatch.active.values()
            if not any(call.partition in leaving for call in active) or self._results.failure is not None:
                return
            if self._clock.boot_s() >= until_s:
                return
            if self.phase is Phase.RUNNING:
                self._dispatch.start(self._owned, may_claim=False)
            self._running.wait(DRAIN_POLL_S)


def _spec(log: Log, client_id: str, group: str, settings: ExecutorSettings) -> ConsumerSpec:
    return ConsumerSpec(
        client_id=client_id,
        group=group,
        # No static membership: a second process with the same instance id would evict the first.
        protocol=log.consumer_protocol(),
        session_timeout_ms=settings.session_timeout_ms,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
        max_poll_interval_ms=settings.max_poll_interval_ms,
        commit_retry_backoff_ms=settings.commit_retry_backoff_ms,
    )
