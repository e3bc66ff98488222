"""From submit to an end: turns, stop reasons, model failures, limits."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from perdure.processors.machine.inputs import MachineSettings, SendTranscript
from perdure.processors.machine.lifecycle import SUCCESSORS, IllegalMove, move
from perdure.processors.machine.transcript import extend_digest, start_digest, whole_requests
from perdure.schemas import results as rs
from perdure.schemas.commands import Cancel
from perdure.schemas.outputs import Outcome, RunSignal
from perdure.schemas.requests import ModelRequest, ToolRequest
from perdure.schemas.values import RunState, Usage


def test_every_pair_of_states_moves_exactly_as_the_table_says() -> None:
    """A move is allowed if the table has it or nothing moves, and raises otherwise."""
    for before in RunState:
        for after in RunState:
            if after is before or after in SUCCESSORS[before]:
                assert move(before, after) is after
            else:
                with pytest.raises(IllegalMove):
                    move(before, after)


def test_a_submitted_run_asks_the_model_at_once_when_a_slot_is_free(driver: Any) -> None:
    """Submit persists the run, starts turn 1 and hands the request to the model-caller, in one answer."""
    driver.submit("hi")
    assert driver.kinds == ["RunCreated", "TurnStarted"]
    assert driver.run.state == RunState.RUNNING
    (request,) = driver.requests(ModelRequest)
    assert request.messages == (b'{"role":"user","content":"hi"}',)
    assert request.base_digest == start_digest("d" * 64)
    assert request.digest == extend_digest(request.base_digest, *request.messages)


def test_a_run_without_a_free_slot_waits_and_starts_when_one_is_free(driver: Any) -> None:
    """Queued is a durable state: nothing is asked until a slot is free."""
    driver.may_start = False
    driver.submit()
    assert driver.run.state == RunState.QUEUED
    driver.may_start = True
    driver.start()
    assert driver.run.state == RunState.RUNNING


def test_a_run_of_an_unknown_agent_waits_for_it_by_a_timer(driver: Any) -> None:
    """A missing definition fails nothing: the run says what it waits for, and is bound once it is there."""
    known, driver.definition = driver.definition, None
    driver.submit()
    assert driver.run.waiting_for == "agent a"
    driver.timer()
    assert driver.kinds == ["RunWaiting"]
    driver.definition = known
    driver.timer()
    assert driver.kinds == ["AgentPinned", "TurnStarted"]
    assert driver.run.definition == "d" * 64
    assert driver.run.max_turns == 5


def test_a_final_text_completes_the_run_with_one_outcome(running: Any) -> None:
    """end_turn completes; the outcome carries output, usage and turns."""
    running.say("done", usage=Usage(7, 3, 2, 1))
    assert running.kinds == ["ModelResponded", "RunCompleted"]
    (outcome,) = running.requests(Outcome)
    assert outcome.state == RunState.COMPLETED
    assert json.loads(outcome.output) == "done"
    assert outcome.usage == Usage(7, 3, 2, 1)
    assert (outcome.turns, outcome.execution) == (1, 0)


def test_message_calls_and_dispatches_stand_in_one_answer(running: Any) -> None:
    """The assistant message, each call's intent and each dispatch are answered together, intents first."""
    running.ask_tools("look", "send")
    assert running.kinds == [
        "ModelResponded",
        "ToolCallRequested",
        "ToolCallRequested",
        "ToolDispatched",
        "ToolDispatched",
    ]
    assert running.run.state == RunState.AWAITING_TOOL
    assert [request.tool for request in running.requests(ToolRequest)] == ["look", "send"]


def test_results_go_back_in_one_user_message_in_call_order_whatever_order_they_came_in(running: Any) -> None:
    """The next model call happens once, after all results, which stand in call order."""
    running.ask_tools("look", "look", "look")
    for call_id in ("t12", "t10"):
        running.tool_result(call_id, rs.Completed(json.dumps(f"of {call_id}").encode()))
        assert running.requests(ModelRequest) == []
    running.tool_result("t11", rs.Completed(b'""'))
    assert running.kinds == ["ToolCompleted", "TurnStarted"]
    blocks = running.last_message()["content"]
    assert [block["tool_use_id"] for block in blocks] == ["t10", "t11", "t12"]
    assert [block["content"] for block in blocks] == ["of t10", "(no output)", "of t12"]


