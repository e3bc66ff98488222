"""Results that change no state: recorded, so that nothing an executor did is lost from the history."""

from __future__ import annotations

import hashlib

from perdure.processors.machine.draft import Draft
from perdure.schemas import events as ev
from perdure.schemas import results as rs
from perdure.schemas.values import Usage


def record_surplus(
    draft: Draft,
    result: rs.Result,
    reason: str,
    usage: Usage | None = None,
    *,
    closes_attempt: bool = False,
    content: bytes | None = None,
    is_error: bool = False,
    told: str | None = None,
) -> None:
    """Record a late, repeated or superseded result. Its usage counts, in place of an estimate if there is
    one.

    ``content``: keep it as the call's answer. ``told``: tell the model so.
    ``closes_attempt``: the attempt is known to be over.
    """
    body = result.body
    answered = body.content if isinstance(body, (rs.Completed, rs.ModelReplied, rs.Reconciled)) else None
    is_charged = any(each.request_id == result.request_id for each in draft.run.estimates)
    draft.emit(
        ev.SurplusRecorded(
            turn=result.turn,
            call_id=result.call_id,
            attempt=result.attempt,
            request_id=result.request_id,
            kind=type(body).__name__,
            reason=reason,
            usage=usage or Usage(),
            content_sha256=hashlib.sha256(answered).digest() if answered else b"",
            corrects_estimate=is_charged and usage is not None,
            content=content,
            is_error=is_error,
            closes_attempt=closes_attempt,
            told=told,
        )
    )
