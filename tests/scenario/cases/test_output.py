"""Structured output: the model is told once what is wrong with it, whatever dies meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perdure import Agent, tool
from perdure.schemas.events import TurnStarted
from perdure.testing import Asked, ScriptedModel, TestBed, calls, use

SCHEMA = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}


@tool(effect="read_only")
def look(at: int) -> str:
    """Look."""
    return f"saw {at}"


AGENT = Agent("counter", model="m", tools=[look], output_schema=SCHEMA)


@pytest.mark.parametrize("crashed", [None, "orchestrator", "model-caller"])
@pytest.mark.parametrize("keeps_disk", [True, False])
@pytest.mark.parametrize("last", ['{"total": 3}', "{}"])
def test_an_invalid_output_is_mended_once_across_crashes(
    crashed: str | None, keeps_disk: bool, last: str
) -> None:
    """One repair turn that names the fault; then the run completes, or fails with output_invalid."""
    with TestBed(AGENT, model=ScriptedModel(['{"total": "3"}', last])) as bed:
        run = bed.submit("count")
        bed.until(lambda: "is_repair=True" in repr(run.bodies(TurnStarted)))
        if crashed:
            bed.restart(crashed, keeps_disk=keeps_disk)
        bed.settle()
        assert (run.state, run.code) in {("completed", None), ("failed", "output_invalid")}
        assert (run.state == "completed") == (last == '{"total": 3}')
        told = run.messages[2]["content"][-1]["text"]
        assert "$.total: '3' is not of type 'integer'" in told
        assert [body.is_repair for body in run.bodies(TurnStarted) if body.attempt == 1] == [False, True]


@pytest.mark.parametrize("point", ["orchestrator.before_commit", "orchestrator.after_commit"])
def test_a_repair_is_asked_once_when_the_orchestrator_dies_at_its_commit(
    die_at: Callable[..., None], point: str
) -> None:
    """The answer and the repair are one transaction: both stand, once, or neither."""
    with TestBed(AGENT, model=ScriptedModel(["{}", '{"total": 1}'])) as bed:
        run = bed.submit("count")
        die_at(point, 2)
        bed.settle()
        bed.add("orchestrator")
        bed.settle()
        assert run.output == {"total": 1}
        assert [body.is_repair for body in run.bodies(TurnStarted)].count(True) == 1


def test_a_model_that_never_stops_ends_with_a_structured_hand_over() -> None:
    """max_turns 3: the last request carries the notice and forbids tools; the hand-over is the output."""

    def endless(asked: Asked) -> object:
        return calls(use("look", at=asked.number)) if asked.number < 3 else '{"done":1,"open":2,"next":3}'

    agent = Agent("endless", model="m", tools=[look], max_turns=3)
    with TestBed(agent, model=ScriptedModel(endless)) as bed:  # type: ignore[arg-type]
        run = bed.submit("go")
        bed.settle()
        assert run.output == {"done": 1, "open": 2, "next": 3}
        assert run.outcome is not None
        assert run.outcome.stop_reason == "max_turns"
        assert [request.allow_tools for request in run.model_requests] == [True, True, False]
        notices = [message for message in run.messages if "This is the last turn" in str(message)]
        assert notices == [run.messages[-2]]
