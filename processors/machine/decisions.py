"""decide, for what people decide about a call: the first valid decision wins, any other says why it does not
count.
"""

from __future__ import annotations

from typing import Final

from perdure.processors.machine import ambiguity
from perdure.processors.machine.approvals import VERDICTS
from perdure.processors.machine.draft import Draft
from perdure.processors.machine.requests import answer, answer_error, dispatch
from perdure.processors.machine.state import Pending
from perdure.processors.machine.tokens import is_same_token
from perdure.processors.machine.turns import advance
from perdure.schemas import commands as cmd
from perdure.schemas import events as ev
from perdure.schemas.canonical import canonical_json, dumps_verbatim, loads_json
from perdure.schemas.errors import Reject
from perdure.schemas.limits import JSON_DEPTH_MAX
from perdure.schemas.values import ResultSource, Verdict

GIVE_UP_TEXT: Final = (
    "It could not be found out whether this call took effect. Do not assume that it did or did not."
)


def decide_call(draft: Draft, body: cmd.Decide) -> None:
    """Answer a decision."""
    pending = draft.run.pending_for(body.call_id)
    reason = _fault(draft, pending, body)
    if reason is not None:
        draft.reject(body, reason)
        return
    draft.emit(
        ev.DecisionRecorded(
            turn=draft.run.turn,
            call_id=body.call_id,
            verdict=body.verdict,
            decided_by=body.decided_by,
            message=body.message,
        )
    )
    _follow(draft, body)
    advance(draft)


def _fault(draft: Draft, pending: Pending | None, body: cmd.Decide) -> str | None:
    """The stable reason for which a decision changes nothing; None if it is valid."""
    run = draft.run
    if run.state.is_terminal:
        return "run_terminal"
    if pending is None:
        call = run.call(body.call_id)
        if call is None:
            return "unknown_call"
        return "already_decided" if call.is_done else "not_pending"
    if not is_same_token(pending.token, body.token):
        return "token_mismatch"
    if pending.deadline_ms is not None and pending.deadline_ms <= draft.now_ms:
        return "decision_expired"
    if body.verdict not in VERDICTS[pending.kind]:
        return "verdict_not_allowed"
    if body.arguments is not None:
        return "edited_arguments_not_supported"
    if body.verdict is Verdict.RAN:
        try:
            value = loads_json(body.result or b"", depth_max=JSON_DEPTH_MAX)
        except Reject:
            return "invalid_result"
        if isinstance(value, list) and not all(isinstance(block, dict) for block in value):
            return "invalid_result"
    return None


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


def _content(result: bytes) -> bytes:
    """A result as a tool_result takes it: text or content blocks as they are, other JSON as its text."""
    value = loads_json(result)
    if isinstance(value, (str, list)):
        return dumps_verbatim(value)
    return dumps_verbatim(canonical_json(value).decode())
