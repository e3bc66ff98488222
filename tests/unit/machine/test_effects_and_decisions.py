"""Effect classes after a crash, reconciliation, and what people may decide."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.processors.machine.inputs import RefuseInput
from perdure.processors.machine.requests import idempotency_key
from perdure.schemas import results as rs
from perdure.schemas.commands import Cancel, Submit
from perdure.schemas.outputs import Approval
from perdure.schemas.requests import ModelRequest, ToolRequest
from perdure.schemas.values import Answer, DeclineReason, FailureKind, Purpose, RunState, Verdict

HAPPENED = rs.Reconciled(Answer.HAPPENED, b'{"message_id":"m1"}')
DID_NOT = rs.Reconciled(Answer.DID_NOT_HAPPEN)
UNKNOWN = rs.Reconciled(Answer.UNKNOWN, message="503")


def started_and_suspect(driver: Any, tool: str) -> None:
    """The worker claimed the call and died; its successor reports it."""
    driver.ask_tools(tool)
    driver.claim("t10")
    driver.tool_result("t10", rs.Suspect())


def test_a_suspect_without_a_claim_before_it_is_dispatched_again(running: Any) -> None:
    """Log order decides: no started, so it did not run; the next attempt is licensed at once."""
    running.ask_tools("send")
    running.tool_result("t10", rs.Suspect())
    assert running.kinds == ["ToolAttemptEnded", "ToolDispatched"]
    assert running.requests(ToolRequest)[0].attempt == 2


def test_a_suspect_with_a_claim_before_it_is_never_dispatched_but_asked_about(running: Any) -> None:
    """Started, then suspect: the reconciliation tool is asked with the call's arguments, key and start."""
    started_and_suspect(running, "send")
    assert running.kinds == ["ToolAmbiguous", "ReconciliationAsked"]
    (question,) = running.requests(ToolRequest)
    assert (question.purpose, question.tool) == (Purpose.RECONCILE, "find")
    assert question.idempotency_key == idempotency_key("run-1", "t10")
    assert question.started_ms is not None


def test_what_happened_is_the_calls_result_and_the_run_goes_on(running: Any) -> None:
    """A happened is believed at once; the found record is the result and the next turn starts."""
    started_and_suspect(running, "send")
    running.answered("t10", HAPPENED)
    assert running.kinds == ["ToolCompleted", "TurnStarted"]
    assert "m1" in str(running.last_message()["content"][0]["content"])


def test_did_not_happen_is_asked_again_until_the_attempt_can_no_longer_land(running: Any) -> None:
    """A negative answer licenses a new attempt only if asked after the attempt's deadline + settle time."""
    started_and_suspect(running, "send")
    over_ms = running.run.call("t10").attempt.deadline_ms
    running.answered("t10", DID_NOT)
    assert running.kinds == ["ReconciliationAnswered"]
    running.timer()
    assert running.now_ms > over_ms + 500
    assert running.kinds == ["ReconciliationAsked"]
    running.answered("t10", DID_NOT)
    assert running.kinds == ["ReconciliationAnswered", "ToolAttemptEnded", "ToolDispatched"]
    assert running.requests(ToolRequest)[0].attempt == 2


def test_unknown_answers_end_with_a_person(running: Any) -> None:
    """A reconciliation tool that can not tell is asked a bounded number of times, then a person is."""
    started_and_suspect(running, "send")
    for _ in range(running.settings.reconcile_asks_max - 1):
        running.answered("t10", UNKNOWN)
        running.timer()
    running.answered("t10", rs.Failed(FailureKind.EXCEPTION, "boom"))
    assert running.kinds == ["ReconciliationAnswered", "ApprovalRequested"]
    assert running.run.state == RunState.AWAITING_APPROVAL


