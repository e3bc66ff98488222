"""Agent definitions: what a run is pinned to, by content hash.

They are checked before they are published: a run can not have its definition mended.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from perdure.schemas.approval_rule import ApprovalRule
from perdure.schemas.canonical import NotJson, canonical_json, loads_json, normalise_json
from perdure.schemas.codec import Undecodable
from perdure.schemas.errors import Reject
from perdure.schemas.json_schema import InvalidSchema, check_schema
from perdure.schemas.limits import (
    AGENT_CHARS_MAX,
    APPROVAL_TIMEOUT_MS_MAX,
    PAYLOAD_BYTES_MAX,
    TIMEOUT_MS_MAX,
    TOOL_NAME_CHARS_MAX,
)
from perdure.schemas.outputs import DefinitionRecord
from perdure.schemas.values import Budget, Effect, ExecutorKind, Struct

MAX_TURNS_DEFAULT: Final = 50
TOOL_CALLS_PER_TURN_MAX_DEFAULT: Final = 16
MAX_TOKENS_DEFAULT: Final = 4096
TOOL_TIMEOUT_MS_DEFAULT: Final = 60_000
MODEL_TIMEOUT_MS_DEFAULT: Final = 600_000
TOOL_ATTEMPTS_MAX_DEFAULT: Final = 3
TOOL_REPEATS_MAX_DEFAULT: Final = 3

AGENT_PATTERN: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{AGENT_CHARS_MAX}}}", re.ASCII)
"""Agent names and versions; they are parts of record keys."""
TOOL_NAME_PATTERN: Final = re.compile(rf"[a-zA-Z0-9_-]{{1,{TOOL_NAME_CHARS_MAX}}}", re.ASCII)
"""Tool names as the Messages API takes them."""
OWN_PARAMETERS: Final = frozenset({"max_tokens", "messages", "model", "stream", "system", "tools"})
"""Parameters of the Messages API that perdure sets itself."""
COUNT_MAX: Final = 1_000_000
"""No bound on turns, calls, attempts or tokens is larger."""


class InvalidDefinition(Reject):
    """The agent definition is not usable."""

    code = "invalid_definition"
    remedy = "Correct the definition and publish it again."


class UndecodableDefinition(Undecodable):
    """This is no agent definition."""

    code = "undecodable_definition"
    remedy = "Publish the definition again, with a version of perdure that this one can read."


class ToolDefinition(Struct, frozen=True):
    """One tool. ``effect`` has no default: the author has to know.

    ``reconcile``: name of the (hidden) reconciliation tool. ``settle_ms``: how long the outside service may
    still finish what it received after an attempt is over. ``attempts_max``: bound on attempts that are not
    non_idempotent. ``repeats_max``: identical calls that fail or change nothing, before the next is
    intercepted (0: never; for tools that poll). ``cosmetic``: names of arguments that do not make a call
    another one. ``is_hidden``: not offered to the model. ``agent``: the call is a run of this agent, of
    ``agent_version`` (None: the newest then); ``budget``: the most that one such run may use.
    ``approval_condition``: with ``needs_approval``, a JSON Schema: only calls whose arguments match it need
    approval. ``approval_timeout_ms``: how long a person may take, before the run times out. ``executor``,
    ``server``: what carries out its calls; ``server_schema``: hash of what the server says of the tool. An
    approval is bound to them.
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
    repeats_max: int = TOOL_REPEATS_MAX_DEFAULT
    cosmetic: tuple[str, ...] = ()
    is_hidden: bool = False
    agent: str | None = None
    agent_version: str | None = None
    budget: Budget | None = None
    approval_condition: Mapping[str, Any] | None = None
    approval_timeout_ms: int | None = None
    executor: ExecutorKind = ExecutorKind.FUNCTION
    server: str = ""
    server_schema: str = ""


