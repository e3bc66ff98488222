"""Turns: when the model is asked, and what ends a run."""

from __future__ import annotations

from typing import Final

from perdure.processors.machine.draft import Draft
from perdure.processors.machine.schedule import wants_slot
from perdure.schemas import events as ev
from perdure.schemas.values import RunState

FINAL_NOTICE: Final = (
    "This is the last turn of this run and tools can no longer be used. Give the best answer you can from "
    "what is known now; if the task is unfinished, hand it over: what is done, what is open, and what should "
    "happen next."
)


def start_if_possible(draft: Draft) -> None:
    """Start a queued run if it wants a slot and one is free."""
    if draft.context.may_start and wants_slot(draft.run, draft.now_ms):
        start_turn(draft)


def start_turn(draft: Draft) -> None:
    """Ask the model for the next turn, or end the run where its turns are used up."""
    run = draft.run
    turn = run.turn + 1
    if turn > run.max_turns:
        fail(draft, "max_turns_exceeded", f"the run used all of its {run.max_turns} turns", "model")
        return
    is_final = turn == run.max_turns
    notice = FINAL_NOTICE if is_final else None
    ask_model(draft, turn, attempt=1, notice=notice, allow_tools=not is_final)


def ask_model(draft: Draft, turn: int, attempt: int, *, notice: str | None, allow_tools: bool) -> None:
    """Write one attempt of a turn."""
    definition, settings = draft.definition, draft.context.settings
    draft.emit(
        ev.TurnStarted(
            turn=turn,
            attempt=attempt,
            request_id=draft.new_id(),
            start_by_ms=draft.now_ms + settings.dispatch_wait_ms_max,
            timeout_ms=definition.model_timeout_ms + settings.clock_skew_ms_max,
            max_tokens=definition.max_tokens,
            notice=notice,
            allow_tools=allow_tools,
        )
    )


def ask_again(draft: Draft) -> None:
    """The next attempt of the pending turn: the same messages under a new request id."""
    model = draft.run.model
    assert model is not None
    ask_model(draft, model.turn, model.attempt + 1, notice=None, allow_tools=model.allow_tools)


def advance(draft: Draft) -> None:
    """Go on to the next turn once every call of this one has its result."""
    run = draft.run
    if run.state is RunState.RUNNING and run.model is None and all(call.is_done for call in run.calls):
        start_turn(draft)


def fail(draft: Draft, code: str, message: str, phase: str) -> None:
    """End the run as failed, at the last event that stands."""
    draft.emit(ev.RunFailed(code=code, message=message, phase=phase, checkpoint=draft.run.seq))
