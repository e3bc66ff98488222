"""An agent as a tool of another: each call is a run of its own, a child of the run that asks.

::

    researcher = Agent("researcher", model="claude-sonnet-4-5", tools=[search])
    editor = Agent(
        "editor", model="claude-sonnet-4-5",
        agents=[agent_tool("researcher", description="Finds out what is known. Ask one question at a time.")],
    )

The child begins in the transaction in which its call becomes durable, has its own history, budget, guards
and approvals, and its outcome is the call's result. It ends, at the latest, when its parent ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from perdure.connectors.declared_tool import UnusableDeclaration
from perdure.schemas.definition import TOOL_NAME_PATTERN, TOOL_REPEATS_MAX_DEFAULT, ToolDefinition
from perdure.schemas.values import Budget, Effect

AGENT_TIMEOUT_S_DEFAULT: Final = 24 * 3600.0
INPUT_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"input": {"type": "string", "minLength": 1, "description": "What the agent is asked."}},
    "required": ["input"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class AgentTool:
    """Made by :func:`agent_tool`; goes into ``Agent(agents=[...])``."""

    agent: str
    name: str
    description: str
    version: str | None
    schema: Mapping[str, Any]
    timeout_s: float
    budget: Budget | None
    needs_approval: bool
    repeats_max: int

    def definition(self) -> ToolDefinition:
        """As the model and the machine see it. A run is begun once, whatever its tools may do."""
        return ToolDefinition(
            name=self.name,
            description=self.description,
            input_schema=self.schema,
            effect=Effect.IDEMPOTENT_WRITE,
            timeout_ms=round(self.timeout_s * 1000),
            needs_approval=self.needs_approval,
            repeats_max=self.repeats_max,
            agent=self.agent,
            agent_version=self.version,
            budget=self.budget,
        )


def agent_tool(
    agent: str,
    *,
    description: str,
    name: str | None = None,
    version: str | None = None,
    schema: Mapping[str, Any] = INPUT_SCHEMA,
    timeout_s: float = AGENT_TIMEOUT_S_DEFAULT,
    budget: Budget | None = None,
    needs_approval: bool = False,
    repeats_max: int = TOOL_REPEATS_MAX_DEFAULT,
) -> AgentTool:
    """Let an agent be called as a tool.

    Args:
        agent: its name; any agent that is published, this one's caller included.
        description: what the calling model is told of it.
        name: what the calling model calls it; the agent's name by default.
        version: a release of the agent; the newest one at the time of the call by default.
        schema: JSON Schema of the arguments. One text called ``input`` is given to the agent as it is, other
            arguments as JSON.
        timeout_s: the child is ended after so long, and with its parent's deadline.
        budget: the most that one child may use; it is held out of its parent's budget and the rest given
            back. Without it a child may use an equal share of what its parent has left.
        needs_approval: a person has to approve each call before the child begins.
        repeats_max: as for ``@tool``.

    Raises:
        UnusableDeclaration.
    """
    called = agent if name is None else name
    if not TOOL_NAME_PATTERN.fullmatch(called):
        raise UnusableDeclaration(f"{called!r} is no name of a tool; give it one with name=.")
    if timeout_s <= 0 or repeats_max < 0:
        raise UnusableDeclaration("timeout_s > 0 and repeats_max >= 0 must hold.")
    return AgentTool(
        agent, called, description, version, schema, timeout_s, budget, needs_approval, repeats_max
    )
