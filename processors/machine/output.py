"""The output of a run: what the model's last answer has to be, and the one chance to mend it."""

from __future__ import annotations

from typing import Final

from perdure.processors.machine.draft import Draft
from perdure.processors.machine.messages import clean_text
from perdure.processors.machine.turns import fail, repair_turn
from perdure.schemas import events as ev
from perdure.schemas.canonical import JsonValue, dumps_verbatim, loads_json, normalise_json
from perdure.schemas.errors import PerdureError, Reject
from perdure.schemas.json_schema import fault_in
from perdure.schemas.limits import JSON_DEPTH_MAX

HAND_OVER: Final = frozenset({"done", "open", "next"})
"""Members of the object that the last turn's notice asks for where a task is unfinished."""
MAX_TURNS: Final = "max_turns"


def complete(draft: Draft, text: str, stop_reason: str) -> None:
    """End the run with its output, or have the model mend an answer that violates the output schema, once."""
    schema = draft.definition.output_schema
    if schema is None:
        output = _hand_over(text) if stop_reason == MAX_TURNS else None
        draft.emit(ev.RunCompleted(output=output or dumps_verbatim(text), stop_reason=stop_reason))
        return
    try:
        value = normalise_json(loads_json(text.encode(), depth_max=JSON_DEPTH_MAX))
        fault = fault_in(schema, value)
    except Reject as error:
        value, fault = None, f"It is no JSON, or the schema can not be applied to it: {error.detail}"
    fault = None if fault is None else clean_text(fault)
    if fault is None:
        draft.emit(ev.RunCompleted(output=dumps_verbatim(value), stop_reason=stop_reason))
    elif draft.run.repair_turn:
        fail(draft, "output_invalid", f"the answer was mended once and still is not valid: {fault}", "output")
    else:
        repair_turn(draft, _told(fault, stop_reason), fault)


def _told(fault: str, stop_reason: str) -> str:
    cut = " It was cut off by the token limit, so be brief." if stop_reason == "max_tokens" else ""
    return (
        f"Your answer does not match the JSON Schema that the output of this task must have.{cut} What is "
        f"wrong: {fault}\nAnswer again, with nothing but one JSON value that matches the schema."
    )


def _hand_over(text: str) -> bytes | None:
    """The hand-over as it was asked for, if the answer is one; any other answer is just text."""
    try:
        value: JsonValue = normalise_json(loads_json(text.encode(), depth_max=JSON_DEPTH_MAX))
    except PerdureError:
        return None
    return dumps_verbatim(value) if isinstance(value, dict) and value.keys() == HAND_OVER else None
