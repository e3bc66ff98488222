"""The machine under any sequence of inputs: what must hold after each of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.processors.machine.budget import KINDS, Price
from perdure.processors.machine.inputs import Decided
from perdure.processors.machine.schedule import next_due_ms
from perdure.schemas import events as ev
from perdure.schemas import results as rs
from perdure.schemas.commands import Cancel, Resume, Signal
from perdure.schemas.outputs import Outcome
from perdure.schemas.values import (
    Answer,
    Budget,
    DeclineReason,
    Effect,
    FailureKind,
    RunState,
    Usage,
    Verdict,
)

TOOLS = ("look", "put", "send", "wire", "buy", "find", "nonsense")
STOPS = ("end_turn", "tool_use", "max_tokens", "pause_turn", "refusal", "brand_new", "stop_sequence")
LICENSES = {
    "suspect",  # with no claim before it, see check_licences
    "late_claim",
    "expired",
    "unavailable",
    "not_executed",
    "undecodable",
    "did_not_happen",
    "decided_did_not_run",
}
BUDGET = Budget(input_tokens=60_000, output_tokens=30_000, cost_nano_usd=900_000_000)

Step = tuple[int, int, int]
Act = Callable[["Play", int, int], None]


class Play:
    """A run under random inputs, with its invariants."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.outcomes: Counter[int] = Counter()
        self.results: Counter[tuple[int, str]] = Counter()
        self.old_requests: list[str] = ["none"]

    def act(self, step: Step) -> None:
        action, first, second = step
        driver = self.driver
        before = driver.run_or_none
        driver.last, driver.records = Decided(), []
        ACTIONS[action % len(ACTIONS)](self, first, second)
        if driver.run_or_none is None:
            return
        self.check(before)

    def check(self, before: Any) -> None:
        driver = self.driver
        run = driver.run
        fresh = driver.last.events
        for record in driver.records:
            if isinstance(record.record, Outcome):
                self.outcomes[record.record.execution] += 1
        for event in fresh:
            if isinstance(event.body, ev.ToolCompleted):
                self.results[event.body.turn, event.body.call_id] += 1
        assert set(self.outcomes.values()) <= {1}, "one outcome per execution"
        assert set(self.results.values()) <= {1}, "one effective result per call"
        if before is not None and before.state.is_terminal:
            resumed = any(isinstance(event.body, ev.RunResumed) for event in fresh)
            assert run.state == before.state or resumed, "terminal is final"
        if run.state.is_terminal:
            assert self.outcomes[run.execution] == 1
            assert run.pending == ()
        if run.model is not None:
            check_transcript(driver.messages, is_asking=True)
            assert run.state == RunState.RUNNING
        if run.state == RunState.AWAITING_APPROVAL:
            assert run.pending
        check_budget(run)
        if run.state != RunState.QUEUED and not run.state.is_terminal:
            waits_for_people = bool(run.pending) and all(
                call.is_done or run.pending_for(call.call_id) for call in run.calls
            )
            assert next_due_ms(run) is not None or waits_for_people, "somebody or a timer moves it on"


