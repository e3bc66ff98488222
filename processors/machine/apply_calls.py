"""apply, for the events of tool calls."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Final, TypeAlias, assert_never

from msgspec.structs import replace

from perdure.processors.machine.apply_family import child_started
from perdure.processors.machine.lifecycle import IllegalEvent
from perdure.processors.machine.repetition import learn, remember
from perdure.processors.machine.state import (
    Attempt,
    Call,
    CallPhase,
    LooseEnd,
    Pending,
    Reconciliation,
    Run,
    agent_named,
)
from perdure.schemas import events as ev
from perdure.schemas.recipient import digest_of
from perdure.schemas.values import DeclineReason, Effect, ResultSource, RunState, Verdict

CALL_ID_HASH_BYTES: Final = 8
LOOSE_ENDS_MAX: Final = 16
"""How many calls of earlier turns are remembered, of which more may be heard."""
CHILD_GRACE_MS: Final = 60_000
"""How long after its deadline a child may still be heard of."""

CallEvent: TypeAlias = (
    ev.ToolCallRequested
    | ev.ToolDispatched
    | ev.ToolStarted
    | ev.ToolAttemptEnded
    | ev.ToolAmbiguous
    | ev.ReconciliationAsked
    | ev.ReconciliationAnswered
    | ev.ToolCompleted
    | ev.ChildStarted
    | ev.ApprovalRequested
    | ev.DecisionRecorded
)


def hash_call_id(call_id: str) -> bytes:
    """What a run remembers of a call id: a collision only costs a needless new name."""
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).digest()[:CALL_ID_HASH_BYTES]


def is_seen(run: Run, call_id: str) -> bool:
    """Whether a call of this id was made in any turn so far."""
    size, seen, mark = CALL_ID_HASH_BYTES, run.seen_call_ids, hash_call_id(call_id)
    return any(seen[start : start + size] == mark for start in range(0, len(seen), size))


def resting_state(run: Run) -> RunState:
    """The state that the calls of the current turn call for."""
    if any(call.awaits_decision for call in run.calls):
        return RunState.AWAITING_APPROVAL
    if not all(call.is_done for call in run.calls):
        return RunState.AWAITING_TOOL
    return RunState.RUNNING


def close_attempt(run: Run, request_id: str, kind: str) -> Run:
    """Mark the attempt with this request id as over: nothing more is to be heard of it. ``kind``: of what was
    heard.
    """
    run = replace(run, loose=tuple(end for end in run.loose if end.request_id != request_id))
    for call in run.calls:
        if call.attempt is not None and call.attempt.request_id == request_id:
            attempt = replace(call.attempt, is_open=False)
            is_proof = kind != "Declined" or call.effect is Effect.NON_IDEMPOTENT
            may_have_run = call.may_have_run or not is_proof
            return _put(run, replace(call, attempt=attempt, is_given_up=False, may_have_run=may_have_run))
    return run


def leave_loose(run: Run) -> Run:
    """Remember the calls of the turn that is over of which more may be heard."""
    left = (
        LooseEnd(call.call_id, call.tool, call.attempt.request_id)
        for call in run.calls
        if call.attempt is not None and (call.attempt.is_open or call.is_given_up)
    )
    return replace(run, loose=(*run.loose, *left)[-LOOSE_ENDS_MAX:])


def claim_attempt(run: Run, request_id: str, at_ms: int) -> Run:
    """Note that the attempt with this request id may be executing, if it is still open."""
    for call in run.calls:
        if call.attempt is not None and call.attempt.request_id == request_id and call.attempt.is_open:
            return _put(run, replace(call, attempt=replace(call.attempt, started_ms=at_ms)))
    return run


def keep_late(run: Run, call_id: str, content: bytes, *, is_error: bool) -> Run:
    """Keep what a tool answered after its run had ended, or after a synthetic result had taken its place."""
    call = run.call(call_id)
    if call is None:
        raise IllegalEvent(f"a late result of call {call_id}, which turn {run.turn} does not have")
    if not call.is_synthetic:
        return _put(run, replace(call, late_content=content, is_late_error=is_error))
    run = _put(run, replace(call, content=content, is_error=is_error, is_synthetic=False))
    return learn(run, call_id, content, is_error=is_error)


def change(run: Run, at_ms: int, body: CallEvent) -> Run:
    """The run after an event of one of its calls."""
    if isinstance(body, ev.ToolCallRequested):
        return _requested(run, body)
    call = run.call(body.call_id)
    if call is None or body.turn != run.turn:
        raise IllegalEvent(f"{type(body).__name__} for call {body.call_id} of turn {body.turn}")
    if call.is_done or not run.is_under_way or call.phase not in PHASES.get(type(body), CallPhase):
        raise IllegalEvent(f"{type(body).__name__} for call {body.call_id}, {call.phase} in {run.state}")
    run = _put(run, _waiting(run, _changed_call(call, at_ms, body), body))
    if isinstance(body, ev.ApprovalRequested):
        pending = Pending(body.call_id, body.kind, body.token, at_ms, body.deadline_ms)
        others = (each for each in run.pending if each.call_id != body.call_id)
        run = replace(run, pending=(*others, pending))
    elif isinstance(body, ev.ChildStarted):
        run = child_started(run, body)
    elif isinstance(body, ev.DecisionRecorded) and body.told is not None:
        run = replace(run, texts=(*run.texts, body.told))
    elif isinstance(body, ev.ToolCompleted):
        run = learn(run, body.call_id, body.content, is_error=body.is_error)
        if body.source is ResultSource.INTERCEPTED:
            run = replace(run, interceptions=run.interceptions + 1)
    if isinstance(body, (ev.DecisionRecorded, ev.ToolCompleted, ev.ToolAttemptEnded)):
        run = replace(run, pending=tuple(p for p in run.pending if p.call_id != body.call_id))
    return replace(run, state=resting_state(run))


PHASES: Final[Mapping[type[CallEvent], Collection[CallPhase]]] = {
    ev.ToolDispatched: {CallPhase.REQUESTED, CallPhase.RETRY_WAIT},
    ev.ChildStarted: {CallPhase.REQUESTED},
    ev.ReconciliationAsked: {CallPhase.AMBIGUOUS, CallPhase.RECONCILE_WAIT},
    ev.ReconciliationAnswered: {CallPhase.RECONCILING},
    ev.ApprovalRequested: {CallPhase.REQUESTED, CallPhase.AMBIGUOUS, CallPhase.AWAITING_DECISION},
    ev.DecisionRecorded: {CallPhase.AWAITING_DECISION},
}
"""The phases of a call in which an event may follow; what speaks of an attempt needs one that is open."""


def _requested(run: Run, body: ev.ToolCallRequested) -> Run:
    is_answered = body.turn == run.turn == run.turns_completed
    if run.call(body.call_id) is not None or not is_answered or not run.is_under_way:
        raise IllegalEvent(f"call {body.call_id} can not be requested now")
    call = Call(body.call_id, body.index, body.tool, body.arguments, body.effect, body.idempotency_key)
    run = replace(run, calls=(*run.calls, call), seen_call_ids=run.seen_call_ids + hash_call_id(body.call_id))
    run = remember(run, body.fingerprint, body.call_id)
    return replace(run, state=resting_state(run))


def _put(run: Run, changed: Call) -> Run:
    return replace(
        run, calls=tuple(changed if call.call_id == changed.call_id else call for call in run.calls)
    )


def _changed_call(
    call: Call,
    at_ms: int,
    body: ev.ToolDispatched
    | ev.ToolStarted
    | ev.ToolAttemptEnded
    | ev.ToolAmbiguous
    | ev.ReconciliationAsked
    | ev.ReconciliationAnswered
    | ev.ToolCompleted
    | ev.ChildStarted
    | ev.ApprovalRequested
    | ev.DecisionRecorded,
) -> Call:
    match body:
        case ev.ToolDispatched():
            if body.attempt != (call.attempt.number + 1 if call.attempt else 1):
                raise IllegalEvent(f"attempt {body.attempt} of call {call.call_id} is not the next one")
            attempt = Attempt(body.attempt, body.request_id, at_ms, body.deadline_ms)
            return replace(
                call,
                phase=CallPhase.DISPATCHED,
                attempt=attempt,
                reconciliation=None,
                due_ms=None,
                doubt=None,
            )
        case ev.ToolStarted():
            attempt = replace(_attempt(call, body.attempt), started_ms=at_ms, deadline_ms=body.deadline_ms)
            return replace(call, attempt=attempt)
        case ev.ToolAttemptEnded():
            waits = body.retry_at_ms is not None
            return replace(
                call,
                phase=CallPhase.RETRY_WAIT if waits else CallPhase.REQUESTED,
                attempt=replace(_attempt(call, body.attempt), is_open=False),
                due_ms=body.retry_at_ms,
                failures=call.failures + (1 if body.reason in COUNTED else 0),
                may_have_run=call.may_have_run or _may_have_run(call, body.reason),
            )
        case ev.ToolAmbiguous():
            _attempt(call, body.attempt)
            return replace(call, phase=CallPhase.AMBIGUOUS, doubt=body.message)
        case ev.ReconciliationAsked():
            _attempt(call, body.attempt)
            asked = Reconciliation(body.ask, body.request_id, at_ms, body.deadline_ms)
            return replace(call, phase=CallPhase.RECONCILING, reconciliation=asked, due_ms=None)
        case ev.ReconciliationAnswered():
            return _answered(call, body)
        case ev.ToolCompleted():
            return _completed(call, body)
        case ev.ChildStarted():
            due_ms = body.deadline_ms + CHILD_GRACE_MS
            return replace(call, phase=CallPhase.WITH_CHILD, child=body.child_id, due_ms=due_ms)
        case ev.ApprovalRequested():
            recipient = call.recipient if body.recipient is None else digest_of(body.recipient)
            return replace(call, phase=CallPhase.AWAITING_DECISION, due_ms=None, recipient=recipient)
        case ev.DecisionRecorded():
            arguments = call.arguments if body.arguments is None else body.arguments
            is_given_up = body.verdict is Verdict.GIVE_UP
            return replace(call, phase=CallPhase.REQUESTED, arguments=arguments, is_given_up=is_given_up)
        case _:
            assert_never(body)


def _waiting(run: Run, call: Call, body: CallEvent) -> Call:
    """The call as it waits for what no worker had, or does so no more."""
    waiting_for = None
    if isinstance(body, ev.ToolAttemptEnded) and body.reason == DeclineReason.UNAVAILABLE:
        waiting_for = f"tool {call.tool} of {agent_named(run.agent, run.version)} on some worker"
        waiting_for += f" ({body.message})" if body.message else ""
    return call if call.waiting_for == waiting_for else replace(call, waiting_for=waiting_for)


def _may_have_run(call: Call, reason: str) -> bool:
    """Whether an attempt that ended so may have done what it was asked."""
    return reason in UNKNOWN or (reason in UNCLAIMED and call.effect is not Effect.NON_IDEMPOTENT)


UNKNOWN = frozenset({"deadline", "aborted", "connection", "exception", "watchdog"})
"""Reasons of ended attempts that do not tell whether they were executed."""
UNCLAIMED = frozenset({"suspect", "cancelled", "expired", "unavailable", "late_claim"})
"""Reasons that prove something only of a call that needs a claim: of another one, the worker that handed it
back may not have been the first to read it.
"""
COUNTED = frozenset(
    {"not_executed", "deadline", "aborted", "connection", "exception", "watchdog", "undecodable"}
)
"""Reasons of ended attempts that count against the tool's ``attempts_max``."""


def _attempt(call: Call, number: int) -> Attempt:
    if call.attempt is None or call.attempt.number != number or not call.attempt.is_open:
        raise IllegalEvent(f"attempt {number} of call {call.call_id} is not its newest, or it is over")
    return call.attempt


def _answered(call: Call, body: ev.ReconciliationAnswered) -> Call:
    if call.reconciliation is None or call.reconciliation.ask != body.ask:
        raise IllegalEvent(f"answer {body.ask} to a question about {call.call_id} that was not asked")
    waits = body.retry_at_ms is not None
    return replace(
        call,
        phase=CallPhase.RECONCILE_WAIT if waits else CallPhase.AMBIGUOUS,
        reconciliation=replace(call.reconciliation, is_open=False),
        due_ms=body.retry_at_ms,
    )


def _completed(call: Call, body: ev.ToolCompleted) -> Call:
    attempt = call.attempt
    if attempt is not None and body.source is not ResultSource.SYNTHETIC:
        attempt = replace(attempt, is_open=False)
    return replace(
        call,
        phase=CallPhase.DONE,
        attempt=attempt,
        due_ms=None,
        content=body.content,
        is_error=body.is_error,
        is_synthetic=body.source is ResultSource.SYNTHETIC,
    )
