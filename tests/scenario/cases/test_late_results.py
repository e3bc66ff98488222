"""Late results: what a tool did is told to the model, whenever it becomes known."""

from __future__ import annotations

import pytest

from perdure import Agent, tool
from perdure.schemas.events import SurplusRecorded
from perdure.testing import Entry, ScriptedModel, TestBed, calls, use


@tool(effect="idempotent_write")
def put(to: str) -> str:
    """Put it somewhere."""
    return f"put it to {to}"


AGENT = Agent("putter", model="m", tools=[put])


@pytest.mark.parametrize("crashed", [None, "orchestrator"])
def test_a_result_that_comes_after_the_resume_is_told_to_the_model_as_text(crashed: str | None) -> None:
    """The call may have run, says its result; what it did is told once it is known, across crashes."""
    script: list[Entry] = [calls(use("put", "a", to="x")), calls(use("put", "b", to="y")), "done"]
    with TestBed(AGENT, model=ScriptedModel(script)) as bed:
        bed.crash("tool-executor")
        run = bed.submit("go")
        bed.until(lambda: run.state == "awaiting_tool")
        run.cancel()
        bed.settle()
        [asked] = run.tool_requests
        run.resume()
        bed.until(lambda: len(run.tool_requests) == 2)
        bed.add("tool-executor")
        if crashed:
            bed.restart(crashed)
        bed.settle()
        assert run.state == "completed"
        assert "may or may not" in str(run.results[0])
        told = [body.told for body in run.bodies(SurplusRecorded) if body.request_id == asked.request_id]
        assert len([text for text in told if text]) == 1
        assert str(told[0]) in str(run.messages[3:])
