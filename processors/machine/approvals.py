"""Questions to people: what is shown, and under which token it is answered."""

from __future__ import annotations

from typing import Any, Final

from perdure.processors.machine.draft import Draft
from perdure.processors.machine.state import Call
from perdure.processors.machine.tokens import resume_token
from perdure.schemas import events as ev
from perdure.schemas.canonical import canonical_json
from perdure.schemas.values import PendingKind, Verdict

VERDICTS: Final = {
    PendingKind.APPROVAL: (Verdict.APPROVE, Verdict.REJECT),
    PendingKind.AMBIGUITY: (Verdict.RAN, Verdict.DID_NOT_RUN, Verdict.GIVE_UP),
}
"""What may be decided. A plain approve of an ambiguous call is refused: it would not say whether it ran."""


def ask_person(draft: Draft, call_id: str, kind: PendingKind) -> None:
    """Put a call before a person; the question is in the log before anybody is asked."""
    call = draft.run.call(call_id)
    assert call is not None
    timeout_ms = draft.context.settings.approval_timeout_ms
    draft.emit(
        ev.ApprovalRequested(
            turn=draft.run.turn,
            call_id=call_id,
            kind=kind,
            known=canonical_json(_known(call)),
            verdicts=VERDICTS[kind],
            token=resume_token(draft.context.token_key, draft.run, call, draft.new_id()),
            deadline_ms=None if timeout_ms is None else draft.now_ms + timeout_ms,
        )
    )


def _known(call: Call) -> dict[str, Any]:
    """Exactly what is known of the call, in plain words and instants (milliseconds since the epoch)."""
    attempt, asked = call.attempt, call.reconciliation
    known: dict[str, Any] = {
        "tool": call.tool,
        "effect": str(call.effect),
        "idempotency_key": call.idempotency_key,
        "doubt": call.doubt,
        "attempt": attempt.number if attempt else 0,
    }
    if attempt is not None:
        known["dispatched_ms"] = attempt.opened_ms
        known["claim_read_ms"] = attempt.started_ms
        known["over_at_the_latest_ms"] = attempt.deadline_ms
    if asked is not None:
        known["reconciliation_asked_times"] = asked.ask
        known["reconciliation_last_asked_ms"] = asked.asked_ms
    return known
