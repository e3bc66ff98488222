"""decide, for what runs of one family tell each other, all in one transaction: parents and their children."""

from __future__ import annotations

from typing import Final

from perdure.processors.machine.budget import KINDS
from perdure.processors.machine.draft import Draft
from perdure.processors.machine.inputs import ChildEndedInput, ChildInput, ParentEndedInput, Tell
from perdure.processors.machine.requests import answer
from perdure.processors.machine.state import Call, Child, Run
from perdure.processors.machine.submits import create, submit_fault
from perdure.processors.machine.turns import advance
from perdure.schemas import commands as cmd
from perdure.schemas import events as ev
from perdure.schemas.canonical import canonical_json, dumps_verbatim, loads_json
from perdure.schemas.values import ResultSource, RunState, Usage

PARENT_ENDED: Final = "parent_ended"
FIRST: Final = 0
"""The execution of a child that its parent waits for; a child that is resumed answers nobody."""


def decide_child(draft: Draft, given: ChildInput) -> None:
    """Begin the child, or tell the parent why not."""
    body = cmd.Submit(
        agent=given.agent,
        input=given.input,
        version=given.version,
        deadline_ms=given.deadline_ms,
        budget=given.budget,
    )
    fault = submit_fault(draft, body) if draft.is_new else ("run_exists", f"there is a run {given.run_id}")
    if fault is None:
        create(draft, body, given.provenance, parent=given.parent)
        return
    text = f"No run of the agent {given.agent} was started ({fault[0]}): {fault[1]}"
    refusal = ChildEndedInput(
        run_id=given.parent.run_id,
        call_id=given.parent.call_id,
        child_id=given.run_id,
        execution=FIRST,
        state=RunState.FAILED,
        usage=Usage(),
        content=dumps_verbatim(text),
        is_error=True,
    )
    draft.output(Tell(refusal))


def decide_child_ended(draft: Draft, given: ChildEndedInput) -> None:
    """Count what the child used, and take its answer as the call's result."""
    run = draft.run
    child = next((child for child in run.children if child.run_id == given.child_id), None)
    if child is None:
        return  # the parent gave it up
    _end(draft, child, given.state, given.usage, given.content, is_error=given.is_error)


def give_up_child(draft: Draft, call: Call) -> None:
    """The child's own deadline has passed long ago, and nothing was heard of it: its history is damaged."""
    child = next(child for child in draft.run.children if child.run_id == call.child)
    text = dumps_verbatim(f"The run {child.run_id} did not end in time; what it did is not known.")
    held = {kind: getattr(child.budget, kind) or 0 for kind in KINDS} if child.budget else {}
    _end(draft, child, RunState.TIMED_OUT, Usage(**held), text, is_error=True)


def decide_parent_ended(draft: Draft) -> None:
    """Every end of a parent cancels its children."""
    if not draft.run.state.is_terminal:
        draft.emit(ev.RunCancelled(reason=PARENT_ENDED))


def tell_family(draft: Draft) -> None:
    """If the run has just ended: tell its parent, and its children."""
    if not draft.has_ended:
        return
    run = draft.run
    for child in run.children:
        draft.output(Tell(ParentEndedInput(child.run_id)))
    if run.parent is not None and run.execution == FIRST:
        content, is_error = _told(run)
        ended = ChildEndedInput(
            run_id=run.parent.run_id,
            call_id=run.parent.call_id,
            child_id=run.run_id,
            execution=run.execution,
            state=run.state,
            usage=run.usage,
            content=content,
            is_error=is_error,
        )
        draft.output(Tell(ended))


def _end(
    draft: Draft, child: Child, state: RunState, usage: Usage, content: bytes, *, is_error: bool
) -> None:
    is_late = not draft.run.is_under_way
    draft.emit(
        ev.ChildEnded(
            turn=draft.run.turn,
            call_id=child.call_id,
            child_id=child.run_id,
            execution=FIRST,
            state=state,
            usage=usage,
            content=content if is_late else None,
            is_error=is_error,
        )
    )
    if not is_late:
        answer(draft, child.call_id, content, ResultSource.EXECUTED, is_error=is_error)
        advance(draft)


def _told(run: Run) -> tuple[bytes, bool]:
    """What the call is answered, and whether that is an error."""
    closed = run.closed
    assert closed is not None
    if run.state is RunState.COMPLETED:
        output = loads_json(closed.output or b'""')
        return dumps_verbatim(output if isinstance(output, str) else canonical_json(output).decode()), False
    reason = f"{closed.code}: {closed.message}" if closed.message else f"{closed.code}"
    return dumps_verbatim(f"The run {run.run_id} ended as {run.state} ({reason})."), True
