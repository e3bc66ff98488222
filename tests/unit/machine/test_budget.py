"""Budgets halt before a breaching turn; what nobody knows is charged at its worst."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from perdure.processors.machine.budget import KINDS, Price
from perdure.schemas import results as rs
from perdure.schemas.commands import Cancel, Resume
from perdure.schemas.requests import ModelRequest
from perdure.schemas.values import Budget, RunState, Usage

PRICE = Price(3_000, 15_000, 3_750, 300)


def within(driver: Any) -> None:
    """Recorded + reserved never exceeds the budget."""
    run = driver.run
    reserved = run.model.reserved if run.model is not None and run.model.retry_at_ms is None else Usage()
    for kind in KINDS:
        limit = getattr(run.budget, kind)
        if limit is not None:
            assert getattr(run.usage, kind) + getattr(reserved, kind) <= limit, kind


@pytest.fixture
def start(make_driver: Callable[..., Any], make_agent: Callable[..., Any]) -> Callable[..., Any]:
    def begin(budget: Budget, **changes: Any) -> Any:
        driver = make_driver(make_agent(max_turns=100, **changes))
        driver.price = PRICE
        driver.submit(budget=budget)
        return driver

    return begin


def test_without_a_budget_nothing_is_reserved(running: Any) -> None:
    """No budget, no reservation, the model may say all that the definition allows."""
    (request,) = running.records[0:1]
    assert running.run.model.reserved == Usage()
    assert request.record.max_tokens == running.definition.max_tokens


def test_a_turn_whose_worst_case_would_breach_is_not_asked(start: Callable[..., Any]) -> None:
    """The run fails as budget_exceeded before the call, and says in numbers why."""
    driver = start(Budget(input_tokens=2_000))
    driver.ask_tools("look", usage=Usage(900, 100))
    driver.tool_result("t10", rs.Completed(b'"x"'))
    assert driver.requests(ModelRequest) == []
    assert driver.run.state == RunState.FAILED
    assert driver.run.closed.code == "budget_exceeded"
    assert "input_tokens" in driver.run.closed.message
    within(driver)


def test_a_first_turn_that_can_not_be_afforded_passes_through_running(start: Callable[..., Any]) -> None:
    """queued, running, failed in one answer: the lifecycle has no other way."""
    driver = start(Budget(input_tokens=10))
    assert driver.kinds == ["RunCreated", "TurnResumed", "RunFailed"]


def test_max_tokens_shrinks_while_it_is_still_useful(start: Callable[..., Any]) -> None:
    """What is left of the output budget bounds the answer; below the useful minimum the run halts."""
    driver = start(Budget(output_tokens=1_000))
    assert driver.requests(ModelRequest)[0].max_tokens == 1_000
    driver.ask_tools("look", usage=Usage(10, 700))
    driver.tool_result("t10", rs.Completed(b'"x"'))
    assert driver.requests(ModelRequest)[0].max_tokens == 300
    driver.ask_tools("look", usage=Usage(10, 200))
    driver.tool_result("t20", rs.Completed(b'"y"'))
    assert driver.run.closed.code == "budget_exceeded"


def test_money_is_reserved_at_the_dearest_price(start: Callable[..., Any]) -> None:
    """Every input token might be written to a cache: that price is reserved."""
    driver = start(Budget(cost_nano_usd=100_000_000))
    reserved = driver.run.model.reserved
    assert reserved.cost_nano_usd == reserved.input_tokens * 3_750 + reserved.output_tokens * 15_000
    within(driver)


def test_money_without_a_known_price_is_refused_at_submit(make_driver: Callable[..., Any]) -> None:
    """A budget in money needs a price; a run whose agent was not known yet fails instead."""
    driver = make_driver()
    driver.submit(budget=Budget(cost_nano_usd=1))
    assert driver.last.outputs[0].code == "price_unknown"
    known, driver.definition = driver.definition, None
    driver.submit(budget=Budget(cost_nano_usd=1))
    driver.definition = known
    driver.timer()
    assert driver.run.closed.code == "budget_exceeded"
    assert "price" in driver.run.closed.message


def test_an_attempt_that_vanished_is_charged_its_worst_case_until_its_result_comes(
    start: Callable[..., Any],
) -> None:
    """A suspect costs its reservation; its late answer replaces the estimate by what it really was."""
    driver = start(Budget(output_tokens=10_000))
    first = driver.run.model
    driver.model_result(rs.Suspect())
    assert driver.run.usage == first.reserved
    body = rs.ModelReplied("i", b"x", b"[]", "end_turn", Usage(10, 20))
    driver.model_result(body, request_id=first.request_id, attempt=1)
    assert driver.run.usage == Usage(10, 20)
    assert driver.run.estimates == ()


def test_what_a_cancel_left_unanswered_is_charged_and_corrected_later(start: Callable[..., Any]) -> None:
    """A cancelled stream may still be billed."""
    driver = start(Budget(output_tokens=10_000))
    pending = driver.run.model
    driver.command(Cancel("x"))
    assert driver.run.usage == pending.reserved
    driver.model_result(
        rs.ModelFailed("i", "aborted", False, "", usage=Usage(5, 1)), request_id=pending.request_id, turn=1
    )
    assert driver.run.usage == Usage(5, 1)


def test_a_resume_continues_the_totals_and_can_raise_the_budget(start: Callable[..., Any]) -> None:
    """The budget is not reset by a resume; a new one is taken as the whole."""
    driver = start(Budget(output_tokens=500))
    driver.ask_tools("look", usage=Usage(10, 400))
    driver.tool_result("t10", rs.Completed(b'"x"'))
    assert driver.run.closed.code == "budget_exceeded"
    driver.command(Resume())
    assert driver.run.closed.code == "budget_exceeded"
    driver.command(Resume(budget=Budget(output_tokens=2_000)))
    assert driver.run.state == RunState.RUNNING
    assert driver.run.usage.output_tokens == 400
    within(driver)


def test_a_budget_of_ten_thousand_holds_under_kills_retries_and_resumes(start: Callable[..., Any]) -> None:
    """1,000 seeded runs of a model that uses about 3,000 tokens a turn: never more than the budget."""
    for seed in range(1_000):
        chance = random.Random(seed)
        driver = start(Budget(10_000, 10_000, 10_000, 10_000, 200_000_000))
        for _ in range(40):
            within(driver)
            if driver.run.state.is_terminal:
                if chance.random() < 0.5:
                    break
                driver.command(Resume())
                continue
            model = driver.run.model
            if model is None:
                open_call = next(call for call in driver.run.calls if not call.is_done)
                driver.tool_result(open_call.call_id, rs.Completed(b'"%d"' % chance.randrange(10**6)))
            elif model.retry_at_ms is not None:
                driver.timer()
            else:
                _model_step(driver, chance, model)
        within(driver)


def _model_step(driver: Any, chance: random.Random, model: Any) -> None:
    kinds = [0, 0, 0]  # what of the input was new, written to a cache, read from one
    kinds[chance.randrange(3)] = min(2_500, model.reserved.input_tokens)
    fresh, created, cached = kinds
    used = Usage(fresh, chance.randrange(min(600, model.max_tokens) + 1), created, cached)
    match chance.randrange(5):
        case 0:
            driver.model_result(rs.Suspect())
        case 1:
            driver.model_result(rs.ModelFailed("i", "overloaded", True, "", usage=None))
        case 2:
            driver.model_result(rs.ModelFailed("i", "cut_stream", True, "", usage=used))
        case _:
            driver.ask_tools("look", usage=used)


@pytest.mark.parametrize("ended", ["failed", "refused"])
def test_an_attempt_that_ends_its_run_is_charged_once(start: Callable[..., Any], ended: str) -> None:
    """What the last attempt cost is known, so its reservation is not charged beside it."""
    driver = start(Budget(output_tokens=1_000))
    if ended == "failed":
        body: rs.ResultBody = rs.ModelFailed("i", "invalid_request", False, "no", usage=Usage(7, 1_000))
        driver.model_result(body)
    else:
        driver.say("", stop_reason="refusal", usage=Usage(7, 1_000))
    assert driver.run.state == RunState.FAILED
    assert driver.run.usage.output_tokens == 1_000
    assert driver.run.estimates == ()
    within(driver)
