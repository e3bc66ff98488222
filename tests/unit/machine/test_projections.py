"""What other topics are told of a run, and when run-status must say so at once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.processors.machine.project import must_publish, status_of
from perdure.processors.machine.transcript import CHUNK_BYTES_MAX, request_of, whole_requests
from perdure.schemas import results as rs
from perdure.schemas.commands import Cancel, Resume, Signal
from perdure.schemas.outputs import Approval
from perdure.schemas.values import DeclineReason, Provenance, RunState, Verdict


def test_a_new_run_is_told_at_once(running: Any) -> None:
    """Whoever lists runs sees it from the beginning."""
    assert must_publish(None, running.run)


@pytest.mark.parametrize("is_told", [True, False])
def test_status_is_told_at_once_where_people_or_an_end_are_concerned(running: Any, is_told: bool) -> None:
    """Into and out of a wait for a person, into and out of an end; everything else may be conflated."""
    before = running.run
    if is_told:
        running.ask_tools("buy")
        asked = running.run
        assert must_publish(before, asked)
        running.verdict("t10", Verdict.APPROVE)
        assert must_publish(asked, running.run)
        going = running.run
        running.command(Cancel("enough"))
        assert must_publish(going, running.run)
        ended = running.run
        running.may_start = False
        running.command(Resume())
        assert must_publish(ended, running.run)
    else:
        running.ask_tools("look")
        assert not must_publish(before, running.run)
        running.command(Signal("news"))
        assert not must_publish(before, running.run)


def test_one_more_or_one_less_question_is_told_at_once(running: Any) -> None:
    """The number of pending questions is part of the status, also while the state stays."""
    running.ask_tools("buy", "buy")
    before = running.run
    running.verdict("t10", Verdict.REJECT)
    assert running.run.state is before.state is RunState.AWAITING_APPROVAL
    assert must_publish(before, running.run)
    assert not must_publish(running.run, running.run)


def test_a_status_says_what_a_list_of_runs_shows(running: Any) -> None:
    """State, turn, usage, times, what it waits for and why it ended, by the run's own fields."""
    running.now_ms += 5
    running.ask_tools("buy")
    status = status_of(running.run)
    assert (status.run_id, status.seq, status.execution) == ("run-1", running.run.seq, 0)
    assert (status.state, status.turn, status.pending_approvals) == (RunState.AWAITING_APPROVAL, 1, 1)
    assert (status.agent, status.usage, status.code) == ("a", running.run.usage, None)
    assert (status.created_ms, status.updated_ms) == (1_000_000, 1_000_005)
    assert (status.provenance, status.parent, status.source) == (Provenance(), None, None)
    running.command(Cancel("enough"))
    assert status_of(running.run).code == "enough"


def test_an_approval_goes_under_its_run_and_call_and_is_taken_back(running: Any) -> None:
    """The record that asks, and the tombstone once nobody need answer, have the same key."""
    running.ask_tools("buy")
    (record,) = [each for each in running.records if isinstance(each.record, Approval)]
    assert (record.topic, record.key) == ("run-approvals", "run-1/t10")
    running.command(Cancel("enough"))
    gone = [each for each in running.records if each.topic == "run-approvals"]
    assert [(each.key, each.record) for each in gone] == [("run-1/t10", None)]


def test_a_run_says_what_it_can_not_go_on_without(running: Any) -> None:
    """An executor without the tool or the agent: people see what is missing, and nothing once it is there."""
    running.ask_tools("look", "put")
    running.tool_result("t10", rs.Declined(DeclineReason.UNAVAILABLE))
    running.tool_result("t11", rs.Declined(DeclineReason.UNAVAILABLE))
    two = str(running.run.waits_for).split("; ")
    assert ["look" in two[0], "put" in two[1]] == [True, True]
    while running.run.call("t10").due_ms is not None:
        running.timer()
    running.tool_result("t10", rs.Completed(b'"x"'))
    assert "look" not in str(running.run.waits_for)
    running.command(Cancel("enough"))
    assert running.run.waits_for is None


def test_a_model_caller_without_the_agent_is_named_as_what_is_missing(running: Any) -> None:
    """It is asked again by a timer; meanwhile the run says what it waits for."""
    running.model_result(rs.Declined(DeclineReason.UNAVAILABLE))
    assert "model-caller" in running.run.waits_for
    running.timer()
    assert running.run.waits_for is None


def test_a_large_transcript_goes_in_chunks_of_bounded_size(running: Any) -> None:
    """Messages keep their order, no chunk is larger than it may be, and a huge message has one of its own."""
    small, huge = b"x" * (CHUNK_BYTES_MAX // 2), b"y" * (CHUNK_BYTES_MAX + 1)
    requests = whole_requests(running.run, (small, small, small, huge, small))
    assert [len(request.messages) for request in requests] == [2, 1, 1, 1]
    assert [(request.chunk, request.chunks) for request in requests] == [(n, 4) for n in range(4)]
    assert all(request.is_whole for request in requests)
    assert not request_of(running.run).is_whole
    assert whole_requests(running.run, ())[0].messages == ()


def test_an_outcome_carries_how_far_the_run_came(running: Any) -> None:
    """Turns, usage, times and the event that ended it."""
    running.now_ms += 7
    running.say("done")
    (outcome,) = [each.record for each in running.records if each.topic == "run-outcomes"]
    assert outcome.seq == running.run.seq
    assert (outcome.created_ms, outcome.ended_ms) == (1_000_000, 1_000_007)
    assert json.loads(outcome.output) == "done"
    assert outcome.definition == "d" * 64
