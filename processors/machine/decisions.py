"""decide, for what people decide about a call: the first valid decision wins, any other says why it does not
count.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, assert_never

from perdure.processors.machine import ambiguity
from perdure.processors.machine.apply_calls import is_seen
from perdure.processors.machine.approvals import VERDICTS, ask_anew
from perdure.processors.machine.draft import Draft
from perdure.processors.machine.messages import clean_text
from perdure.processors.machine.requests import answer, answer_error, dispatch
from perdure.processors.machine.room import has_room_for
from perdure.processors.machine.state import Call, Pending, Run
from perdure.processors.machine.tokens import token_fault
from perdure.processors.machine.turns import advance
from perdure.schemas import commands as cmd
from perdure.schemas import events as ev
from perdure.schemas.canonical import canonical_json, dumps_verbatim, loads_json, normalise_json
from perdure.schemas.errors import Reject
from perdure.schemas.json_schema import fault_in
from perdure.schemas.limits import JSON_DEPTH_MAX
from perdure.schemas.values import ResultSource, RunState, Verdict

GIVE_UP_TEXT: Final = (
    "It could not be found out whether this call took effect. Do not assume that it did or did not."
)


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why a decision does not count: a stable reason, and more for people."""

    reason: str
    message: str = ""


def decide_call(draft: Draft, body: cmd.Decide) -> None:
    """Answer a decision."""
    run = draft.run
    pending, call = run.pending_for(body.call_id), run.call(body.call_id)
    if pending is None or call is None:
        draft.reject(body, _absent(run, call, body))
        return
    checked = _fault(draft, pending, call, body) or _arguments(draft, call, body)
    if isinstance(checked, _Fault):
        draft.reject(body, checked.reason, checked.message)
        keys = draft.context.token_keys
        if keys.is_strict and not keys.knows(pending.token):
            ask_anew(draft, pending)
        return
    arguments = None if checked == call.arguments else checked
    draft.emit(
        ev.DecisionRecorded(
            turn=run.turn,
            call_id=body.call_id,
            verdict=body.verdict,
            decided_by=body.decided_by,
            message=body.message,
            arguments=arguments,
            arguments_sha256=hashlib.sha256(arguments or call.arguments).digest(),
            told=None if arguments is None else _told(call, arguments),
        )
    )
    _follow(draft, body)
    advance(draft)


def _absent(run: Run, call: Call | None, body: cmd.Decide) -> str:
    """The stable reason for which nobody is asked about a call."""
    match run.state:
        case RunState.CANCELLED:
            return "run_cancelled"
        case RunState.TIMED_OUT:
            return "decision_expired"
        case RunState.COMPLETED | RunState.FAILED:
            return "run_terminal"
        case _ if call is None:
            return "already_decided" if is_seen(run, body.call_id) else "unknown_call"
        case _:
            return "already_decided" if call.is_done else "not_pending"


def _fault(draft: Draft, pending: Pending, call: Call, body: cmd.Decide) -> _Fault | None:
    """Why a decision about a pending call changes nothing, apart from its arguments; None if it is valid."""
    fault = token_fault(draft.context.token_keys, draft.run, call, pending.token, body.token)
    if fault is not None:
        return _Fault(fault)
    if pending.deadline_ms is not None and pending.deadline_ms <= draft.now_ms:
        return _Fault("decision_expired")
    if body.verdict not in VERDICTS[pending.kind]:
        return _Fault("verdict_not_allowed", f"taken are {', '.join(VERDICTS[pending.kind])}")
    if body.verdict is Verdict.RAN:
        try:
            value = loads_json(body.result or b"", depth_max=JSON_DEPTH_MAX)
        except Reject as error:
            return _Fault("invalid_result", f"{error.detail}")
        if isinstance(value, list) and not all(isinstance(block, dict) for block in value):
            return _Fault("invalid_result", "a list is one of content blocks")
    return None


def _arguments(draft: Draft, call: Call, body: cmd.Decide) -> bytes | _Fault:
    """The arguments that the decision is about: the model's, or canonical what a person put in their place,
    if the tool takes it.
    """
    if body.arguments is None:
        return call.arguments
    if body.verdict is not Verdict.APPROVE:
        return _Fault("arguments_not_allowed", "only an approve takes arguments")
    tool = draft.definition.tool(call.tool)
    assert tool is not None
    try:
        value = normalise_json(loads_json(body.arguments, depth_max=JSON_DEPTH_MAX))
        fault = fault_in(tool.input_schema, value)
    except Reject as error:
        return _Fault("invalid_arguments", clean_text(f"{error.detail}"))
    if fault is not None or not isinstance(value, dict):
        return _Fault("invalid_arguments", clean_text(fault or "they are no JSON object"))
    arguments = canonical_json(value)
    if not has_room_for(draft.run, _told(call, arguments)):
        return _Fault("arguments_too_large", "the model could not be told of them")
    return arguments


def _told(call: Call, arguments: bytes) -> str:
    """The assistant's message stays as it is; so the model has to be told what it is answered about."""
    return (
        f"A person approved the call {call.call_id} of {call.tool} with other arguments than you gave, and "
        f"its result is about the call with these: {arguments.decode()}"
    )


def _follow(draft: Draft, body: cmd.Decide) -> None:
    """What a valid decision sets going."""
    call = draft.run.call(body.call_id)
    assert call is not None
    match body.verdict:
        case Verdict.APPROVE:
            dispatch(draft, body.call_id)
        case Verdict.REJECT:
            text = f"A person refused this call{': ' + body.message if body.message else '.'}"
            answer_error(draft, body.call_id, text, ResultSource.DECIDED)
        case Verdict.RAN:
            answer(draft, body.call_id, _content(body.result or b'""'), ResultSource.DECIDED)
        case Verdict.DID_NOT_RUN:
            ambiguity.did_not_run(draft, call, "decided_did_not_run", f"decided by {body.decided_by}")
        case Verdict.GIVE_UP:
            answer_error(
                draft, body.call_id, (body.message or "").strip() or GIVE_UP_TEXT, ResultSource.DECIDED
            )
        case _:
            assert_never(body.verdict)


def _content(result: bytes) -> bytes:
    """A result as a tool_result takes it: text or content blocks as they are, other JSON as its text."""
    value = loads_json(result)
    if isinstance(value, (str, list)):
        return dumps_verbatim(value)
    return dumps_verbatim(canonical_json(value).decode())