def test_without_a_reconciliation_tool_a_person_is_told_exactly_what_is_known(running: Any) -> None:
    """The question names tool, attempt, key and instants; a plain approve is refused."""
    started_and_suspect(running, "wire")
    (approval,) = running.requests(Approval)
    known = json.loads(approval.known)
    assert known["attempt"] == 1
    assert known["claim_read_ms"] is not None
    assert set(approval.verdicts) == {Verdict.RAN, Verdict.DID_NOT_RUN, Verdict.GIVE_UP}
    running.verdict("t10", Verdict.APPROVE)
    assert running.last.events[0].body.reason == "verdict_not_allowed"
    assert running.run.state == RunState.AWAITING_APPROVAL


def test_ran_gives_the_result_and_withdraws_the_question(running: Any) -> None:
    """RAN RESULT: the call has its result, the approval record gets a tombstone, the run goes on."""
    started_and_suspect(running, "wire")
    running.verdict("t10", Verdict.RAN, result=b'{"id":7}')
    assert running.kinds == ["DecisionRecorded", "ToolCompleted", "TurnStarted"]
    assert [record.record for record in running.records if record.topic == "run-approvals"] == [None]


def test_did_not_run_licenses_the_next_attempt(running: Any) -> None:
    """DID_NOT_RUN is the person's word for a new attempt."""
    started_and_suspect(running, "wire")
    running.verdict("t10", Verdict.DID_NOT_RUN)
    assert running.requests(ToolRequest)[0].attempt == 2
    assert running.run.state == RunState.AWAITING_TOOL


def test_give_up_tells_the_model(running: Any) -> None:
    """GIVE_UP is an error result; the run goes on."""
    started_and_suspect(running, "wire")
    running.verdict("t10", Verdict.GIVE_UP)
    assert running.last_message()["content"][0]["is_error"] is True


def test_a_late_result_resolves_a_doubt_that_waits_for_a_person(running: Any) -> None:
    """The attempt is still open while it is in doubt: its own result is the best answer there is."""
    started_and_suspect(running, "wire")
    running.tool_result("t10", rs.Completed(b'"sent"'))
    assert running.kinds == ["ToolCompleted", "TurnStarted"]
    assert running.run.pending == ()


def test_a_late_decline_resolves_a_doubt(running: Any) -> None:
    """A decline says that it was not started: safe to dispatch again."""
    started_and_suspect(running, "wire")
    running.tool_result("t10", rs.Declined(DeclineReason.LATE_CLAIM))
    assert running.kinds == ["ToolAttemptEnded", "ToolDispatched"]


@pytest.mark.parametrize(
    "kind", [FailureKind.DEADLINE, FailureKind.ABORTED, FailureKind.CONNECTION, FailureKind.EXCEPTION]
)
def test_a_non_idempotent_failure_without_a_crash_is_ambiguous_too(running: Any, kind: FailureKind) -> None:
    """A deadline, abort, lost connection or exception says nothing about the effect."""
    running.ask_tools("wire")
    running.claim("t10")
    running.tool_result("t10", rs.Failed(kind, "?"))
    assert running.kinds == ["ToolAmbiguous", "ApprovalRequested"]


def test_not_executed_is_definite_and_tried_again_within_the_tools_bound(running: Any) -> None:
    """NotExecuted is the tool's word that nothing happened; after attempts_max it is an error result."""
    running.ask_tools("wire")
    for _ in range(2):
        running.tool_result("t10", rs.Failed(FailureKind.NOT_EXECUTED, "no"))
        assert running.kinds == ["ToolAttemptEnded"]
        running.timer()
        assert running.kinds == ["ToolDispatched"]
    running.tool_result("t10", rs.Failed(FailureKind.NOT_EXECUTED, "no"))
    assert running.kinds == ["ToolCompleted", "TurnStarted"]
    assert running.last_message()["content"][0]["is_error"] is True


@pytest.mark.parametrize("tool", ["look", "put"])
def test_safe_calls_run_again_after_a_failure_with_the_same_key(running: Any, tool: str) -> None:
    """read_only and idempotent_write are retried; the idempotency key has no attempt in it."""
    running.ask_tools(tool)
    first = running.requests(ToolRequest)[0]
    running.tool_result("t10", rs.Failed(FailureKind.EXCEPTION, "boom"))
    running.timer()
    again = running.requests(ToolRequest)[0]
    assert (again.attempt, again.idempotency_key) == (2, first.idempotency_key)
    assert again.request_id != first.request_id


