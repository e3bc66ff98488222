"""decide, for commands. Each is answered exactly once: by an event that names it, or by a dead letter."""

from __future__ import annotations

from typing import assert_never

from perdure.processors.machine.budget import narrowed
from perdure.processors.machine.decisions import decide_call
from perdure.processors.machine.draft import Draft
from perdure.processors.machine.inputs import CommandInput, RefuseInput
from perdure.processors.machine.messages import clean_text, is_blank
from perdure.processors.machine.resume import resume, resume_fault, start_if_possible
from perdure.processors.machine.room import has_room_for
from perdure.schemas import commands as cmd
from perdure.schemas import events as ev
from perdure.schemas.canonical import dumps_verbatim, loads_json, normalise_json
from perdure.schemas.definition import MAX_TURNS_DEFAULT
from perdure.schemas.errors import Reject
from perdure.schemas.limits import JSON_DEPTH_MAX
from perdure.schemas.values import RUN_ID_PATTERN


def decide_command(draft: Draft, given: CommandInput, *, exists: bool) -> None:
    """Answer a command whose id was not seen before."""
    draft.caused_by(given.command_id, answers_command=True)
    body = given.command.body
    if not exists:
        if isinstance(body, cmd.Submit):
            _submit(draft, given, body)
        else:
            message = f"{type(body).__name__} for run {given.run_id!r}, which does not exist"
            draft.output(RefuseInput("unknown_run", message))
        return
    match body:
        case cmd.Submit():
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


def _submit(draft: Draft, given: CommandInput, body: cmd.Submit) -> None:
    fault = _submit_fault(draft, given, body)
    if fault is not None:
        draft.output(RefuseInput(*fault))
        return
    context = draft.context
    definition = context.definition
    limit = definition.max_turns if definition else body.max_turns or MAX_TURNS_DEFAULT
    draft.emit(
        ev.RunCreated(
            agent=body.agent,
            version=definition.version if definition else body.version,
            definition=context.definition_digest if definition else None,
            input=dumps_verbatim(normalise_json(loads_json(body.input))),
            provenance=given.command.provenance,
            max_turns=min(limit, body.max_turns or limit),
            deadline_ms=body.deadline_ms,
            not_before_ms=body.not_before_ms,
            budget=narrowed(definition.budget if definition else None, body.budget),
            waiting_for=None if definition else f"agent {body.agent} {body.version or '(newest)'}",
            retry_at_ms=None if definition else draft.now_ms + context.settings.agent_wait_ms,
        )
    )
    start_if_possible(draft)


def _submit_fault(draft: Draft, given: CommandInput, body: cmd.Submit) -> tuple[str, str] | None:
    if RUN_ID_PATTERN.fullmatch(given.run_id) is None or "~" in given.run_id:
        return "invalid_run_id", f"{given.run_id!r} is no run id: 1-128 of A-Z a-z 0-9 . _ : -"
    try:
        value = loads_json(body.input, depth_max=JSON_DEPTH_MAX)
    except Reject as error:
        return "invalid_input", f"the input is no JSON: {error}"
    is_text = isinstance(value, str) and value.strip() != ""
    is_blocks = isinstance(value, list) and all(
        isinstance(block, dict) and isinstance(block.get("type"), str) and not is_blank(block)
        for block in value
    )
    if not value or not (is_text or is_blocks):
        return "invalid_input", "the input is neither a text nor a list of content blocks, or it is empty"
    if body.deadline_ms is not None and body.deadline_ms <= draft.now_ms:
        return "deadline_passed", "the run's deadline has passed"
    if body.max_turns is not None and body.max_turns < 1:
        return "invalid_max_turns", "max_turns is less than 1"
    definition = draft.context.definition
    budget = narrowed(definition.budget if definition else None, body.budget)
    if definition and draft.context.price is None and budget and budget.cost_nano_usd is not None:
        return "price_unknown", f"a budget in money needs the price of {definition.model}, which is not known"
    return None


def pin_agent(draft: Draft) -> None:
    """Bind a waiting run to its agent if it is known by now, else wait again."""
    context, run = draft.context, draft.run
    if context.definition is None or context.definition_digest is None:
        draft.emit(ev.RunWaiting(run.waiting_for or "agent", draft.now_ms + context.settings.agent_wait_ms))
        return
    draft.emit(
        ev.AgentPinned(
            definition=context.definition_digest,
            version=context.definition.version,
            max_turns=min(run.max_turns, context.definition.max_turns),
        )
    )
    start_if_possible(draft)