def test_the_whole_transcript_has_the_digest_that_the_pieces_led_to(running: Any) -> None:
    """A model-caller that has nothing gets all messages, in chunks, under the same digest."""
    running.ask_tools("look")
    running.tool_result("t10", rs.Completed(b'"x"'))
    (request,) = running.requests(ModelRequest)
    running.model_result(rs.NeedTranscript())
    assert running.kinds == ["TranscriptSent"]
    assert running.last.outputs == (SendTranscript("run-1"),)
    (whole,) = whole_requests(running.run, running.messages)
    assert whole.request_id == request.request_id
    assert extend_digest(whole.base_digest, *whole.messages) == whole.digest == request.digest


def test_the_whole_transcript_is_sent_once_however_often_it_is_asked_for(running: Any) -> None:
    """After a take-over the first request may be read, and missed, again; that is no mismatch."""
    running.ask_tools("look")
    running.tool_result("t10", rs.Completed(b'"x"'))
    running.model_result(rs.NeedTranscript())
    running.model_result(rs.NeedTranscript())
    assert running.run.state == RunState.RUNNING
    assert running.last.outputs == ()
    message = "the whole transcript that was sent has another digest than the run's"
    running.model_result(rs.ModelFailed("i-1", "transcript_mismatch", is_retryable=False, message=message))
    assert running.run.state == RunState.FAILED
    assert running.run.closed.code == "transcript_mismatch"


def test_a_reply_to_another_request_or_transcript_only_costs_its_usage(running: Any) -> None:
    """A model result is effective only with the request id and digest of the pending request."""
    running.say("late", usage=Usage(1, 1))
    driver = running
    driver.model_result(
        rs.ModelReplied("i", b"x", b"[]", "end_turn", Usage(5, 5)), request_id="other", turn=1, attempt=1
    )
    assert driver.kinds == ["SurplusRecorded"]
    assert driver.run.state == RunState.COMPLETED
    assert driver.run.usage == Usage(6, 6)


def test_a_reply_with_another_digest_is_surplus(running: Any) -> None:
    """What was answered to another transcript is not this turn's answer."""
    running.model_result(rs.ModelReplied("i", b"x", b"[]", "end_turn", Usage(5, 5)))
    assert running.kinds == ["SurplusRecorded"]
    assert running.run.state == RunState.RUNNING


@pytest.mark.parametrize(
    ("stop_reason", "code"),
    [
        ("refusal", "refusal"),
        ("model_context_window_exceeded", "model_context_window_exceeded"),
        ("brand_new", "unknown_stop_reason"),
    ],
)
def test_stop_reasons_without_an_answer_fail_with_a_code(running: Any, stop_reason: str, code: str) -> None:
    """They are not retried as if they were transient, and their usage counts."""
    running.reply(stop_reason=stop_reason)
    assert running.run.state == RunState.FAILED
    assert running.run.closed.code == code
    assert running.run.usage == Usage(10, 5)
    assert running.run.message_count == 1


def test_pause_turn_sends_the_message_back_unchanged_and_counts_as_a_turn(running: Any) -> None:
    """The paused message is the only new one of the next request."""
    running.say("working", stop_reason="pause_turn")
    assert running.kinds == ["ModelResponded", "TurnStarted"]
    (request,) = running.requests(ModelRequest)
    assert [json.loads(message)["role"] for message in request.messages] == ["assistant"]
    assert running.run.turns_completed == 1


def test_a_call_cut_by_the_token_limit_is_refused_and_the_complete_one_runs(running: Any) -> None:
    """max_tokens in the middle of the last tool_use: it gets an error result, the others are executed."""
    running.ask_tools("look", "send", stop_reason="max_tokens")
    assert [request.tool for request in running.requests(ToolRequest)] == ["look"]
    assert running.run.call("t11").is_error


def test_retryable_failures_wait_by_a_durable_timer_and_have_a_limit(make_driver: Callable[..., Any]) -> None:
    """Each retry is a new attempt of the same turn; beyond the limit the run fails with a code."""
    driver = make_driver(settings=MachineSettings(model_failures_max=2))
    driver.submit()
    for attempt in (2, 3):
        driver.model_result(rs.ModelFailed("i", "overloaded", True, "busy"))
        assert driver.kinds == ["ModelAttemptEnded"]
        driver.timer()
        assert driver.run.model.attempt == attempt
    driver.model_result(rs.ModelFailed("i", "overloaded", True, "busy"))
    assert driver.run.closed.code == "model_failures_exceeded"


