"""Histories that no decide wrote: apply says what is wrong instead of folding them to something."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from perdure.processors.machine.apply import apply, fold
from perdure.processors.machine.lifecycle import IllegalEvent
from perdure.schemas import events as ev
from perdure.schemas import results as rs
from perdure.schemas.commands import Cancel
from perdure.schemas.values import Answer, FailureKind, ForkPoint, ResultSource, Usage


def after(driver: Any, body: ev.EventBody, **changes: Any) -> Any:
    """The run after one more event."""
    event = ev.Event(run_id="run-1", seq=driver.run.seq + 1, at_ms=driver.now_ms, body=body)
    return apply(driver.run, replace(event, **changes))


def test_no_events_are_no_run() -> None:
    """A fold of nothing is an error, not an empty run."""
    with pytest.raises(IllegalEvent):
        fold([])


def test_a_history_goes_on_from_a_run(running: Any) -> None:
    """A fold may begin at any state of the run: the rest of the history leads to the same end."""
    running.say("done")
    middle = fold(running.events[:2])
    assert fold(running.events[2:], middle) == fold(running.events) == running.run


@pytest.mark.parametrize("changes", [{"seq": 2}, {"seq": 4}, {"run_id": "another"}])
def test_a_gap_a_repetition_or_another_runs_event_is_illegal(running: Any, changes: dict[str, Any]) -> None:
    """Events of one run stand one after the other, without a gap."""
    assert running.run.seq == 2
    with pytest.raises(IllegalEvent):
        after(running, ev.CommandRejected("Cancel", "x"), **changes)


@pytest.mark.parametrize("seq", [0, 2])
def test_a_history_begins_with_the_first_event(running: Any, seq: int) -> None:
    """RunCreated with another number is not the beginning."""
    with pytest.raises(IllegalEvent):
        apply(None, replace(running.events[0], seq=seq))


def test_nothing_follows_a_purge(running: Any) -> None:
    """A purged run takes no event any more."""
    running.say("done")
    purged = after(running, ev.RunPurged())
    with pytest.raises(IllegalEvent):
        apply(purged, ev.Event(run_id="run-1", seq=purged.seq + 1, at_ms=1, body=ev.RunPurged()))


@pytest.mark.parametrize("number", [1, 3])
def test_an_attempt_that_is_not_the_next_one_is_illegal(running: Any, number: int) -> None:
    """Attempts of a call count without a gap, so no dispatch can pass unseen."""
    running.ask_tools("look")
    running.tool_result("t10", rs.Failed(FailureKind.EXCEPTION, "boom"))
    with pytest.raises(IllegalEvent):
        after(running, ev.ToolDispatched(1, "t10", number, "n", 9, 9, 9))


def test_an_answer_to_another_question_is_illegal(running: Any) -> None:
    """An answer names the question that was put last."""
    running.ask_tools("send")
    running.claim("t10")
    running.tool_result("t10", rs.Suspect())
    with pytest.raises(IllegalEvent):
        after(running, ev.ReconciliationAnswered(1, "t10", 1, 2, Answer.UNKNOWN, "", None))


@pytest.mark.parametrize("attempt", [0, 2])
def test_what_speaks_of_another_attempt_is_illegal(running: Any, attempt: int) -> None:
    """A claim, an end or a doubt is about the newest attempt."""
    running.ask_tools("wire")
    with pytest.raises(IllegalEvent):
        after(running, ev.ToolAmbiguous(1, "t10", attempt, "suspect", ""))


def test_what_speaks_of_another_turn_is_illegal(running: Any) -> None:
    """The calls of a turn that is over can not change."""
    running.ask_tools("look")
    with pytest.raises(IllegalEvent):
        after(running, ev.ToolCompleted(2, "t10", 1, b'"x"', False, ResultSource.EXECUTED))


def test_a_late_result_of_a_call_that_is_not_there_is_illegal(running: Any) -> None:
    """What is kept of a late result belongs to a call of the turn."""
    running.command(Cancel("enough"))
    body = ev.SurplusRecorded(1, "none", 1, "q", "Completed", "terminal", Usage(), content=b'"x"')
    with pytest.raises(IllegalEvent):
        after(running, body)


@pytest.mark.parametrize("kind", ["Started", "Completed"])
def test_surplus_of_requests_that_are_not_open_touches_no_call(running: Any, kind: str) -> None:
    """A claim or an end of some other request changes neither the attempts nor the state."""
    running.ask_tools("wire", "look", "buy")
    running.tool_result("t11", rs.Completed(b'"x"'))
    for request in ("other", running.run.call("t11").attempt.request_id):
        body = ev.SurplusRecorded(1, "t10", 1, request, kind, "late", closes_attempt=kind == "Completed")
        assert after(running, body).calls == running.run.calls


def test_a_fork_turns_back_no_input_that_is_no_text(running: Any) -> None:
    """A fork's input is what its first turn tells; anything but a text tells nothing."""
    body = running.events[0].body
    point = ForkPoint("run-0", 1, 2, b"d" * 32)
    event = replace(running.events[0], body=replace(body, fork=point, input=b"[]"))
    assert apply(None, event).texts == ()
    told = replace(running.events[0], body=replace(body, fork=point, input=b'"go"'))
    assert apply(None, told).texts == ("go",)
