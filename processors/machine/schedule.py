"""What the host has to remember of a run: when to come back, and whether it holds or wants a slot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, assert_never

from perdure.processors.machine.state import Call, CallPhase, Run
from perdure.schemas.values import Effect, RunState

HOLDS_SLOT: Final = frozenset({RunState.RUNNING, RunState.AWAITING_TOOL})


def next_due_ms(run: Run) -> int | None:
    """The earliest instant at which ``decide(run, TimerInput)`` may have something to say; None: never."""
    return min(_due(run), default=None)


def wants_slot(run: Run, now_ms: int) -> bool:
    """Whether a queued run could start now, were a slot free."""
    return (
        run.state is RunState.QUEUED
        and run.definition is not None
        and (run.not_before_ms is None or run.not_before_ms <= now_ms)
    )


def holds_slot(run: Run) -> bool:
    """Whether the run counts against ``running_runs_max`` of its partition.

    A child does not: its parent holds a slot while it waits, and would wait for ever if there were no other.
    """
    return run.state in HOLDS_SLOT and run.parent is None


def call_due_ms(call: Call) -> int | None:
    """When the timer of one call fires."""
    match call.phase:
        case CallPhase.RETRY_WAIT | CallPhase.RECONCILE_WAIT:
            return call.due_ms
        case CallPhase.DISPATCHED:
            return call.attempt.deadline_ms if call.attempt else None
        case CallPhase.RECONCILING:
            return call.reconciliation.deadline_ms if call.reconciliation else None
        case CallPhase.WITH_CHILD:  # a backstop: the child has a deadline of its own
            return call.due_ms
        case CallPhase.REQUESTED | CallPhase.AMBIGUOUS | CallPhase.AWAITING_DECISION | CallPhase.DONE:
            return None
        case _:
            assert_never(call.phase)


def purgeable_ms(run: Run) -> int | None:
    """Since when nothing more can come of an ended run; None: something can.

    An attempt that may have had an effect stays open until somebody says what became of it; the others are
    over with their deadline.
    """
    if run.closed is None or run.is_purged or not run.state.is_terminal:
        return None
    open_ones = [call for call in run.calls if call.attempt is not None and call.attempt.is_open]
    if any(call.effect is Effect.NON_IDEMPOTENT and not call.is_done for call in open_ones):
        return None
    deadlines = (call.attempt.deadline_ms for call in open_ones if call.attempt is not None)
    return max((run.closed.at_ms, *deadlines))


def _due(run: Run) -> Iterator[int]:
    if run.state.is_terminal:
        return
    if run.deadline_ms is not None:
        yield run.deadline_ms
    if run.state is RunState.QUEUED:
        if run.definition is None and run.retry_at_ms is not None:
            yield run.retry_at_ms
        elif run.not_before_ms is not None:
            yield run.not_before_ms
        return  # what it holds of calls is taken up when it starts
    if run.model is not None:
        yield run.model.deadline_ms if run.model.retry_at_ms is None else run.model.retry_at_ms
    for pending in run.pending:
        if pending.deadline_ms is not None:
            yield pending.deadline_ms
    for call in run.calls:
        due_ms = call_due_ms(call)
        if due_ms is not None:
            yield due_ms
