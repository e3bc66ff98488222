"""Agents in Python: a model, a system prompt, tools; and the application a worker serves.

::

    @tool(effect="read_only")
    def find_customer(customer_id: str) -> dict[str, str]: ...

    support = Agent("support", model="claude-sonnet-4-5", system="You help.", tools=[find_customer])

``perdure worker --app module:support`` serves it; ``Client.submit(support, "...")`` starts a run of it.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from perdure.connectors.agent_tool import AgentTool
from perdure.connectors.reconciler import Reconciler
from perdure.connectors.tool import Tool, milliseconds
from perdure.schemas import definition as definitions
from perdure.schemas.approval_rule import ApprovalRule
from perdure.schemas.definition import AgentDefinition
from perdure.schemas.errors import Reject, Stop
from perdure.schemas.limits import AGENT_CHARS_MAX
from perdure.schemas.values import Budget

_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{AGENT_CHARS_MAX}}}")


class UnusableAgent(Reject):
    """An agent's declaration contradicts itself."""

    code = "agent_unusable"
    remedy = "Correct the arguments of Agent(...)."


class AppNotFound(Stop):
    """There is no application at the given place."""

    code = "app_not_found"
    remedy = "Give --app module:object, where object is an Agent, a list of Agents or an App."


@dataclass(frozen=True)
class Agent:
    """What runs are started of.

    A run is pinned, by content hash, to the definition it began with. ``version`` names a release: a submit
    may ask for one, else the newest published is taken.

    Args:
        name: letters, digits, dot, underscore, hyphen.
        model: the provider's name of the model.
        system: the system prompt.
        tools: functions declared with ``@tool``; names are unique, reconcilers included.
        version: name of this release of the agent.
        max_tokens: of one answer of the model.
        max_turns: of one run; the last turn is announced to the model and may not use tools.
        tool_calls_per_turn_max: calls above it get an error result.
        model_timeout_s: of one call of the model.
        parameters: further parameters of the Messages API, passed as they are.
        output_schema: JSON Schema of the run's output.
        agents: other agents that it may call, declared with ``agent_tool``; each call is a run of its own.
        budget: the most a run may use, in tokens of each kind and money (1e-9 US dollars); a submit may
            narrow it. Money can only be bounded for a model whose price is known.
        approvals: rules on which calls need approval, beside what the tools say.
        approval_timeout_s: how long a person may take, where the tool does not say.

    Raises:
        UnusableAgent.
    """

    name: str
    model: str
    system: str = ""
    tools: Sequence[Tool[Any, Any]] = ()
    version: str = "1"
    max_tokens: int = definitions.MAX_TOKENS_DEFAULT
    max_turns: int = definitions.MAX_TURNS_DEFAULT
    tool_calls_per_turn_max: int = definitions.TOOL_CALLS_PER_TURN_MAX_DEFAULT
    model_timeout_s: float = definitions.MODEL_TIMEOUT_MS_DEFAULT / 1000
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    output_schema: Mapping[str, Any] | None = None
    agents: Sequence[AgentTool] = ()
    budget: Budget | None = None
    approvals: Sequence[ApprovalRule] = ()
    approval_timeout_s: float | None = None

    def __post_init__(self) -> None:
        for what, text in (("name", self.name), ("version", self.version)):
            if not _NAME.fullmatch(text):
                raise UnusableAgent(f"The {what} {text!r} is not made of letters, digits, dot, _ and hyphen.")
        if self.max_tokens < 1 or self.max_turns < 1 or self.tool_calls_per_turn_max < 1:
            raise UnusableAgent(f"{self.name}: its limits must be at least 1.")
        bounds = cast("dict[str, int | None]", msgspec.to_builtins(self.budget or Budget()))
        if any(bound is not None and bound < 1 for bound in bounds.values()):
            raise UnusableAgent(f"{self.name}: a budget's bounds must be at least 1.")
        for each in cast("Sequence[object]", self.tools):
            if not isinstance(each, Tool):
                raise UnusableAgent(f"{self.name}: {each!r} is not declared with @tool.")
        self._check_names()

    def _check_names(self) -> None:
        seen: set[str] = set()
        names = [each.name for each in self.tools] + [each.name for each in self.reconcilers]
        names += [each.name for each in self.agents]
        for name in names:
            if name in seen:
                raise UnusableAgent(f"{self.name}: two of its tools are called {name}.")
            seen.add(name)

    @property
    def reconcilers(self) -> tuple[Reconciler, ...]:
        """Those of the tools, each once."""
        found: list[Reconciler] = []
        for each in self.tools:
            if each.reconcile is not None and each.reconcile not in found:
                found.append(each.reconcile)
        return tuple(found)

    def definition(self) -> AgentDefinition:
        """What model and machine need to know of the agent; reconcilers are hidden tools of it."""
        return AgentDefinition(
            agent=self.name,
            version=self.version,
            model=self.model,
            system=self.system,
            tools=(
                *(each.definition() for each in self.tools),
                *(each.definition() for each in self.reconcilers),
                *(each.definition() for each in self.agents),
            ),
            max_tokens=self.max_tokens,
            max_turns=self.max_turns,
            tool_calls_per_turn_max=self.tool_calls_per_turn_max,
            model_timeout_ms=round(self.model_timeout_s * 1000),
            parameters=self.parameters,
            output_schema=self.output_schema,
            budget=self.budget,
            approvals=tuple(self.approvals),
            approval_timeout_ms=milliseconds(self.approval_timeout_s),
        )

    @cached_property
    def encoded(self) -> tuple[str, bytes]:
        """(content hash, body) of the definition, as published and as runs are pinned to it."""
        return definitions.encode_definition(self.definition())

    @property
    def digest(self) -> str:
        return self.encoded[0]


@dataclass(frozen=True)
class App:
    """What a worker serves; older versions of an agent may stand beside the newest, for their runs."""

    agents: Sequence[Agent]

    def __post_init__(self) -> None:
        seen: dict[tuple[str, str], str] = {}
        for agent in self.agents:
            other = seen.setdefault((agent.name, agent.version), agent.digest)
            if other != agent.digest:
                raise UnusableAgent(f"Two different agents are called {agent.name}, version {agent.version}.")


def load_app(place: str, folder: Path | None = None) -> App:
    """The application at ``module:object``; the module is looked for in ``folder`` (working folder) first.

    Raises:
        AppNotFound: no such module or object, or it is none of Agent, list of Agents, App. What the
            module itself raises while it is imported passes through.
    """
    module_name, colon, path = place.partition(":")
    if not colon or not module_name or not path:
        raise AppNotFound(f"{place!r} has no colon between module and object.")
    home = str((folder or Path.cwd()).absolute())
    if home not in sys.path:
        sys.path.insert(0, home)
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise AppNotFound(f"There is no module {error.name!r} in {home} or on the Python path.") from error
    for name in path.split("."):
        try:
            found = cast("object", getattr(found, name))
        except AttributeError as error:
            raise AppNotFound(f"{module_name} has no {path!r}.") from error
    return as_app(found, place)


def as_app(found: object, place: str = "the object") -> App:
    """An Agent, a list of Agents or an App as an App. Raises :class:`AppNotFound`."""
    match found:
        case App():
            return found
        case Agent():
            return App([found])
        case list() | tuple():
            agents = [each for each in cast("Sequence[object]", found) if isinstance(each, Agent)]
            if agents and len(agents) == len(cast("Sequence[object]", found)):
                return App(agents)
        case _:
            pass
    raise AppNotFound(f"{place} is none of them.")
