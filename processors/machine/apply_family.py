"""apply, for children and forks."""

from __future__ import annotations

from msgspec.structs import replace

from perdure.processors.machine.lifecycle import IllegalEvent
from perdure.processors.machine.state import Call, CallPhase, Child, Run, Shared
from perdure.schemas import events as ev
from perdure.schemas.canonical import loads_json
from perdure.schemas.values import Effect, ForkPoint, KeptCall


def forked(run: Run, point: ForkPoint) -> Run:
    """A new run that stands where its source stood after ``point.turn``; its input is told next."""
    text = loads_json(run.input or b'""')
    return replace(
        run,
        input=None,
        texts=(text,) if isinstance(text, str) and text else (),
        turn=point.turn,
        turns_completed=point.turn,
        calls=tuple(_kept(index, call) for index, call in enumerate(point.calls)),
        base_digest=point.digest,
        digest=point.digest,
        message_count=point.message_count,
        seen_call_ids=point.call_id_hashes,
        last_input_tokens=point.input_tokens_max,
        shared=Shared(point.source, point.turn, point.message_count),
    )


def _kept(index: int, call: KeptCall) -> Call:
    """A call that was the source's: it has its result, and nothing of it is ever dispatched here."""
    return Call(
        call_id=call.call_id,
        index=index,
        tool=call.tool,
        arguments=call.arguments,
        effect=Effect.READ_ONLY,
        idempotency_key="",
        phase=CallPhase.DONE,
        content=call.content,
        is_error=call.is_error,
    )


def child_started(run: Run, body: ev.ChildStarted) -> Run:
    """The run with one more open child."""
    child = Child(body.child_id, body.call_id, body.deadline_ms, body.budget)
    return replace(run, children=(*run.children, child), children_count=run.children_count + 1)


def child_ended(run: Run, body: ev.ChildEnded) -> Run:
    """What the child used is the parent's use too; what was held for it is free."""
    if not any(child.run_id == body.child_id for child in run.children):
        raise IllegalEvent(f"{body.child_id} is no open child of {run.run_id}")
    rest = tuple(child for child in run.children if child.run_id != body.child_id)
    return replace(run, children=rest, usage=run.usage + body.usage)
