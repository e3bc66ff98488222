"""Resume: a next execution with a valid transcript, and no effect repeated."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from perdure.schemas import results as rs
from perdure.schemas.commands import Cancel, Resume, Signal
from perdure.schemas.outputs import Outcome, RunSignal
from perdure.schemas.requests import ModelRequest, ToolRequest
from perdure.schemas.values import Answer, DeclineReason, FailureKind, RunState


def valid(messages: list[bytes]) -> None:
    """The Messages API's rule: each tool_use is answered in the next user message, results before any
    text.
    """
    open_ids: list[str] = []
    for raw in messages:
        message = json.loads(raw)
        content = message["content"]
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        if message["role"] == "assistant":
            assert not open_ids
            open_ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
        else:
            answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
            assert answered == open_ids
            kinds = [block["type"] for block in blocks]
            assert kinds == sorted(kinds, key=lambda kind: kind != "tool_result")
            open_ids = []
    assert not open_ids


def test_a_cancelled_turn_gets_synthetic_results_and_the_resumed_request_is_valid(running: Any) -> None:
    """Cancel after the message and before any tool started: one honest result per call, then the next
    turn.
    """
    running.ask_tools("look", "send")
    running.command(Cancel("x"))
    running.tool_result("t11", rs.Declined(DeclineReason.CANCELLED))
    running.command(Resume())
    assert running.kinds[:2] == ["RunResumed", "TurnResumed"]
    assert running.run.state == RunState.RUNNING
    texts = [block["content"] for block in running.last_message()["content"]]
    assert "may or may not" in texts[0]
    assert "not executed" in texts[1]
    valid(running.messages)


def test_a_resume_sends_no_model_request_while_a_call_is_in_doubt(running: Any) -> None:
    """An open non_idempotent attempt is asked about first; what happened is the call's result."""
    running.ask_tools("send")
    running.claim("t10")
    running.command(Cancel("x"))
    running.command(Resume())
    assert running.requests(ModelRequest) == []
    assert [request.tool for request in running.requests(ToolRequest)] == ["find"]
    assert running.run.state == RunState.AWAITING_TOOL
    running.answered("t10", rs.Reconciled(Answer.HAPPENED, b'"m1"'))
    assert running.requests(ModelRequest)
    valid(running.messages)


def test_an_answer_that_came_after_the_end_is_the_calls_result_at_resume(running: Any) -> None:
    """A tool that finished after the cancel did its work: the model is told so."""
    running.ask_tools("send")
    running.claim("t10")
    running.command(Cancel("x"))
    running.tool_result("t10", rs.Completed(b'"sent"'))
    running.command(Resume())
    assert running.last_message()["content"][0]["content"] == "sent"


def test_an_unknown_end_after_the_cancel_leaves_the_attempt_in_doubt(running: Any) -> None:
    """An abort says nothing about the effect: the attempt stays open and is asked about at resume."""
    running.ask_tools("wire")
    running.claim("t10")
    running.command(Cancel("x"))
    running.tool_result("t10", rs.Failed(FailureKind.ABORTED, "aborted"))
    running.command(Resume())
    assert running.run.state == RunState.AWAITING_APPROVAL


def test_a_failed_model_call_is_asked_again_by_the_next_execution(running: Any) -> None:
    """The turn that never got an answer is asked again, with what the resume has to say behind it."""
    running.model_result(rs.ModelFailed("i", "invalid_request", False, "no"))
    running.command(Resume(message="try once more"))
    assert running.kinds == ["RunResumed", "TurnStarted"]
    assert (running.run.turn, running.run.attempts, running.run.execution) == (1, 2, 1)
    (request,) = running.requests(ModelRequest)
    assert "try once more" in request.messages[-1].decode()
    assert running.requests(RunSignal) == []
    running.say("done")
    assert running.requests(Outcome)[0].execution == 1


def test_a_run_out_of_turns_needs_more_of_them(make_driver: Callable[..., Any]) -> None:
    """extra_turns raises the limit; without it there is nothing to resume."""
    driver = make_driver()
    driver.submit(max_turns=1)
    driver.ask_tools("look")
    assert driver.run.closed.code == "max_turns_exceeded"
    driver.command(Resume())
    assert driver.last.events[0].body.reason == "no_turns_left"
    driver.command(Resume(extra_turns=2))
    assert driver.run.turn == 2
    assert driver.run.model.allow_tools
    valid(driver.messages)


@pytest.mark.parametrize("ended", [False, True])
def test_what_has_not_failed_is_not_resumed(running: Any, ended: bool) -> None:
    """A running run and a completed one are refused, each with its own reason."""
    if ended:
        running.say("done")
    running.command(Resume())
    assert running.last.events[0].body.reason == ("run_completed" if ended else "run_not_ended")


def test_a_signal_reaches_the_model_with_the_next_turn(running: Any) -> None:
    """A message into a running run stands behind the tool results, as text."""
    running.ask_tools("look")
    running.command(Signal("also check the invoice"))
    running.tool_result("t10", rs.Completed(b'"x"'))
    blocks = running.last_message()["content"]
    assert [block["type"] for block in blocks] == ["tool_result", "text"]
    assert blocks[1]["text"] == "also check the invoice"
    assert running.run.texts == ()
    valid(running.messages)


def test_a_signal_to_an_ended_run_is_rejected(running: Any) -> None:
    """There is no next turn that could take it."""
    running.say("done")
    running.command(Signal("hello?"))
    assert running.last.events[0].body.reason == "run_terminal"


def test_a_resume_clears_the_cancel_hint(running: Any) -> None:
    """Executors must not take the new execution for the cancelled one."""
    running.command(Cancel("x"))
    running.command(Resume())
    gone = [record for record in running.records if record.topic == "run-signals"]
    assert [record.record for record in gone] == [None]


def test_a_run_without_an_agent_looks_for_it_again_when_it_is_resumed(driver: Any) -> None:
    """Cancelled while its agent was unknown and resumed, a run waits by a timer, not for ever."""
    known, driver.definition = driver.definition, None
    driver.submit()
    driver.command(Cancel("x"))
    driver.command(Resume())
    assert driver.kinds == ["RunResumed", "RunWaiting"]
    assert driver.run.waiting_for == "agent a"
    driver.definition = known
    driver.timer()
    assert driver.kinds == ["AgentPinned", "TurnStarted"]


def test_a_run_whose_agent_is_known_by_then_starts_when_it_is_resumed(driver: Any) -> None:
    """The resume itself binds a run to an agent that was published after its first end."""
    known, driver.definition = driver.definition, None
    driver.submit()
    driver.command(Cancel("x"))
    driver.definition = known
    driver.command(Resume())
    assert driver.kinds == ["RunResumed", "AgentPinned", "TurnStarted"]
