"""Structured output: checked against its schema, mended once, and handed over when the turns are used up."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from perdure.processors.machine.output import HAND_OVER
from perdure.processors.machine.turns import FINAL_NOTICE, HAND_OVER_NOTICE, SCHEMA_NOTICE
from perdure.schemas import results as rs
from perdure.schemas.commands import Cancel, Resume
from perdure.schemas.events import RunCompleted, TurnStarted
from perdure.schemas.requests import ModelRequest
from perdure.schemas.values import Budget, RunState, Usage

SCHEMA = {
    "type": "object",
    "properties": {"total": {"type": "integer"}},
    "required": ["total"],
    "additionalProperties": False,
}
INVALID = (
    "no JSON",
    '{"total": "3"}',
    '{"total": 3, "more": 1}',
    "[]",
    "",
    '"\\ud800"',
    "[" * 200 + "]" * 200,
)


@pytest.fixture
def start(make_driver: Callable[..., Any], make_agent: Callable[..., Any]) -> Callable[..., Any]:
    def started(**changes: Any) -> Any:
        budget = changes.pop("budget", None)
        driver = make_driver(make_agent(**({"output_schema": SCHEMA} | changes)))
        driver.submit(budget=budget)
        return driver

    return started


def ended(driver: Any) -> tuple[RunState, str | None]:
    return driver.run.state, driver.run.closed.code if driver.run.closed else None


def test_an_answer_that_matches_is_the_output(start: Callable[..., Any]) -> None:
    """The JSON of the answer is stored, not its text."""
    driver = start()
    driver.say(' {"total": 3} ')
    assert ended(driver) == (RunState.COMPLETED, None)
    assert json.loads(driver.run.closed.output) == {"total": 3}


@pytest.mark.parametrize("answer", INVALID)
def test_an_answer_that_violates_its_schema_gets_one_turn_to_be_mended(
    start: Callable[..., Any], answer: str
) -> None:
    """The model is told what is wrong, tools stay allowed, and the mended answer completes the run."""
    driver = start()
    driver.say(answer)
    assert driver.kinds == ["ModelResponded", "TurnStarted"]
    assert driver.run.repair_turn == 2
    (request,) = driver.requests(ModelRequest)
    assert request.allow_tools
    told = driver.last_message()["content"][-1]["text"]
    assert "does not match the JSON Schema" in told
    if answer == '{"total": "3"}':
        assert "$.total: '3' is not of type 'integer'" in told
    driver.say('{"total": 4}')
    assert json.loads(driver.run.closed.output) == {"total": 4}


@pytest.mark.parametrize("second", INVALID)
def test_a_second_invalid_answer_fails_the_run(start: Callable[..., Any], second: str) -> None:
    """One repair turn, whatever was wrong the second time."""
    driver = start()
    driver.say("{}")
    driver.say(second)
    assert ended(driver) == (RunState.FAILED, "output_invalid")
    assert driver.run.closed.phase == "output"


def test_the_repair_turn_may_use_tools_but_is_not_repeated_after_them(start: Callable[..., Any]) -> None:
    """Calls of the repair turn are executed; the answer after them is the mended one."""
    driver = start()
    driver.say("{}")
    driver.ask_tools("look")
    driver.tool_result("t20", rs.Completed(b'"x"'))
    driver.say("{}")
    assert ended(driver) == (RunState.FAILED, "output_invalid")


def test_without_a_turn_left_an_invalid_answer_fails_at_once(start: Callable[..., Any]) -> None:
    """The repair would be turn max_turns + 1."""
    driver = start(max_turns=1)
    driver.say("{}")
    assert ended(driver) == (RunState.FAILED, "output_invalid")
    assert "no turn is left" in driver.run.closed.message


def test_without_budget_for_it_an_invalid_answer_fails_at_once(start: Callable[..., Any]) -> None:
    """Not with budget_exceeded: what is wrong is the output."""
    driver = start(budget=Budget(output_tokens=500))
    driver.say("{}", usage=Usage(10, 400))
    assert ended(driver) == (RunState.FAILED, "output_invalid")
    assert "budget" in driver.run.closed.message


def test_a_repair_in_the_last_turn_forbids_tools_and_says_so(start: Callable[..., Any]) -> None:
    """The final notice stands after what is wrong."""
    driver = start(max_turns=2)
    driver.say("{}")
    (request,) = driver.requests(ModelRequest)
    assert not request.allow_tools
    texts = [block["text"] for block in driver.last_message()["content"]]
    assert texts[-1] == FINAL_NOTICE + SCHEMA_NOTICE
    driver.say('{"total": 1}')
    assert (driver.run.state, driver.run.closed.stop_reason) == (RunState.COMPLETED, "max_turns")


def test_an_answer_cut_by_the_token_limit_is_told_so(start: Callable[..., Any]) -> None:
    """The model can mend that only by being brief."""
    driver = start()
    driver.say('{"total": ', stop_reason="max_tokens")
    assert "token limit" in driver.last_message()["content"][-1]["text"]


@pytest.mark.parametrize("when", ["asked", "answered"])
def test_a_repair_stays_used_across_a_cancel_and_a_resume(start: Callable[..., Any], when: str) -> None:
    """The chance is durable: it is not given again by an end that has other reasons."""
    driver = start()
    driver.say("{}")
    if when == "answered":
        driver.ask_tools("look")
    driver.command(Cancel("x"))
    driver.command(Resume())
    driver.say("{}")
    assert ended(driver) == (RunState.FAILED, "output_invalid")


def test_a_resume_after_an_invalid_output_says_what_was_wrong_and_gives_another_chance(
    start: Callable[..., Any],
) -> None:
    """Somebody asked for it: the next execution has a repair turn of its own."""
    driver = start()
    driver.say("{}")
    driver.say("{}")
    driver.command(Resume())
    assert "'total' is a required property" in driver.last_message()["content"][-1]["text"]
    driver.say("{}")
    assert driver.run.state == RunState.RUNNING
    driver.say('{"total": 2}')
    assert ended(driver) == (RunState.COMPLETED, None)


def test_a_schema_that_can_not_be_applied_makes_the_output_invalid(start: Callable[..., Any]) -> None:
    """The machine never raises for it."""
    driver = start(output_schema={"$ref": "#/$defs/nowhere"})
    driver.say("{}")
    driver.say("{}")
    assert ended(driver) == (RunState.FAILED, "output_invalid")


def test_a_model_that_never_stops_is_told_in_the_last_request_and_hands_over(
    start: Callable[..., Any],
) -> None:
    """max_turns 3: two turns of tools, then the notice, tools forbidden, and a structured hand-over."""
    driver = start(output_schema=None, max_turns=3)
    requests: list[ModelRequest] = [*driver.requests(ModelRequest)]
    for turn in (1, 2):
        driver.ask_tools("look")
        driver.tool_result(f"t{turn}0", rs.Completed(b'"%d"' % turn))
        requests += driver.requests(ModelRequest)
    assert [request.allow_tools for request in requests] == [True, True, False]
    notices = [raw for raw in driver.messages if FINAL_NOTICE.encode() in raw]
    assert notices == [driver.messages[-1]]
    assert driver.last_message()["content"][-1]["text"] == FINAL_NOTICE + HAND_OVER_NOTICE
    handed = {"done": "half", "open": ["the rest"], "next": None}
    driver.say(json.dumps(handed))
    assert (driver.run.state, driver.run.closed.stop_reason) == (RunState.COMPLETED, "max_turns")
    assert json.loads(driver.run.closed.output) == handed
    assert set(handed) == HAND_OVER


@pytest.mark.parametrize("answer", ["It is Ada.", '{"done": 1}', "[]", '"done"'])
def test_a_last_answer_that_is_no_hand_over_is_text(start: Callable[..., Any], answer: str) -> None:
    """Only the object that was asked for is taken as one."""
    driver = start(output_schema=None, max_turns=1)
    driver.say(answer)
    assert json.loads(driver.run.closed.output) == answer


def test_an_earlier_answer_that_looks_like_a_hand_over_is_text(start: Callable[..., Any]) -> None:
    """Nobody asked for one."""
    driver = start(output_schema=None)
    driver.say('{"done": 1, "open": 2, "next": 3}')
    assert isinstance(json.loads(driver.run.closed.output), str)


def test_exactly_one_turn_of_the_history_is_a_repair(start: Callable[..., Any]) -> None:
    """The event says it, so that a reader need not guess from texts."""
    driver = start()
    driver.say("{}")
    driver.say('{"total": 1}')
    flags = [event.body.is_repair for event in driver.events if isinstance(event.body, TurnStarted)]
    assert flags == [False, True]
    assert isinstance(driver.events[-1].body, RunCompleted)
