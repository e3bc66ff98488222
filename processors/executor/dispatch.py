"""Starting calls and telling what became of them: from a request that waits to a result that is durable."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from perdure.processors.cancellations import Cancellations
from perdure.processors.clock import Clock
from perdure.processors.crash_points import crash_point
from perdure.processors.executor.actions import Action, extra
from perdure.processors.executor.claims import Claims, Verdict
from perdure.processors.executor.intake import Intake
from perdure.processors.executor.lanes import Waiting
from perdure.processors.executor.partition import Partition
from perdure.processors.executor.results import Results, clipped
from perdure.processors.executor.running import CANCELLED, Call, Ended, Running
from perdure.processors.executor.work import Claim, Prepared, Work
from perdure.schemas.results import Declined, ResultBody
from perdure.schemas.values import DeclineReason

logger: Final = logging.getLogger(__name__)

SCAN_MAX: Final = 4
"""How many times the number of slots is looked at per step, when calls at the head of the queue can not
start."""


class Dispatch:
    """``active``: calls by request id, from their start until their result is durable; each takes a slot."""

    def __init__(
        self,
        work: Work,
        intake: Intake,
        claims: Claims,
        running: Running,
        results: Results,
        cancellations: Cancellations,
        clock: Clock,
        slots: int,
        active: dict[str, Call],
    ) -> None:
        self._work = work
        self._intake = intake
        self._claims = claims
        self._running = running
        self._results = results
        self._cancellations = cancellations
        self._clock = clock
        self._slots = slots
        self._active = active

    @property
    def active(self) -> Mapping[str, Call]:
        return self._active

    @property
    def abandoned(self) -> int:
        """Calls that ignored their abort and still run."""
        return self._running.abandoned + self._work.abandoned

    @property
    def free_slots(self) -> int:
        return self._slots - len(self._active) - self.abandoned

    def hear_cancellations(self) -> bool:
        """Abort and hand back what the newest signals cancel; True if there were any."""
        if not self._cancellations.poll():
            return False
        for call in self._running:
            request = call.request
            if self._cancellations.is_cancelled(request.identity.run_id, request.execution):
                self._running.abort(call, CANCELLED)
        self._intake.decline_cancelled(self._cancellations.is_cancelled)
        return True

    def settle(self) -> bool:
        """Write what calls have answered; give up those that do not listen."""
        ended = [*self._running.ended(), *self._running.overdue()]
        for each in ended:
            self._tell(each)
        return bool(ended)

    def start(self, partitions: Iterable[Partition], *, may_claim: bool = True) -> bool:
        """Start what free slots allow: some at once, the others after one claim for all of them.

        ``partitions``: all that are owned; a claim commits what else there is to commit.
        """
        if not self._cancellations.is_ready:
            return False
        moved = self._start_claimed()
        may_claim = may_claim and self._claims.may_try
        claiming: list[Call] = []
        passed: list[Waiting] = []
        free = self.free_slots
        while free > 0:
            waiting = self._next(may_claim, passed)
            if waiting is None:
                break
            needs_claim = waiting.request.claim is not Claim.NONE
            moved = True
            call = self._begin(waiting)
            if call is None:
                continue
            free -= 1
            if needs_claim:
                claiming.append(call)
            else:
                self._running.start(call)
        self._intake.put_back(passed)
        if claiming:
            self._claim(claiming, partitions)
        return moved

    def _next(self, may_claim: bool, passed: list[Waiting]) -> Waiting | None:
        """The next request that may start now. On the way, what its lane has no room for is parked, and what
        can not start for another reason is ``passed`` over.
        """

        def may_start(waiting: Waiting) -> bool:
            needs_claim = waiting.request.claim is not Claim.NONE
            return not waiting.partition.is_blocked and (may_claim or not needs_claim)

        parked = self._intake.take_parked(lambda each: may_start(each) and self._has_room(each))
        if parked is not None:
            return parked
        while len(passed) < SCAN_MAX * self._slots and (waiting := self._intake.take()) is not None:
            lane = self._work.lane(waiting.request)
            if lane is not None and (self._intake.parked_in(lane) or not self._has_room(waiting)):
                self._intake.park(waiting, lane)
            elif may_start(waiting):
                return waiting
            else:
                passed.append(waiting)
        return None

    def _has_room(self, waiting: Waiting) -> bool:
        lane = self._work.lane(waiting.request)
        if lane is None:
            return True
        running = sum(call.lane == lane.key for call in self._active.values())
        return self._work.has_room(waiting.request, running + self._running.abandoned_in(lane.key))

    def withdraw(self, is_concerned: Callable[[Call], bool]) -> None:
        """Hand back calls whose claim is held and not used yet."""
        for call in self._claims.withdraw(is_concerned):
            self._decline(call)

    def _begin(self, waiting: Waiting) -> Call | None:
        """The call of a request that has a slot, or None if it was answered without one."""
        if self._intake.meet_again(waiting):
            return None
        prepared = self._prepare(waiting)
        if not isinstance(prepared, Prepared):
            self._intake.answer(waiting, prepared)
            return None
        lane = self._work.lane(waiting.request)
        call = Call(waiting.request, waiting.partition, prepared, None if lane is None else lane.key)
        self._active[waiting.request.identity.request_id] = call
        return call

    def _prepare(self, waiting: Waiting) -> Prepared | ResultBody:
        request = waiting.request
        if self._cancellations.is_cancelled(request.identity.run_id, request.execution):
            return Declined(DeclineReason.CANCELLED)
        if self._clock.wall_ms() > request.start_by_ms:
            return Declined(DeclineReason.EXPIRED)
        try:
            return self._work.refusal(request) or self._work.prepare(request)
        except Exception as error:
            # A defect that one request brings out must not stop all others: it is handed back, to be tried
            # again later.
            logger.exception(
                "%s can not be prepared", request.identity.key.decode(), extra=extra(Action.DEFECT)
            )
            return Declined(DeclineReason.UNAVAILABLE, clipped(f"{type(error).__name__}: {error}"))

    def _claim(self, calls: list[Call], partitions: Iterable[Partition]) -> None:
        if self._claims.claim(calls, partitions) is not Verdict.HELD:
            for call in calls:
                del self._active[call.request.identity.request_id]
            self._intake.put_back([Waiting(call.request, call.partition) for call in calls])
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

    def _tell(self, ended: Ended) -> None:
        call, body = ended.call, ended.body
        number, identity = call.partition.at.partition, call.request.identity
        if ended.is_repeat:
            logger.warning("late answer of %s", identity.key.decode(), extra=extra(Action.LATE_ANSWER))
            self._results.tell(number, identity, body)
            return
        crash_point("executor.before_tell")
        if call.request.claim is Claim.LEASED and not isinstance(body, Declined):
            crash_point("executor.after_call")
        self._results.tell(number, identity, body, lambda: self._done(call))

    def _done(self, call: Call) -> None:
        """The result is durable."""
        self._active.pop(call.request.identity.request_id, None)
        if call.partition.is_owned:
            call.partition.finish(call.request.offsets)
        crash_point("executor.after_tell")
        if call.request.claim is Claim.LEASED:
            crash_point("executor.after_result")