def test_a_non_idempotent_call_is_never_dispatched_again_on_a_timer_alone(running: Any) -> None:
    """Past its deadline without a result it is ambiguous, claimed or not."""
    running.ask_tools("wire")
    running.timer()
    assert running.kinds == ["ToolAmbiguous", "ApprovalRequested"]


def test_a_tools_own_error_is_a_definite_result(running: Any) -> None:
    """What the tool returned, also an error, is its answer: nothing is ambiguous about it."""
    running.ask_tools("wire")
    running.tool_result("t10", rs.Completed(b'"no such account"', is_error=True))
    assert running.kinds == ["ToolCompleted", "TurnStarted"]


def test_the_first_result_is_effective_and_any_other_is_surplus(running: Any) -> None:
    """A second result of the same call is recorded and changes nothing."""
    running.ask_tools("look", "look")
    running.tool_result("t10", rs.Completed(b'"first"'))
    running.tool_result("t10", rs.Completed(b'"second"'))
    assert running.kinds == ["SurplusRecorded"]
    running.tool_result("t11", rs.Completed(b'"x"'))
    assert running.last_message()["content"][0]["content"] == "first"


def test_a_result_of_a_superseded_request_is_late_whatever_attempt_it_names(running: Any) -> None:
    """Only the pending request id counts."""
    running.ask_tools("send")
    running.tool_result("t10", rs.Suspect())
    running.tool_result("t10", rs.Completed(b'"old"'), request_id="old", attempt=2)
    assert running.kinds == ["SurplusRecorded"]
    assert not running.run.call("t10").is_done


def test_an_executor_without_the_tool_hands_the_call_back_and_it_waits(running: Any) -> None:
    """declined(unavailable) is retried by a durable timer and never counts as a failure."""
    running.ask_tools("send")
    for _ in range(10):
        running.tool_result("t10", rs.Declined(DeclineReason.UNAVAILABLE))
        assert running.kinds == ["ToolAttemptEnded"]
        running.timer()
        assert running.kinds == ["ToolDispatched"]


def test_a_tool_that_needs_approval_waits_while_free_calls_run(running: Any) -> None:
    """The free call is executed and kept; after the decision both results go back in call order."""
    running.ask_tools("buy", "look")
    assert [request.tool for request in running.requests(ToolRequest)] == ["look"]
    assert running.run.state == RunState.AWAITING_APPROVAL
    running.tool_result("t11", rs.Completed(b'"free"'))
    assert running.run.state == RunState.AWAITING_APPROVAL
    running.verdict("t10", Verdict.APPROVE)
    assert running.kinds == ["DecisionRecorded", "ToolDispatched"]
    assert running.run.state == RunState.AWAITING_TOOL
    running.tool_result("t10", rs.Completed(b'"bought"'))
    assert [block["content"] for block in running.last_message()["content"]] == ["bought", "free"]


def test_each_invalid_decision_has_its_own_stable_reason(running: Any) -> None:
    """First valid wins; repeated, forged, early, late and misdirected ones change nothing."""
    running.ask_tools("buy", "look")

    def reason(call_id: str, verdict: Verdict, token: str | None = None) -> str:
        before = running.run
        running.verdict(call_id, verdict, token=token)
        assert running.run.calls == before.calls
        return str(running.last.events[0].body.reason)

    assert reason("t10", Verdict.APPROVE, "forged") == "token_forged"
    assert reason("t10", Verdict.RAN) == "verdict_not_allowed"
    assert reason("t11", Verdict.APPROVE) == "not_pending"
    assert reason("t99", Verdict.APPROVE) == "unknown_call"
    running.verdict("t10", Verdict.REJECT, message="no")
    assert running.kinds[0] == "DecisionRecorded"
    assert reason("t10", Verdict.APPROVE) == "already_decided"
    running.command(Cancel("x"))
    assert reason("t10", Verdict.APPROVE) == "run_cancelled"


