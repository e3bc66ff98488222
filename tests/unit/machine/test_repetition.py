"""A model that repeats itself is told so, then stopped; one that makes progress is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from perdure.schemas import results as rs
from perdure.schemas.requests import ToolRequest
from perdure.schemas.values import Effect, RunState

FAILS = rs.Completed(b'"no such file"', is_error=True)


def once(driver: Any, answer: rs.ResultBody, tool: str = "look", **arguments: Any) -> bool:
    """One turn with one call; whether it was executed."""
    call_id = f"t{driver.run.turn}"
    driver.reply({"type": "tool_use", "id": call_id, "name": tool, "input": arguments})
    if not driver.requests(ToolRequest):
        return False
    driver.tool_result(call_id, answer)
    return True


@pytest.fixture
def patient(make_driver: Callable[..., Any], make_agent: Callable[..., Any]) -> Any:
    """A run with turns enough for any loop."""
    driver = make_driver(make_agent(max_turns=100))
    driver.submit()
    return driver


def test_the_third_identical_failing_call_is_intercepted(patient: Any) -> None:
    """Two fail for real; the third is answered with an error that explains the loop, and is not executed."""
    assert [once(patient, FAILS, path="x") for _ in range(3)] == [True, True, False]
    block = patient.last_message()["content"][0]
    assert block["is_error"]
    assert "again and again" in block["content"]
    assert patient.run.state == RunState.RUNNING


def test_calls_that_change_nothing_count_from_the_second_on(patient: Any) -> None:
    """No-op: the same result as the identical call before. The first is none, so the fourth is
    intercepted.
    """
    same = rs.Completed(b'"same"')
    assert [once(patient, same, path="x") for _ in range(4)] == [True, True, True, False]


def test_progress_is_never_intercepted(patient: Any) -> None:
    """Identical calls with other results each time, or other arguments, are no loop."""
    for number in range(15):
        assert once(patient, rs.Completed(f'"{number}"'.encode()), path="poll")
    for number in range(15):
        assert once(patient, FAILS, path=f"f{number}")


def test_a_cycle_of_two_calls_is_caught_as_well(patient: Any) -> None:
    """A B A B: the window sees through what stands between."""
    executed = [once(patient, FAILS, path=path) for path in ("a", "b") * 3]
    assert executed == [True, True, True, True, False, False]


def test_three_interceptions_end_the_run(patient: Any) -> None:
    """A model that does not listen fails its run as loop_detected."""
    for _ in range(5):
        once(patient, FAILS, path="x")
    assert patient.run.state == RunState.FAILED
    assert patient.run.closed.code == "loop_detected"


def test_a_cosmetic_argument_does_not_make_another_call(
    make_driver: Callable[..., Any], make_agent: Callable[..., Any]
) -> None:
    """Arguments named cosmetic are left out of the comparison."""
    agent = make_agent(max_turns=100)
    look = replace(agent.tools[0], cosmetic=("label",))
    driver = make_driver(replace(agent, tools=(look, *agent.tools[1:])))
    driver.submit()
    executed = [once(driver, FAILS, path="x", label=f"try {number}") for number in range(3)]
    assert executed == [True, True, False]


def test_a_tool_that_polls_is_exempt(make_driver: Callable[..., Any], make_agent: Callable[..., Any]) -> None:
    """repeats_max 0: the tool may be asked the same for ever."""
    agent = make_agent(max_turns=100)
    look = replace(agent.tools[0], repeats_max=0, effect=Effect.READ_ONLY)
    driver = make_driver(replace(agent, tools=(look, *agent.tools[1:])))
    driver.submit()
    assert all(once(driver, rs.Completed(b'"pending"'), path="x") for _ in range(30))


def test_identical_calls_of_one_turn_count_in_call_order(patient: Any) -> None:
    """Asked for together, nothing could be learnt between them: the fourth identical one is not executed."""
    blocks = [
        {"type": "tool_use", "id": f"p{number}", "name": "look", "input": {"path": "x"}}
        for number in range(4)
    ]
    patient.reply(*blocks)
    assert [request.call_id for request in patient.requests(ToolRequest)] == ["p0", "p1", "p2"]


def test_arguments_in_another_order_are_the_same_call(patient: Any) -> None:
    """Canonical JSON: neither key order nor number form makes a difference."""
    assert once(patient, FAILS, a=1, b=2)
    assert once(patient, FAILS, b=2, a=1.0)
    assert not once(patient, FAILS, a=1, b=2)
