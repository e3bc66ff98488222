"""Several calls of one turn: which are executed when, and what the model is told."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from perdure import Agent, tool
from perdure.schemas.events import ToolCompleted, TurnStarted
from perdure.testing import ScriptedModel, TestBed, calls, use

HOUR_S = 3_600


@pytest.mark.parametrize("approves", [True, False], ids=["approved", "rejected"])
@pytest.mark.parametrize("order", [("free", "guarded"), ("guarded", "free")])
@pytest.mark.parametrize("is_moved", [True, False], ids=["other-workers", "same-workers"])
def test_a_free_call_runs_once_while_its_neighbour_waits_for_approval(
    order: tuple[str, str], approves: bool, is_moved: bool
) -> None:
    """A call that needs no approval runs at once; its result is kept until the other has one."""
    ran: Counter[str] = Counter()

    @tool(effect="non_idempotent")
    def free() -> str:
        ran["free"] += 1
        return "free ran"

    @tool(effect="non_idempotent", needs_approval=True)
    def guarded() -> str:
        ran["guarded"] += 1
        return "guarded ran"

    agent = Agent("clerk", model="m", tools=[free, guarded])
    # given a turn that asks for both, and the free one done
    with TestBed(agent, model=ScriptedModel([calls(*map(use, order)), "done"])) as bed:
        run = bed.submit("go")
        bed.settle()
        assert run.state == "awaiting_approval"
        assert ran == {"free": 1}
        # when an hour later, on other workers, somebody decides
        bed.advance(HOUR_S)
        if is_moved:
            bed.restart("orchestrator", keeps_disk=False)
            bed.restart("tool-executor")
            bed.restart("model-caller")
        run.decide(None, "approve" if approves else "reject", message=None if approves else "not today")
        bed.settle()
        # then both results stand in one message, in call order
        assert run.state == "completed"
        assert ran == ({"free": 1, "guarded": 1} if approves else {"free": 1})
        [first, second] = run.messages[2]["content"]
        assert [first["tool_use_id"], second["tool_use_id"]] == ["toolu_1", "toolu_2"]
        by_tool = dict(zip(order, (first, second), strict=True))
        assert by_tool["free"]["content"] == "free ran"
        assert ("is_error" in by_tool["guarded"]) is not approves
        assert len(bed.model.asked) == 2


@pytest.mark.parametrize("effect", ["read_only", "non_idempotent"])
@pytest.mark.parametrize(
    ("crashed", "after_s"), [(None, 0), ("orchestrator", 3), ("orchestrator", 6), ("tool-executor", 3)]
)
def test_the_model_is_asked_once_when_all_parallel_calls_are_recorded(
    crashed: str | None, after_s: float, effect: Any
) -> None:
    """Calls that end seconds apart and out of order, across a crash, lead to one question, after the last."""

    @tool(effect=effect)
    async def wait(seconds: int) -> str:
        await asyncio.sleep(seconds)
        return f"{seconds} s"

    agent = Agent("waiter", model="m", tools=[wait])
    asked = calls(*(use("wait", seconds=seconds) for seconds in (9, 1, 7, 3, 5)))
    # given five calls under way
    with TestBed(agent, model=ScriptedModel([asked, "done"])) as bed:
        run = bed.submit("go")
        bed.until(lambda: run.kinds.count("ToolDispatched") == 5)
        # when a worker dies while some are done and some are not
        if crashed:
            bed.advance(after_s)
            bed.restart(crashed)
        bed.settle()
        while run.state == "awaiting_approval":  # what the dead executor had begun cannot be repeated
            run.decide(run.pending[0].call_id, "ran", result=f"{run.pending[0].call_id} ran")
            bed.settle()
        # then nothing but the fifth result starts the next turn
        assert run.state == "completed"
        assert len(bed.model.asked) == 2
        kinds = [type(event.body) for event in run.events]
        second = [at for at, kind in enumerate(kinds) if kind is TurnStarted][1]
        assert kinds[:second].count(ToolCompleted) == 5
        assert [result["tool_use_id"] for result in run.results] == [f"toolu_{n}" for n in range(1, 6)]


@pytest.mark.parametrize("seed", range(5))
def test_results_are_matched_by_call_id_whatever_order_calls_end_in(seed: int) -> None:
    """Equal tools with different arguments end in reverse order; each call gets its own result."""

    @tool(effect="read_only")
    async def child(name: str, seconds: int) -> str:
        await asyncio.sleep(seconds)
        return f"result of {name}"

    @tool(effect="read_only")
    def plain(name: str) -> str:
        return f"result of {name}"

    agent = Agent("parent", model="m", tools=[child, plain])
    asked = calls(
        use("child", "id-a", name="id-a", seconds=4),
        use("child", "id-b", name="id-b", seconds=2),
        use("plain", "id-c", name="id-c"),
    )
    with TestBed(agent, model=ScriptedModel([asked, "done"]), seed=seed) as bed:
        run = bed.submit("go")
        bed.settle()
        ended = [body.call_id for body in run.bodies(ToolCompleted)]
        assert ended == ["id-c", "id-b", "id-a"]
        assert [(each["tool_use_id"], each["content"]) for each in run.results] == [
            (call_id, f"result of {call_id}") for call_id in ("id-a", "id-b", "id-c")
        ]
