"""Agent definitions: what a run is pinned to, by content hash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from perdure.schemas.values import Effect, Struct

MAX_TURNS_DEFAULT: Final = 50
TOOL_CALLS_PER_TURN_MAX_DEFAULT: Final = 16
MAX_TOKENS_DEFAULT: Final = 4096
TOOL_TIMEOUT_MS_DEFAULT: Final = 60_000
MODEL_TIMEOUT_MS_DEFAULT: Final = 600_000
TOOL_ATTEMPTS_MAX_DEFAULT: Final = 3


class ToolDefinition(Struct, frozen=True):
    """One tool. ``effect`` has no default: the author has to know.

    ``reconcile``: name of the (hidden) reconciliation tool. ``settle_ms``: how long the outside service may
    still finish what it received after an attempt is over. ``attempts_max``: bound on attempts that are not
    non_idempotent. ``is_hidden``: not offered to the model.
    """

    name: str
    description: str
    input_schema: Mapping[str, Any]
    effect: Effect
    timeout_ms: int = TOOL_TIMEOUT_MS_DEFAULT
    reconcile: str | None = None
    settle_ms: int = 0
    attempts_max: int = TOOL_ATTEMPTS_MAX_DEFAULT
    needs_approval: bool = False
    is_hidden: bool = False


class AgentDefinition(Struct, frozen=True):
    """Everything the model and the machine need to know of an agent.

    ``parameters``: further Messages API parameters, passed as they are. ``output_schema``: JSON Schema of the
    output.
    """

    agent: str
    version: str
    model: str
    system: str = ""
    tools: tuple[ToolDefinition, ...] = ()
    max_tokens: int = MAX_TOKENS_DEFAULT
    max_turns: int = MAX_TURNS_DEFAULT
    tool_calls_per_turn_max: int = TOOL_CALLS_PER_TURN_MAX_DEFAULT
    model_timeout_ms: int = MODEL_TIMEOUT_MS_DEFAULT
    parameters: Mapping[str, Any] = {}
    output_schema: Mapping[str, Any] | None = None

    def tool(self, name: str) -> ToolDefinition | None:
        return next((tool for tool in self.tools if tool.name == name), None)


def decode_definition(body: bytes) -> AgentDefinition:
    """Parse a definition body. Raises ``msgspec.ValidationError`` or ``msgspec.DecodeError``."""
    return msgspec.json.decode(body, type=AgentDefinition)
