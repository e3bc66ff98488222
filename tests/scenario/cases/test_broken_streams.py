"""A model's answer that breaks off, seen from the run: through the real connector, over scripted bytes."""

from __future__ import annotations

from collections import Counter

import pytest

from perdure import Agent, tool
from perdure.schemas.events import ModelAttemptEnded, ModelResponded
from perdure.schemas.values import Budget, Usage
from perdure.testing import TestBed
from tests.scenario.cases.wire_model import OVERLOADED, WireModel, stream

RAN: Counter[str] = Counter()


@tool(effect="non_idempotent")
def send(text: str) -> str:
    """Send it."""
    RAN[text] += 1
    return "sent"


AGENT = Agent("sender", model="m", tools=[send])
CALL = {"type": "tool_use", "id": "t1", "name": "send", "input": {"text": "hello"}}
TEXT = {"type": "text", "text": "I send it."}
CALLED = stream(TEXT, CALL, stop_reason="tool_use")
DONE = stream({"type": "text", "text": "done"})
FULL = Usage(100, 25, 40, 60)


@pytest.fixture(autouse=True)
def fresh() -> None:
    RAN.clear()


@pytest.mark.parametrize("ending", [OVERLOADED, b""], ids=["overloaded", "cut"])
@pytest.mark.parametrize("events", range(len(CALLED)))
def test_a_stream_that_breaks_off_anywhere_leaves_nothing_and_is_tried_again(
    events: int, ending: bytes
) -> None:
    """HTTP 200, then part of a tool_use, then an error or nothing: no call is made of it, the turn is
    repeated.
    """
    model = WireModel([], streams=[[*CALLED[:events], ending], CALLED, DONE])
    with TestBed(AGENT, model=model) as bed:
        run = bed.submit("go")
        bed.settle()
        assert run.state == "completed"
        assert RAN == {"hello": 1}
        [ended] = run.bodies(ModelAttemptEnded)
        assert ended.code == ("overloaded" if ending else "cut_stream")
        assert len(run.bodies(ModelResponded)) == 2
        # what it had cost by then is counted, once
        cost = Usage() if events == 0 else Usage(100, 25 if events == len(CALLED) - 1 else 1, 40, 60)
        assert run.usage == FULL + FULL + cost


def test_usage_told_at_the_start_and_again_at_the_end_is_counted_once() -> None:
    """message_start and message_delta tell the same tokens; cache tokens are part of both."""
    with TestBed(AGENT, model=WireModel([], streams=[CALLED, DONE])) as bed:
        run = bed.submit("go")
        bed.settle()
        assert run.usage == FULL + FULL
        assert run.outcome is not None
        assert run.outcome.usage == run.usage


def test_cache_tokens_count_against_a_budget_of_their_own() -> None:
    """A budget of cache reads that the next turn might breach ends the run before it is asked."""
    budget = Budget(cache_read_tokens=2_000)
    turns = [stream({**CALL, "input": {"text": f"{n}"}}, stop_reason="tool_use") for n in range(50)]
    with TestBed(AGENT, model=WireModel([], streams=turns)) as bed:
        run = bed.submit("go", budget=budget)
        bed.settle()
        assert (run.state, run.code) == ("failed", "budget_exceeded")
        assert run.usage.cache_read_tokens <= 2_000


@pytest.mark.parametrize("count", [10**9 + 1, 2**63 - 1, 2**63, 10**30])
def test_a_usage_that_no_reply_can_have_stops_no_worker(count: int) -> None:
    """It is passed over, as a negative one is: neither the result nor the run's sum outgrows its record."""
    absurd = stream(CALL, stop_reason="tool_use", output_tokens=count)
    with TestBed(AGENT, model=WireModel([], streams=[absurd, DONE])) as bed:
        run = bed.submit("go")
        bed.settle()
        assert (run.state, RAN) == ("completed", {"hello": 1})
        assert run.usage.output_tokens == 1 + FULL.output_tokens


@pytest.mark.parametrize(
    "raw", ["", "{", '{"text": "hel', "[]", '"hello"', "null", "7", "{}x", '{"text": NaN}', '{"a":1,"a":2}']
)
def test_raw_tool_input_that_is_no_object_never_becomes_arguments(raw: str) -> None:
    """The tool is not called, never with {}; the model is told, and the message still serialises."""
    called = stream({**CALL, "input": raw}, stop_reason="tool_use")
    with TestBed(AGENT, model=WireModel([], streams=[called, DONE])) as bed:
        run = bed.submit("go")
        bed.settle()
        assert run.state == "completed"
        assert RAN == {}
        [result] = run.results
        assert result["is_error"]
        assert "not" in result["content"]


@pytest.mark.parametrize("is_first_whole", [True, False])
@pytest.mark.parametrize("raw", ["", '{"text": "hel', '{"text": "hello"}'])
def test_a_call_cut_by_the_token_limit_is_never_executed(raw: str, is_first_whole: bool) -> None:
    """max_tokens in the middle of a tool_use: whatever stands there is not run; a whole call is."""
    whole = {**CALL, "id": "t0", "input": {"text": "whole"}}
    blocks = [whole, {**CALL, "input": raw}] if is_first_whole else [{**CALL, "input": raw}]
    cut = stream(*blocks, stop_reason="max_tokens")
    model = WireModel([], streams=[cut, DONE])
    with TestBed(AGENT, model=model) as bed:
        run = bed.submit("go")
        bed.settle()
        assert run.state == "completed"
        assert dict(RAN) == ({"whole": 1} if is_first_whole else {})
        assert run.results[-1]["is_error"]
        assert "cut off" in run.results[-1]["content"]