def test_retry_after_is_obeyed(running: Any) -> None:
    """The provider's retry-after is a lower bound of the wait."""
    before_ms = running.now_ms
    running.model_result(rs.ModelFailed("i", "rate_limit", True, "slow", retry_after_ms=45_000))
    running.timer()
    assert running.now_ms >= before_ms + 45_000


def test_a_permanent_failure_fails_the_run_with_phase_and_checkpoint(running: Any) -> None:
    """No retry; the checkpoint is the last event whose effects stand."""
    running.model_result(rs.ModelFailed("i", "invalid_request", False, "no"))
    assert running.run.closed.code == "invalid_request"
    assert running.run.closed.phase == "model"
    assert running.run.closed.checkpoint == running.run.seq - 1


def test_a_suspect_model_call_is_asked_again_under_a_new_request_id(running: Any) -> None:
    """A model call that was begun by a worker that is gone is repeated at once, as the next attempt."""
    first = running.run.model.request_id
    running.model_result(rs.Suspect())
    assert running.kinds == ["ModelAttemptEnded", "TurnStarted"]
    assert running.run.model.attempt == 2
    assert running.run.model.request_id != first


def test_a_model_call_that_nobody_answers_is_asked_again_after_its_deadline(running: Any) -> None:
    """Every open attempt has a durable watchdog."""
    running.timer()
    assert running.kinds == ["ModelAttemptEnded", "TurnStarted"]


def test_the_last_turn_carries_the_notice_and_forbids_tools(make_driver: Callable[..., Any]) -> None:
    """At max_turns - 1 completed turns the notice is the last text after the results, and tools are
    forbidden.
    """
    driver = make_driver()
    driver.submit(max_turns=2)
    driver.ask_tools("look")
    driver.tool_result("t10", rs.Completed(b'"x"'))
    (request,) = driver.requests(ModelRequest)
    assert not request.allow_tools
    blocks = driver.last_message()["content"]
    assert [block["type"] for block in blocks] == ["tool_result", "text"]
    driver.say("hand-over")
    assert driver.run.closed.stop_reason == "max_turns"


def test_tools_in_the_last_turn_are_answered_with_errors_and_fail_the_run(
    make_driver: Callable[..., Any],
) -> None:
    """A model that calls tools although they are forbidden ends the run as max_turns_exceeded, nothing
    executed.
    """
    driver = make_driver()
    driver.submit(max_turns=1)
    driver.ask_tools("send")
    assert driver.requests(ToolRequest) == []
    assert driver.run.closed.code == "max_turns_exceeded"
    assert driver.run.call("t10").is_error


def test_cancel_turns_the_state_at_once_and_hints_the_executors(running: Any) -> None:
    """Cancel ends the run with its outcome, and names the cancelled execution to the executors."""
    running.ask_tools("send")
    running.command(Cancel("enough"))
    assert running.run.state == RunState.CANCELLED
    assert running.requests(Outcome)[0].code == "enough"
    assert running.requests(RunSignal) == [RunSignal(0, "enough")]


def test_a_late_result_after_the_end_changes_no_state(running: Any) -> None:
    """A terminal state is never overwritten: what comes late is recorded and closes its attempt."""
    running.ask_tools("send")
    running.command(Cancel("enough"))
    running.tool_result("t10", rs.Completed(b'"sent"'))
    assert running.kinds == ["SurplusRecorded"]
    assert running.run.state == RunState.CANCELLED
    assert not running.run.call("t10").attempt.is_open


def test_a_run_deadline_cancels_a_running_run(driver: Any) -> None:
    """A deadline in running ends in cancelled, reason deadline."""
    driver.submit(deadline_ms=driver.now_ms + 10)
    driver.timer()
    assert driver.run.state == RunState.CANCELLED
    assert driver.run.closed.code == "deadline"


def test_a_run_that_may_not_start_yet_waits_for_its_instant_and_then_for_a_slot(driver: Any) -> None:
    """not_before is a timer; once it passed without a free slot, only a slot is missing."""
    driver.submit(not_before_ms=driver.now_ms + 1_000)
    assert driver.run.state == RunState.QUEUED
    driver.may_start = False
    driver.timer()
    assert driver.run.waiting_for == "slot"
    driver.may_start = True
    driver.start()
    assert driver.run.state == RunState.RUNNING
