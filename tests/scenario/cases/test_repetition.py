"""A model that makes the same useless call again and again."""

from __future__ import annotations

import pytest

from perdure import Agent, ToolError, tool
from perdure.schemas.events import ToolCompleted
from perdure.schemas.values import ResultSource
from perdure.testing import Asked, Reply, ScriptedModel, TestBed, calls, use

RAN: list[str] = []


@tool(effect="read_only", cosmetic=["title"])
def fetch(path: str, title: str = "") -> object:
    """Fetch; it always fails."""
    RAN.append(title)
    return ToolError(f"no {path}")


@tool(effect="read_only", repeats_max=0)
def poll(job: str) -> str:
    """Ask again and again; that is what it is for."""
    RAN.append(job)
    return "not yet"


AGENT = Agent("fetcher", model="m", tools=[fetch, poll], max_turns=300)


@pytest.fixture(autouse=True)
def fresh() -> None:
    RAN.clear()


@pytest.mark.parametrize("crash_every", [0, 2], ids=["calm", "crashes"])
@pytest.mark.parametrize("other", [False, True], ids=["alone", "between-others"])
def test_a_failing_call_is_stopped_at_its_limit_whatever_its_cosmetic_argument(
    other: bool, crash_every: int
) -> None:
    """The same call under ever other titles: two are executed, then the run ends with a code."""

    def answer(asked: Asked) -> Reply:
        named = use("fetch", path="/a", title=f"attempt {asked.number}")
        return calls(named, use("poll", job=f"{asked.number}")) if other else calls(named)

    with TestBed(AGENT, model=ScriptedModel(answer)) as bed:
        run = bed.submit("go")
        if crash_every:
            bed.until(lambda: len(bed.model.asked) == crash_every)
            bed.restart("orchestrator", keeps_disk=False)
        bed.settle()
        assert (run.state, run.code) == ("failed", "loop_detected")
        assert len([title for title in RAN if title.startswith("attempt")]) == 2
        stopped = [b for b in run.bodies(ToolCompleted) if b.source is ResultSource.INTERCEPTED]
        assert len(stopped) == 3
        assert len(bed.model.asked) < 10


@pytest.mark.parametrize("argument", ["path", "title"])
def test_only_cosmetic_arguments_are_passed_over(argument: str) -> None:
    """Another path is another call; another title is not."""
    script = [calls(use("fetch", **{"path": "/a", argument: f"/{n}"})) for n in range(4)]
    with TestBed(AGENT, model=ScriptedModel([*script, "done"])) as bed:
        run = bed.submit("go")
        bed.settle()
        assert run.output == "done"
        assert len(RAN) == (4 if argument == "path" else 2)


def test_a_tool_that_polls_is_not_stopped() -> None:
    """repeats_max=0 says that repeating is its use."""
    with TestBed(AGENT, model=ScriptedModel([*[calls(use("poll", job="j"))] * 30, "done"])) as bed:
        run = bed.submit("go")
        bed.settle()
        assert run.output == "done"
        assert len(RAN) == 30
