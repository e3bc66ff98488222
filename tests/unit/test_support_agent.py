"""The example agent's tools against the example message service: each answer means what it says."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.connectors.agent import Agent, load_app
from perdure.connectors.reconciler import Question, ReconcileAnswer
from perdure.connectors.tool import NotExecuted, Tool, ToolContext, ToolError
from perdure.processors.abort import AbortSignal
from perdure.processors.clock import SystemClock
from perdure.schemas.values import Answer, Effect

ROOT = Path(__file__).parents[2]
URL_VARIABLE = "MESSAGE_SERVICE_URL"
WAIT_S = 10.0


@pytest.fixture(scope="module")
def agents() -> dict[str, Agent]:
    return {agent.name: agent for agent in load_app("examples.support_agent:app", folder=ROOT).agents}


@pytest.fixture
def support(agents: dict[str, Agent]) -> Agent:
    return agents["support"]


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    program = ROOT / "examples" / "outside" / "message_service.py"
    process = subprocess.Popen(
        [sys.executable, str(program), "--db", str(tmp_path / "messages.sqlite")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().split()[-1]
        monkeypatch.setenv(URL_VARIABLE, url)
        yield url
    finally:
        process.terminate()
        process.wait(WAIT_S)
        process.stdout.close()


def context(key: str = "key-1") -> ToolContext:
    clock = SystemClock()
    return ToolContext("r", 1, "c", 1, key, 5_000, clock.boot_s() + WAIT_S, AbortSignal(), clock)


def asked(support: Agent, key: str) -> ReconcileAnswer:
    (find,) = support.reconcilers
    answer = find(Question("r", 1, "c", 1, find.name, {}, key, None, 5_000, AbortSignal()))
    assert isinstance(answer, ReconcileAnswer)
    return answer


def named(agent: Agent, name: str) -> Tool[Any, Any]:
    (found,) = (each for each in agent.tools if each.name == name)
    return found


def test_a_customer_is_found_or_the_model_is_told(support: Agent, service: str) -> None:
    """An unknown customer is an answer to the model, not a failure of the tool."""
    find = named(support, "find_customer")
    assert find("c-17", context()) == {
        "id": "c-17",
        "name": "Greta 17",
        "email": "greta.17@example.com",
    }
    assert isinstance(find("c-0", context()), ToolError)


def test_what_is_found_later_is_what_would_have_been_answered(support: Agent, service: str) -> None:
    """The reconciler's result for a call equals the result that the call itself returned."""
    assert asked(support, "key-1").answer is Answer.DID_NOT_HAPPEN
    sent = named(support, "send_message")("ada@example.com", "hello", context("key-1"))
    found = asked(support, "key-1")
    assert found.answer is Answer.HAPPENED
    assert found.result == sent
    assert asked(support, "key-2").answer is Answer.DID_NOT_HAPPEN


def test_a_refused_message_is_definite(support: Agent, service: str) -> None:
    """What the service refuses it has not stored: the model is told, and nobody needs to ask."""
    refused = named(support, "send_message")("ada@example.com", None, context())
    assert isinstance(refused, ToolError)
    assert asked(support, "key-1").answer is Answer.DID_NOT_HAPPEN


def test_a_service_that_does_not_listen_was_not_reached(
    support: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused connection is the one failure after which nothing can have happened."""
    with socket.socket() as bound:  # bound, not listening
        bound.bind(("127.0.0.1", 0))
        monkeypatch.setenv(URL_VARIABLE, f"http://127.0.0.1:{bound.getsockname()[1]}")
        with pytest.raises(NotExecuted):
            named(support, "send_message")("ada@example.com", "hello", context())


def test_the_three_agents_differ_in_what_they_promise(agents: dict[str, Agent]) -> None:
    """One asks the service, one a person, and one believes that the service deduplicates."""
    effects = {name: named(agent, "send_message").definition() for name, agent in agents.items()}
    assert {name: (each.effect, each.reconcile) for name, each in effects.items()} == {
        "support": (Effect.NON_IDEMPOTENT, "find_message"),
        "support-asking-people": (Effect.NON_IDEMPOTENT, None),
        "support-naive": (Effect.IDEMPOTENT_WRITE, None),
    }
