"""Recipients: what a tool says of who carries it out, and the refusal to be somebody else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.connectors.agent import Agent
from perdure.connectors.function_tools import FunctionTools
from perdure.connectors.http_tools import http_tool
from perdure.connectors.subprocess_tools import subprocess_tool
from perdure.connectors.tool import Tool, tool
from perdure.processors.abort import AbortSignal
from perdure.processors.ports import ToolAnswer, ToolInvocation
from perdure.schemas.definition import ToolDefinition
from perdure.schemas.recipient import digest_of, recipient_of
from perdure.schemas.results import Completed, Declined
from perdure.schemas.values import DeclineReason, Effect, ExecutorKind, Purpose

SCHEMA = {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]}
MADE: list[str] = []


@tool(effect="non_idempotent", schema=SCHEMA, needs_approval=True)
def pay(to: str) -> str:
    """Pay."""
    MADE.append(to)
    return "paid"


def call(declared: Tool[..., Any], recipient: bytes) -> ToolAnswer:
    agent = Agent("a", model="m", tools=[declared])
    tools = FunctionTools([agent])
    invocation = ToolInvocation(
        run_id="r",
        turn=1,
        call_id="c",
        attempt=1,
        definition=agent.digest,
        tool=declared.name,
        arguments={"to": "Ada"},
        effect=Effect.NON_IDEMPOTENT,
        idempotency_key="k",
        purpose=Purpose.CALL,
        timeout_ms=5_000,
        recipient=recipient,
    )
    try:
        return asyncio.run(tools.call(invocation, AbortSignal()))
    finally:
        tools.close()


@pytest.mark.parametrize("recipient", [b"", digest_of(recipient_of(pay.definition()))])
def test_the_recipient_that_was_approved_carries_the_call_out(recipient: bytes) -> None:
    """As does any, where nobody was asked."""
    assert isinstance(call(pay, recipient), Completed)


def test_another_recipient_than_the_approved_one_declines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Definitely not executed: an approval holds for exactly who was shown."""
    monkeypatch.setattr(f"{__name__}.MADE", [])
    answer = call(pay, b"x" * 32)
    assert isinstance(answer, Declined)
    assert answer.reason is DeclineReason.UNAVAILABLE
    assert "another recipient" in answer.message
    assert MADE == []


def recipient(declared: Tool[..., Any]) -> tuple[ExecutorKind, str]:
    found = recipient_of(declared.definition())
    return found.executor, found.server


def test_a_function_is_the_workers_own() -> None:
    """There is no server beside it."""
    assert recipient(pay) == (ExecutorKind.FUNCTION, "")


def test_an_http_tool_names_method_and_address_without_secrets() -> None:
    """User, password, query and fragment are nobody's business."""
    made = http_tool("h", url="https://me:secret@host:8443/a/{to}?key=secret#x", schema=SCHEMA)
    assert recipient(made) == (ExecutorKind.HTTP, "POST https://host:8443/a/{to}")


def test_a_command_names_its_program_wherever_it_stands() -> None:
    """Its folder differs between workers, and its arguments may hold secrets."""
    made = subprocess_tool("s", command=["/opt/x/pay", "--key", "secret"], effect="read_only", schema=SCHEMA)
    assert recipient(made) == (ExecutorKind.SUBPROCESS, "pay")


def test_a_condition_and_a_time_are_part_of_the_definition() -> None:
    """What ``@tool`` is given is what the machine reads."""
    condition = {"properties": {"to": {"const": "Ada"}}}
    declared = tool(effect="read_only", needs_approval=condition, approval_timeout_s=1.5)(pay.function)
    found: ToolDefinition = declared.definition()
    assert (found.needs_approval, found.approval_condition, found.approval_timeout_ms) == (
        True, condition, 1_500,
    )  # fmt: skip
    assert pay.definition().approval_condition is None
