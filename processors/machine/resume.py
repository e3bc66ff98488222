"""Resume: the next execution takes a run up where its last one ended, with a transcript that stays valid."""

from __future__ import annotations

from perdure.processors.machine import ambiguity
from perdure.processors.machine.draft import Draft
from perdure.processors.machine.messages import clean_text
from perdure.processors.machine.requests import MAY_HAVE_RUN, answer, answer_error, unfinished_text
from perdure.processors.machine.room import has_room_for
from perdure.processors.machine.schedule import wants_slot
from perdure.processors.machine.state import Call, Run
from perdure.processors.machine.turns import advance, ask_turn, start_turn
from perdure.schemas import commands as cmd
from perdure.schemas import events as ev
from perdure.schemas.values import Effect, ResultSource, RunState

CONTINUE = "Continue."


def resume_fault(draft: Draft, body: cmd.Resume) -> str | None:
    """The stable reason for which the run can not be resumed so; None if it can."""
    run = draft.run
    if not run.state.is_terminal:
        return "run_not_ended"
    if run.state is RunState.COMPLETED:
        return "run_completed"
    if body.message is not None and not body.message.strip():
        return "empty_message"
    if body.message is not None and not has_room_for(run, body.message):
        return "message_too_large"
    if body.extra_turns is not None and body.extra_turns < 1:
        return "invalid_extra_turns"
    if run.turns_completed >= run.max_turns + (body.extra_turns or 0):
        return "no_turns_left"
    if run.parent is not None and run.budget is not None and body.budget is None:
        return "budget_returned"  # what was held for it was given back to its parent
    return None


def resume(draft: Draft, body: cmd.Resume) -> None:
    """Begin the next execution. Totals go on; the budget stays unless a new one is given."""
    run = draft.run
    message = None if body.message is None else clean_text(body.message)
    if message is None and not run.texts and run.turn == run.turns_completed > 0 and not run.calls:
        message = _what_to_do(run)
    draft.emit(
        ev.RunResumed(
            execution=run.execution + 1,
            message=message,
            max_turns=run.max_turns + (body.extra_turns or 0),
            budget=body.budget or run.budget,
        )
    )
    start_if_possible(draft)


def _what_to_do(run: Run) -> str:
    """The transcript ends with the model's own message: something has to follow it."""
    closed = run.closed
    if closed is not None and closed.code == "output_invalid":
        return f"Your answer could not be taken: {closed.message}. Answer again."
    return CONTINUE


def start_if_possible(draft: Draft) -> None:
    """Start a queued run, or take it up again, if it wants a slot and one is free."""
    run = draft.run
    has_slot = draft.context.may_start or run.parent is not None  # a child runs in its parent's slot
    if not has_slot or not wants_slot(run, draft.now_ms):
        return
    if not all(call.is_done for call in run.calls):
        _take_up_calls(draft)
    elif run.turn > run.turns_completed:  # asked, never answered
        ask_turn(draft, run.turn, attempt=run.attempts + 1)
    else:
        start_turn(draft)


def _take_up_calls(draft: Draft) -> None:
    """Give every call of the turn a result, or find out what became of it."""
    draft.emit(ev.TurnResumed(draft.run.turn))
    for call in draft.run.calls:
        if not call.is_done:
            _take_up(draft, call)
    advance(draft)


def _take_up(draft: Draft, call: Call) -> None:
    attempt = call.attempt
    if call.late_content is not None:
        answer(draft, call.call_id, call.late_content, ResultSource.EXECUTED, is_error=call.is_late_error)
    elif attempt is None or not attempt.is_open:
        answer_error(draft, call.call_id, unfinished_text(call), ResultSource.SYNTHETIC)
    elif call.effect is not Effect.NON_IDEMPOTENT:
        answer_error(draft, call.call_id, MAY_HAVE_RUN, ResultSource.SYNTHETIC)
    else:
        message = "the run ended while this call was under way"
        ambiguity.become_ambiguous(draft, call, "resumed", message)
