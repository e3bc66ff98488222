"""decide, for commands. Each is answered exactly once: by an event that names it, or by a dead letter."""

from __future__ import annotations

from typing import assert_never

from perdure.processors.machine.decisions import decide_call
from perdure.processors.machine.draft import Draft
from perdure.processors.machine.forks import fork, fork_fault
from perdure.processors.machine.inputs import CommandInput, RefuseInput
from perdure.processors.machine.messages import clean_text
from perdure.processors.machine.resume import resume, resume_fault
from perdure.processors.machine.room import has_room_for
from perdure.processors.machine.submits import create, pin_agent, run_id_fault, submit_fault
from perdure.schemas import commands as cmd
from perdure.schemas import events as ev


def decide_command(draft: Draft, given: CommandInput, *, exists: bool) -> None:
    """Answer a command whose id was not seen before."""
    draft.caused_by(given.command_id, answers_command=True)
    body = given.command.body
    if not exists:
        _decide_new(draft, given)
        return
    match body:
        case cmd.Submit() | cmd.Fork():
            draft.reject(body, "run_exists")
        case cmd.Decide():
            decide_call(draft, body)
        case cmd.Cancel():
            if draft.run.state.is_terminal:
                draft.reject(body, "run_terminal")
            else:
                draft.emit(ev.RunCancelled(reason=body.reason))
        case cmd.Resume():
            fault = resume_fault(draft, body)
            if fault is None:
                resume(draft, body)
                if draft.run.definition is None:  # it ended before its agent was known: look for it again
                    pin_agent(draft)
            else:
                draft.reject(body, fault)
        case cmd.Signal():
            if draft.run.state.is_terminal:
                draft.reject(body, "run_terminal")
            elif not body.message.strip():
                draft.reject(body, "empty_message")
            elif not has_room_for(draft.run, body.message):
                draft.reject(body, "message_too_large")
            else:
                draft.emit(ev.SignalReceived(clean_text(body.message)))
        case _:
            assert_never(body)


def _decide_new(draft: Draft, given: CommandInput) -> None:
    """What can be asked of a run that does not exist: to begin."""
    body = given.command.body
    match body:
        case cmd.Submit():
            fault = run_id_fault(given.run_id) or submit_fault(draft, body)
            if fault is None:
                create(draft, body, given.command.provenance)
        case cmd.Fork():
            fault = fork_fault(draft, given.run_id, body)
            if fault is None:
                fork(draft, body, given.command.provenance)
        case cmd.Decide() | cmd.Cancel() | cmd.Resume() | cmd.Signal():
            fault = "unknown_run", f"{type(body).__name__} for run {given.run_id!r}, which does not exist"
        case _:
            assert_never(body)
    if fault is not None:
        draft.output(RefuseInput(*fault))
