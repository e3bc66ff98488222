"""Submits: a run begins, as a client or a parent asks."""

from __future__ import annotations

from typing import TypeAlias

from perdure.processors.machine.budget import narrowed
from perdure.processors.machine.draft import Draft
from perdure.processors.machine.messages import is_blank
from perdure.processors.machine.resume import start_if_possible
from perdure.processors.machine.state import agent_named
from perdure.schemas import commands as cmd
from perdure.schemas import events as ev
from perdure.schemas.canonical import dumps_verbatim, loads_json, normalise_json
from perdure.schemas.definition import MAX_TURNS_DEFAULT
from perdure.schemas.errors import Reject
from perdure.schemas.limits import JSON_DEPTH_MAX
from perdure.schemas.values import RUN_ID_PATTERN, Parent, Provenance

Fault: TypeAlias = tuple[str, str]
"""(stable code, text for people) of a command that can not be answered by an event."""


def create(draft: Draft, body: cmd.Submit, provenance: Provenance, parent: Parent | None = None) -> None:
    """Create the run, and start it if it may. There must be no fault in what is asked."""
    context = draft.context
    definition = context.definition
    limit = definition.max_turns if definition else body.max_turns or MAX_TURNS_DEFAULT
    draft.emit(
        ev.RunCreated(
            agent=body.agent,
            version=definition.version if definition else body.version,
            definition=context.definition_digest if definition else None,
            input=dumps_verbatim(normalise_json(loads_json(body.input))),
            provenance=provenance,
            max_turns=min(limit, body.max_turns or limit),
            deadline_ms=body.deadline_ms,
            not_before_ms=body.not_before_ms,
            budget=narrowed(definition.budget if definition else None, body.budget),
            waiting_for=None if definition else agent_named(body.agent, body.version),
            retry_at_ms=None if definition else draft.now_ms + context.settings.agent_wait_ms,
            parent=parent,
        )
    )
    start_if_possible(draft)


def run_id_fault(run_id: str) -> Fault | None:
    """What is wrong with an id that a client chose."""
    if RUN_ID_PATTERN.fullmatch(run_id) is None or "~" in run_id:
        return "invalid_run_id", f"{run_id!r} is no run id: 1-128 of A-Z a-z 0-9 . _ : -"
    return None


def submit_fault(draft: Draft, body: cmd.Submit) -> Fault | None:
    """What is wrong with what is asked; None if nothing is."""
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
        # Twice as long as since its last event, which is the last try, within bounds.
        settings, waited_ms = context.settings, draft.now_ms - run.updated_ms
        delay_ms = max(settings.agent_wait_ms, min(2 * waited_ms, settings.unavailable_delay_ms_max))
        wanted = run.waiting_for or agent_named(run.agent, run.version)
        draft.emit(ev.RunWaiting(wanted, draft.now_ms + delay_ms))
        return
    draft.emit(
        ev.AgentPinned(
            definition=context.definition_digest,
            version=context.definition.version,
            max_turns=min(run.max_turns, context.definition.max_turns),
            budget=narrowed(context.definition.budget, run.budget),
        )
    )
    start_if_possible(draft)
