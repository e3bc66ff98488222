"""Late results: they replace what nobody knew until the model is asked again, and are told afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.processors.machine.apply_calls import LOOSE_ENDS_MAX
from perdure.schemas import events as ev
from perdure.schemas import results as rs
from perdure.schemas.commands import Cancel, Resume, Signal
from perdure.schemas.values import DeclineReason, FailureKind, RunState, Verdict

PAID = rs.Completed(b'"put it there"')


def resumed(running: Any, *tools: str) -> Any:
    """A run that was cancelled while its calls were under way, and resumed: doubts wait for a person."""
    running.ask_tools(*tools)
    for n, tool in enumerate(tools):
        if tool == "wire":
            running.claim(f"t1{n}")
    running.command(Cancel("x"))
    running.command(Resume())
    return running


def late(driver: Any, call_id: str, request_id: str, body: rs.ResultBody, turn: int = 1) -> None:
    """A result of an attempt of an earlier turn."""
    driver.model_result(body, call_id=call_id, request_id=request_id, turn=turn, attempt=1)


def result_of(driver: Any, call_id: str) -> dict[str, Any]:
    blocks = driver.last_message()["content"]
    found: dict[str, Any] = next(block for block in blocks if block.get("tool_use_id") == call_id)
    return found


def test_a_result_replaces_the_synthetic_one_until_the_model_is_asked(running: Any) -> None:
    """The sibling is still in doubt, so no request is written: what the tool really said is sent."""
    resumed(running, "put", "wire")
    assert running.run.call("t10").is_done
    running.tool_result("t10", PAID)
    assert running.kinds == ["SurplusRecorded"]
    running.verdict("t11", Verdict.RAN, result=b'"sent"')
    assert result_of(running, "t10")["content"] == "put it there"
    assert "is_error" not in result_of(running, "t10")
    assert running.run.loose == ()


def test_only_the_first_late_result_counts(running: Any) -> None:
    """A second one is surplus, and is not told either."""
    resumed(running, "put", "wire")
    running.tool_result("t10", PAID)
    running.tool_result("t10", rs.Completed(b'"again"'))
    running.verdict("t11", Verdict.GIVE_UP)
    assert result_of(running, "t10")["content"] == "put it there"
    assert "again" not in str(running.last_message())


def test_after_the_request_a_result_is_told_as_text_after_the_next_results(running: Any) -> None:
    """The transcript keeps the synthetic result that the model has seen."""
    running.ask_tools("put")
    request_id = running.run.call("t10").attempt.request_id
    running.command(Cancel("x"))
    running.command(Resume())
    assert [end.call_id for end in running.run.loose] == ["t10"]
    seen = list(running.messages)
    late(running, "t10", request_id, PAID)
    assert running.kinds == ["SurplusRecorded"]
    assert running.run.loose == ()
    running.ask_tools("look")
    running.tool_result("t20", rs.Completed(b'"x"'))
    first, told = running.last_message()["content"]
    assert first["type"] == "tool_result"
    assert told["text"] == "The result of the call t10 of put came late: put it there"
    assert running.messages[: len(seen)] == seen


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (rs.Completed(b'"no"', is_error=True), "An error result of the call t10 of put came late: no"),
        (rs.Completed(b"\xff"), "An error result of the call t10 of put came late: The tool ran"),
        (rs.Failed(FailureKind.OUTPUT, "odd"), "An error result of the call t10 of put came late: odd"),
        (rs.Failed(FailureKind.NOT_EXECUTED, "no"), "was not executed, as is known by now"),
        (rs.Declined(DeclineReason.CANCELLED), "was not executed, as is known by now"),
        (rs.Failed(FailureKind.CONNECTION, "?"), None),
        (rs.Suspect(), None),
        (rs.Completed(b'"%s"' % (b"y" * 9_000)), "[cut]"),
    ],
)
def test_only_what_is_definite_is_told(running: Any, body: rs.ResultBody, told: str | None) -> None:
    """An end that says nothing about the effect leaves the attempt open: more may come."""
    running.ask_tools("put")
    request_id = running.run.call("t10").attempt.request_id
    running.command(Cancel("x"))
    running.command(Resume())
    late(running, "t10", request_id, body)
    assert (told in " ".join(running.run.texts)) if told else running.run.texts == ()
    assert bool(running.run.loose) == (told is None)
    assert len("".join(running.run.texts)) < 5_000


def test_a_result_that_comes_while_the_run_is_cancelled_again_is_told_at_its_resume(running: Any) -> None:
    """Texts outlive an execution."""
    running.ask_tools("put")
    request_id = running.run.call("t10").attempt.request_id
    running.command(Cancel("x"))
    running.command(Resume())
    running.command(Cancel("y"))
    late(running, "t10", request_id, PAID)
    running.command(Resume())
    assert "came late: put it there" in str(running.last_message())


def test_what_a_person_gave_up_is_told_when_it_is_known_after_all(running: Any) -> None:
    """Their answer stands; the model is told the truth beside it."""
    running.ask_tools("wire", "wire")
    for call_id in ("t10", "t11"):
        running.claim(call_id)
        running.tool_result(call_id, rs.Suspect())
    running.verdict("t10", Verdict.GIVE_UP)
    running.tool_result("t10", rs.Completed(b'"sent"'))
    request_id = running.run.call("t11").attempt.request_id
    running.verdict("t11", Verdict.GIVE_UP)
    given_up, _, told = running.last_message()["content"]
    assert given_up["is_error"] is True
    assert told["text"] == "The result of the call t10 of wire came late: sent"
    late(running, "t11", request_id, rs.Completed(b'"sent, too"'))
    assert running.run.texts == ("The result of the call t11 of wire came late: sent, too",)


def test_memory_of_open_attempts_is_bounded(running: Any) -> None:
    """The newest are kept; a result of one that was forgotten is recorded and not told."""
    first = ""
    for number in range(LOOSE_ENDS_MAX + 2):
        running.reply({"type": "tool_use", "id": f"c{number}", "name": "put", "input": {"n": number}})
        call_id = running.run.calls[0].call_id
        first = first or running.run.calls[0].attempt.request_id
        running.command(Cancel("x"))
        running.command(Resume(extra_turns=2))
        assert running.run.call(call_id) is None
    assert len(running.run.loose) == LOOSE_ENDS_MAX
    late(running, "c0", first, PAID)
    assert running.kinds == ["SurplusRecorded"]
    assert running.run.texts == ()


def test_without_room_a_late_result_is_recorded_only(running: Any) -> None:
    """What waits for the next request has a limit."""
    running.ask_tools("put")
    request_id = running.run.call("t10").attempt.request_id
    running.command(Cancel("x"))
    running.command(Resume())
    running.command(Signal("z" * ((256 << 10) - 20)))
    late(running, "t10", request_id, PAID)
    assert len(running.run.texts) == 1


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (rs.Failed(FailureKind.DEADLINE, "?"), "may or may not"),
        (rs.Failed(FailureKind.NOT_EXECUTED, "?"), "not executed"),
        (rs.Declined(DeclineReason.UNAVAILABLE), "may or may not"),  # another worker may have read it first
    ],
)
def test_a_call_that_waited_for_its_next_attempt_is_told_honestly(
    running: Any, body: rs.ResultBody, told: str
) -> None:
    """It is said not to have been started only if no attempt may have run."""
    running.ask_tools("put")
    running.tool_result("t10", body)
    running.command(Cancel("x"))
    running.command(Resume())
    assert told in result_of(running, "t10")["content"]


def test_a_useless_answer_after_the_end_is_no_not_started(running: Any) -> None:
    """The tool ran; only its answer can not be used."""
    running.ask_tools("put")
    running.command(Cancel("x"))
    running.tool_result("t10", rs.Failed(FailureKind.OUTPUT, "no JSON"))
    running.command(Resume())
    assert result_of(running, "t10")["content"] == "no JSON"


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tools=st.lists(st.sampled_from(["look", "put", "send", "wire"]), min_size=1, max_size=4),
    ends=st.lists(st.sampled_from(["none", "claim", "suspect", "deadline", "done"]), min_size=4, max_size=4),
    resumes=st.integers(1, 3),
)
def test_no_request_is_written_while_a_non_idempotent_attempt_is_open(
    make_driver: Any, tools: list[str], ends: list[str], resumes: int
) -> None:
    """Whatever was under way, and however often the run is cancelled and resumed."""
    driver = make_driver()
    driver.submit()
    driver.ask_tools(*tools)
    for n, end in enumerate(ends[: len(tools)]):
        call = driver.run.call(f"t1{n}")
        if call is None or end == "none":
            continue
        driver.claim(call.call_id)
        if end == "suspect":
            driver.tool_result(call.call_id, rs.Suspect())
        elif end == "deadline":
            driver.tool_result(call.call_id, rs.Failed(FailureKind.DEADLINE, "?"))
        elif end == "done":
            driver.tool_result(call.call_id, rs.Completed(b'"x"'))
    for _ in range(resumes):
        driver.command(Cancel("x"))
        before = driver.run
        driver.command(Resume())
        is_open = [
            call.call_id
            for call in before.calls
            if call.effect == "non_idempotent" and call.attempt and call.attempt.is_open and not call.is_done
        ]
        asked = any(isinstance(event.body, ev.TurnStarted) for event in driver.last.events)
        assert not (is_open and asked)
        assert asked or is_open or driver.run.state is not RunState.RUNNING
