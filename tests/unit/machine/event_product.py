"""The product of situations and events: what apply takes, and what it calls illegal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from perdure.processors.machine.apply import apply
from perdure.processors.machine.lifecycle import IllegalEvent, IllegalMove
from perdure.processors.machine.state import Run
from perdure.schemas import events as ev
from perdure.schemas.values import (
    Answer,
    Effect,
    PendingKind,
    Provenance,
    ResultSource,
    RunState,
    Usage,
    Verdict,
)
from tests.unit.machine.conftest import DIGEST, RUN_ID
from tests.unit.machine.situations import CALL, SITUATIONS, stage

ELSEWHERE: Final = "elsewhere"
"""A call, a child or a request that the run does not know."""


def bodies(run: Run | None) -> Mapping[str, ev.EventBody]:
    """Every kind of event: as it fits the run best, and (``elsewhere``) about what the run does not know."""
    fitting = _bodies(run, CALL, _request_of(run))
    strange = _bodies(run, ELSEWHERE, ELSEWHERE)
    told = {name: body for name, body in strange.items() if body != fitting[name]}
    return {**fitting, **{f"{name}, {ELSEWHERE}": body for name, body in told.items()}}


def _request_of(run: Run | None) -> str:
    return run.model.request_id if run and run.model else "none"


def _bodies(run: Run | None, call_id: str, request_id: str) -> dict[str, ev.EventBody]:
    turn = run.turn if run else 0
    call = run.call(call_id) if run else None
    attempt = call.attempt.number if call and call.attempt else 1
    ask = call.reconciliation.ask if call and call.reconciliation else 1
    seq = run.seq if run else 0
    child_id = run.children[0].run_id if run and run.children and call_id == CALL else ELSEWHERE
    attempts = run.attempts if run else 0
    execution = run.execution if run else 0
    text = b'{"role":"assistant","content":[{"type":"text","text":"hm"}]}'
    found: tuple[ev.EventBody, ...] = (
        ev.RunCreated("a", "1", DIGEST, b'"hi"', Provenance(), 5),
        ev.AgentPinned(DIGEST, "1", 5),
        ev.RunWaiting("slot", None),
        ev.TurnStarted(turn + 1, 1, "n", 9, 9, 100),
        ev.TurnResumed(turn),
        ev.SignalReceived("news"),
        ev.TranscriptSent(request_id),
        ev.ModelResponded(turn, attempts, request_id, "i", text, "end_turn", Usage(1, 1)),
        ev.ModelAttemptEnded(turn, attempts, request_id, "overloaded", "", None),
        ev.ToolCallRequested(turn, 7, f"new_{call_id}", "look", b"{}", Effect.READ_ONLY, "k"),
        ev.ToolDispatched(turn, call_id, attempt + 1 if call and call.attempt else 1, "n", 9, 9, 9),
        ev.ToolStarted(turn, call_id, attempt, 9, "w"),
        ev.ToolAttemptEnded(turn, call_id, attempt, "exception", "", None),
        ev.ToolAmbiguous(turn, call_id, attempt, "suspect", ""),
        ev.ReconciliationAsked(turn, call_id, attempt, ask + 1, "find", "n", 9, 9, 9),
        ev.ReconciliationAnswered(turn, call_id, attempt, ask, Answer.UNKNOWN, "", 9),
        ev.ToolCompleted(turn, call_id, attempt, b'"ok"', False, ResultSource.EXECUTED),
        ev.ChildStarted(turn, call_id, f"{RUN_ID}~c.9.9", 9),
        ev.ChildEnded(turn, call_id, child_id, 0, RunState.COMPLETED, Usage(1, 1)),
        ev.ApprovalRequested(turn, call_id, PendingKind.APPROVAL, b"{}", (Verdict.APPROVE,), "t", None),
        ev.DecisionRecorded(turn, call_id, Verdict.APPROVE, "somebody"),
        ev.CommandRejected("Cancel", "run_terminal"),
        ev.SurplusRecorded(turn, call_id, attempt, "n", "Completed", "late", Usage(1, 1)),
        ev.RunCompleted(b'"ok"', "end_turn"),
        ev.RunFailed("refusal", "", "model", seq),
        ev.RunCancelled("enough"),
        ev.RunTimedOut("approval"),
        ev.RunResumed(execution + 1, None, 5, None),
        ev.RunPurged(),
    )
    named: dict[str, ev.EventBody] = {type(body).__name__: body for body in found}
    named["TurnStarted, another attempt"] = ev.TurnStarted(turn, attempts + 1, "n", 9, 9, 100)
    return named


def answer(run: Run | None, body: ev.EventBody) -> str:
    """What apply makes of it. Lets through every exception but the two that say what is illegal."""
    seq = run.seq + 1 if run else 1
    try:
        after = apply(run, ev.Event(run_id=RUN_ID, seq=seq, at_ms=1_000_000, body=body))
    except IllegalEvent:
        return "illegal event"
    except IllegalMove:
        return "illegal move"
    return "applies" if run is not None and after.state is run.state else f"applies -> {after.state}"


def apply_all() -> dict[str, dict[str, str]]:
    """Event -> situation -> what apply makes of it."""
    runs = {where: stage(where).run_or_none for where in SITUATIONS}
    names = dict.fromkeys(name for run in runs.values() for name in bodies(run))
    found: dict[str, dict[str, str]] = {name: {} for name in names}
    for where, run in runs.items():
        for name, body in bodies(run).items():
            found[name][where] = answer(run, body)
    return found
