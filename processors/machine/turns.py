"""Turns: when the model is asked, and what ends a run."""

from __future__ import annotations

from typing import Final

from perdure.processors.machine.budget import Grant, Refusal, grant
from perdure.processors.machine.draft import Draft
from perdure.processors.machine.repetition import INTERCEPTIONS_MAX
from perdure.schemas import events as ev
from perdure.schemas.values import RunState

FINAL_NOTICE: Final = (
    "This is the last turn of this run and tools can no longer be used. Give the best answer you can from "
    "what is known now."
)
HAND_OVER_NOTICE: Final = (
    " If the task is unfinished, hand it over instead: answer with nothing but one JSON object with the "
    'members "done", "open" and "next": what is done, what is open, and what should happen next.'
)
SCHEMA_NOTICE: Final = " The answer still has to match the JSON Schema of the output."


def start_turn(draft: Draft) -> None:
    """Ask the model for the next turn, or end the run where its turns are used up."""
    run = draft.run
    if run.turn + 1 > run.max_turns:
        fail(draft, "max_turns_exceeded", f"the run used all of its {run.max_turns} turns", "model")
    else:
        ask_turn(draft, run.turn + 1, attempt=1)


def ask_turn(draft: Draft, turn: int, attempt: int) -> None:
    """The first attempt of a turn in this execution: it takes what is to be told, and the final notice."""
    run = draft.run
    is_final = turn >= run.max_turns
    texts = (*run.texts, final_notice(draft)) if is_final else run.texts
    _ask(draft, turn, attempt, texts=texts, allow_tools=not is_final)


def final_notice(draft: Draft) -> str:
    """What the model is told in the last turn: a hand-over is structured, whatever form it has to have."""
    structured = SCHEMA_NOTICE if draft.definition.output_schema is not None else HAND_OVER_NOTICE
    return FINAL_NOTICE + structured


def repair_turn(draft: Draft, text: str, fault: str) -> None:
    """Have the model mend its answer, within the guards; where they forbid it, the answer stays invalid."""
    run, turn = draft.run, draft.run.turn + 1
    if turn > run.max_turns:
        fail(draft, "output_invalid", f"no turn is left to mend the answer: {fault}", "output")
        return
    is_final = turn == run.max_turns
    texts = (*run.texts, text, *((final_notice(draft),) if is_final else ()))
    granted = grant(run, draft.definition, draft.context.price, coming_bytes(draft, turn, texts))
    if isinstance(granted, Refusal):
        fail(draft, "output_invalid", f"the budget does not allow to mend the answer: {fault}", "output")
        return
    _write(draft, turn, 1, granted, texts=texts, allow_tools=not is_final, is_repair=True)


def ask_again(draft: Draft) -> None:
    """The next attempt of the pending turn: the same messages under a new request id."""
    model = draft.run.model
    assert model is not None
    _ask(draft, model.turn, model.attempt + 1, texts=(), allow_tools=model.allow_tools)


def _ask(draft: Draft, turn: int, attempt: int, *, texts: tuple[str, ...], allow_tools: bool) -> None:
    """Write one attempt of a turn, unless its worst case would breach the budget."""
    granted = grant(draft.run, draft.definition, draft.context.price, coming_bytes(draft, turn, texts))
    if isinstance(granted, Refusal):
        if draft.run.state is RunState.QUEUED:
            draft.emit(ev.TurnResumed(draft.run.turn))
        fail(draft, "budget_exceeded", granted.message, "budget")
        return
    _write(draft, turn, attempt, granted, texts=texts, allow_tools=allow_tools)


def _write(
    draft: Draft,
    turn: int,
    attempt: int,
    granted: Grant,
    *,
    texts: tuple[str, ...],
    allow_tools: bool,
    is_repair: bool = False,
) -> None:
    definition, settings = draft.definition, draft.context.settings
    draft.emit(
        ev.TurnStarted(
            turn=turn,
            attempt=attempt,
            request_id=draft.new_id(),
            start_by_ms=draft.now_ms + settings.dispatch_wait_ms_max,
            timeout_ms=definition.model_timeout_ms + settings.clock_skew_ms_max,
            max_tokens=granted.max_tokens,
            texts=texts,
            allow_tools=allow_tools,
            reserved=granted.reserved,
            is_repair=is_repair,
        )
    )


def coming_bytes(draft: Draft, turn: int, texts: tuple[str, ...]) -> int:
    """Bytes of what the next request adds beyond the transcript's present tail."""
    run = draft.run
    size = sum(len(text.encode()) + TEXT_BLOCK_BYTES for text in texts)
    if turn == run.turn + 1:
        size += len(run.input or b"")
        size += sum(len(call.content or b"") + RESULT_BLOCK_BYTES for call in run.calls)
    return size


TEXT_BLOCK_BYTES: Final = 32
RESULT_BLOCK_BYTES: Final = 192
"""JSON around a text or a tool result, its id included."""


def advance(draft: Draft) -> None:
    """Go on to the next turn once every call of this one has its result."""
    run = draft.run
    if (
        run.state is not RunState.RUNNING
        or run.model is not None
        or not all(call.is_done for call in run.calls)
    ):
        return
    if run.interceptions >= INTERCEPTIONS_MAX:
        message = f"{run.interceptions} repetitions of useless calls were intercepted"
        fail(draft, "loop_detected", message, "tools")
    else:
        start_turn(draft)


def fail(draft: Draft, code: str, message: str, phase: str) -> None:
    """End the run as failed, at the last event that stands."""
    draft.emit(ev.RunFailed(code=code, message=message, phase=phase, checkpoint=draft.run.seq))
