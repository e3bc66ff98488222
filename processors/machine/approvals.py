"""Questions to people: what is shown, and under which token it is answered."""

from __future__ import annotations

from typing import Any, Final

from perdure.processors.machine.draft import Draft
from perdure.processors.machine.state import Call, Pending
from perdure.processors.machine.tokens import resume_token
from perdure.schemas import events as ev
from perdure.schemas.canonical import canonical_json
from perdure.schemas.recipient import digest_of, recipient_of
from perdure.schemas.values import PendingKind, Verdict

VERDICTS: Final = {
    PendingKind.APPROVAL: (Verdict.APPROVE, Verdict.REJECT),
    PendingKind.AMBIGUITY: (Verdict.RAN, Verdict.DID_NOT_RUN, Verdict.GIVE_UP),
}
"""What may be decided. A plain approve of an ambiguous call is refused: it would not say whether it ran."""


def ask_person(draft: Draft, call_id: str, kind: PendingKind) -> None:
    """Put a call before a person; the question is in the log before anybody is asked."""
    timeout_ms = _timeout_ms(draft, call_id, kind)
    _ask(draft, call_id, kind, None if timeout_ms is None else draft.now_ms + timeout_ms)


def ask_anew(draft: Draft, pending: Pending) -> None:
    """The same question under the current key, for whoever was shown a token that is no longer taken."""
    _ask(draft, pending.call_id, pending.kind, pending.deadline_ms)


def _timeout_ms(draft: Draft, call_id: str, kind: PendingKind) -> int | None:
    """How long a person may take: what the tool says, else the agent, else the worker's settings.

    A doubt is not a question of the tool's author: only the settings bound it.
    """
    tool = draft.definition.tool(_call(draft, call_id).tool)
    said = (tool.approval_timeout_ms if tool else None, draft.definition.approval_timeout_ms)
    own = next((each for each in said if each is not None), None) if kind is PendingKind.APPROVAL else None
    return draft.context.settings.approval_timeout_ms if own is None else own


def _call(draft: Draft, call_id: str) -> Call:
    call = draft.run.call(call_id)
    assert call is not None
    return call


def _ask(draft: Draft, call_id: str, kind: PendingKind, deadline_ms: int | None) -> None:
    call = _call(draft, call_id)
    tool = draft.definition.tool(call.tool)
    assert tool is not None
    recipient = recipient_of(tool)
    draft.emit(
        ev.ApprovalRequested(
            turn=draft.run.turn,
            call_id=call_id,
            kind=kind,
            known=canonical_json(_known(call)),
            verdicts=VERDICTS[kind],
            token=resume_token(
                draft.context.token_keys, draft.run, call, digest_of(recipient), draft.new_id()
            ),
            deadline_ms=deadline_ms,
            recipient=recipient,
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
