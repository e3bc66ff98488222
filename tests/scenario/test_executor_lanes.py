"""Limits of single tools: what has no room waits by itself, and everybody else goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest

from perdure.processors.abort import AbortSignal
from perdure.processors.executor.settings import ExecutorSettings
from perdure.processors.offset_map import OffsetMap
from perdure.processors.ports import ToolAnswer, ToolInvocation
from perdure.processors.tool_executor import WAITING_MAX
from perdure.schemas.results import Declined
from perdure.schemas.values import DeclineReason, Effect
from tests.scenario.executor_stage import ONCE, READ, Stage, hang

SLOW = "sleep:200"


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage(settings=ExecutorSettings(slots=8), limits={SLOW: 2, "one": 1})
    stage.provision()
    yield stage
    stage.close()


def most_at_once(stage: Stage) -> int:
    """Of calls whose ids begin with slow."""
    now = most = 0
    for what, call_id, _, _ in stage.truth:
        if call_id.startswith("slow"):
            now += 1 if what == "begin" else -1
            most = max(most, now)
    return most


@pytest.mark.parametrize("effect", [READ, ONCE])
def test_a_tool_runs_no_more_often_at_once_than_it_may(stage: Stage, effect: Effect) -> None:
    """All of its calls are made in the end, each once, two at a time, whatever their effect class."""
    for number in range(20):
        stage.ask(f"slow{number}", effect, SLOW)
    stage.worker()
    stage.settle()
    assert [stage.begun(f"slow{number}") for number in range(20)] == [1] * 20
    assert most_at_once(stage) == 2


def test_calls_behind_a_full_tool_are_not_held_up(stage: Stage) -> None:
    """Fifty calls of other tools, read after fifty of a full one, end while most of those still wait."""
    for number in range(50):
        stage.ask(f"slow{number}", READ, SLOW)
    for number in range(50):
        stage.ask(f"other{number}", ONCE if number % 2 else READ)
    stage.worker()
    stage.until(lambda: all(stage.begun(f"other{number}") for number in range(50)))
    assert sum(stage.begun(f"slow{number}") for number in range(50)) <= 4
    stage.settle()
    assert sum(stage.begun(f"slow{number}") for number in range(50)) == 50


def test_what_has_no_room_holds_no_claim(stage: Stage) -> None:
    """A non_idempotent call that waits for its tool was not begun in any sense: no Started, no started bit;
    its worker's successor simply makes it.
    """
    stage.behaviours["one"] = hang
    stage.ask("first", ONCE, "one")
    stage.ask("second", ONCE, "one")
    worker = stage.worker()
    stage.run(500)
    assert stage.told("first") == ["Started"]
    assert stage.told("second") == []
    assert stage.committed() == (0, OffsetMap(started=frozenset({0})))
    worker.kill()
    del stage.behaviours["one"]
    stage.worker("w2")
    stage.until(lambda: stage.told("second") == ["Started", "Completed"], limit_ms=120_000)
    assert stage.begun("second") == 1
    stage.until(lambda: stage.told("first") == ["Started", "Suspect"])


def test_calls_that_wait_for_their_tool_start_in_order(stage: Stage) -> None:
    """First come, first served."""
    for number in range(10):
        stage.ask(f"c{number}", ONCE, "one")
    stage.worker()
    stage.settle()
    begun = [call_id for what, call_id, _, _ in stage.truth if what == "begin"]
    assert begun == [f"c{number}" for number in range(10)]


def test_more_than_may_wait_are_handed_back() -> None:
    """A flood of calls of one tool does not fill the memory up to where nothing is read any more."""
    stage = Stage(settings=ExecutorSettings(slots=8), limits={"one": 1})
    stage.provision()
    stage.behaviours["one"] = hang
    for number in range(WAITING_MAX + 50):
        stage.ask(f"c{number}", READ, "one")
    worker = stage.worker()
    stage.run(500)
    declined = [each.body for each in stage.results() if isinstance(each.body, Declined)]
    assert [body.reason for body in declined] == [DeclineReason.UNAVAILABLE] * 49
    assert "one" in declined[0].message
    assert worker.executor.backlog == WAITING_MAX
    stage.close()


def test_a_call_that_waits_for_its_tool_can_be_cancelled(stage: Stage) -> None:
    """It is handed back at once, not when its turn comes."""
    stage.behaviours["one"] = hang
    stage.ask("first", READ, "one")
    stage.ask("second", READ, "one")
    worker = stage.worker()
    stage.run(200)
    stage.signal("run-second", 0)
    stage.until(lambda: stage.told("second") == ["Declined"])
    assert stage.body("second", Declined).reason is DeclineReason.CANCELLED
    assert worker.executor.backlog == 0


def test_a_tool_whose_calls_were_given_up_stays_full() -> None:
    """A call that ignored its abort may still be at the outside service: its place is not given away."""
    settings = ExecutorSettings(slots=8, abort_grace_s=0.1, cancel_wait_s=0.1, abandoned_max=4)
    stage = Stage(settings=settings, limits={"one": 1})
    stage.provision()

    async def deaf(call: ToolInvocation, abort: AbortSignal) -> ToolAnswer:
        while True:  # virtual time has no events
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)

    stage.behaviours["one"] = deaf
    stage.ask("first", READ, "one", timeout_ms=100)
    worker = stage.worker()
    stage.until(lambda: stage.told("first") == ["Failed"])
    stage.ask("second", READ, "one")
    stage.run(500)
    assert worker.executor.abandoned == 1
    assert stage.begun("second") == 0
    worker.kill()


def test_a_partition_that_goes_takes_along_what_waits_for_a_tool() -> None:
    """What waits here for a partition that is somebody else's now is made there, and by nobody twice."""
    stage = Stage(partitions=2, settings=ExecutorSettings(slots=8), limits={SLOW: 1})
    stage.provision()
    for number in range(12):
        stage.ask(f"slow{number}", ONCE, SLOW, partition=number % 2)
    stage.worker("w1")
    stage.run(300)
    stage.worker("w2")
    stage.settle()
    assert [stage.begun(f"slow{number}") for number in range(12)] == [1] * 12
    assert {worker for *_, worker in stage.truth} == {"w1", "w2"}
    stage.close()
