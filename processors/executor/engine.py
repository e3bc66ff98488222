"""The executor: one thread, one consumer, many calls; driven step by step by whoever owns the thread.

A step: hear of cancellations, read, collect results, tell suspects, claim and start, commit, bound the
reading. Nothing in here sleeps or starts threads; calls run in the
:class:`~perdure.processors.runner.Runner`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from perdure.processors.cancellations import Cancellations
from perdure.processors.clock import Clock, Entropy
from perdure.processors.crash_points import crash_point
from perdure.processors.executor.actions import Action, extra
from perdure.processors.executor.assignment import Gap, TakeOver
from perdure.processors.executor.claims import Claims, Verdict
from perdure.processors.executor.flow import Flow
from perdure.processors.executor.intake import Intake, Waiting
from perdure.processors.executor.partition import Partition
from perdure.processors.executor.results import Results
from perdure.processors.executor.running import CANCELLED, Call, Ended, Running
from perdure.processors.executor.settings import ExecutorSettings
from perdure.processors.executor.work import Claim, Prepared, Work
from perdure.processors.runner import Runner
from perdure.schemas.errors import PerdureError
from perdure.schemas.results import Declined, Lost, ResultBody
from perdure.schemas.values import DeclineReason
from perdure.topics.errors import OffsetOutOfRange, Unavailable
from perdure.topics.log import Consumer, ConsumerSpec, Isolation, Log, Position, Record, TopicPartition
from perdure.topics.table import DEAD_LETTERS, INPUTS, RUN_RESULTS, RUN_SIGNALS, Namespace

logger: Final = logging.getLogger(__name__)

DRAIN_POLL_S: Final = 0.01
SCAN_MAX: Final = 4
"""How many times the number of slots is looked at per step, when calls at the head of the queue can not
start.
"""
IDLE_PART: Final = 10
"""While calls run, a poll waits for this part of the time in which nothing has happened: it costs a call at
most a tenth of its own time, and a call of minutes is not watched a thousand times a second."""


class Phase(Enum):
    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"


class Exit(Enum):
    """Why the executor stopped; the value is the process's exit code. All but ASKED want a new process."""

    ASKED = 0
    TAINTED = 5  # the outcome of a commit is unknown
    UNWRITABLE = 6  # results can not be written
    ABANDONED = 7  # too many calls ignored their abort
    UNREADY = 8  # the log did not answer at take-over
    BROKEN = 9  # the consumer is broken for good


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
    ) -> None:
        """Raises Unavailable if the log does not answer."""
        self._log = log
        self._work = work
        self._clock = clock
        self._settings = settings = settings or ExecutorSettings()
        names = namespace or Namespace()
        role = work.role
        self._topic = names.topic(INPUTS[role][0])
        self._name = names.client_id(role, worker, "requests")
        self.phase = Phase.RUNNING
        self.exit = Exit.ASKED
        self._partitions: dict[TopicPartition, Partition] = {}
        self._active: dict[str, Call] = {}
        self._heard_s = clock.boot_s()
        self._drain_until_s: float | None = None
        self._is_out_of_range = False

        self._consumer: Consumer = log.consumer(self._spec(names.group(role)))
        self._results = Results(
            log.producer(names.client_id(role, worker, "results")),
            names.topic(RUN_RESULTS), names.topic(DEAD_LETTERS), worker, clock, entropy,
        )  # fmt: skip
        self._cancellations = Cancellations(
            log, names.topic(RUN_SIGNALS), names.client_id(role, worker, "signals")
        )
        self._running = Running(runner, clock, settings)
        self._claims = Claims(self._consumer, self._results, clock, settings)
        self._intake = Intake(work, self._results, clock, self._active, settings.window_offsets)
        self._flow = Flow(self._consumer, settings)
        self._take_over = TakeOver(log, self._topic, clock, settings, self._results.poll)
        self._consumer.subscribe([self._topic], self)

    def _spec(self, group: str) -> ConsumerSpec:
        settings = self._settings
        return ConsumerSpec(
            client_id=self._name,
            group=group,
            # No static membership: a second process with the same instance id would evict the first.
            protocol=self._log.consumer_protocol(),
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            max_poll_interval_ms=settings.max_poll_interval_ms,
            commit_retry_backoff_ms=settings.commit_retry_backoff_ms,
        )

    # ---- what the host calls -------------------------------------------------------------------------------

    def step(self) -> Phase:
        """Do what there is to do and wait for at most ``poll_wait_s_max``; returns the phase reached."""
        if self.phase is Phase.STOPPED:
            return self.phase
        moved = self._hear_cancellations()
        moved |= self._read()
        self._results.poll()
        moved |= self._settle()
        if self.phase is Phase.RUNNING:
            moved |= self._intake.tell_suspects() > 0
            moved |= self._dispatch()
        self._commit_if_due()
        self._flow.update(
            self._partitions.values(), len(self._intake.waiting), is_leaving=self.phase is not Phase.RUNNING
        )
        moved |= self._work.tend()
        if moved:
            self._heard_s = self._clock.boot_s()
        self._look_at_health()
        if self.phase is Phase.DRAINING and self._is_drained():
            self._leave()
        return self.phase

    def drain(self) -> None:
        """SIGTERM is no cancel: start nothing more, let running calls end, commit, leave."""
        self._end(Exit.ASKED)

    def close(self) -> None:
        """Leave now. Running calls are not waited for; what is done is committed."""
        if self.phase is not Phase.STOPPED:
            self._drain_until_s = self._clock.boot_s()
            self._leave()

    @property
    def busy(self) -> int:
        """Calls that are not done yet, their results included."""
        return len(self._active)

    @property
    def backlog(self) -> int:
        """Requests read and not begun, suspects included."""
        return len(self._intake.waiting) + self._intake.held

    @property
    def abandoned(self) -> int:
        """Calls that ignored their abort and still run."""
        return self._running.abandoned + self._work.abandoned

    @property
    def assigned(self) -> tuple[TopicPartition, ...]:
        return tuple(sorted(self._partitions))

    # ---- a step's parts ------------------------------------------------------------------------------------

    def _hear_cancellations(self) -> bool:
        fresh = self._cancellations.poll()
        if not fresh:
            return False
        for call in self._running:
            request = call.request
            if self._cancellations.is_cancelled(request.identity.run_id, request.execution):
                self._running.abort(call, CANCELLED)
        self._intake.decline_cancelled(self._cancellations.is_cancelled)
        return True

    def _read(self) -> bool:
        try:
            if self._is_out_of_range:
                self._skip_what_was_deleted()
            items = self._consumer.poll(self._settings.poll_records_max, self._wait_s())
        except OffsetOutOfRange:
            self._is_out_of_range = True
            return True
        except PerdureError as error:
            logger.error("reading failed: %s", error, extra=extra(Action.STOPPED))  # noqa: TRY400
            self.on_lost(self._consumer, self.assigned)
            self._end(Exit.BROKEN)
            return False
        if self.phase is not Phase.RUNNING:
            return False
        for item in items:
            if isinstance(item, Record) and (found := self._partitions.get(item.at)) is not None:
                self._intake.read(found, item)
        return bool(items)

    def _wait_s(self) -> float:
        settings = self._settings
        if self._intake.waiting and self._free_slots() > 0 and self.phase is Phase.RUNNING:
            return settings.poll_wait_s_min
        if self._active or self._results.open or not self._cancellations.is_ready:
            idle_s = self._clock.boot_s() - self._heard_s
            return min(max(idle_s / IDLE_PART, settings.poll_wait_s_min), settings.poll_wait_s_max)
        return settings.poll_wait_s_max

    def _settle(self) -> bool:
        """Write what calls have answered; give up those that do not listen."""
        ended = [*self._running.ended(), *self._running.overdue()]
        for each in ended:
            self._tell(each)
        return bool(ended)

    def _tell(self, ended: Ended) -> None:
        call, body = ended.call, ended.body
        number, identity = call.partition.at.partition, call.request.identity
        if ended.is_repeat:
            logger.warning("late answer of %s", identity.key.decode(), extra=extra(Action.LATE_ANSWER))
            self._results.tell(number, identity, body)
            return
        if call.request.claim is Claim.LEASED and not isinstance(body, Declined):
            crash_point("executor.after_call")
        self._results.tell(number, identity, body, lambda: self._done(call))

    def _done(self, call: Call) -> None:
        """The result is durable."""
        self._active.pop(call.request.identity.request_id, None)
        if call.partition.is_owned:
            call.partition.finish(call.request.offsets)
        if call.request.claim is Claim.LEASED:
            crash_point("executor.after_result")

    def _free_slots(self) -> int:
        return self._settings.slots - len(self._active) - self.abandoned

    def _dispatch(self, *, may_claim: bool = True) -> bool:
        """Start what free slots allow: some at once, the others after one claim for all of them."""
        if not self._cancellations.is_ready:
            return False
        moved = self._start_claimed()
        may_claim = may_claim and self._claims.may_try
        claiming: list[Call] = []
        passed: list[Waiting] = []
        queue = self._intake.waiting
        free = self._free_slots()
        while queue and free > 0 and len(passed) < SCAN_MAX * self._settings.slots:
            waiting = queue.popleft()
            claim = waiting.request.claim
            if waiting.partition.is_blocked or (claim is not Claim.NONE and not may_claim):
                passed.append(waiting)
                continue
            moved = True
            if self._intake.meet_again(waiting):
                continue
            prepared = self._prepare(waiting)
            if not isinstance(prepared, Prepared):
                self._intake.answer(waiting, prepared)
                continue
            free -= 1
            call = Call(waiting.request, waiting.partition, prepared)
            self._active[waiting.request.identity.request_id] = call
            if claim is Claim.NONE:
                self._running.start(call)
            else:
                claiming.append(call)
        queue.extendleft(reversed(passed))
        if claiming:
            self._claim(claiming)
        return moved

    def _prepare(self, waiting: Waiting) -> Prepared | ResultBody:
        request = waiting.request
        if self._cancellations.is_cancelled(request.identity.run_id, request.execution):
            return Declined(DeclineReason.CANCELLED)
        if self._clock.wall_ms() > request.start_by_ms:
            return Declined(DeclineReason.EXPIRED)
        return self._work.refusal(request) or self._work.prepare(request)

    def _claim(self, calls: list[Call]) -> None:
        if self._claims.claim(calls, self._partitions.values()) is not Verdict.HELD:
            for call in reversed(calls):
                del self._active[call.request.identity.request_id]
                self._intake.waiting.appendleft(Waiting(call.request, call.partition))
            return
        for call in calls:
            if call.request.claim is Claim.MARKED:
                self._running.start(call)
        self._start_claimed()

    def _start_claimed(self) -> bool:
        ready, late = self._claims.ripe()
        for call in ready:
            crash_point("executor.after_claim")
            self._running.start(call)
        for call in late:
            self._decline(call)
        return bool(ready or late)

    def _decline(self, call: Call) -> None:
        """The claim is held, so nobody else will execute this attempt; it is not used, so neither do we."""
        logger.warning(
            "claim not used: %s", call.request.identity.key.decode(), extra=extra(Action.CLAIM_LATE)
        )
        self._tell(Ended(call, Declined(DeclineReason.LATE_CLAIM)))

    def _commit_if_due(self) -> None:
        now_s = self._clock.boot_s()
        if self._claims.is_tainted or now_s - self._claims.committed_s < self._settings.commit_interval_s:
            return
        for each in self._partitions.values():
            if now_s - each.committed_s >= self._settings.idle_commit_s:
                each.is_dirty = True
        self._claims.commit(self._partitions.values())

    def _skip_what_was_deleted(self) -> None:
        """Records were deleted that were not read yet: say which, go on behind them."""
        for at, each in self._partitions.items():
            marks = self._log.watermarks(at, Isolation.COMMITTED, self._settings.ask_timeout_s)
            if each.next < marks.low:
                self._tell_lost(each, Gap(each.next, marks.low))
                each.next = marks.low
                self._consumer.seek(Position(at, marks.low))
            elif each.next > marks.end:
                raise OffsetOutOfRange(f"{at} ends at {marks.end}, before {each.next}.")
        self._is_out_of_range = False

    def _tell_lost(self, each: Partition, gap: Gap) -> None:
        logger.error(
            "requests of %s from %d to %d were deleted before they were done", each.at, gap.base, gap.low,
            extra=extra(Action.REQUESTS_LOST),
        )  # fmt: skip
        each.is_blocked = True
        each.is_dirty = True

        def told() -> None:
            each.is_blocked = False

        self._results.tell(each.at.partition, None, Lost(gap.base, gap.low), told)

    # ---- leaving -------------------------------------------------------------------------------------------

    def _look_at_health(self) -> None:
        if self._claims.is_tainted:
            self._end(Exit.TAINTED)
        elif self._results.failure is not None:
            self._end(Exit.UNWRITABLE)
        elif self.abandoned > self._settings.abandoned_max:
            self._end(Exit.ABANDONED)

    def _end(self, reason: Exit) -> None:
        if self.phase is Phase.STOPPED:
            return
        if self.exit is Exit.ASKED:
            self.exit = reason
        if self.phase is Phase.RUNNING:
            logger.info("draining: %s", reason.name, extra=extra(Action.DRAINING))
            self.phase = Phase.DRAINING
            if self._drain_until_s is None and self._settings.drain_s is not None:
                self._drain_until_s = self._clock.boot_s() + self._settings.drain_s
            for call in self._claims.withdraw(lambda _: True):
                self._decline(call)

    def _is_drained(self) -> bool:
        if self._drain_until_s is not None and self._clock.boot_s() >= self._drain_until_s:
            return True
        is_told = self._results.open == 0 or self._results.failure is not None
        return is_told and next(iter(self._running), None) is None

    def _leave(self) -> None:
        try:
            self._consumer.close()  # runs on_revoke
        except PerdureError as error:
            logger.warning("leaving: %s", error, extra=extra(Action.STOPPED))
        self.phase = Phase.STOPPED
        self._results.close(self._settings.flush_s)
        self._cancellations.close()
        self._work.close()
        self._running.close()
        logger.info("stopped: %s", self.exit.name, extra=extra(Action.STOPPED))

    # ---- ownership: callbacks run inside of poll and close
    # ---------------------------------------------------

    def on_assign(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None:
        is_incremental = self._log.consumer_protocol().incremental
        assign = consumer.incremental_assign if is_incremental else consumer.assign
        try:
            taken = self._take_over.take(consumer, partitions)
        except Unavailable as error:
            logger.error("not taken over: %s", error, extra=extra(Action.STOPPED))  # noqa: TRY400
            assign([])
            self._end(Exit.UNREADY)
            return
        for each in taken:
            self._partitions[each.partition.at] = each.partition
            self._flow.forget(each.partition.at)
            if each.gap is not None:
                self._tell_lost(each.partition, each.gap)
        assign([Position(each.partition.at, each.partition.next) for each in taken])

    def on_revoke(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None:  # noqa: ARG002
        """Still the owner: what has not begun is dropped, running calls end, what is done is committed."""
        leaving = self._stop_starting(partitions)
        self._drain(lambda call: call.partition in leaving)
        if not self._claims.is_tainted:
            self._claims.commit(leaving)
        logger.info("revoked %s", partitions, extra=extra(Action.REVOKED))
        self._forget(leaving)

    def on_lost(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None:  # noqa: ARG002
        """The owner no more: forget, commit nothing. What runs ends as a suspect of the next owner."""
        leaving = self._stop_starting(partitions)
        logger.warning("lost %s", partitions, extra=extra(Action.PARTITIONS_LOST))
        self._forget(leaving)

    def _stop_starting(self, partitions: Sequence[TopicPartition]) -> list[Partition]:
        leaving = [self._partitions[at] for at in partitions if at in self._partitions]
        for each in leaving:
            self._intake.forget(each)
        for call in self._claims.withdraw(lambda call: call.partition in leaving):
            self._decline(call)
        return leaving

    def _drain(self, is_concerned: Callable[[Call], bool]) -> None:
        """Wait for calls, inside of a callback: other partitions' calls that need no claim still start."""
        limit_s = self._settings.revoke_drain_s
        until_s = self._clock.boot_s() + limit_s
        if self._drain_until_s is not None:
            until_s = min(until_s, self._drain_until_s)
        for _ in range(round(limit_s / DRAIN_POLL_S) + 1):
            self._results.poll()
            self._settle()
            if not any(map(is_concerned, self._active.values())) or self._results.failure is not None:
                return
            if self._clock.boot_s() >= until_s:
                return
            if self.phase is Phase.RUNNING:
                self._dispatch(may_claim=False)
            self._running.wait(DRAIN_POLL_S)

    def _forget(self, leaving: Sequence[Partition]) -> None:
        for each in leaving:
            each.is_owned = False
            del self._partitions[each.at]
            self._flow.forget(each.at)
