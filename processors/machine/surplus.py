"""Results that change no state: recorded, so that nothing an executor did is lost from the history."""

from __future__ import annotations

import hashlib

from perdure.processors.machine.draft import Draft
from perdure.schemas import events as ev
from perdure.schemas import results as rs
from perdure.schemas.values import Usage


def record_surplus(draft: Draft, result: rs.Result, reason: str, usage: Usage | None = None) -> None:
    """Record a late, repeated or superseded result; its usage counts."""
    content = (
        result.body.content
        if isinstance(result.body, (rs.Completed, rs.ModelReplied, rs.Reconciled))
        else None
    )
    draft.emit(
        ev.SurplusRecorded(
            turn=result.turn,
            call_id=result.call_id,
            attempt=result.attempt,
            request_id=result.request_id,
            kind=type(result.body).__name__,
            reason=reason,
            usage=usage or Usage(),
            content_sha256=hashlib.sha256(content).digest() if content else b"",
        )
    )
