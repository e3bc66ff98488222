"""The test kit itself: deterministic, and it notices what is wrong; its validator knows the API's rules."""

from __future__ import annotations

import asyncio
import json
import runpy
import threading
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Question, ReconcileAnswer, happened, reconciler, tool
from perdure.testing import (
    Asked,
    Entry,
    InvalidTranscript,
    NotAtRest,
    ScriptedModel,
    ScriptExhausted,
    Silence,
    TestBed,
    calls,
    check_transcript,
    fails,
    says,
    transcript_fault,
    use,
)
from perdure.testing.inline import inlined

USER: dict[str, Any] = {"role": "user", "content": "hi"}


def assistant(*ids: str, **changes: Any) -> dict[str, Any]:
    blocks = [{"type": "tool_use", "id": call, "name": "f", "input": {}, **changes} for call in ids]
    return {"role": "assistant", "content": blocks}


def result(call_id: str, content: Any = "ok") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def user(*content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def text(said: str = "x") -> dict[str, Any]:
    return {"type": "text", "text": said}


@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [USER, USER],
        [USER, assistant("a"), user(result("a"))],
        [USER, assistant("a", "b"), user(result("b"), result("a"), text())],
        [USER, assistant("a"), user(result("a")), user(text())],
        [USER, {"role": "assistant", "content": [text()]}, assistant("a"), user(result("a", [text()]))],
        [USER, assistant("a"), user(result("a")), assistant("b"), user(result("b"))],
        [USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": "s"}]}],
    ],
)
def test_valid_transcripts_pass(messages: list[dict[str, Any]]) -> None:
    """What the API takes, neighbours of one role included, has no fault."""
    assert transcript_fault(messages) is None


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([], "no messages"),
        ([{"role": "assistant", "content": "x"}], "not the user's"),
        ([{"role": "system", "content": "x"}], "role"),
        ([{"role": "user", "content": ""}], "empty text"),
        ([{"role": "user", "content": " \n"}], "empty text"),
        ([{"role": "user", "content": []}], "no content"),
        ([{"role": "user", "content": 7}], "no content"),
        (["x"], "no object"),
        ([user({"text": "x"})], "type"),
        ([USER, assistant("a")], "have no results"),
        ([USER, assistant("a"), USER], "answered in the next message"),
        ([USER, assistant("a", "b"), user(result("a"))], "answered in the next message"),
        ([USER, assistant("a"), user(result("a"), result("a"))], "answered twice"),
        ([USER, assistant("a"), user(text(), result("a"))], "stands before"),
        ([USER, assistant("a"), user(text()), user(result("a"))], "stands before"),
        ([user(result("a"))], "answered in the next message"),
        ([USER, assistant("a", "a"), user(result("a"))], "stands twice"),
        ([USER, assistant("a"), user(result("a")), assistant("a"), user(result("a"))], "stands twice"),
        ([USER, assistant("a b"), user(result("a b"))], "id is"),
        ([USER, assistant("", name="f"), user(result(""))], "id is"),
        ([USER, assistant("a", name="g h"), user(result("a"))], "name is"),
        ([USER, assistant("a", input="{}"), user(result("a"))], "no object"),
        ([USER, assistant("a"), user(result("a", ""))], "empty tool_result"),
        ([USER, assistant("a"), user(result("a", 7))], "without content"),
        ([USER, assistant("a"), user(result("a", [text("")]))], "empty text"),
        ([USER, assistant("a"), user(result("a", [result("b")]))], "holds a tool_result"),
        ([user({"type": "tool_use", "id": "a", "name": "f", "input": {}})], "not the assistant's"),
        ([USER, {"role": "assistant", "content": [result("a")]}], "not the user's"),
    ],
)
def test_each_rule_of_the_api_is_checked(messages: list[Any], fault: str) -> None:
    """A transcript that breaks one rule is refused with that rule."""
    assert fault in (transcript_fault(messages) or "")


def test_open_calls_are_allowed_while_a_transcript_is_under_way() -> None:
    """Between an assistant message and its answer there is a moment; a request may not be in it."""
    messages = [json.dumps(message).encode() for message in (USER, assistant("a"))]
    check_transcript(messages, is_request=False)
    with pytest.raises(InvalidTranscript, match="no results"):
        check_transcript(messages)


@tool(effect="read_only")
def look(at: str) -> str:
    """Look."""
    return f"{at} in {threading.current_thread().name}"


@tool(effect="read_only")
async def wait(seconds: float) -> str:
    """Wait, also in what would be a thread."""
    await asyncio.sleep(seconds)
    return await asyncio.to_thread(lambda: threading.current_thread().name)


AGENT = Agent("looker", model="m", tools=[look, wait])
SCRIPT: list[Entry] = [calls(use("look", at="x"), use("wait", seconds=3600 / 100)), fails(after="ha"), "done"]


