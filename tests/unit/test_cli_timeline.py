"""The timeline: every event has its line, and nothing in a run can speak to the terminal."""

from __future__ import annotations

import io
import typing

import pytest
from rich.console import Console

from perdure.console.timeline import Timeline, excerpt, timeline, usage_text
from perdure.schemas import events as ev
from perdure.schemas.values import (
    Answer,
    Effect,
    PendingKind,
    Provenance,
    ResultSource,
    RunState,
    Usage,
    Verdict,
)

STORY: list[ev.EventBody] = [
    ev.RunCreated("support", "1", "d" * 64, b'"Tell Ada"', Provenance(), 5),
    ev.TurnStarted(1, 1, "q", 1, 1, 100),
    ev.ModelResponded(
        1,
        1,
        "q",
        "i",
        b'{"role":"assistant","content":[{"type":"text","text":"I look."}]}',
        "tool_use",
        Usage(7, 3),
    ),
    ev.ToolCallRequested(1, 0, "c1", "send", b'{"to":"ada"}', Effect.NON_IDEMPOTENT, "k"),
    ev.ToolDispatched(1, "c1", 1, "q", 1, 1, 1),
    ev.ToolStarted(1, "c1", 1, 9, "host-0"),
    ev.ToolAmbiguous(1, "c1", 1, "suspect", "the worker is gone"),
    ev.ReconciliationAsked(1, "c1", 1, 1, "find", "q", 1, 1, 1),
    ev.ReconciliationAnswered(1, "c1", 1, 1, Answer.DID_NOT_HAPPEN, "no trace", None),
    ev.ToolDispatched(1, "c1", 2, "q", 1, 1, 1),
    ev.ToolCompleted(1, "c1", 2, b'"sent"', False, ResultSource.EXECUTED),
    ev.RunCompleted(b'"Done."', "end_turn"),
]


def shown(bodies: list[ev.EventBody]) -> list[str]:
    console = Console(file=io.StringIO(), width=200, color_system=None)
    events = [ev.Event("r", seq, 1_000 + 250 * seq, body) for seq, body in enumerate(bodies, 1)]
    console.print(timeline(events))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_story_reads_as_it_happened() -> None:
    """One line an event, timed from the beginning; a first dispatch says nothing new and has none."""
    lines = shown(STORY)
    assert len(lines) == len(STORY) - 1
    assert lines[0].split() == ["0.000s", "●", "created", "support", "1:", "Tell", "Ada"]
    assert "I look. (tool_use, 7 in, 3 out)" in lines[2]
    assert 'send {"to":"ada"} [non_idempotent]' in lines[3]
    assert "send, attempt 1, may have run (suspect): the worker is gone" in lines[5]
    assert "find: what became of send?" in lines[6]
    assert "did not happen: no trace" in lines[7]
    assert "send, attempt 2" in lines[8]
    assert lines[-1].split()[:4] == ["2.750s", "✔", "completed", "Done."]


OTHERS: list[ev.EventBody] = [
    ev.AgentPinned("d" * 64, "1", 5),
    ev.TurnResumed(3),
    ev.ChildStarted(1, "c1", "r~c.1.0", 5),
    ev.ChildEnded(1, "c1", "r~c.1.0", 0, RunState.COMPLETED, Usage(7, 3)),
    ev.SignalReceived("look at the invoice"),
    ev.RunWaiting("agent x", 5),
    ev.TranscriptSent("q"),
    ev.ModelAttemptEnded(1, 1, "q", "overloaded", "busy", 5),
    ev.ToolAttemptEnded(1, "c", 1, "exception", "KeyError", 5),
    ev.ApprovalRequested(1, "c", PendingKind.AMBIGUITY, b"{}", (Verdict.RAN, Verdict.DID_NOT_RUN), "t", None),
    ev.DecisionRecorded(1, "c", Verdict.DID_NOT_RUN, "ann"),
    ev.CommandRejected("Cancel", "run_terminal"),
    ev.SurplusRecorded(1, "c", 1, "q", "Completed", "late"),
    ev.RunFailed("budget_exceeded", "no money", "model", 3),
    ev.RunCancelled("why"),
    ev.RunTimedOut("approval"),
    ev.RunResumed(1, "go on", 5, None),
    ev.RunPurged(),
]


def test_every_kind_of_event_has_a_line() -> None:
    """No kind is forgotten: the events of these tests are all kinds there are."""
    kinds = {type(body) for body in STORY + OTHERS}
    assert kinds == set(typing.get_args(ev.EventBody))
    for body in OTHERS:
        assert Timeline().add(ev.Event("r", 1, 1, body)) is not None
    assert "decide c ran | did-not-run" in shown(OTHERS)[9]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("a\x1b[31mb\r\nc", "a [31mb c"),
        ("left\u202eright", "left right"),
        (b'"plain text"', "plain text"),
        (b'[{"type":"text","text":"a"},{"type":"image"},{"type":"text","text":"b"}]', "a b"),
        (b'{"role":"user","content":"hi"}', "hi"),
        (b'[{"text":"no block"}]', '[{"text":"no block"}]'),
        (b"\xff\x00broken", "\ufffd broken"),
        ("x" * 300, "x" * 99 + "…"),
    ],
)
def test_an_excerpt_is_one_harmless_line(given: bytes | str, wanted: str) -> None:
    """Escape sequences, line breaks and direction marks become blanks; JSON text is shown as its text."""
    assert excerpt(given) == wanted


def test_markup_in_a_run_is_shown_and_not_obeyed() -> None:
    """Square brackets that rich would take for markup stay as they are."""
    assert "[bold]x[/bold]" in shown([ev.RunCancelled("[bold]x[/bold]")])[0]


def test_usage_counts_cached_tokens_as_input() -> None:
    """Tokens read from and written to the cache are input; money is shown in dollars."""
    assert usage_text(Usage(1, 2, 10, 100, 1_234_500_000)) == "111 in, 2 out, $1.2345"
    assert usage_text(Usage()) == ""


@pytest.mark.parametrize(
    ("late", "use"),
    [
        (ev.SurplusRecorded(1, "c", 1, "q", "Failed", "late"), "changes no state"),
        (
            ev.SurplusRecorded(1, "c", 1, "q", "Completed", "terminal", content=b'"x"'),
            "kept as the call's result",
        ),
        (ev.SurplusRecorded(1, "c", 1, "q", "Completed", "late", told="x"), "the model is told of it"),
    ],
)
def test_what_becomes_of_a_late_result_is_said(late: ev.SurplusRecorded, use: str) -> None:
    """Recorded only, kept as the call's result, or told as text."""
    assert use in shown([late])[0]
