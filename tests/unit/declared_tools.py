"""Calls of a declared tool as an executor makes them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from perdure.connectors.agent import Agent
from perdure.connectors.function_tools import FunctionTools
from perdure.connectors.tool import Tool
from perdure.processors.abort import AbortSignal
from perdure.processors.ports import ToolAnswer, ToolInvocation
from perdure.schemas.results import Completed
from perdure.schemas.values import Purpose

KEY = "the-idempotency-key"


class Caller:
    """One agent with one tool."""

    def __init__(self, declared: Tool[..., Any], *, timeout_ms: int | None = None) -> None:
        self.agent = Agent("a", model="m", tools=[declared])
        self.tools = FunctionTools([self.agent])
        self.declared = declared
        self.timeout_ms = timeout_ms or declared.definition().timeout_ms

    async def call(self, arguments: Mapping[str, Any], abort: AbortSignal | None = None) -> ToolAnswer:
        invocation = ToolInvocation(
            run_id="r",
            turn=1,
            call_id="c",
            attempt=1,
            definition=self.agent.digest,
            tool=self.declared.name,
            arguments=arguments,
            effect=self.declared.effect,
            idempotency_key=KEY,
            purpose=Purpose.CALL,
            timeout_ms=self.timeout_ms,
        )
        return await self.tools.call(invocation, abort or AbortSignal())

    def run(self, arguments: Mapping[str, Any] | None = None) -> ToolAnswer:
        return asyncio.run(self.call(arguments or {}))


def text_of(answer: ToolAnswer) -> str:
    assert isinstance(answer, Completed), answer
    value = json.loads(answer.content)
    assert isinstance(value, str)
    return value
