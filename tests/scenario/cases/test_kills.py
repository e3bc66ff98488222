"""Kills in the worst places, and long calls while the group changes: nothing is lost, nothing done twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from perdure import Agent, tool
from perdure.processors.executor.settings import ExecutorSettings
from perdure.schemas.events import ToolCompleted
from perdure.testing import ScriptedModel, TestBed, calls, use
from perdure.topics.model_codes import Code
from perdure.topics.model_membership import JoinRequest

RAN: Counter[str] = Counter()


@tool(effect="non_idempotent")
def send(text: str) -> str:
    """Send it."""
    RAN[text] += 1
    return f"sent {text}"


@tool(effect="non_idempotent", timeout_s=1_200)
async def build(name: str, seconds: float) -> str:
    """Take long."""
    RAN[name] += 1
    await asyncio.sleep(seconds)
    return f"built {name}"


AGENT = Agent("sender", model="m", tools=[send, build])


@pytest.fixture(autouse=True)
def fresh() -> None:
    RAN.clear()


@pytest.mark.parametrize("keeps_disk", [True, False], ids=["disk", "empty-disk"])
@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("point", ["orchestrator.before_commit", "orchestrator.after_commit"])
def test_a_kill_around_the_commit_neither_loses_nor_repeats(
    die_at: Callable[..., None], point: str, nth: int, keeps_disk: bool
) -> None:
    """Killed between offsets and commit, or just after it, then started on its disk or an empty one."""
    die_at(point, nth)
    with TestBed(
        AGENT, model=ScriptedModel([calls(use("send", text="a"), use("send", text="b")), "done"])
    ) as bed:
        run = bed.submit("go")
        bed.settle()
        assert not any(worker.role.value == "orchestrator" for worker in bed.workers)
        bed.add("orchestrator", keeps_disk=keeps_disk)
        bed.settle()
        assert run.state == "completed"
        assert RAN == {"a": 1, "b": 1}
        assert len(run.outcomes) == 1
        assert len(bed.model.asked) == 2


@pytest.mark.parametrize(
    ("point", "has_run"),
    [
        ("executor.before_claim", False),
        ("executor.after_claim", False),
        ("executor.after_call", True),
        ("executor.after_result", True),
    ],
)
def test_a_kill_around_a_claim_never_runs_a_tool_twice(
    die_at: Callable[..., None], point: str, has_run: bool
) -> None:
    """What may have run is asked about; what certainly has not is run once."""
    die_at(point)
    with TestBed(AGENT, model=ScriptedModel([calls(use("send", text="a")), "done"])) as bed:
        run = bed.submit("go")
        bed.settle()
        bed.add("tool-executor")
        bed.settle()
        if run.state == "awaiting_approval":
            [question] = run.pending
            assert question.kind == "ambiguity"
            run.decide(None, "ran" if has_run else "did_not_run", result="decided")
            bed.settle()
        assert run.state == "completed"
        assert RAN == {"a": 1}
        assert len(run.bodies(ToolCompleted)) == 1


@pytest.mark.parametrize("change", ["join", "join and leave", "pause"])
@pytest.mark.parametrize("seconds", [20, 400])
def test_a_long_call_survives_a_rebalance_with_one_effective_result(
    seconds: float, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than max.poll.interval, with executors coming and going: one result, nothing executed twice, and
    members join once for each that comes or comes back, however long the call takes.
    """
    joins: list[str] = []
    settings = ExecutorSettings(max_poll_interval_ms=60_000)
    asked = calls(use("build", name="long", seconds=seconds), use("send", text="short"))
    with TestBed(AGENT, model=ScriptedModel([asked, "done"]), executor=settings) as bed:
        run = bed.submit("go")
        bed.until(lambda: RAN["long"])
        first = bed.worker("tool-executor")
        coordinator = bed.cluster.groups
        join = coordinator.join

        def counted(request: JoinRequest) -> tuple[Code, str]:
            joins.append(request.member_id)
            return join(request)

        monkeypatch.setattr(coordinator, "join", counted)
        if change == "pause":
            first.pause()
            bed.add("tool-executor")
            bed.advance(30)
            first.go_on()
        else:
            second = bed.add("tool-executor")
            bed.advance(5)
            if change == "join and leave":
                second.stop(bed.cluster.advance)
        bed.settle()
        comers = 1 + (change == "pause")
        if not first.is_alive:
            bed.add("tool-executor")
            bed.settle()
            comers += 1
        assert len(joins) <= comers
        while run.state == "awaiting_approval":
            run.decide(run.pending[0].call_id, "give_up")
            bed.settle()
        assert run.state == "completed"
        assert RAN == {"long": 1, "short": 1}
        assert Counter(body.call_id for body in run.bodies(ToolCompleted)) == {"toolu_1": 1, "toolu_2": 1}
        assert run.kinds.count("TurnStarted") == 2


def test_a_tool_that_kills_its_own_worker_is_not_run_again() -> None:
    """A poison call takes its worker with it; the next worker asks instead of dying too."""
    deaths: list[int] = []

    @tool(effect="non_idempotent")
    async def fatal() -> str:
        deaths.append(1)
        bed.crash("tool-executor")
        await asyncio.sleep(1)
        return "never"

    agent = Agent("doomed", model="m", tools=[fatal])
    with TestBed(agent, model=ScriptedModel([calls(use("fatal")), "done"])) as bed:
        run = bed.submit("go")
        bed.settle()
        bed.add("tool-executor")
        bed.settle()
        assert run.state == "awaiting_approval"
        run.decide(None, "give_up")
        bed.settle()
        assert run.state == "completed"
        assert len(deaths) == 1
