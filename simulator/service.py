"""The world outside: services that tools call, and what really happened there.

A call leaves at once and lands when it lands, whatever became of the process that sent it by then; it lands
no later than the tool's deadline plus the time that the service is said to need to settle.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, Final

from perdure.connectors.agent import Agent
from perdure.connectors.agent_tool import agent_tool
from perdure.connectors.json_schema import compile_schema
from perdure.connectors.reconciler import (
    Question,
    ReconcileAnswer,
    did_not_happen,
    happened,
    reconciler,
    unknown,
)
from perdure.connectors.tool import ContentBlocks, NotExecuted, Tool, ToolContext, ToolError, tool
from perdure.schemas.json_schema import Check
from perdure.topics.model_cluster import ModelCluster
from simulator.marks import Marks
from simulator.plan import pick

LARGE_CHARS: Final = 1_200_000
AGENT: Final = "any"
LATE_AGENT: Final = "late"
HELPER: Final = "helper"


@dataclass(frozen=True, slots=True)
class Begun:
    """A tool's code began. ``number`` counts them all."""

    number: int
    run_id: str
    call_id: str
    attempt: int
    key: str
    tool: str
    process: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Landed:
    """An effect took place."""

    begun: Begun
    at_ms: int


class Service:
    """``doom``: kills the process whose tool is running. ``process``: says its name."""

    def __init__(
        self,
        cluster: ModelCluster,
        random: Random,
        ends: Mapping[str, float],
        marks: Marks,
        doom: Callable[[], None],
        process: Callable[[], str],
    ) -> None:
        self._cluster = cluster
        self._random = random
        self._ends = ends
        self._marks = marks
        self._doom = doom
        self._process = process
        self._count = 0
        self.is_kind = False
        """No more failures: the answer comes."""
        self.begun: defaultdict[str, list[Begun]] = defaultdict(list)
        self.landed: defaultdict[str, list[Landed]] = defaultdict(list)

    async def call(self, context: ToolContext, name: str, settle_s: float) -> Any:
        """What every tool does."""
        begun = self._begin(context, name)
        latest_ms = context.timeout_ms + round(settle_s * 1000)
        end = "answer" if self.is_kind else pick(self._random, self._ends)
        self._marks.add(f"tool_{end}")
        match end:
            case "lands_later" | "connection" | "crash_before_landing":
                if self._random.random() < 0.8:
                    self._land_later(begun, self._random.randint(0, latest_ms))
                if end == "crash_before_landing":
                    self._doom()
                raise ConnectionResetError(end)
            case "not_executed":
                raise NotExecuted(end)
            case "never_sent":
                raise RuntimeError(end)
            case "slow":
                self._land_later(begun, self._random.randint(0, context.timeout_ms))
                await asyncio.sleep(self._random.uniform(0.0, context.timeout_ms / 1000))
            case "too_slow":
                self._land_later(begun, self._random.randint(0, latest_ms))
                await asyncio.sleep(context.timeout_ms / 1000 + self._random.uniform(0.0, 20.0))
            case "deaf":
                self._land(begun)
                await self._deaf()
            case _:
                self._land(begun)
                if end == "crash_after":
                    self._doom()
                await asyncio.sleep(self._random.choice((0.0, 0.0, 0.3, 2.0)))
        return self._answer(end, begun)

    async def _deaf(self) -> None:
        """Ignores the first requests to stop."""
        for _ in range(2):
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                self._marks.add("tool_ignored_cancel")
                if self.is_kind:
                    raise

    def _answer(self, end: str, begun: Begun) -> Any:
        if end == "error":
            return ToolError(self._random.choice(("", "it did not work")))
        if end == "odd":
            return self._random.choice(
                ("", " ", "\ud800\0", None, 7, {"a": [1, 2.5]}, ContentBlocks([{"type": "text", "text": ""}]))
            )
        if end == "large":
            return "x" * LARGE_CHARS
        if self._random.random() < 0.2:
            return "the same as ever"
        return f"{begun.tool} {begun.number}"

    def _begin(self, context: ToolContext, name: str) -> Begun:
        self._count += 1
        begun = Begun(
            self._count,
            context.run_id,
            context.call_id,
            context.attempt,
            context.idempotency_key,
            name,
            self._process(),
            self._cluster.now_ms,
        )
        self.begun[begun.key].append(begun)
        return begun

    def _land(self, begun: Begun) -> None:
        self.landed[begun.key].append(Landed(begun, self._cluster.now_ms))

    def _land_later(self, begun: Begun, delay_ms: int) -> None:
        def land() -> None:
            self._marks.add("landed_later")
            self._land(begun)

        self._cluster.schedule(delay_ms, land)

    async def find(self, question: Question) -> ReconcileAnswer:
        """What every reconciler does: looks whether the effect took place, so far."""
        chance = self._random.random()
        if chance < 0.1 and not self.is_kind:
            await asyncio.sleep(self._random.uniform(0.0, 8.0))
        if chance > 0.9 and not self.is_kind:
            raise ConnectionResetError("the reconciler")
        landed = self.landed.get(question.idempotency_key)
        if landed:
            self._marks.add("reconciled_happened")
            return happened(f"found {landed[-1].begun.number}")
        if 0.8 < chance <= 0.9 and not self.is_kind:
            return unknown()
        begun = self.begun.get(question.idempotency_key)
        self._marks.add("reconciled_did_not_happen" if begun else "reconciled_never_begun")
        return did_not_happen()


