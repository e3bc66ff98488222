"""decide, for what the tool-executor tells: claims, results, failures, suspects, reconciliations."""

from __future__ import annotations

from typing import assert_never

from perdure.processors.machine import ambiguity
from perdure.processors.machine.draft import Draft
from perdure.processors.machine.late import record_late
from perdure.processors.machine.requests import answer, answer_error, dispatch, unfinished_text
from perdure.processors.machine.state import Call, CallPhase
from perdure.processors.machine.surplus import record_surplus
from perdure.processors.machine.turns import advance
from perdure.schemas import events as ev
from perdure.schemas import results as rs
from perdure.schemas.values import Answer, DeclineReason, Effect, FailureKind, ResultSource

IN_DOUBT = frozenset(
    {CallPhase.AMBIGUOUS, CallPhase.RECONCILING, CallPhase.RECONCILE_WAIT, CallPhase.AWAITING_DECISION}
)


def decide_tool_result(draft: Draft, result: rs.Result) -> None:
    """A result for a tool request, or for a question to a reconciliation tool."""
    run = draft.run
    call = run.call(result.call_id) if result.turn == run.turn else None
    if call is None or call.is_done or not run.is_under_way:
        record_late(draft, result, call)
        return
    asked = call.reconciliation
    if asked is not None and asked.request_id == result.request_id:
        _reconciliation(draft, call, result)
    elif call.attempt is not None and call.attempt.request_id == result.request_id and call.attempt.is_open:
        _attempt(draft, call, result)
    else:
        record_late(draft, result, call)
        return
    advance(draft)


def _attempt(draft: Draft, call: Call, result: rs.Result) -> None:
    """A result of the call's newest attempt, while it is open."""
    body = result.body
    match body:
        case rs.Started():
            _started(draft, call, result, body)
        case rs.Completed():
            answer(
                draft,
                call.call_id,
                body.content,
                ResultSource.EXECUTED,
                is_error=body.is_error,
                blob=body.blob,
            )
        case rs.Failed():
            _failed(draft, call, body)
        case rs.Declined():
            _declined(draft, call, body)
        case rs.Suspect():
            _suspect(draft, call)
        case rs.Undecodable():
            end_failed(draft, call, "undecodable", body.reason)
        case rs.Reconciled() | rs.Lost() | rs.ModelReplied() | rs.ModelFailed() | rs.NeedTranscript():
            record_surplus(draft, result, "not_for_a_tool_call")
        case _:
            assert_never(body)


def _started(draft: Draft, call: Call, result: rs.Result, body: rs.Started) -> None:
    deadline_ms = body.deadline_ms + draft.context.settings.clock_skew_ms_max
    draft.emit(
        ev.ToolStarted(draft.run.turn, call.call_id, result.attempt, deadline_ms, worker=result.worker)
    )


def _failed(draft: Draft, call: Call, body: rs.Failed) -> None:
    match body.kind:
        case FailureKind.NOT_EXECUTED:
            end_failed(draft, call, str(body.kind), body.message)
        case FailureKind.OUTPUT:  # it ran, definitely; only its answer can not be used
            answer_error(draft, call.call_id, body.message, ResultSource.EXECUTED)
        case FailureKind.DEADLINE | FailureKind.ABORTED | FailureKind.CONNECTION | FailureKind.EXCEPTION:
            if call.effect is not Effect.NON_IDEMPOTENT:
                end_failed(draft, call, str(body.kind), body.message)
            elif call.phase not in IN_DOUBT:
                ambiguity.become_ambiguous(draft, call, str(body.kind), body.message)


def end_failed(draft: Draft, call: Call, reason: str, message: str) -> None:
    """End an attempt that certainly did no harm: try again within the tool's bound, else an error result."""
    tool = draft.definition.tool(call.tool)
    attempt = call.attempt
    assert tool is not None
    assert attempt is not None
    if call.failures + 1 >= tool.attempts_max:
        text = f"The tool failed {call.failures + 1} times and is not tried again ({reason}): {message}"
        answer_error(draft, call.call_id, text, ResultSource.EXECUTED)
        return
    retry_at_ms = draft.now_ms + draft.backoff_ms(call.failures)
    draft.emit(
        ev.ToolAttemptEnded(draft.run.turn, call.call_id, attempt.number, reason, message, retry_at_ms)
    )


def _declined(draft: Draft, call: Call, body: rs.Declined) -> None:
    """Handed back without having been started: safe to dispatch again, whatever the effect class."""
    attempt = call.attempt
    assert attempt is not None
    if body.reason is DeclineReason.CANCELLED:  # asked for by an execution that has ended
        draft.emit(
            ev.ToolAttemptEnded(
                draft.run.turn, call.call_id, attempt.number, str(body.reason), body.message, None
            )
        )
        answer_error(draft, call.call_id, unfinished_text(call), ResultSource.SYNTHETIC)
        return
    is_unavailable = body.reason is DeclineReason.UNAVAILABLE
    delay_ms = draft.unavailable_ms(attempt.number - 1 - call.failures)
    retry_at_ms = draft.now_ms + delay_ms if is_unavailable else None
    draft.emit(
        ev.ToolAttemptEnded(
            draft.run.turn, call.call_id, attempt.number, str(body.reason), body.message, retry_at_ms
        )
    )
    if retry_at_ms is None:
        dispatch(draft, call.call_id)


def _suspect(draft: Draft, call: Call) -> None:
    """Decided by log order: a claim that licensed an execution always stands before the suspect."""
    if call.phase in IN_DOUBT:
        return
    attempt = call.attempt
    assert attempt is not None
    if call.effect is not Effect.NON_IDEMPOTENT:
        ambiguity.did_not_run(draft, call, "suspect", "the worker is gone; the tool may run again")
    elif attempt.started_ms is not None:
        message = "the worker that held the claim is gone; the tool may have run"
        ambiguity.become_ambiguous(draft, call, "suspect", message)
    else:
        ambiguity.did_not_run(draft, call, "suspect", "no claim was read, so the tool did not run")


def _reconciliation(draft: Draft, call: Call, result: rs.Result) -> None:
    """An answer to the newest question about the call's newest attempt."""
    body = result.body
    is_waiting = call.phase is CallPhase.RECONCILING
    match body:
        case rs.Reconciled(answer=Answer.HAPPENED):
            ambiguity.happened(draft, call, body.content or b'""', body.blob)
        case rs.Reconciled(answer=Answer.DID_NOT_HAPPEN) if is_waiting:
            ambiguity.did_not_happen(draft, call)
        case rs.Reconciled() if is_waiting:
            ambiguity.unknown(draft, call, body.message)
        case rs.Failed() if is_waiting:
            ambiguity.unknown(draft, call, body.message)
        case rs.Undecodable() if is_waiting:
            ambiguity.unknown(draft, call, body.reason)
        case rs.Declined() if is_waiting:
            told = f"the question was not put: {body.message or body.reason}"
            ambiguity.unknown(draft, call, told, is_counted=False)
        case rs.Suspect() if is_waiting:
            ambiguity.unknown(draft, call, "the question was not put", is_counted=False)
        case rs.Completed() | rs.Reconciled():
            record_surplus(draft, result, "late")
        case _:
            return
