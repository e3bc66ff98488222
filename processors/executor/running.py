"""Calls that run: their deadlines, their aborts, and what becomes of those that do not listen."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from perdure.processors.abort import AbortSignal
from perdure.processors.clock import Clock
from perdure.processors.crash_points import crash_point
from perdure.processors.executor.actions import Action, extra
from perdure.processors.executor.partition import Partition
from perdure.processors.executor.results import clipped
from perdure.processors.executor.settings import ExecutorSettings
from perdure.processors.executor.work import Prepared, Request
from perdure.processors.runner import Finished, Runner
from perdure.schemas.results import Declined, ResultBody
from perdure.schemas.values import DeclineReason, FailureKind

logger: Final = logging.getLogger(__name__)

DEADLINE: Final = "deadline"
CANCELLED: Final = "cancelled"


@dataclass(slots=True, eq=False)
class Call:
    """A request being worked on. ``partition`` changes if this process loses it and gets it back meanwhile.

    ``claimed_s``: boot clock from before the claim's commit; None: no lease. ``is_told``: its Started
    record is acknowledged. The ``_s`` instants of the boot clock say when it is told to stop, cancelled and
    given up.
    """

    request: Request
    partition: Partition
    prepared: Prepared
    lane: str | None = None
    abort: AbortSignal = field(default_factory=AbortSignal)
    claimed_s: float | None = None
    is_told: bool = False
    abort_s: float = math.inf
    cancel_s: float = math.inf
    give_up_s: float = math.inf
    is_abandoned: bool = False

    @property
    def due_s(self) -> float:
        """When something has to be done about it."""
        return min(self.abort_s, self.cancel_s, self.give_up_s)


@dataclass(frozen=True, slots=True)
class Ended:
    """A call that ended. ``is_repeat``: it was given up and told before; this is what it answered in the
    end.
    """

    call: Call
    body: ResultBody
    is_repeat: bool = False


class Running:
    """The calls in the runner. Slots are counted by the engine, which also knows what is still being told."""

    def __init__(self, runner: Runner, clock: Clock, settings: ExecutorSettings) -> None:
        self._runner = runner
        self._clock = clock
        self._settings = settings
        self._calls: dict[int, Call] = {}
        self._numbers = 0
        self._due_s = math.inf

    def __iter__(self) -> Iterator[Call]:
        """Those that are waited for."""
        return (call for call in self._calls.values() if not call.is_abandoned)

    @property
    def abandoned(self) -> int:
        return sum(call.is_abandoned for call in self._calls.values())

    def abandoned_in(self, lane: str) -> int:
        """Calls of a lane that were given up and still run."""
        return sum(call.is_abandoned and call.lane == lane for call in self._calls.values())

    def start(self, call: Call) -> None:
        """Hand the call to the runner; its time runs from now."""
        crash_point("executor.before_start")
        slack_s = self._settings.deadline_slack_s
        call.abort_s = self._clock.boot_s() + call.request.timeout_ms / 1000 + slack_s
        self._numbers += 1
        self._calls[self._numbers] = call
        self._due_s = min(self._due_s, call.due_s)
        self._runner.start(self._numbers, lambda: self._attempt(call))

    async def _attempt(self, call: Call) -> ResultBody:
        """The last look, just before the call: is the claim still good, may it still be started?"""
        request = call.request
        if call.claimed_s is not None and self._clock.boot_s() - call.claimed_s > self._settings.lease_s:
            return Declined(DeclineReason.LATE_CLAIM)
        if call.abort.aborted:
            is_cancel = call.abort.reason == CANCELLED
            return Declined(DeclineReason.CANCELLED if is_cancel else DeclineReason.EXPIRED)
        if self._clock.wall_ms() > request.start_by_ms:
            return Declined(DeclineReason.EXPIRED)
        return await call.prepared.run(call.abort)

    def abort(self, call: Call, reason: str) -> None:
        """Ask the call to stop; the grace period begins."""
        if call.abort.aborted:
            return
        logger.info(
            "aborting %s: %s", call.request.identity.key.decode(), reason, extra=extra(Action.ABORTING)
        )
        call.abort.abort(reason)
        call.abort_s = math.inf
        call.cancel_s = self._clock.boot_s() + self._settings.abort_grace_s
        self._due_s = min(self._due_s, call.due_s)

    def overdue(self) -> list[Ended]:
        """Abort what is past its deadline, cancel what ignored that, give up what ignored both."""
        now_s = self._clock.boot_s()
        if now_s < self._due_s:
            return []
        given_up: list[Ended] = []
        for number, call in self._calls.items():
            if now_s >= call.abort_s:
                self.abort(call, DEADLINE)
            if now_s >= call.cancel_s:
                call.cancel_s = math.inf
                call.give_up_s = now_s + self._settings.cancel_wait_s
                self._runner.cancel(number)
            if now_s >= call.give_up_s:
                call.give_up_s = math.inf
                call.is_abandoned = True
                given_up.append(
                    Ended(call, self._unanswered(call, "it ignored the abort and is still running"))
                )
                logger.error(
                    "gave up on %s, its slot stays taken", call.request.identity.key.decode(),
                    extra=extra(Action.ABANDONED),
                )  # fmt: skip
        self._due_s = min((call.due_s for call in self._calls.values()), default=math.inf)
        return given_up

    def ended(self) -> list[Ended]:
        """What has ended since the last look."""
        found: list[Ended] = []
        for finished in self._runner.finished():
            call = self._calls.pop(finished.number)
            if not call.is_abandoned:
                found.append(Ended(call, self._answer(call, finished)))
            elif finished.body is not None:
                found.append(Ended(call, finished.body, is_repeat=True))
        return found

    def wait(self, timeout_s: float) -> None:
        self._runner.wait(timeout_s)

    def close(self) -> None:
        self._runner.close()

    def _answer(self, call: Call, finished: Finished) -> ResultBody:
        if finished.body is not None:
            return finished.body
        error = finished.error
        if call.abort.aborted or error is None:
            return self._unanswered(call, "it was cancelled" if error is None else _worded(error))
        # OSError: every failed connection of the standard library is one.
        kind = FailureKind.CONNECTION if isinstance(error, OSError) else FailureKind.EXCEPTION
        return call.prepared.failed(kind, _worded(error))

    def _unanswered(self, call: Call, message: str) -> ResultBody:
        kind = FailureKind.DEADLINE if call.abort.reason == DEADLINE else FailureKind.ABORTED
        return call.prepared.failed(kind, message)


def _worded(error: BaseException) -> str:
    return clipped(f"{type(error).__name__}: {error}")