class AgentDefinition(Struct, frozen=True):
    """Everything the model and the machine need to know of an agent.

    ``parameters``: further Messages API parameters, passed as they are. ``output_schema``: JSON Schema of the
    output. ``approvals``: which calls need approval beside those whose tools say so. ``approval_timeout_ms``:
    for tools that have none of their own; None: as the worker is set.
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
    budget: Budget | None = None
    parameters: Mapping[str, Any] = {}
    output_schema: Mapping[str, Any] | None = None
    approvals: tuple[ApprovalRule, ...] = ()
    approval_timeout_ms: int | None = None

    def tool(self, name: str) -> ToolDefinition | None:
        return next((tool for tool in self.tools if tool.name == name), None)


def digest_of(body: bytes) -> str:
    """Content hash of a definition's body: 64 lower-case hex digits of SHA-256."""
    return hashlib.sha256(body).hexdigest()


def encode_definition(definition: AgentDefinition) -> tuple[str, bytes]:
    """Content hash and body: the definition, checked, as RFC 8785 JSON with every default written out.

    Raises :class:`InvalidDefinition`.
    """
    try:
        body = canonical_json(normalise_json(msgspec.to_builtins(definition)))
    except (NotJson, RecursionError, TypeError) as error:
        raise InvalidDefinition(f"{error}") from error
    check_definition(definition)
    if len(body) > PAYLOAD_BYTES_MAX:
        raise InvalidDefinition(f"It takes {len(body)} of at most {PAYLOAD_BYTES_MAX} bytes.")
    return digest_of(body), body


def decode_definition(body: bytes) -> AgentDefinition:
    """The definition in a body. Raises :class:`UndecodableDefinition`, and nothing else.

    The digest is of the body as it is: a body that an older version wrote lacks later fields and is not to be
    encoded again to find its hash.
    """
    try:
        return msgspec.convert(loads_json(body), AgentDefinition)
    except (NotJson, msgspec.ValidationError) as error:
        raise UndecodableDefinition(f"{error}") from error


def open_definition(record: DefinitionRecord) -> AgentDefinition:
    """The definition of a record from agent-definitions, if its hash, agent and version are the body's.

    Raises :class:`UndecodableDefinition`.
    """
    if record.digest != digest_of(record.body):
        raise UndecodableDefinition("The body is not what its content hash says.")
    definition = decode_definition(record.body)
    if (record.agent, record.version) != (definition.agent, definition.version):
        raise UndecodableDefinition("The body is of another agent or version than the record says.")
    return definition


def check_definition(definition: AgentDefinition) -> None:
    """Raise :class:`InvalidDefinition` with the first fault found.

    Needs jsonschema: raises :class:`~perdure.schemas.json_schema.ValidatorMissing` without it.
    """
    for what, text in (("agent", definition.agent), ("version", definition.version)):
        if not AGENT_PATTERN.fullmatch(text):
            raise InvalidDefinition(f"The {what} {text!r:.140} does not match {AGENT_PATTERN.pattern}.")
    if not definition.model:
        raise InvalidDefinition("It names no model.")
    _check_bounds(
        "the agent",
        max_tokens=definition.max_tokens,
        max_turns=definition.max_turns,
        tool_calls_per_turn_max=definition.tool_calls_per_turn_max,
    )
    _check_time("the agent", "model_timeout_ms", definition.model_timeout_ms, 1)
    own = sorted(OWN_PARAMETERS.intersection(definition.parameters))
    if own:
        raise InvalidDefinition(f"Its parameters name {', '.join(own)}, which perdure sets itself.")
    if definition.output_schema is not None:
        _check_schema("the output", definition.output_schema)
    _check_approval_time("the agent", definition.approval_timeout_ms)
    for rule in definition.approvals:
        _check_rule(rule, definition)
    names = [tool.name for tool in definition.tools]
    for tool in definition.tools:
        if names.count(tool.name) > 1:
            raise InvalidDefinition(f"Two of its tools are called {tool.name}.")
        _check_tool(tool, definition)


