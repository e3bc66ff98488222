"""Purge, in the machine: only what has ended is forgotten, and nothing follows."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.processors.machine.apply import apply
from perdure.processors.machine.inputs import PurgeInput
from perdure.processors.machine.lifecycle import IllegalEvent
from perdure.schemas import events as ev
from perdure.schemas import results as rs
from perdure.schemas.commands import Cancel
from perdure.schemas.values import DeclineReason, FailureKind


def purge(driver: Any, days: int) -> list[str]:
    driver.now_ms += days * 86_400_000
    driver.feed(PurgeInput(driver.run.run_id))
    kinds: list[str] = driver.kinds
    return kinds


def test_a_run_is_kept_for_its_time(running: Any) -> None:
    """Fourteen days from its last end, and nothing of its content is left in the run then."""
    running.say("The answer is a secret.")
    assert purge(running, 13) == []
    assert purge(running, 1) == ["RunPurged"]
    assert b"secret" not in repr(running.run).encode()
    assert running.records == []


def test_what_goes_on_is_never_purged(running: Any) -> None:
    """However old it is."""
    assert purge(running, 1_000) == []
    with pytest.raises(IllegalEvent):
        apply(running.run, ev.Event(running.run.run_id, running.run.seq + 1, 1, ev.RunPurged()))


def test_nothing_follows_a_purge(running: Any) -> None:
    """Not another purge either."""
    running.say("done")
    purge(running, 14)
    assert purge(running, 14) == []
    with pytest.raises(IllegalEvent):
        apply(running.run, ev.Event(running.run.run_id, running.run.seq + 1, 1, ev.CommandRejected("x", "y")))


@pytest.mark.parametrize(
    ("tool", "ending", "is_purged"),
    [
        ("look", None, True),
        ("put", None, True),
        ("wire", None, False),
        ("wire", rs.Failed(FailureKind.ABORTED, "gone"), False),
        ("wire", rs.Declined(DeclineReason.CANCELLED), True),
        ("wire", rs.Completed(b'"sent"'), True),
        ("wire", rs.Suspect(), True),  # without a claim before it: it did not run
    ],
)
def test_an_attempt_that_may_have_had_an_effect_keeps_the_run(
    running: Any, tool: str, ending: rs.ResultBody | None, is_purged: bool
) -> None:
    """A cancelled run is purged only if nothing is in doubt any more."""
    running.ask_tools(tool)
    running.command(Cancel("enough"))
    if ending is not None:
        running.tool_result("t10", ending)
    assert purge(running, 30) == (["RunPurged"] if is_purged else [])


def test_a_run_waits_for_the_deadline_of_a_harmless_attempt(running: Any) -> None:
    """A call that may still run has its time, also where the run is kept for none."""
    running.settings = running.settings.__class__(finished_runs_retention_ms=0)
    running.ask_tools("look")
    running.command(Cancel("enough"))
    assert purge(running, 0) == []
    assert purge(running, 1) == ["RunPurged"]
