"""decide, for what the model-caller tells: replies, failures, suspects."""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from perdure.processors.machine.assistant import AssistantMessage, MalformedReply, normalise_assistant
from perdure.processors.machine.draft import Draft
from perdure.processors.machine.inputs import SendTranscript
from perdure.processors.machine.output import MAX_TURNS, complete
from perdure.processors.machine.requests import request_calls
from perdure.processors.machine.state import ModelCall
from perdure.processors.machine.surplus import record_surplus
from perdure.processors.machine.turns import advance, ask_again, fail
from perdure.schemas import events as ev
from perdure.schemas import results as rs
from perdure.schemas.values import Usage

NO_MESSAGE = frozenset({"refusal", "model_context_window_exceeded"})
"""Stop reasons that fail the run with their own name and leave no message."""
FINISHED = frozenset({"end_turn", "stop_sequence", "max_tokens"})


def decide_reply(draft: Draft, result: rs.Result) -> None:
    """A result for a model request."""
    model = draft.run.model
    is_pending = model is not None and model.request_id == result.request_id and model.retry_at_ms is None
    if not is_pending or model is None:
        _late(draft, result, "not_pending")
        return
    body = result.body
    match body:
        case rs.ModelReplied():
            if body.digest != draft.run.digest:
                _late(draft, result, "other_transcript")
                return
            _replied(draft, model, body)
        case rs.ModelFailed():
            _failed(draft, model, body)
        case rs.NeedTranscript():
            _need_transcript(draft, model)
        case rs.Suspect():
            end_model_attempt(draft, model, "suspect", "the worker that asked the model is gone", delay_ms=0)
        case rs.Declined():
            delay_ms = draft.unavailable_ms(draft.run.attempts - 1)
            end_model_attempt(draft, model, str(body.reason), body.message, delay_ms, Usage())
        case rs.Undecodable():
            delay_ms = draft.backoff_ms(draft.run.failures)
            end_model_attempt(draft, model, "undecodable", body.reason, delay_ms, Usage())
        case rs.Started() | rs.Completed() | rs.Failed() | rs.Reconciled() | rs.Lost():
            _late(draft, result, "not_for_a_model_request")
        case _:
            assert_never(body)


def _late(draft: Draft, result: rs.Result, reason: str) -> None:
    if isinstance(result.body, (rs.ModelReplied, rs.ModelFailed)):
        record_surplus(draft, result, reason, result.body.usage)


def _need_transcript(draft: Draft, model: ModelCall) -> None:
    """Send the whole once. That another one is asked for says nothing: the first request may have been read
    again, after a take-over. One that does not match when it was whole is a failed call of its own.
    """
    if model.is_whole_sent:
        return
    draft.emit(ev.TranscriptSent(model.request_id))
    draft.output(SendTranscript(draft.run.run_id))


def end_model_attempt(
    draft: Draft, model: ModelCall, code: str, message: str, delay_ms: int, usage: Usage | None = None
) -> None:
    """End the attempt and try again, at once or by a durable timer, while failures are within their limit.

    ``usage`` None: it is not known what the attempt cost, so its reservation is charged until its result
    comes.
    """
    retry_at_ms: int | None = draft.now_ms + delay_ms
    run = draft.emit(_ended(model, code, message, retry_at_ms, usage))
    if run.failures > draft.context.settings.model_failures_max:
        fail(
            draft, "model_failures_exceeded", f"{run.failures} attempts failed, the last with {code}", "model"
        )
    elif delay_ms == 0:
        ask_again(draft)


def _ended(
    model: ModelCall, code: str, message: str, retry_at_ms: int | None, usage: Usage | None
) -> ev.ModelAttemptEnded:
    return ev.ModelAttemptEnded(
        turn=model.turn,
        attempt=model.attempt,
        request_id=model.request_id,
        code=code,
        message=message,
        retry_at_ms=retry_at_ms,
        usage=model.reserved if usage is None else usage,
        is_estimated=usage is None and model.reserved != Usage(),
    )


def _cut(model: ModelCall, usage: Usage | None) -> Usage | None:
    """What a broken stream cost: its input is known, its output may have been longer than what arrived."""
    if usage is None or usage == Usage():
        return usage
    return replace(
        usage,
        output_tokens=max(usage.output_tokens, model.reserved.output_tokens),
        cost_nano_usd=max(usage.cost_nano_usd, model.reserved.cost_nano_usd),
    )


def _failed(draft: Draft, model: ModelCall, body: rs.ModelFailed) -> None:
    if not body.is_retryable:
        draft.emit(_ended(model, body.code, body.message, None, _cut(model, body.usage)))
        fail(draft, body.code, body.message, "model")
        return
    delay_ms = max(1, body.retry_after_ms or 0, draft.backoff_ms(draft.run.failures))
    end_model_attempt(draft, model, body.code, body.message, delay_ms, _cut(model, body.usage))


def _replied(draft: Draft, model: ModelCall, body: rs.ModelReplied) -> None:
    try:
        message = normalise_assistant(
            body.content,
            dict(body.input_faults),
            model.turn,
            draft.run.seen_call_ids,
            is_cut=body.stop_reason == "max_tokens",
        )
    except MalformedReply as error:
        delay_ms = draft.backoff_ms(draft.run.failures)
        end_model_attempt(draft, model, error.code, str(error), delay_ms, body.usage)
        return
    fault = _fault(body.stop_reason, message)
    if fault is not None:  # nothing of it enters the transcript, which stays valid for a resume
        draft.emit(_ended(model, *fault, None, body.usage))
        fail(draft, *fault, "model")
        return
    draft.emit(
        ev.ModelResponded(
            turn=model.turn,
            attempt=model.attempt,
            request_id=model.request_id,
            invocation_id=body.invocation_id,
            message=message.message,
            stop_reason=body.stop_reason,
            usage=body.usage,
            provider_message_id=body.provider_message_id,
        )
    )
    _continue(draft, model, body.stop_reason, message)


def _fault(stop_reason: str, message: AssistantMessage) -> tuple[str, str] | None:
    """(code, message) of a stop reason with which a run can not go on."""
    if stop_reason in NO_MESSAGE:
        return stop_reason, "the model gave no answer"
    if stop_reason == "tool_use":
        told = "the model stopped for tools and called none"
        return None if message.calls else ("tool_use_without_calls", told)
    if stop_reason == "pause_turn" or stop_reason in FINISHED:
        return None
    return "unknown_stop_reason", f"the model stopped with {stop_reason!r}"


def _continue(draft: Draft, model: ModelCall, stop_reason: str, message: AssistantMessage) -> None:
    """What the stop reason asks for. Calls are answered whatever it says: the transcript stays valid."""
    if message.calls:
        request_calls(draft, message.calls, allow_tools=model.allow_tools)
        if not model.allow_tools:
            fail(draft, "max_turns_exceeded", "tools were called in the last turn", "model")
        else:
            advance(draft)
    elif stop_reason == "pause_turn":
        advance(draft)
    else:
        complete(draft, message.text, stop_reason if model.allow_tools else MAX_TURNS)
