"""What other topics are told of an event. Derived from the event and the run, so that a replay tells the
same.
"""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from perdure.processors.machine.state import Run
from perdure.processors.machine.transcript import request_of
from perdure.schemas import events as ev
from perdure.schemas.keys import ApprovalKey
from perdure.schemas.outputs import Approval, Outcome, RunSignal, Status
from perdure.schemas.requests import ToolRequest
from perdure.schemas.values import Effect, Purpose, RunState, Struct

MODEL_REQUESTS = "model-requests"
TOOL_REQUESTS = "tool-requests"
RUN_OUTCOMES = "run-outcomes"
RUN_APPROVALS = "run-approvals"
RUN_SIGNALS = "run-signals"


class Projected(Struct, frozen=True):
    """A record for another topic (base name). ``record`` None: a tombstone."""

    topic: str
    key: str
    record: Struct | None


def project(before: Run | None, event: ev.Event, after: Run) -> tuple[Projected, ...]:
    """Records for the request, outcome, approval and signal topics. Events and status are written by the
    host.
    """
    records: list[Projected] = []
    body = event.body
    run_id = after.run_id
    match body:
        case ev.TurnStarted():
            records.append(Projected(MODEL_REQUESTS, run_id, request_of(after)))
        case ev.ToolDispatched():
            records.append(Projected(TOOL_REQUESTS, run_id, _call_request(after, body)))
        case ev.ReconciliationAsked():
            records.append(Projected(TOOL_REQUESTS, run_id, _question(after, body)))
        case ev.ApprovalRequested():
            key = str(ApprovalKey(run_id, body.call_id))
            records.append(Projected(RUN_APPROVALS, key, _approval(after, event.at_ms, body)))
        case ev.RunCompleted() | ev.RunFailed() | ev.RunCancelled() | ev.RunTimedOut():
            records.append(Projected(RUN_OUTCOMES, run_id, outcome_of(after)))
            if isinstance(body, (ev.RunCancelled, ev.RunTimedOut)):
                records.append(Projected(RUN_SIGNALS, run_id, RunSignal(after.execution, body.reason)))
        case ev.RunResumed():
            records.append(Projected(RUN_SIGNALS, run_id, None))
        case (
            ev.RunCreated()
            | ev.AgentPinned()
            | ev.RunWaiting()
            | ev.TurnResumed()
            | ev.SignalReceived()
            | ev.TranscriptSent()
            | ev.ModelResponded()
            | ev.ModelAttemptEnded()
            | ev.ToolCallRequested()
            | ev.ToolStarted()
            | ev.ToolAttemptEnded()
            | ev.ToolAmbiguous()
            | ev.ReconciliationAnswered()
            | ev.ToolCompleted()
            | ev.ChildStarted()
            | ev.ChildEnded()
            | ev.DecisionRecorded()
            | ev.CommandRejected()
            | ev.SurplusRecorded()
            | ev.RunPurged()  # what other topics forget follows its last tombstone (orchestrator.purges)
        ):
            pass
        case _:
            assert_never(body)
    return (*records, *_withdrawn(before, after))


def _withdrawn(before: Run | None, after: Run) -> list[Projected]:
    """Tombstones of the questions that nobody need answer any more, whatever ended them."""
    if before is None:
        return []
    asked = {pending.call_id for pending in after.pending}
    return [
        Projected(RUN_APPROVALS, str(ApprovalKey(after.run_id, pending.call_id)), None)
        for pending in before.pending
        if pending.call_id not in asked
    ]


def must_publish(before: Run | None, after: Run) -> bool:
    """Whether run-status must say this at once: creation, and entering or leaving a wait for people or an
    end.
    """
    if before is None:
        return True
    if before.state is after.state:
        return len(before.pending) != len(after.pending)
    told = {RunState.AWAITING_APPROVAL}
    return bool({before.state, after.state} & told) or after.state.is_terminal or before.state.is_terminal


def status_of(run: Run) -> Status:
    """The newest status of a run."""
    return Status(
        run_id=run.run_id,
        seq=run.seq,
        execution=run.execution,
        state=run.state,
        agent=run.agent,
        turn=run.turn,
        usage=run.usage,
        created_ms=run.created_ms,
        updated_ms=run.updated_ms,
        pending_approvals=len(run.pending),
        waiting_for=run.waits_for,
        code=run.closed.code if run.closed else None,
        provenance=run.provenance,
        parent=run.parent.run_id if run.parent else None,
        source=run.shared.source if run.shared else None,
    )


def outcome_of(run: Run) -> Outcome:
    """The outcome of the execution that the run's last event ended."""
    closed = run.closed
    assert closed is not None
    return Outcome(
        run_id=run.run_id,
        execution=run.execution,
        state=run.state,
        agent=run.agent,
        definition=run.definition,
        seq=run.seq,
        output=closed.output,
        stop_reason=closed.stop_reason,
        code=closed.code,
        message=closed.message,
        phase=closed.phase,
        usage=run.usage,
        turns=run.turns_completed,
        created_ms=run.created_ms,
        ended_ms=closed.at_ms,
        provenance=run.provenance,
        parent=run.parent.run_id if run.parent else None,
        source=run.shared.source if run.shared else None,
    )


def _call_request(run: Run, body: ev.ToolDispatched | ev.ReconciliationAsked) -> ToolRequest:
    call = run.call(body.call_id)
    assert call is not None
    return ToolRequest(
        run_id=run.run_id,
        turn=body.turn,
        call_id=body.call_id,
        attempt=body.attempt,
        request_id=body.request_id,
        execution=run.execution,
        definition=run.definition or "",
        tool=call.tool,
        arguments=call.arguments,
        effect=call.effect,
        idempotency_key=call.idempotency_key,
        start_by_ms=body.start_by_ms,
        timeout_ms=body.timeout_ms,
        trace_context=run.provenance.trace_context,
        recipient=call.recipient,
    )


def _question(run: Run, body: ev.ReconciliationAsked) -> ToolRequest:
    """The call in doubt, put to the reconciliation tool."""
    call = run.call(body.call_id)
    assert call is not None
    assert call.attempt is not None
    return replace(
        _call_request(run, body),
        tool=body.tool,
        effect=Effect.READ_ONLY,
        purpose=Purpose.RECONCILE,
        recipient=b"",
        started_ms=call.attempt.started_ms or call.attempt.opened_ms,
    )


def _approval(run: Run, at_ms: int, body: ev.ApprovalRequested) -> Approval:
    call = run.call(body.call_id)
    assert call is not None
    return Approval(
        run_id=run.run_id,
        turn=body.turn,
        call_id=body.call_id,
        kind=body.kind,
        tool=call.tool,
        arguments=call.arguments,
        effect=call.effect,
        known=body.known,
        verdicts=body.verdicts,
        token=body.token,
        requested_ms=at_ms,
        deadline_ms=body.deadline_ms,
        provenance=run.provenance,
        recipient=body.recipient,
    )
