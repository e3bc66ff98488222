"""The orchestrator moves runs on."""

from __future__ import annotations

from perdure.schemas.values import RunState
from tests.scenario.orchestrator_stage import Stage


def test_run_goes_from_submit_to_outcome() -> None:
    """A run with a tool call goes through model, tool and model again, and ends with exactly one outcome."""
    stage = Stage()
    stage.worker()
    stage.submit("run-1")
    stage.settle()
    stage.reply(stage.model_requests("run-1")[-1], "look_up")
    stage.settle()
    stage.answer(stage.tool_requests("run-1")[-1])
    stage.settle()
    stage.reply(stage.model_requests("run-1")[-1], text="all good")
    stage.settle()
    outcomes = stage.outcomes("run-1")
    assert [outcome.state for outcome in outcomes] == [RunState.COMPLETED]
    assert stage.seqs("run-1") == list(range(1, len(stage.seqs("run-1")) + 1))
    assert stage.dead_letters() == []
