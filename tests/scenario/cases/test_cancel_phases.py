"""A cancel in every phase of a run: it ends at once, nothing of it goes on, and a resume is valid."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from perdure import Agent, Question, ReconcileAnswer, ToolContext, happened, reconciler, tool, unknown
from perdure.testing import ScriptedModel, Silence, TestBed, calls, fails, use
from perdure.testing.run import TestRun
from perdure.testing.script import Script

DAY_S = 86_400


@dataclass
class World:
    """What tools and their reconciler have seen. ``is_mended``: from now on the outside works."""

    ran: Counter[str] = field(default_factory=Counter[str])
    aborted: Counter[str] = field(default_factory=Counter[str])
    is_mended: bool = False

    def agent(self) -> Agent:
        @reconciler
        async def find(question: Question) -> ReconcileAnswer:
            self.ran["find"] += 1
            if self.is_mended:
                return happened("it was sent")
            if question.arguments["name"] == "slow to find":
                await asyncio.sleep(5)
            return unknown()

        @tool(effect="idempotent_write")
        async def wait(name: str, perdure_context: ToolContext) -> str:
            """Wait for the abort."""
            self.ran[name] += 1
            await perdure_context.abort.wait()
            self.aborted[name] += 1
            perdure_context.abort.raise_if_aborted()
            return "never"

        @tool(effect="read_only", attempts_max=50)
        async def flaky(name: str) -> str:
            """Fail until the outside is mended."""
            self.ran[name] += 1
            if not self.is_mended:
                raise ConnectionError("not now")
            return "at last"

        @tool(effect="non_idempotent", reconcile=find)
        async def send(name: str) -> str:
            """Lose the answer."""
            self.ran[name] += 1
            raise ConnectionError("the answer is lost")

        @tool(effect="non_idempotent", needs_approval=True)
        async def buy(name: str) -> str:
            self.ran[name] += 1
            return "bought"

        return Agent("actor", model="m", tools=[wait, flaky, send, buy])


@dataclass(frozen=True)
class Phase:
    """``first``: what the model says to the first question. ``is_reached``: the cancel comes then.
    ``results``: texts that the tool results of the resumed transcript hold. ``aborts``: calls that are told.
    """

    first: Any
    is_reached: Callable[[TestBed, TestRun, World], object]
    results: tuple[str, ...] = ()
    delay_s: float | None = None
    aborts: int = 0


PHASES = {
    "queued": Phase("done", lambda bed, run, world: run.state == "queued", delay_s=3_600),
    "model stream": Phase(Silence(), lambda bed, run, world: bed.model.asked),
    "model retry wait": Phase(
        fails("overloaded", retry_after_s=3_600), lambda bed, run, world: "ModelAttemptEnded" in run.kinds
    ),
    "function tool": Phase(
        calls(use("wait", name="a")),
        lambda bed, run, world: world.ran["a"],
        ("may or may not have been",),
        aborts=1,
    ),
    "two tools, one done": Phase(
        calls(use("wait", name="a"), use("flaky", name="b")),
        lambda bed, run, world: world.ran["a"] and world.ran["b"],
        ("may or may not have been", ""),
        aborts=1,
    ),
    "tool retry wait": Phase(
        calls(use("flaky", name="a")),
        lambda bed, run, world: "ToolAttemptEnded" in run.kinds,
        ("may or may not have been",),
    ),
    "awaiting approval": Phase(
        calls(use("buy", name="a")), lambda bed, run, world: run.pending, ("not executed",)
    ),
    "reconciliation": Phase(
        calls(use("send", name="slow to find")), lambda bed, run, world: world.ran["find"], ("it was sent",)
    ),
    "reconciliation wait": Phase(
        calls(use("send", name="a")),
        lambda bed, run, world: "ReconciliationAnswered" in run.kinds,
        ("it was sent",),
    ),
}


def script_of(phase: Phase) -> Script:
    """The phase's first answer once, then the end."""
    return lambda asked: phase.first if asked.number == 1 else "done"


@pytest.mark.parametrize("disk", ["no crash", "kept", "lost"])
@pytest.mark.parametrize("name", PHASES)
def test_a_cancel_ends_the_run_and_everything_of_it(name: str, disk: str) -> None:
    """Nothing is asked, called or dispatched any more, not by a timer of a day later either; a resume then
    completes the run, and each call has one honest result.
    """
    phase, world = PHASES[name], World()
    with TestBed(world.agent(), model=ScriptedModel(script_of(phase))) as bed:
        # given a run in that phase
        run = bed.submit("go", delay_s=phase.delay_s)
        bed.until(lambda: phase.is_reached(bed, run, world))
        before = (len(run.model_requests), len(run.tool_requests))
        # when it is cancelled
        run.cancel("enough")
        bed.settle()
        # then it has ended, and stays so
        assert run.state == "cancelled"
        assert run.code == "enough"
        assert run.pending == []
        if disk != "no crash":
            bed.restart("orchestrator", keeps_disk=disk == "kept")
        bed.advance(DAY_S)
        assert (len(run.model_requests), len(run.tool_requests)) == before
        assert world.aborted.total() == phase.aborts
        # when it is resumed, in a world that works
        world.is_mended = True
        ran = {each: count for each, count in world.ran.items() if each != "find"}
        run.resume("go on")
        bed.settle()
        # then it completes, and nothing that may have had an effect was made again
        assert run.state == "completed"
        assert {each: count for each, count in world.ran.items() if each != "find"} == ran
        assert len(run.results) == len(phase.results)
        for result, told in zip(run.results, phase.results, strict=True):
            assert told in str(result["content"])
        assert bed.model.asked[-1].texts[-1:] == ["go on"] or bed.model.asked[-1].texts == ["go", "go on"]
        assert [each.state for each in run.outcomes] == ["cancelled", "completed"]


@pytest.mark.parametrize("name", PHASES)
def test_cancel_and_resume_at_once_are_two_executions(name: str) -> None:
    """A resume that follows the cancel so closely that no executor has heard of it harms nothing."""
    phase, world = PHASES[name], World()
    with TestBed(world.agent(), model=ScriptedModel(script_of(phase))) as bed:
        run = bed.submit("go", delay_s=phase.delay_s)
        bed.until(lambda: phase.is_reached(bed, run, world))
        world.is_mended = True
        run.cancel("enough")
        run.resume("go on")
        bed.settle()
        assert run.state == "completed"
        assert [each.state for each in run.outcomes] == ["cancelled", "completed"]
        assert len(run.results) == len(phase.results)
