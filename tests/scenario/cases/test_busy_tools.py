"""Tools that may not run as often at once as there are calls of them."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Agent, tool
from perdure.processors import tool_executor
from perdure.schemas.events import ToolAttemptEnded
from perdure.testing import ScriptedModel, TestBed, calls, use

WAITING_MAX = 10


class Counter:
    def __init__(self) -> None:
        self.now = self.most = self.calls = 0


@pytest.mark.parametrize("runs", [5, WAITING_MAX + 10])
def test_runs_that_flood_one_tool_all_end(runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at a time; those that find too many before them come again by a durable timer. None fails, and
    each call is made once.
    """
    monkeypatch.setattr(tool_executor, "WAITING_MAX", WAITING_MAX)
    counter = Counter()

    @tool(effect="non_idempotent", concurrency_max=2)
    async def narrow(number: int) -> str:
        """Take its time."""
        counter.calls += 1
        counter.now += 1
        counter.most = max(counter.most, counter.now)
        await asyncio.sleep(1.0)
        counter.now -= 1
        return f"done {number}"

    agent = Agent("a", model="m", tools=[narrow])
    script = [calls(use("narrow", number=number)) for number in range(runs)] + ["ended"] * runs
    with TestBed(agent, model=ScriptedModel(script), partitions=1) as bed:
        bed.crash("tool-executor")
        started = [bed.submit("go") for _ in range(runs)]
        bed.settle()
        bed.add("tool-executor")
        bed.settle()
        assert {run.state for run in started} == {"completed"}
        assert (counter.calls, counter.most) == (runs, 2)
        waited = [body for run in started for body in run.bodies(ToolAttemptEnded)]
        assert bool(waited) is (runs > WAITING_MAX)
        assert {body.reason for body in waited} <= {"unavailable"}
