"""A resumed run that waits for a slot while its calls are still out there."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.processors.machine.inputs import ChildEndedInput
from perdure.processors.machine.schedule import next_due_ms
from perdure.schemas import results as rs
from perdure.schemas.commands import Cancel, Resume
from perdure.schemas.definition import ToolDefinition
from perdure.schemas.requests import ToolRequest
from perdure.schemas.values import DeclineReason, Effect, RunState, Usage


def resumed_without_a_slot(driver: Any, tool: str, *, is_claimed: bool = True) -> None:
    driver.ask_tools(tool)
    if is_claimed:
        driver.claim("t10")
    driver.command(Cancel("enough"))
    driver.may_start = False
    driver.command(Resume())
    assert driver.run.state is RunState.QUEUED


def test_a_result_that_comes_while_a_resumed_run_waits_for_a_slot_is_its_calls_result(running: Any) -> None:
    """It is recorded while the run is queued, and taken when it starts; nothing is repeated."""
    resumed_without_a_slot(running, "wire")
    running.tool_result("t10", rs.Completed(b'"sent"'))
    assert running.kinds == ["SurplusRecorded"]
    assert running.last.events[0].body.reason == "queued"
    assert running.run.state is RunState.QUEUED
    running.may_start = True
    running.start()
    assert running.kinds == ["TurnResumed", "ToolCompleted", "TurnStarted"]
    assert running.requests(ToolRequest) == []
    assert running.last_message()["content"][0]["content"] == "sent"


def test_a_decline_that_comes_while_a_resumed_run_waits_means_not_started(running: Any) -> None:
    """The executor's word that nothing was started holds for the queued run too."""
    resumed_without_a_slot(running, "wire", is_claimed=False)
    running.tool_result("t10", rs.Declined(DeclineReason.CANCELLED))
    assert running.kinds == ["SurplusRecorded"]
    running.may_start = True
    running.start()
    assert running.kinds == ["TurnResumed", "ToolCompleted", "TurnStarted"]
    assert "not executed" in running.last_message()["content"][0]["content"]


@pytest.mark.parametrize("resumes", [False, True], ids=["cancelled", "queued again"])
def test_a_claim_read_after_the_end_keeps_a_later_suspect_from_meaning_not_started(
    running: Any, resumes: bool
) -> None:
    """Cancelled, then started, then suspect: the tool may have run, so a person is asked about it."""
    running.ask_tools("wire")
    running.command(Cancel("enough"))
    if resumes:
        running.may_start = False
        running.command(Resume())
    running.claim("t10")
    assert running.kinds == ["SurplusRecorded"]
    assert running.run.call("t10").attempt.started_ms is not None
    running.tool_result("t10", rs.Suspect())
    assert running.run.call("t10").attempt.is_open
    running.may_start = True
    running.start() if resumes else running.command(Resume())
    assert running.kinds[-1] == "ApprovalRequested"
    assert running.run.state is RunState.AWAITING_APPROVAL


def test_a_suspect_after_the_end_without_a_claim_before_it_means_not_started(running: Any) -> None:
    """Log order decides in terminal states as well: no claim was read, so the call did not run."""
    running.ask_tools("wire")
    running.command(Cancel("enough"))
    running.tool_result("t10", rs.Suspect())
    assert not running.run.call("t10").attempt.is_open
    running.command(Resume())
    assert running.run.state is RunState.RUNNING
    assert "not executed" in running.last_message()["content"][0]["content"]


def test_a_suspect_after_the_end_of_a_call_that_needs_no_claim_may_have_run(running: Any) -> None:
    """An idempotent_write is executed without a claim, so its absence says nothing."""
    running.ask_tools("put")
    running.command(Cancel("enough"))
    running.tool_result("t10", rs.Suspect())
    assert running.kinds == []
    running.command(Resume())
    assert "may or may not" in running.last_message()["content"][0]["content"]


def test_a_decline_after_the_end_of_a_call_that_needs_no_claim_proves_nothing(running: Any) -> None:
    """Whoever handed it back need not have been the first to read it: the first may have executed it."""
    running.ask_tools("put")
    running.command(Cancel("enough"))
    running.tool_result("t10", rs.Declined(DeclineReason.CANCELLED))
    running.command(Resume())
    assert "may or may not" in running.last_message()["content"][0]["content"]


def test_a_queued_run_has_no_timer_of_the_calls_that_it_holds(running: Any) -> None:
    """What its last execution left open is looked at when it starts; a timer would find nothing to do."""
    resumed_without_a_slot(running, "wire")
    assert next_due_ms(running.run) is None


def test_the_end_of_a_child_is_kept_while_its_parent_waits_for_a_slot(
    make_driver: Any, make_agent: Any
) -> None:
    """The child's answer is the call's result when the parent starts again."""
    tool = ToolDefinition("helper", "a run", {"type": "object"}, Effect.READ_ONLY, agent="helper")
    driver = make_driver(make_agent(tools=(tool,)))
    driver.submit()
    resumed_without_a_slot(driver, "helper", is_claimed=False)
    child = driver.run.children[0].run_id
    driver.feed(ChildEndedInput("run-1", "t10", child, 0, RunState.COMPLETED, Usage(3, 2), b'"found"', False))
    assert driver.kinds == ["ChildEnded"]
    assert driver.run.children == ()
    driver.may_start = True
    driver.start()
    assert driver.last_message()["content"][0]["content"] == "found"
