"""apply: the only way the state of a run moves. ``state = fold(apply, events)``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from msgspec.structs import replace

from perdure.processors.machine import apply_calls as calls
from perdure.processors.machine import apply_family as family
from perdure.processors.machine.budget import charge_estimate, replace_estimate
from perdure.processors.machine.lifecycle import IllegalEvent, move
from perdure.processors.machine.messages import message_of, texts_message
from perdure.processors.machine.state import Closed, ModelCall, Run, agent_named
from perdure.processors.machine.transcript import extend_digest, start_digest
from perdure.schemas import events as ev
from perdure.schemas.values import DeclineReason, Provenance, RunState, Usage

NOT_COUNTED = frozenset({"unavailable", "expired", "suspect", "late_claim"})
"""Codes of ended model attempts that say nothing against the model."""


def fold(events: Iterable[ev.Event], run: Run | None = None) -> Run:
    """Apply ``events`` in order. Raises :class:`IllegalEvent` if there are none and no run."""
    for event in events:
        run = apply(run, event)
    if run is None:
        raise IllegalEvent("no events")
    return run


def appended(before: Run | None, event: ev.Event) -> tuple[bytes, ...]:
    """The messages that ``event`` adds to the transcript of ``before``: none or one."""
    if before is None:
        return ()
    message = message_of(before, event.body)
    return (message,) if message else ()


def apply(run: Run | None, event: ev.Event) -> Run:
    """The run after ``event``.

    Raises :class:`IllegalEvent` for a gap in seq, an event before RunCreated or after a terminal state that
    changes it, and ``IllegalMove`` for a move that is not in the lifecycle table.
    """
    body = event.body
    if run is None:
        if not isinstance(body, ev.RunCreated) or event.seq != 1:
            raise IllegalEvent(f"{type(body).__name__} seq {event.seq} without a run")
        return _created(event, body)
    if event.seq != run.seq + 1 or event.run_id != run.run_id or run.is_purged:
        raise IllegalEvent(f"{event.run_id} seq {event.seq} after {run.run_id} seq {run.seq}")
    if run.state.is_terminal and not isinstance(
        body, (ev.CommandRejected, ev.SurplusRecorded, ev.ChildEnded, ev.RunResumed, ev.RunPurged)
    ):
        raise IllegalEvent(f"{type(body).__name__} in terminal state {run.state}")
    changed = _change(run, event)
    return replace(changed, seq=event.seq, updated_ms=event.at_ms, state=move(run.state, changed.state))


def _created(event: ev.Event, body: ev.RunCreated) -> Run:
    run = Run(
        run_id=event.run_id,
        state=RunState.QUEUED,
        seq=1,
        execution=0,
        agent=body.agent,
        version=body.version,
        definition=body.definition,
        provenance=body.provenance,
        created_ms=event.at_ms,
        updated_ms=event.at_ms,
        max_turns=body.max_turns,
        deadline_ms=body.deadline_ms,
        not_before_ms=body.not_before_ms,
        budget=body.budget,
        waiting_for=body.waiting_for,
        retry_at_ms=body.retry_at_ms,
        input=body.input,
        parent=body.parent,
    )
    return run if body.fork is None else family.forked(run, body.fork)


def _change(run: Run, event: ev.Event) -> Run:
    body = event.body
    match body:
        case ev.RunCreated():
            raise IllegalEvent("RunCreated for a run that exists")
        case ev.AgentPinned():
            _only_queued(run, body)
            return replace(
                run,
                definition=body.definition,
                version=body.version,
                max_turns=body.max_turns,
                budget=body.budget,
                waiting_for=None,
                retry_at_ms=None,
            )
        case ev.RunWaiting():
            _only_queued(run, body)
            return replace(
                run, waiting_for=body.waiting_for, retry_at_ms=body.retry_at_ms, not_before_ms=None
            )
        case ev.TurnStarted():
            return _turn_started(run, body)
        case ev.TranscriptSent():
            return replace(run, model=replace(_model(run, body.request_id), is_whole_sent=True))
        case ev.ModelResponded():
            return _responded(run, body)
        case ev.ModelAttemptEnded():
            return _attempt_ended(run, body)
        case ev.SurplusRecorded():
            return _surplus(run, event.at_ms, body)
        case ev.ChildEnded():
            run = family.child_ended(run, body)
            if body.content is None:
                return run
            return calls.keep_late(run, body.call_id, body.content, is_error=body.is_error)
        case ev.SignalReceived():
            return replace(run, texts=(*run.texts, body.message))
        case ev.TurnResumed():
            _only_queued(run, body)
            return replace(run, state=RunState.RUNNING, waiting_for=None)
        case ev.CommandRejected():
            return run
        case ev.RunCompleted() | ev.RunFailed() | ev.RunCancelled() | ev.RunTimedOut():
            return _closed(run, event.at_ms, body)
        case ev.RunResumed():
            return _resumed(run, body)
        case ev.RunPurged():
            return _purged(run)
        case _:
            return calls.change(run, event.at_ms, body)
    assert_never(body)


def _only_queued(run: Run, body: ev.EventBody) -> None:
    if run.state is not RunState.QUEUED:
        raise IllegalEvent(f"{type(body).__name__} in {run.state}")


def _model(run: Run, request_id: str) -> ModelCall:
    model = run.model
    if model is None or model.request_id != request_id or model.retry_at_ms is not None:
        raise IllegalEvent(f"the model request {request_id} is not pending")
    return model


def _append(run: Run, message: bytes) -> Run:
    return replace(
        run,
        tail=(*run.tail, message),
        digest=extend_digest(run.digest, message),
        message_count=run.message_count + 1,
    )


def _turn_started(run: Run, body: ev.TurnStarted) -> Run:
    if run.definition is None:
        raise IllegalEvent("a turn can not start before the agent is pinned")
    if run.model is not None and run.model.retry_at_ms is None:
        raise IllegalEvent(f"turn {body.turn} while the model is asked for turn {run.turn}")
    if body.turn == run.turn + 1:
        if run.turns_completed != run.turn or not all(call.is_done for call in run.calls):
            raise IllegalEvent(f"turn {body.turn} before the end of turn {run.turn}")
        message = message_of(run, body)
        if run.turn == 0:
            start = start_digest(run.definition)
            run = replace(run, base_digest=start, digest=start, input=None)
        if message:
            run = _append(run, message)
        run = calls.leave_loose(run)
    elif body.turn != run.turn or body.attempt != run.attempts + 1 or run.turns_completed >= run.turn:
        raise IllegalEvent(f"turn {body.turn} attempt {body.attempt} after turn {run.turn}")
    elif body.texts:
        run = _append(run, texts_message(body.texts))
    model = ModelCall(
        turn=body.turn,
        attempt=body.attempt,
        request_id=body.request_id,
        deadline_ms=body.start_by_ms + body.timeout_ms,
        start_by_ms=body.start_by_ms,
        timeout_ms=body.timeout_ms,
        max_tokens=body.max_tokens,
        allow_tools=body.allow_tools,
        reserved=body.reserved,
    )
    return replace(
        run,
        state=RunState.RUNNING,
        turn=body.turn,
        attempts=body.attempt,
        model=model,
        calls=(),
        texts=() if body.texts else run.texts,
        repair_turn=body.turn if body.is_repair else run.repair_turn,
        waiting_for=None,
        retry_at_ms=None,
    )


def _responded(run: Run, body: ev.ModelResponded) -> Run:
    _model(run, body.request_id)
    usage = body.usage
    run = replace(
        replace_estimate(run, body.request_id, usage),
        model=None,
        turns_completed=run.turns_completed + 1,
        last_input_tokens=usage.input_tokens + usage.cache_creation_tokens + usage.cache_read_tokens,
        base_digest=run.digest,
        tail=(),
    )
    return _append(run, body.message) if body.message else run


def _attempt_ended(run: Run, body: ev.ModelAttemptEnded) -> Run:
    counted = 0 if body.code in NOT_COUNTED else 1
    waiting_for = None
    if body.code == DeclineReason.UNAVAILABLE:
        waiting_for = f"{agent_named(run.agent, run.version)} on some model-caller"
    # Not tried again, nothing is pending any more: its reservation must not be charged beside its usage.
    pending, model = _model(run, body.request_id), None
    if body.retry_at_ms is not None:
        model = replace(pending, retry_at_ms=body.retry_at_ms, waiting_for=waiting_for)
    run = replace(run, model=model, failures=run.failures + counted)
    if body.is_estimated:
        return charge_estimate(run, body.request_id, body.usage)
    return replace(run, usage=run.usage + body.usage)


def _surplus(run: Run, at_ms: int, body: ev.SurplusRecorded) -> Run:
    if body.corrects_estimate:
        run = replace_estimate(run, body.request_id, body.usage)
    else:
        run = replace(run, usage=run.usage + body.usage)
    if body.content is not None:
        run = calls.keep_late(run, body.call_id, body.content, is_error=body.is_error)
    if body.kind == "Started":
        return calls.claim_attempt(run, body.request_id, at_ms)
    if body.told is not None:
        run = replace(run, texts=(*run.texts, body.told))
    return calls.close_attempt(run, body.request_id, body.kind) if body.closes_attempt else run


def _purged(run: Run) -> Run:
    """Nothing of what the run held is kept but that it was there and how it ended."""
    if not run.state.is_terminal:
        raise IllegalEvent(f"a purge in {run.state}")
    assert run.closed is not None
    return replace(
        run,
        is_purged=True,
        closed=Closed(run.closed.at_ms, code=run.closed.code),
        provenance=Provenance(),
        calls=(),
        tail=(),
        texts=(),
        window=(),
        estimates=(),
        seen_call_ids=b"",
        input=None,
    )


def _resumed(run: Run, body: ev.RunResumed) -> Run:
    if not run.state.is_terminal or body.execution != run.execution + 1:
        raise IllegalEvent(f"execution {body.execution} after {run.execution} in {run.state}")
    return replace(
        run,
        state=RunState.QUEUED,
        execution=body.execution,
        closed=None,
        max_turns=body.max_turns,
        budget=body.budget,
        texts=run.texts if body.message is None else (*run.texts, body.message),
        failures=0,
        interceptions=0,
        repair_turn=0 if run.closed and run.closed.code == "output_invalid" else run.repair_turn,
        deadline_ms=None,
        not_before_ms=None,
    )


def _closed(
    run: Run, at_ms: int, body: ev.RunCompleted | ev.RunFailed | ev.RunCancelled | ev.RunTimedOut
) -> Run:
    match body:
        case ev.RunCompleted():
            if run.model is not None:
                raise IllegalEvent("a run can not be complete while the model is asked")
            state = RunState.COMPLETED
            closed = Closed(at_ms, output=body.output, stop_reason=body.stop_reason)
        case ev.RunFailed():
            state = RunState.FAILED
            closed = Closed(
                at_ms, code=body.code, message=body.message, phase=body.phase, checkpoint=body.checkpoint
            )
        case ev.RunCancelled():
            state = RunState.CANCELLED
            closed = Closed(at_ms, code=body.reason)
        case ev.RunTimedOut():
            state = RunState.TIMED_OUT
            closed = Closed(at_ms, code=body.reason)
        case _:
            assert_never(body)
    model = run.model
    if model is not None and model.retry_at_ms is None and model.reserved != Usage():
        run = charge_estimate(run, model.request_id, model.reserved)  # what was asked may still be answered
    return replace(
        run, state=state, closed=closed, model=None, pending=(), retry_at_ms=None, waiting_for=None
    )
