"""Commands that change nothing: each for its own reason, exactly at its bound."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.processors.machine.budget import Price
from perdure.processors.machine.inputs import RefuseInput
from perdure.processors.machine.room import TEXTS_BYTES_MAX
from perdure.schemas.commands import Cancel, Resume, Signal, Submit
from perdure.schemas.values import Budget, RunState

LARGEST = "x" * (TEXTS_BYTES_MAX - 2)
"""As JSON, with its quotes, it takes all that messages may take."""


def refused(driver: Any) -> str:
    """The code of the dead letter that a command became."""
    assert driver.last.events == ()
    (refusal,) = driver.last.outputs
    assert isinstance(refusal, RefuseInput)
    return refusal.code


def reason(driver: Any) -> str:
    """The reason with which a command was rejected."""
    assert driver.kinds == ["CommandRejected"]
    return str(driver.last.events[0].body.reason)


@pytest.mark.parametrize("run_id", ["", "a/b", "a~b", "x" * 129, "a b", "\u00e4"])
def test_an_id_that_a_client_may_not_choose_is_refused(driver: Any, run_id: str) -> None:
    """Letters, digits, dot, underscore, colon, dash; the mark of families is not for clients."""
    driver.run_id = run_id
    driver.submit()
    assert refused(driver) == "invalid_run_id"


def test_the_longest_id_is_taken(driver: Any) -> None:
    """128 characters are within the bound."""
    driver.run_id = "x" * 128
    driver.submit()
    assert driver.run.state is RunState.RUNNING


@pytest.mark.parametrize(("after_ms", "is_taken"), [(0, False), (1, True)])
def test_a_deadline_has_to_lie_ahead(driver: Any, after_ms: int, is_taken: bool) -> None:
    """A run whose deadline has passed is never begun."""
    driver.submit(deadline_ms=driver.now_ms + after_ms)
    assert driver.run.state is RunState.RUNNING if is_taken else refused(driver) == "deadline_passed"


@pytest.mark.parametrize(("max_turns", "is_taken"), [(0, False), (1, True)])
def test_a_run_has_a_turn_at_least(driver: Any, max_turns: int, is_taken: bool) -> None:
    """max_turns narrows what the agent allows, down to one."""
    driver.submit(max_turns=max_turns)
    assert driver.run.max_turns == 1 if is_taken else refused(driver) == "invalid_max_turns"


def test_max_turns_of_a_submit_does_not_widen_what_the_agent_allows(driver: Any) -> None:
    """The smaller of the two holds."""
    driver.submit(max_turns=99)
    assert driver.run.max_turns == 5


def test_a_budget_in_money_needs_a_price(driver: Any) -> None:
    """Without one the run is refused; tokens are counted without a price."""
    driver.submit(budget=Budget(cost_nano_usd=10**12))
    assert refused(driver) == "price_unknown"
    driver.submit(budget=Budget(input_tokens=10**6))
    assert driver.run.state is RunState.RUNNING


def test_a_price_lets_a_budget_in_money_through(driver: Any) -> None:
    """With a price what a turn may cost is known before it is asked."""
    driver.price = Price(1, 1, 1, 1)
    driver.submit(budget=Budget(cost_nano_usd=10**12))
    assert driver.run.state is RunState.RUNNING


@pytest.mark.parametrize(
    "data", [b'[{"type":"text","text":" "}]', b'[{"text":"x"}]', b'{"type":"text"}', b"true", b"0", b"null"]
)
def test_an_input_has_to_say_something(driver: Any, data: bytes) -> None:
    """Neither blank blocks, nor blocks without a type, nor other JSON becomes a run."""
    driver.command(Submit("a", data))
    assert refused(driver) == "invalid_input"


def test_blocks_with_something_in_them_are_an_input(driver: Any) -> None:
    """Content blocks are taken as they are."""
    driver.command(Submit("a", b'[{"type":"text","text":"x"}]'))
    assert driver.last_message()["content"] == [{"type": "text", "text": "x"}]


def test_a_signal_takes_all_the_room_there_is_and_no_more(running: Any) -> None:
    """Messages that wait for the next request have a bound together."""
    running.command(Signal(LARGEST + "x"))
    assert reason(running) == "message_too_large"
    running.command(Signal(LARGEST))
    assert running.kinds == ["SignalReceived"]
    running.command(Signal("x"))
    assert reason(running) == "message_too_large"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (Resume(" "), "empty_message"),
        (Resume(LARGEST + "x"), "message_too_large"),
        (Resume(extra_turns=0), "invalid_extra_turns"),
        (Resume(extra_turns=-1), "invalid_extra_turns"),
    ],
)
def test_a_resume_that_can_not_be_is_rejected(running: Any, body: Resume, why: str) -> None:
    """The run stays as it ended, and the reason is stable."""
    running.command(Cancel("enough"))
    running.command(body)
    assert reason(running) == why
    assert running.run.state is RunState.CANCELLED


@pytest.mark.parametrize("body", [Resume(LARGEST), Resume(extra_turns=1), Resume()])
def test_a_resume_at_its_bounds_goes_on(running: Any, body: Resume) -> None:
    """The largest message and a single turn more are taken."""
    running.command(Cancel("enough"))
    running.command(body)
    assert running.run.state is RunState.RUNNING


def test_a_run_without_turns_is_resumed_only_with_more(driver: Any) -> None:
    """All turns used: the resume says how many more there are to be."""
    driver.submit(max_turns=1)
    driver.ask_tools("look")
    driver.command(Resume())
    assert reason(driver) == "no_turns_left"
    driver.command(Resume(extra_turns=1))
    assert driver.run.state is RunState.RUNNING
    assert driver.run.max_turns == 2


def test_an_answer_that_stayed_invalid_is_said_to_be_so_when_the_run_is_resumed(
    make_driver: Any, make_agent: Any
) -> None:
    """Without a message of its own a resume tells the model what was wrong; then there is one more repair."""
    driver = make_driver(make_agent(output_schema={"type": "object"}))
    driver.submit()
    driver.say("no JSON")
    driver.say("no JSON again")
    assert driver.run.closed.code == "output_invalid"
    driver.command(Resume())
    assert "could not be taken" in driver.last_message()["content"][0]["text"]
    driver.say("still none")
    assert driver.kinds == ["ModelResponded", "TurnStarted"]
    driver.say("{}")
    assert driver.run.state is RunState.COMPLETED


def test_a_run_that_ended_with_the_models_word_is_told_to_continue(running: Any) -> None:
    """The transcript ends with the assistant's message: something has to follow it."""
    running.say("hm", stop_reason="pause_turn")
    running.command(Cancel("enough"))
    assert running.run.turn == 2
    running.command(Resume())
    assert running.run.turn == 2
    running.say("hm", stop_reason="pause_turn")
    assert running.run.state is RunState.RUNNING