def check_transcript(messages: list[bytes], *, is_asking: bool) -> None:
    """The Messages API's rules, as far as the machine is answerable for them."""
    open_ids: list[str] = []
    seen: set[str] = set()
    for raw in messages:
        message = json.loads(raw)
        content = message["content"]
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        assert blocks
        assert all(block.get("text") for block in blocks if block["type"] == "text"), "no empty text"
        if message["role"] == "assistant":
            assert not open_ids
            open_ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
            assert len(set(open_ids)) == len(open_ids)
            assert not seen & set(open_ids), "ids are unique within the run"
            seen |= set(open_ids)
            continue
        kinds = [block["type"] for block in blocks]
        assert kinds == sorted(kinds, key=lambda kind: kind != "tool_result"), "results before text"
        assert [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"] == open_ids
        open_ids = []
    assert not (is_asking and open_ids), "every tool_use is answered before the model is asked"


def check_budget(run: Any) -> None:
    reserved = run.model.reserved if run.model and run.model.retry_at_ms is None else Usage()
    for kind in KINDS:
        limit = getattr(run.budget, kind)
        if limit is not None:
            assert getattr(run.usage, kind) + getattr(reserved, kind) <= limit, kind


def check_licences(events: list[ev.Event]) -> None:
    """A second attempt of a non_idempotent call follows only an end that licenses it."""
    effects: dict[tuple[int, str], Effect] = {}
    ended: dict[tuple[int, str], str] = {}
    started: set[tuple[int, str, int]] = set()
    for event in events:
        body = event.body
        match body:
            case ev.ToolCallRequested():
                effects[body.turn, body.call_id] = body.effect
            case ev.ToolStarted():
                started.add((body.turn, body.call_id, body.attempt))
            case ev.ToolAttemptEnded():
                ended[body.turn, body.call_id] = body.reason
                if body.reason == "suspect" and effects[body.turn, body.call_id] is Effect.NON_IDEMPOTENT:
                    assert (body.turn, body.call_id, body.attempt) not in started
            case ev.ToolDispatched() if body.attempt > 1:
                if effects[body.turn, body.call_id] is Effect.NON_IDEMPOTENT:
                    assert ended.pop((body.turn, body.call_id)) in LICENSES
            case _:
                pass


def reply(play: Play, first: int, second: int) -> None:
    driver = play.driver
    run = driver.run
    limit = run.model.max_tokens if run.model else 100
    most_in = run.model.reserved.input_tokens if run.model else 100
    usage = Usage(min(800, most_in), min(first * 40, limit), cost_nano_usd=min(800, most_in) * 3_000)
    stop_reason = STOPS[first % len(STOPS)]
    blocks: list[dict[str, Any]] = [{"type": "text", "text": "hm" if second % 2 else ""}]
    for number in range(second % 4):
        tool = TOOLS[(first + number) % len(TOOLS)]
        blocks.append(
            {"type": "tool_use", "id": ("a", "", f"x{second}", "b")[number], "name": tool, "input": {}}
        )
    if second % 4 and stop_reason == "end_turn":
        stop_reason = "tool_use"
    driver.reply(*blocks, stop_reason=stop_reason, usage=usage)


def model_trouble(play: Play, first: int, second: int) -> None:
    driver = play.driver
    usage = (None, Usage(), Usage(50, 10))[second % 3]
    bodies: tuple[rs.ResultBody, ...] = (
        rs.Suspect(),
        rs.NeedTranscript(),
        rs.ModelFailed("i", "overloaded", True, "", usage=usage),
        rs.ModelFailed("i", "rate_limited", True, "", retry_after_ms=5, usage=usage),
        rs.ModelFailed("i", "invalid_request", False, "", usage=usage),
        rs.Declined(DeclineReason.UNAVAILABLE),
        rs.Undecodable("?"),
        rs.ModelReplied("i", b"other", b"[]", "end_turn", Usage(1, 1)),
    )
    if driver.run.model is not None:
        play.old_requests.append(driver.run.model.request_id)
    changes = {"request_id": play.old_requests[second % len(play.old_requests)]} if second > 5 else {}
    body = bodies[first % len(bodies)]
    if changes and isinstance(body, (rs.ModelReplied, rs.ModelFailed)):
        body = rs.ModelFailed("i", "late", True, "", usage=Usage())
    driver.model_result(body, **changes)


def tool_outcome(play: Play, first: int, second: int) -> None:
    driver = play.driver
    if not driver.run.calls:
        return
    call = driver.run.calls[second % len(driver.run.calls)]
    kinds = list(FailureKind)
    bodies: tuple[rs.ResultBody, ...] = (
        rs.Completed(b'"ok"'),
        rs.Completed(b'{"id":%d}' % second),
        rs.Completed(b'"no"', is_error=True),
        rs.Completed(b"\xff"),
        rs.Started(driver.now_ms + 2_000),
        rs.Suspect(),
        rs.Failed(kinds[second % len(kinds)], "?"),
        rs.Declined(list(DeclineReason)[second % 4], ""),
        rs.Undecodable("?"),
    )
    if call.attempt is not None:
        play.old_requests.append(call.attempt.request_id)
    changes = {"request_id": play.old_requests[first % len(play.old_requests)]} if second > 5 else {}
    driver.tool_result(call.call_id, bodies[first % len(bodies)], **changes)


def reconciliation(play: Play, first: int, second: int) -> None:
    driver = play.driver
    asked = [call for call in driver.run.calls if call.reconciliation is not None]
    if not asked:
        return
    bodies: tuple[rs.ResultBody, ...] = (
        rs.Reconciled(Answer.HAPPENED, b'"m"'),
        rs.Reconciled(Answer.DID_NOT_HAPPEN),
        rs.Reconciled(Answer.UNKNOWN),
        rs.Failed(FailureKind.EXCEPTION, "?"),
        rs.Declined(DeclineReason.UNAVAILABLE),
    )
    driver.answered(asked[second % len(asked)].call_id, bodies[first % len(bodies)])


def decision(play: Play, first: int, second: int) -> None:
    driver = play.driver
    names = [call.call_id for call in driver.run.calls] or ["none"]
    token = None if first < 6 else "forged"
    verdict = list(Verdict)[second % 5]
    driver.verdict(names[first % len(names)], verdict, token=token, result=b'"by hand"')


def time_passes(play: Play, first: int, second: int) -> None:
    driver = play.driver
    driver.now_ms += (1, 500, 5_000, 4_000_000)[first % 4]
    if second % 2 and next_due_ms(driver.run) is not None:
        driver.timer()
    else:
        driver.start()


def interference(play: Play, first: int, second: int) -> None:
    driver = play.driver
    match first % 4:
        case 0:
            driver.command(Cancel("x"))
        case 1:
            driver.command(Resume(message="go on" if second % 2 else None, extra_turns=1 + second))
        case 2:
            driver.command(Signal("news"))
        case _:
            driver.may_start = not driver.may_start


ACTIONS: tuple[Act, ...] = (
    reply,
    reply,
    reply,
    model_trouble,
    tool_outcome,
    tool_outcome,
    tool_outcome,
    reconciliation,
    decision,
    time_passes,
    interference,
)
STEPS = st.lists(
    st.tuples(st.integers(0, len(ACTIONS) - 1), st.integers(0, 8), st.integers(0, 7)), max_size=50
)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS)
def test_whatever_happens_the_run_stays_sound(make_driver: Callable[..., Any], steps: list[Step]) -> None:
    """State is the fold, transcript valid, budget kept, terminal final, one result a call, one outcome an
    end.
    """
    driver = make_driver()
    driver.price = Price(3_000, 15_000, 3_750, 300)
    driver.submit(budget=BUDGET)
    play = Play(driver)
    play.check(None)
    for step in steps:
        play.act(step)
    check_licences(driver.events)
    check_transcript(driver.messages, is_asking=False)