def history(seed: int) -> list[object]:
    with TestBed(AGENT, model=ScriptedModel(SCRIPT), seed=seed) as bed:
        run = bed.submit("go")
        bed.until(lambda: run.kinds.count("ToolDispatched") == 2)
        bed.restart("tool-executor")
        bed.settle()
        assert run.state == "completed"
        return [*run.events, bed.cluster.now_ms]


def test_one_seed_is_one_history_to_the_byte() -> None:
    """Same seed, same events, identifiers and instants; another seed, other ones."""
    assert history(7) == history(7)
    assert history(7) != history(8)


def test_tools_run_on_the_tests_own_thread() -> None:
    """Plain functions and what async ones send to threads run inline; nothing is left running."""
    before = threading.active_count()
    with TestBed(AGENT, model=ScriptedModel(SCRIPT)) as bed:
        run = bed.submit("go")
        bed.settle()
        name = threading.current_thread().name
        assert [each["content"] for each in run.results] == [f"x in {name}", name]
    assert threading.active_count() == before


def test_agents_keep_their_content_hash() -> None:
    """Runs of the kit are pinned to the definition that production publishes."""

    @reconciler
    def find(question: Question) -> ReconcileAnswer:
        """Find it."""
        return happened("found")

    @tool(effect="non_idempotent", reconcile=find)
    def send() -> str:
        """Send."""
        raise ConnectionResetError

    agent = Agent("sender", model="m", tools=[send])
    assert inlined([agent])[0].digest == agent.digest
    with TestBed(agent, model=ScriptedModel([calls(use("send")), "done"])) as bed:
        run = bed.submit("go")
        bed.settle()
        assert run.results[0]["content"] == "found"
        assert run.events[0].body.definition == agent.digest  # type: ignore[union-attr]


def test_a_script_that_is_too_short_fails_the_test() -> None:
    """A model that is asked once too often is no failure of the model but of the test."""
    with TestBed(AGENT, model=ScriptedModel([SCRIPT[0]])) as bed:
        bed.submit("go")
        with pytest.raises(ScriptExhausted, match="question 2"):
            bed.settle()


def test_what_never_ends_is_said_to_be_so() -> None:
    """Settle gives up after a limit of virtual time, and says what is still going on."""
    agent = Agent("silent", model="m", model_timeout_s=100_000)
    with TestBed(agent, model=ScriptedModel([Silence()])) as bed:
        bed.submit("go")
        with pytest.raises(NotAtRest, match="the model-caller 0 has calls"):
            bed.settle(limit_s=30)
        with pytest.raises(NotAtRest, match="did not come about"):
            bed.until(lambda: False, limit_s=1)


def test_virtual_hours_pass_in_no_time() -> None:
    """A delayed run starts when its time has come, to the step."""
    with TestBed(AGENT, model=ScriptedModel(["done"])) as bed:
        run = bed.submit("go", delay_s=86_400)
        bed.settle()
        assert run.state == "queued"
        bed.advance(86_399)
        assert run.state == "queued"
        bed.advance(2)
        assert run.state == "completed"


def test_a_script_may_look_at_what_it_is_asked() -> None:
    """A function answers by the transcript, so that several runs can share one model."""

    def answer(asked: Asked) -> Any:
        return says("again: ", *asked.texts) if not asked.results else "done"

    with TestBed(AGENT, model=ScriptedModel(answer)) as bed:
        runs = [bed.submit(f"run {n}") for n in range(3)]
        bed.settle()
        assert [run.output for run in runs] == [f"again: run {n}" for n in range(3)]


@pytest.mark.parametrize("role", ["orchestrator", "model-caller", "tool-executor"])
def test_any_role_may_crash_and_come_back(role: str) -> None:
    """Settle rests while nobody of a role lives; afterwards the run goes on."""
    with TestBed(AGENT, model=ScriptedModel(SCRIPT)) as bed:
        bed.crash(role)
        run = bed.submit("go")
        bed.settle()
        assert run.outcome is None
        bed.restart(role, keeps_disk=False)
        bed.settle()
        assert run.state == "completed"


EXAMPLE = Path(__file__).parents[2] / "examples" / "test_my_agent.py"
EXAMPLES = [name for name in runpy.run_path(str(EXAMPLE)) if name.startswith("test_")]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_test_passes(name: str) -> None:
    """What examples/test_my_agent.py shows is what happens."""
    runpy.run_path(str(EXAMPLE))[name]()


def test_the_documented_example_passes() -> None:
    """The first program of docs/TESTING.md is a test, and it holds."""
    text = (Path(__file__).parents[2] / "docs" / "TESTING.md").read_text()
    program = text.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {"__name__": "documented"}
    exec(compile(program, "docs/TESTING.md", "exec"), names)
    names["test_ada_is_found"]()
