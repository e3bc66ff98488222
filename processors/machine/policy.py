"""Whether a call needs approval: what its tool says, and the agent's rules. In doubt it does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.schemas.canonical import loads_json
from perdure.schemas.definition import AgentDefinition, ToolDefinition
from perdure.schemas.errors import PerdureError
from perdure.schemas.json_schema import fault_in


def needs_approval(definition: AgentDefinition, tool: ToolDefinition, arguments: bytes) -> bool:
    """Deterministic, and never raises."""
    if tool.needs_approval and _may_match(tool.approval_condition, arguments):
        return True
    return any(
        rule.fits(tool.name, tool.effect) and _may_match(rule.arguments, arguments)
        for rule in definition.approvals
    )


def _may_match(schema: Mapping[str, Any] | None, arguments: bytes) -> bool:
    """Whether the arguments match, or it can not be found out."""
    if schema is None:
        return True
    try:
        return fault_in(schema, loads_json(arguments)) is None
    except PerdureError:
        return True
