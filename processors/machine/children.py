"""Starting a child run: an agent called as a tool.

A call becomes a run in the same partition and the same transaction, so it is never in doubt whether it
began; its own tools carry their own effect classes.
"""

from __future__ import annotations

from typing import Final

from perdure.processors.machine.budget import KINDS, narrowed
from perdure.processors.machine.draft import Draft
from perdure.processors.machine.inputs import ChildInput, Tell
from perdure.processors.machine.state import Call, CallPhase, Run
from perdure.schemas import events as ev
from perdure.schemas.canonical import JsonValue, canonical_json, dumps_verbatim, loads_json
from perdure.schemas.definition import ToolDefinition
from perdure.schemas.json_schema import CannotApply, InvalidSchema, fault_in
from perdure.schemas.keys import FAMILY_MARK
from perdure.schemas.values import Budget, Parent

CHILD_MARK: Final = "c."
"""The suffix of a child's id begins so; that of a fork may not."""
INPUT: Final = "input"
"""An argument of this name, alone and a text, is what the child is asked."""


def start_child(draft: Draft, call: Call, tool: ToolDefinition) -> str | None:
    """Make the call a run of the tool's agent. Returns why that can not be, in words for the model."""
    run, settings = draft.run, draft.context.settings
    assert tool.agent is not None
    depth = 1 + (run.parent.depth if run.parent else 0)
    arguments = loads_json(call.arguments)
    fault = _fault(tool, arguments)
    if fault is not None:
        return f"The arguments do not fit the tool's schema, so no run was started. {fault}"
    if depth > settings.child_depth_max:
        return f"Runs may be nested {settings.child_depth_max} deep, so no run was started."
    if run.children_count >= settings.children_max:
        return f"A run may start {settings.children_max} others, so no run was started."
    child_id = f"{run.run_id}{FAMILY_MARK}{CHILD_MARK}{run.turn}.{call.index}"
    deadline_ms = draft.now_ms + tool.timeout_ms
    if run.deadline_ms is not None:
        deadline_ms = min(deadline_ms, run.deadline_ms)
    budget = narrowed(tool.budget, _share(draft))
    draft.emit(
        ev.ChildStarted(
            turn=run.turn, call_id=call.call_id, child_id=child_id, deadline_ms=deadline_ms, budget=budget
        )
    )
    draft.output(
        Tell(
            ChildInput(
                run_id=child_id,
                parent=Parent(run.run_id, run.execution, run.turn, call.call_id, depth),
                agent=tool.agent,
                version=tool.agent_version,
                input=dumps_verbatim(_asked(arguments)),
                deadline_ms=deadline_ms,
                budget=budget,
                provenance=run.provenance,
            )
        )
    )
    return None


def held_for_children(run: Run, kind: str) -> int:
    """How much of one kind of the budget is held for the run's open children."""
    budgets = (child.budget for child in run.children if child.budget is not None)
    return sum(getattr(budget, kind) or 0 for budget in budgets)


def _share(draft: Draft) -> Budget | None:
    """An equal part of what is left of the run's budget, for each child that this turn may still start."""
    run = draft.run
    if run.budget is None:
        return None
    shares = sum(_may_start_child(draft, call) for call in run.calls)
    parts: dict[str, int | None] = {}
    for kind in KINDS:
        limit: int | None = getattr(run.budget, kind)
        left = None if limit is None else limit - getattr(run.usage, kind) - held_for_children(run, kind)
        parts[kind] = None if left is None else max(0, left // max(1, shares))
    return Budget(**parts)


def _may_start_child(draft: Draft, call: Call) -> bool:
    tool = draft.definition.tool(call.tool)
    waits = call.phase in {CallPhase.REQUESTED, CallPhase.AWAITING_DECISION}
    return waits and tool is not None and tool.agent is not None


def _fault(tool: ToolDefinition, arguments: JsonValue) -> str | None:
    try:
        return fault_in(tool.input_schema, arguments)
    except (InvalidSchema, CannotApply) as error:
        return str(error)


def _asked(arguments: JsonValue) -> str:
    """What the child is asked: the text, or the arguments as JSON."""
    if isinstance(arguments, dict) and list(arguments) == [INPUT]:
        text = arguments[INPUT]
        if isinstance(text, str) and text.strip():
            return text
    return canonical_json(arguments).decode()