def test_a_second_submit_of_a_run_id_is_rejected(running: Any) -> None:
    """Same run id with another command id: run_exists."""
    running.submit()
    assert running.kinds == ["CommandRejected"]
    assert running.last.events[0].body.reason == "run_exists"


@pytest.mark.parametrize("data", [b"", b"{", b'""', b"[]", b"7", b"[1]", b"\xff"])
def test_a_submit_that_can_not_start_is_refused_with_a_reason(driver: Any, data: bytes) -> None:
    """An input that is no text and no content blocks never becomes a run."""
    driver.command(Submit("a", data))
    assert driver.last.events == ()
    (refusal,) = driver.last.outputs
    assert isinstance(refusal, RefuseInput)
    assert refusal.code == "invalid_input"


def test_ids_that_are_empty_repeated_or_seen_before_are_renamed_before_they_are_persisted(
    running: Any,
) -> None:
    """Ids are unique within the run; result keys and transcript stay valid."""
    block = {"type": "tool_use", "name": "look", "input": {}}
    ids = ("a", "a", "", "no/good")
    running.reply(*({**block, "id": call_id, "input": {"n": n}} for n, call_id in enumerate(ids)))
    first = [call.call_id for call in running.run.calls]
    assert first[0] == "a"
    assert len(set(first)) == 4
    stored = json.loads(running.messages[-1])["content"]
    assert [part["id"] for part in stored] == first
    for call_id in first:
        running.tool_result(call_id, rs.Completed(b'"x"'))
    running.reply({**block, "id": "a"})
    assert running.run.calls[0].call_id not in first


def test_input_that_is_no_object_never_reaches_the_tool(running: Any) -> None:
    """Neither invalid JSON nor a list is called with {}: an error result names the fault."""
    block = {"type": "tool_use", "name": "look", "id": "a", "input": {}}
    running.reply(block, {**block, "id": "b", "input": [1]}, input_faults=((0, "{broken"),))
    assert running.requests(ToolRequest) == []
    assert running.kinds[-1] == "TurnStarted"
    assert all(part["is_error"] for part in running.last_message()["content"])
    assert running.requests(ModelRequest)


def test_unknown_and_hidden_tools_are_answered_with_an_error(running: Any) -> None:
    """A tool that the agent does not offer is not executed, a reconciliation tool neither."""
    running.ask_tools("nonsense", "find")
    assert running.requests(ToolRequest) == []
    assert all(part["is_error"] for part in running.last_message()["content"])


def test_calls_over_the_limit_of_a_turn_get_an_error_each(make_driver: Any, make_agent: Any) -> None:
    """max_tool_calls_per_turn: the first N run, the others are told so."""
    driver = make_driver(make_agent(tool_calls_per_turn_max=1))
    driver.submit()
    driver.ask_tools("look", "look")
    assert len(driver.requests(ToolRequest)) == 1
    assert driver.run.call("t11").is_error


def test_surrogates_and_nul_are_replaced_in_messages_arguments_and_results(running: Any) -> None:
    """What no store and no provider takes is replaced once, before the first persist."""
    running.reply({"type": "tool_use", "name": "look", "id": "a", "input": {"q": "\ud83d\x00"}})
    assert "\ud83d" not in running.messages[-1].decode()
    running.tool_result("a", rs.Completed(b'"\\ud83d and \\u0000"'))
    assert running.last_message()["content"][0]["content"] == "\ufffd and \ufffd"


def test_a_result_that_is_no_json_is_an_error_result(running: Any) -> None:
    """An executor's content that can not be read never blocks the run."""
    running.ask_tools("look")
    running.tool_result("t10", rs.Completed(b"\xff{"))
    assert running.last_message()["content"][0]["is_error"] is True
