"""Tool calls: made durable, then dispatched, one transaction with the message that asks for them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from perdure.processors.machine.approvals import ask_person
from perdure.processors.machine.assistant import WantedCall
from perdure.processors.machine.children import start_child
from perdure.processors.machine.draft import Draft
from perdure.processors.machine.messages import NO_OUTPUT, is_blank
from perdure.processors.machine.policy import needs_approval
from perdure.processors.machine.repetition import fingerprint, is_last_a_repetition
from perdure.processors.machine.room import fitting_result
from perdure.processors.machine.state import Call
from perdure.schemas import events as ev
from perdure.schemas.canonical import JsonValue, canonical_json, dumps_verbatim, loads_json, normalise_json
from perdure.schemas.definition import ToolDefinition
from perdure.schemas.errors import Reject
from perdure.schemas.limits import JSON_DEPTH_MAX
from perdure.schemas.values import BlobRef, Effect, PendingKind, ResultSource

NOT_STARTED: Final = "The run ended before this call was started, so it was not executed."
MAY_HAVE_RUN: Final = "The run ended while this call was under way; it may or may not have been executed."
LOOP_NOTICE: Final = (
    "This call was not executed: the same call has been made before, again and again, and it failed or "
    "changed nothing. Repeating it will not help. Use what is known, try another way, or say what is missing."
)


def idempotency_key(run_id: str, call_id: str) -> str:
    """Lower-case hex sha256 of UTF-8 run id followed by the persisted call id: no separator, no attempt."""
    return hashlib.sha256((run_id + call_id).encode()).hexdigest()


def tool_of(draft: Draft, name: str) -> ToolDefinition | None:
    """The tool that the model may call by this name."""
    tool = draft.definition.tool(name)
    return None if tool is None or tool.is_hidden else tool


def request_calls(draft: Draft, wanted: Sequence[WantedCall], *, allow_tools: bool) -> None:
    """Record every call of the turn, then dispatch what may run, ask about what needs approval, refuse the
    rest.
    """
    repeated: dict[str, bool] = {}
    for index, call in enumerate(wanted):
        tool = tool_of(draft, call.tool)
        draft.emit(
            ev.ToolCallRequested(
                turn=draft.run.turn,
                index=index,
                call_id=call.call_id,
                tool=call.tool,
                arguments=call.arguments,
                effect=tool.effect if tool else Effect.NON_IDEMPOTENT,
                idempotency_key=idempotency_key(draft.run.run_id, call.call_id),
                fingerprint=fingerprint(call.tool, call.arguments, tool.cosmetic if tool else ()),
            )
        )
        repeated[call.call_id] = tool is not None and is_last_a_repetition(draft.run, tool.repeats_max)
    limit = draft.definition.tool_calls_per_turn_max
    for index, call in enumerate(wanted):
        tool = tool_of(draft, call.tool)
        refusal = call.fault
        if not allow_tools:
            refusal = "Tools can not be used in the last turn, so the call was not executed."
        elif index >= limit:
            refusal = f"At most {limit} tools can be called in one turn, so this call was not executed."
        elif refusal is None and tool is None:
            refusal = f"There is no tool named {call.tool!r}, so nothing was executed."
        if refusal is None and repeated[call.call_id]:
            answer_error(draft, call.call_id, LOOP_NOTICE, ResultSource.INTERCEPTED)
        elif refusal is not None or tool is None:
            answer_error(draft, call.call_id, refusal or "", ResultSource.SYNTHETIC)
        elif needs_approval(draft.definition, tool, call.arguments):
            ask_person(draft, call.call_id, PendingKind.APPROVAL)
        else:
            dispatch(draft, call.call_id)


def dispatch(draft: Draft, call_id: str) -> None:
    """Hand the next attempt of a call to the executors."""
    call = _call(draft, call_id)
    tool = draft.definition.tool(call.tool)
    assert tool is not None
    if tool.agent is not None:
        refusal = start_child(draft, call, tool)
        if refusal is not None:
            answer_error(draft, call_id, refusal, ResultSource.SYNTHETIC)
        return
    settings = draft.context.settings
    start_by_ms = draft.now_ms + settings.dispatch_wait_ms_max
    draft.emit(
        ev.ToolDispatched(
            turn=draft.run.turn,
            call_id=call_id,
            attempt=call.attempt.number + 1 if call.attempt else 1,
            request_id=draft.new_id(),
            start_by_ms=start_by_ms,
            timeout_ms=tool.timeout_ms,
            deadline_ms=start_by_ms + tool.timeout_ms + settings.clock_skew_ms_max,
        )
    )


def answer(
    draft: Draft,
    call_id: str,
    content: bytes,
    source: ResultSource,
    *,
    is_error: bool = False,
    blob: BlobRef | None = None,
) -> None:
    """Give a call its one effective result, normalised before it is persisted."""
    call = _call(draft, call_id)
    content, is_unreadable = stored_content(content)
    is_error = is_error or is_unreadable
    draft.emit(
        ev.ToolCompleted(
            turn=draft.run.turn,
            call_id=call_id,
            attempt=call.attempt.number if call.attempt else 0,
            content=fitting_result(draft.run, content, blob),
            is_error=is_error,
            source=source,
            blob=blob,
        )
    )


def stored_content(content: bytes) -> tuple[bytes, bool]:
    """A result as it will be stored and re-sent for ever, and whether it had to be replaced by an error."""
    try:
        return dumps_verbatim(_sayable(normalise_json(loads_json(content, depth_max=JSON_DEPTH_MAX)))), False
    except Reject as error:
        return dumps_verbatim(f"The tool ran, but its result could not be read: {error}"), True


def _sayable(value: JsonValue) -> JsonValue:
    """A result that the Messages API takes: a text or blocks, neither blank; any other JSON as its text."""
    match value:
        case str():
            return value if value.strip() else NO_OUTPUT
        case list() if all(isinstance(block, dict) and isinstance(block.get("type"), str) for block in value):
            return [block for block in value if isinstance(block, dict) and not is_blank(block)] or NO_OUTPUT
        case _:
            return canonical_json(value).decode()


def unfinished_text(call: Call) -> str:
    """What is known of a call without an open attempt that will not be tried again."""
    return MAY_HAVE_RUN if call.may_have_run else NOT_STARTED


def answer_error(draft: Draft, call_id: str, message: str, source: ResultSource) -> None:
    """Give a call an error result that tells the model what happened."""
    answer(draft, call_id, dumps_verbatim(message), source, is_error=True)


def _call(draft: Draft, call_id: str) -> Call:
    call = draft.run.call(call_id)
    assert call is not None
    return call
