"""Workers that lack what a run needs: its agent's version, or a tool of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure import Agent, tool
from perdure.schemas.events import RunWaiting, ToolAttemptEnded, ToolCompleted
from perdure.testing import ScriptedModel, TestBed, TestRun, calls, use

RAN: list[str] = []
DAY_S = 86_400.0


@tool(effect="read_only")
def old(name: str) -> str:
    """Of the first version."""
    RAN.append("old")
    return f"old {name}"


@tool(effect="non_idempotent")
def new(name: str) -> str:
    """Of the second version."""
    RAN.append("new")
    return f"new {name}"


ONE = Agent("a", model="m", tools=[old], version="1")
TWO = Agent("a", model="m", tools=[old, new], version="2")
OTHER = Agent("b", model="m", tools=[old])


@pytest.fixture(autouse=True)
def fresh() -> None:
    RAN.clear()


def script(*tools: str) -> ScriptedModel:
    return ScriptedModel([calls(*(use(name, name="Ada") for name in tools)), "done"])


def until_waiting(bed: TestBed, run: TestRun) -> None:
    bed.until(lambda: run.waiting_for is not None, limit_s=30)


def test_a_run_waits_for_a_worker_that_has_its_tool_and_says_so() -> None:
    """Workers of an older deployment decline it; nothing fails, and a newer worker goes on with it."""
    with TestBed([TWO], model=script("new")) as bed:
        bed.restart("tool-executor", agents=[ONE])
        run = bed.submit("go")
        until_waiting(bed, run)
        assert (run.waiting_for or "").startswith("tool new of agent a version 2 on some worker")
        bed.advance(DAY_S / 24)
        assert run.state == "awaiting_tool"
        bed.restart("tool-executor", agents=[TWO])
        bed.settle()
        assert run.output == "done"
        assert run.waiting_for is None
        assert list(RAN) == ["new"]


def test_a_tool_that_both_versions_have_alike_is_not_waited_for() -> None:
    """A worker of another version does what is declared exactly as the run's version declares it."""
    with TestBed([TWO], model=script("old")) as bed:
        bed.restart("tool-executor", agents=[ONE])
        run = bed.submit("go")
        bed.settle()
        assert run.output == "done"
        assert list(RAN) == ["old"]


def test_who_waits_for_a_tool_keeps_nobody_waiting() -> None:
    """In the same partition, and of the same turn: other runs end, the other calls of the turn are made."""
    model = ScriptedModel(
        [calls(use("new", name="x"), use("old", name="y")), calls(use("old", name="z")), "ok"]
    )
    with TestBed([TWO, OTHER], model=model, partitions=1) as bed:
        bed.restart("tool-executor", agents=[ONE, OTHER])
        waiting = bed.submit("go", agent="a")
        until_waiting(bed, waiting)
        other = bed.submit("go", agent="b")
        bed.until(lambda: other.output == "ok", limit_s=30)
        assert [json_content(done) for done in waiting.bodies(ToolCompleted)] == ['"old y"']
        assert waiting.state == "awaiting_tool"


def json_content(done: ToolCompleted) -> str:
    return done.content.decode()


def test_a_missing_tool_is_asked_for_ever_more_rarely() -> None:
    """By durable timers that back off to a minute: a long wait costs an event or two a minute, no flood."""
    with TestBed([TWO], model=script("new")) as bed:
        bed.restart("tool-executor", agents=[ONE])
        run = bed.submit("go")
        until_waiting(bed, run)
        bed.advance(600)
        declined = [event.at_ms for event in run.events if isinstance(event.body, ToolAttemptEnded)]
        assert 10 < len(declined) < 40
        assert declined[-1] - declined[-2] > 25_000
        bed.restart("orchestrator", keeps_disk=False)
        bed.restart("tool-executor", agents=[TWO])
        bed.settle()
        assert run.output == "done"


def test_a_run_waits_for_an_agent_that_is_published_late() -> None:
    """It is queued and says for what; once the version it asks for is there, it goes on by itself."""
    with TestBed([ONE], model=script("new")) as bed:
        run_id = bed.client.submit("a", "go", version="2")
        bed.until(lambda: run_id in bed.history.runs, limit_s=30)
        bed.advance(600)
        stand = bed.history.runs[run_id]
        assert (stand.state, stand.waiting_for) == ("queued", "agent a version 2")
        waits = [event for event in bed.history.events[run_id] if isinstance(event.body, RunWaiting)]
        assert 5 < len(waits) < 30
        bed.publish(TWO)
        bed.restart("tool-executor", agents=[TWO])
        bed.until(lambda: bed.history.runs[run_id].state == "completed", limit_s=120)
        assert bed.history.runs[run_id].version == "2"


def test_a_newer_version_of_the_agent_does_not_move_a_run_that_has_begun() -> None:
    """It stays pinned to what it began with, and a worker that serves both versions serves it."""
    with TestBed([ONE], model=ScriptedModel([calls(use("old", name="x")), "done"])) as bed:
        bed.crash("tool-executor")
        run = bed.submit("go")
        bed.settle()
        changed = replace(TWO, system="Another prompt.", version="3")
        bed.publish(changed)
        bed.restart("tool-executor", agents=[changed, ONE])
        bed.settle()
        assert run.output == "done"
        assert bed.history.runs[run.run_id].version == "1"