def _check_tool(tool: ToolDefinition, definition: AgentDefinition) -> None:
    where = f"the tool {tool.name}"
    if not TOOL_NAME_PATTERN.fullmatch(tool.name):
        raise InvalidDefinition(
            f"The tool name {tool.name!r:.140} does not match {TOOL_NAME_PATTERN.pattern}."
        )
    _check_bounds(where, attempts_max=tool.attempts_max)
    _check_time(where, "timeout_ms", tool.timeout_ms, 1)
    _check_time(where, "settle_ms", tool.settle_ms, 0)
    if tool.input_schema.get("type") != "object":
        raise InvalidDefinition(f"The input schema of {where} is not of the type object.")
    _check_schema(where, tool.input_schema)
    if tool.agent is not None:
        _check_agent_tool(where, tool)
    _check_approval_time(where, tool.approval_timeout_ms)
    if tool.approval_condition is not None:
        if not tool.needs_approval:
            raise InvalidDefinition(f"{where} has an approval_condition, but needs_approval is false.")
        _check_schema(f"the approval_condition of {where}", tool.approval_condition)
    if tool.reconcile is None:
        return
    reconciler = definition.tool(tool.reconcile)
    if reconciler is None:
        raise InvalidDefinition(f"{where} is reconciled by {tool.reconcile}, which is none of the tools.")
    if reconciler.effect is not Effect.READ_ONLY:
        raise InvalidDefinition(f"{where} is reconciled by {tool.reconcile}, which is not read_only.")
    if reconciler.needs_approval:
        raise InvalidDefinition(f"{where} is reconciled by {tool.reconcile}, which would wait for approval.")
    if reconciler.reconcile is not None:
        raise InvalidDefinition(f"{where} is reconciled by {tool.reconcile}, which is reconciled itself.")


def _check_agent_tool(where: str, tool: ToolDefinition) -> None:
    for what, text in (("agent", tool.agent), ("agent version", tool.agent_version)):
        if text is not None and not AGENT_PATTERN.fullmatch(text):
            raise InvalidDefinition(f"The {what} of {where} does not match {AGENT_PATTERN.pattern}.")
    if tool.reconcile is not None or tool.is_hidden:
        raise InvalidDefinition(f"{where} is an agent: its runs are not reconciled, nor are they hidden.")


def _check_rule(rule: ApprovalRule, definition: AgentDefinition) -> None:
    where = f"the approval rule for {rule.tool:.140}"
    if not rule.tool:
        raise InvalidDefinition("An approval rule is for no tool: * stands for all.")
    if not rule.is_glob and definition.tool(rule.tool) is None:
        raise InvalidDefinition(f"{where} is for none of the tools.")
    if rule.arguments is not None:
        _check_schema(where, rule.arguments)


def _check_approval_time(where: str, time_ms: int | None) -> None:
    if time_ms is not None and not 1 <= time_ms <= APPROVAL_TIMEOUT_MS_MAX:
        raise InvalidDefinition(
            f"approval_timeout_ms of {where} is {time_ms}, not from 1 to {APPROVAL_TIMEOUT_MS_MAX}."
        )


def _check_bounds(where: str, **bounds: int) -> None:
    for name, bound in bounds.items():
        if not 1 <= bound <= COUNT_MAX:
            raise InvalidDefinition(f"{name} of {where} is {bound}, not from 1 to {COUNT_MAX}.")


def _check_time(where: str, name: str, time_ms: int, time_ms_min: int) -> None:
    if not time_ms_min <= time_ms <= TIMEOUT_MS_MAX:
        raise InvalidDefinition(
            f"{name} of {where} is {time_ms}, not from {time_ms_min} to {TIMEOUT_MS_MAX}."
        )


def _check_schema(where: str, schema: Mapping[str, Any]) -> None:
    try:
        check_schema(schema)
    except InvalidSchema as error:
        raise InvalidDefinition(f"The schema of {where}: {error.detail}") from error
