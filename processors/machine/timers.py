"""decide, for durable timers: everything of a run that is due now."""

from __future__ import annotations

from perdure.processors.machine import ambiguity
from perdure.processors.machine.draft import Draft
from perdure.processors.machine.family import give_up_child
from perdure.processors.machine.replies import end_model_attempt
from perdure.processors.machine.requests import dispatch
from perdure.processors.machine.results import end_failed
from perdure.processors.machine.resume import start_if_possible
from perdure.processors.machine.schedule import call_due_ms
from perdure.processors.machine.state import Call, CallPhase
from perdure.processors.machine.submits import pin_agent
from perdure.processors.machine.turns import advance, ask_again
from perdure.schemas import events as ev
from perdure.schemas.values import Effect, RunState


def decide_timer(draft: Draft) -> None:
    """Do what is due; nothing, if the timer comes too early or too late."""
    run = draft.run
    if run.state.is_terminal:
        return
    if run.deadline_ms is not None and run.deadline_ms <= draft.now_ms:
        _deadline(draft)
        return
    if any(_is_due(pending.deadline_ms, draft) for pending in run.pending):
        draft.emit(ev.RunTimedOut(reason="approval"))
        return
    if run.state is RunState.QUEUED:
        _queued(draft)
        return
    _model(draft)
    for call in draft.run.calls:
        if _is_due(call_due_ms(call), draft):
            _call(draft, call)
    advance(draft)


def _is_due(due_ms: int | None, draft: Draft) -> bool:
    return due_ms is not None and due_ms <= draft.now_ms


def _deadline(draft: Draft) -> None:
    if draft.run.state is RunState.AWAITING_APPROVAL:
        draft.emit(ev.RunTimedOut(reason="deadline"))
    else:
        draft.emit(ev.RunCancelled(reason="deadline"))


def _queued(draft: Draft) -> None:
    run = draft.run
    if run.definition is None:
        if _is_due(run.retry_at_ms, draft):
            pin_agent(draft)
    elif _is_due(run.not_before_ms, draft):
        start_if_possible(draft)
        if draft.run.state is RunState.QUEUED:
            draft.emit(ev.RunWaiting("slot", None))


def _model(draft: Draft) -> None:
    model = draft.run.model
    if model is None:
        return
    if model.retry_at_ms is not None:
        if model.retry_at_ms <= draft.now_ms:
            ask_again(draft)
    elif model.deadline_ms <= draft.now_ms:
        end_model_attempt(draft, model, "watchdog", "no answer came until the attempt's deadline", delay_ms=0)


def _call(draft: Draft, call: Call) -> None:
    """One call whose timer fired. A non_idempotent attempt is never dispatched again on a timer alone."""
    match call.phase:
        case CallPhase.RETRY_WAIT:
            dispatch(draft, call.call_id)
        case CallPhase.DISPATCHED:
            message = "no result came until the attempt's deadline"
            if call.effect is Effect.NON_IDEMPOTENT:
                ambiguity.become_ambiguous(draft, call, "watchdog", message)
            else:
                end_failed(draft, call, "watchdog", message)
        case CallPhase.RECONCILE_WAIT:
            ambiguity.ask_reconciler(draft, call)
        case CallPhase.RECONCILING:
            ambiguity.unknown(draft, call, "the reconciliation tool did not answer in time")
        case CallPhase.WITH_CHILD:
            give_up_child(draft, call)
        case CallPhase.REQUESTED | CallPhase.AMBIGUOUS | CallPhase.AWAITING_DECISION | CallPhase.DONE:
            raise AssertionError(f"a call in {call.phase} has no timer")
