"""What the provider is told of an agent's output schema (Messages API, structured outputs)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from anthropic import transform_schema

from perdure.schemas.definition import AgentDefinition

MEMBER: Final = "output_config"
FORMAT: Final = "format"


def output_config(definition: AgentDefinition) -> Mapping[str, Any] | None:
    """The request's ``output_config``: the agent's own parameter, and the format that its schema asks for.

    The provider takes a part of JSON Schema only; what it does not take is moved into descriptions, and an
    answer is checked against the whole by the machine. A ``format`` among the agent's parameters is left as
    it is; None there leaves it out, for models that know no structured outputs. None: nothing is sent.
    """
    own = cast("Mapping[str, Any]", definition.parameters.get(MEMBER) or {})
    config = dict(own)
    if FORMAT not in own and definition.output_schema is not None:
        config[FORMAT] = _format(definition.output_schema)
    if config.get(FORMAT) is None:
        config.pop(FORMAT, None)
    return config or None


def _format(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """None: there is no way to say it to the provider."""
    try:
        return {"type": "json_schema", "schema": transform_schema(dict(schema))}
    except (ValueError, TypeError, AttributeError):  # such as a schema of no type
        return None
