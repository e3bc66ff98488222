"""Late results: a call has its result, the run has gone on or ended, and an executor has more to say.

Until the next model request is written, a result takes the place of one that only said that nobody knew.
Afterwards it is recorded, and the model is told of it as text after the next results.
"""

from __future__ import annotations

from perdure.processors.machine.draft import Draft
from perdure.processors.machine.requests import stored_content
from perdure.processors.machine.room import fitting_result, has_room_for, head_text
from perdure.processors.machine.state import Call, LooseEnd
from perdure.processors.machine.surplus import record_surplus
from perdure.schemas import results as rs
from perdure.schemas.canonical import dumps_verbatim
from perdure.schemas.values import Effect, FailureKind, RunState


def record_late(draft: Draft, result: rs.Result, call: Call | None) -> None:
    """Record what an executor did, and keep what may still be used of it."""
    body, run = result.body, draft.run
    end = _end(draft, result, call)
    closes = end is not None and _is_definite(end, body)
    is_claim = end is not None and isinstance(body, rs.Started)  # else a suspect would mean "not started"
    if not closes and not is_claim and not isinstance(body, (rs.Completed, rs.Failed, rs.Reconciled)):
        return
    reason = "late" if run.is_under_way else "queued" if run.state is RunState.QUEUED else "terminal"
    content, is_error = _content(body) if closes and _is_wanted(call, result) else (None, False)
    record_surplus(
        draft,
        result,
        reason,
        closes_attempt=closes,
        content=None if content is None else fitting_result(run, content),
        is_error=is_error,
        told=_told(draft, end, body) if closes and content is None and _is_over(end) else None,
    )


def _end(draft: Draft, result: rs.Result, call: Call | None) -> Call | LooseEnd | None:
    """The open attempt that the result is of: of a call of this turn, or of one whose turn is over."""
    if call is not None and call.attempt is not None and call.attempt.request_id == result.request_id:
        return call if call.attempt.is_open or call.is_given_up else None
    return next((end for end in draft.run.loose if end.request_id == result.request_id), None)


def _is_wanted(call: Call | None, result: rs.Result) -> bool:
    """Whether the result can be the call's: it has none yet, or one that says that nobody knows."""
    if call is None or call.attempt is None or call.attempt.request_id != result.request_id:
        return False
    return not call.is_done or call.is_synthetic


def _is_over(end: Call | LooseEnd | None) -> bool:
    return isinstance(end, LooseEnd) or (end is not None and end.is_given_up)


def _content(body: rs.ResultBody) -> tuple[bytes | None, bool]:
    match body:
        case rs.Completed():
            content, is_unreadable = stored_content(body.content)
            return content, body.is_error or is_unreadable
        case rs.Failed(kind=FailureKind.OUTPUT):  # it ran; only its answer can not be used
            return dumps_verbatim(body.message), True
        case _:
            return None, False


def _told(draft: Draft, end: Call | LooseEnd | None, body: rs.ResultBody) -> str | None:
    """What the model is told, if there is room for it; it has seen another result."""
    assert end is not None
    content, is_error = _content(body)
    if content is None:
        text = f"The call {end.call_id} of {end.tool} was not executed, as is known by now."
    else:
        kind = "An error result" if is_error else "The result"
        text = f"{kind} of the call {end.call_id} of {end.tool} came late: {head_text(content)}"
    return text if has_room_for(draft.run, text) else None


def _is_definite(end: Call | LooseEnd, body: rs.ResultBody) -> bool:
    """Whether nothing more can come of an attempt that ended so."""
    match body:
        case rs.Completed() | rs.Declined() | rs.Undecodable():
            return True
        case rs.Failed():
            return body.kind in {FailureKind.NOT_EXECUTED, FailureKind.OUTPUT}
        case rs.Suspect() if isinstance(end, Call):  # only where a claim stands before every execution
            is_claimed = end.attempt is not None and end.attempt.started_ms is not None
            return end.effect is Effect.NON_IDEMPOTENT and not is_claimed
        case _:
            return False