@dataclass(slots=True)
class Stage:
    """The service of the life that is being lived: tools are declared once, for that takes its time."""

    service: Service | None = None

    def get(self) -> Service:
        assert self.service is not None
        return self.service


STAGE: Final = Stage()


def agents_of(service: Service) -> tuple[Agent, ...]:
    """The agents there are: the one, its second version with another tool, and one that is published late."""
    STAGE.service = service
    return _agents()


@cache
def _agents() -> tuple[Agent, ...]:
    first: list[Tool[..., Any]] = [look, send, pay, put, sign]
    helper = agent_tool(HELPER, description="Helps.", timeout_s=600)
    return (
        Agent(
            AGENT, model="m", tools=first, agents=[helper], max_turns=8, model_timeout_s=12, max_tokens=600
        ),
        Agent(
            AGENT,
            model="m",
            version="2",
            tools=[*first, ship],
            agents=[helper],
            max_turns=8,
            model_timeout_s=12,
            max_tokens=600,
        ),
        Agent(LATE_AGENT, model="m", tools=first[:2], max_turns=4, model_timeout_s=12, max_tokens=600),
        Agent(
            HELPER,
            model="m",
            tools=first[1:],
            agents=[helper],
            max_turns=4,
            model_timeout_s=12,
            max_tokens=600,
        ),
    )


@reconciler(timeout_s=5)
async def find(question: Question) -> Any:
    return await STAGE.get().find(question)


@tool(effect="read_only", attempts_max=2, timeout_s=4)
async def look(context: ToolContext, n: int = 0) -> Any:  # noqa: ARG001 - what the model says
    return await STAGE.get().call(context, "look", 0)


@tool(effect="non_idempotent", timeout_s=5)
async def send(context: ToolContext, n: int = 0) -> Any:  # noqa: ARG001
    return await STAGE.get().call(context, "send", 10)


@tool(effect="non_idempotent", timeout_s=5, settle_s=15, reconcile=find)
async def pay(context: ToolContext, n: int = 0) -> Any:  # noqa: ARG001
    return await STAGE.get().call(context, "pay", 15)


@tool(effect="idempotent_write", attempts_max=3, timeout_s=4, cosmetic=["note"])
async def put(context: ToolContext, n: int = 0, note: str = "") -> Any:  # noqa: ARG001
    return await STAGE.get().call(context, "put", 5)


@tool(effect="non_idempotent", timeout_s=5, needs_approval=True)
async def sign(context: ToolContext, n: int = 0) -> Any:  # noqa: ARG001
    return await STAGE.get().call(context, "sign", 5)


@tool(effect="non_idempotent", timeout_s=5)
async def ship(context: ToolContext, n: int = 0) -> Any:  # noqa: ARG001
    return await STAGE.get().call(context, "ship", 5)


@cache
def _compiled(text: str) -> Check:
    return compile_schema(json.loads(text))


def compiled_once(schema: Mapping[str, Any]) -> Check:
    """Schemas are compiled once for all lives."""
    return _compiled(json.dumps(schema))
