"""Ambiguity: a non_idempotent attempt that may or may not have happened is asked about, never repeated
blindly.
"""

from __future__ import annotations

from perdure.processors.machine.approvals import ask_person
from perdure.processors.machine.draft import Draft
from perdure.processors.machine.requests import answer, dispatch
from perdure.processors.machine.state import Attempt, Call
from perdure.schemas import events as ev
from perdure.schemas.definition import ToolDefinition
from perdure.schemas.values import Answer, BlobRef, PendingKind, ResultSource


def become_ambiguous(draft: Draft, call: Call, reason: str, message: str) -> None:
    """Record the doubt, then ask the reconciliation tool or, without one, a person."""
    attempt = _attempt(call)
    draft.emit(ev.ToolAmbiguous(draft.run.turn, call.call_id, attempt.number, reason, message))
    if reconciler_of(draft, call) is None:
        ask_person(draft, call.call_id, PendingKind.AMBIGUITY)
    else:
        ask_reconciler(draft, call)


def reconciler_of(draft: Draft, call: Call) -> ToolDefinition | None:
    """The reconciliation tool of a call's tool, if it has one."""
    tool = draft.definition.tool(call.tool)
    return draft.definition.tool(tool.reconcile) if tool is not None and tool.reconcile else None


def ask_reconciler(draft: Draft, call: Call) -> None:
    """Dispatch the next question about the call's newest attempt."""
    tool = reconciler_of(draft, call)
    assert tool is not None
    settings = draft.context.settings
    start_by_ms = draft.now_ms + settings.dispatch_wait_ms_max
    draft.emit(
        ev.ReconciliationAsked(
            turn=draft.run.turn,
            call_id=call.call_id,
            attempt=_attempt(call).number,
            ask=call.reconciliation.ask + 1 if call.reconciliation else 1,
            tool=tool.name,
            request_id=draft.new_id(),
            start_by_ms=start_by_ms,
            timeout_ms=tool.timeout_ms,
            deadline_ms=start_by_ms + tool.timeout_ms + settings.clock_skew_ms_max,
        )
    )


def happened(draft: Draft, call: Call, content: bytes, blob: BlobRef | None = None) -> None:
    """Believed at once: what the outside world recorded is the call's result."""
    answer(draft, call.call_id, content, ResultSource.RECONCILED, blob=blob)


def did_not_happen(draft: Draft, call: Call) -> None:
    """License a new attempt only if the question was put after the old one could no longer land.

    That is its deadline plus the tool's ``settle_ms``; asked earlier, the answer says nothing yet: ask
    again then.
    """
    attempt, asked = _attempt(call), call.reconciliation
    tool = draft.definition.tool(call.tool)
    assert asked is not None
    assert tool is not None
    settled_ms = attempt.deadline_ms + tool.settle_ms
    if asked.asked_ms > settled_ms:
        draft.emit(_answered(draft, call, Answer.DID_NOT_HAPPEN, "", None))
        draft.emit(_ended(draft, call, "did_not_happen", "the reconciliation tool found no trace of it"))
        dispatch(draft, call.call_id)
        return
    message = "asked before the attempt was over; asked again once it can no longer land"
    draft.emit(_answered(draft, call, Answer.DID_NOT_HAPPEN, message, max(settled_ms, draft.now_ms) + 1))


def unknown(draft: Draft, call: Call, message: str, *, is_counted: bool = True) -> None:
    """Ask again a bounded number of times, then ask a person."""
    asked = call.reconciliation
    assert asked is not None
    settings = draft.context.settings
    if is_counted and asked.ask >= settings.reconcile_asks_max:
        draft.emit(_answered(draft, call, Answer.UNKNOWN, message, None))
        ask_person(draft, call.call_id, PendingKind.AMBIGUITY)
        return
    delay_ms = draft.backoff_ms(asked.ask) if is_counted else settings.unavailable_delay_ms
    draft.emit(_answered(draft, call, Answer.UNKNOWN, message, draft.now_ms + delay_ms))


def did_not_run(draft: Draft, call: Call, reason: str, message: str) -> None:
    """It is certain that the attempt did not run: license the next one."""
    draft.emit(_ended(draft, call, reason, message))
    dispatch(draft, call.call_id)


def _attempt(call: Call) -> Attempt:
    assert call.attempt is not None
    return call.attempt


def _ended(draft: Draft, call: Call, reason: str, message: str) -> ev.ToolAttemptEnded:
    return ev.ToolAttemptEnded(
        draft.run.turn, call.call_id, _attempt(call).number, reason, message, retry_at_ms=None
    )


def _answered(
    draft: Draft, call: Call, found: Answer, message: str, retry_at_ms: int | None
) -> ev.ReconciliationAnswered:
    assert call.reconciliation is not None
    return ev.ReconciliationAnswered(
        turn=draft.run.turn,
        call_id=call.call_id,
        attempt=_attempt(call).number,
        ask=call.reconciliation.ask,
        answer=found,
        message=message,
        retry_at_ms=retry_at_ms,
    )
