"""Forks: what a new run takes over from where another one stood, and what can not be forked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from perdure.processors.machine.apply_calls import CALL_ID_HASH_BYTES, hash_call_id
from perdure.processors.machine.inputs import CommandInput, RefuseInput, Source
from perdure.processors.machine.transcript import extend_digest, start_digest
from perdure.schemas import results as rs
from perdure.schemas.commands import Command, Fork, Resume
from perdure.schemas.events import RunCreated
from perdure.schemas.requests import ToolRequest
from perdure.schemas.values import Budget, Effect, Provenance, RunState, Usage
from tests.unit.machine.conftest import Driver, agent, use

FORK = "run-1~x"


def lived() -> Driver:
    """A run of three turns: two calls, one call, an answer."""
    driver = Driver()
    driver.submit()
    driver.reply(use("look", "a", n=1), use("send", "b"))
    driver.tool_result("a", rs.Completed(b'"seen"', is_error=True))
    driver.tool_result("b", rs.Completed(b'"sent"'))
    driver.reply({"type": "text", "text": "hm"}, use("look", "c", n=3))
    driver.tool_result("c", rs.Completed(b'[{"type":"text","text":"more"}]'))
    driver.say("done")
    return driver


def source_at(driver: Driver, turn: int) -> Source:
    """The source as the host gives it: the messages up to the assistant's in ``turn``, and the next one."""
    count = 2 * turn
    following = driver.messages[count] if len(driver.messages) > count else None
    return Source(driver.run, tuple(driver.messages[:count]), following)


def forked(source: Source | None, body: Fork, run_id: str = FORK, **changes: Any) -> Driver:
    driver = Driver()
    driver.run_id, driver.source = run_id, source
    for name, value in changes.items():
        setattr(driver, name, value)
    driver.command(body)
    return driver


def refused(driver: Driver) -> str:
    assert driver.last.events == ()
    (refusal,) = driver.last.outputs
    assert isinstance(refusal, RefuseInput)
    return refusal.code


@pytest.mark.parametrize("turn", [1, 2])
def test_a_fork_stands_where_its_source_stood_after_the_turn(turn: int) -> None:
    """Turn, digest, ids and results are the source's; nothing of it is dispatched again."""
    source = lived()
    fork = forked(source_at(source, turn), Fork(turn=turn))
    assert fork.run.state is RunState.RUNNING
    assert fork.run.turn == turn + 1
    assert fork.requests(ToolRequest) == []
    told = json.loads(fork.messages[-1])["content"]
    assert told == json.loads(source.messages[2 * turn])["content"]
    whole = (*source.messages[: 2 * turn], *fork.messages)
    assert fork.run.digest == extend_digest(start_digest("d" * 64), *whole)
    ids = ["a", "b", "c"][: 2 if turn == 1 else 3]
    assert fork.run.seen_call_ids == b"".join(map(hash_call_id, ids))
    assert len(fork.run.seen_call_ids) == CALL_ID_HASH_BYTES * len(ids)
    created = fork.events[0].body
    assert isinstance(created, RunCreated)
    assert created.fork is not None
    assert [call.is_error for call in created.fork.calls] == ([True, False] if turn == 1 else [False])
    assert created.fork.calls[-1].arguments == (b"{}" if turn == 1 else b'{"n":3}')


def test_the_calls_of_a_fork_have_their_results_and_can_not_be_executed() -> None:
    """They are done from the first event on, whatever effect they had in the source."""
    source = lived()
    fork = forked(source_at(source, 1), Fork(turn=1), may_start=False)
    assert fork.run.state is RunState.QUEUED
    assert all(call.is_done and call.effect is Effect.READ_ONLY for call in fork.run.calls)
    assert fork.run.shared is not None
    assert (fork.run.shared.source, fork.run.shared.turn, fork.run.shared.message_count) == ("run-1", 1, 2)


def test_a_completed_run_is_continued_at_its_end_with_a_message() -> None:
    """No turn given: at the end. The message is the next user message."""
    source = lived()
    fork = forked(source_at(source, 3), Fork(message="and \ud800 then?"))
    assert fork.last_message() == {"role": "user", "content": [{"type": "text", "text": "and \ufffd then?"}]}
    assert fork.run.turn == 4


def test_a_fork_at_the_turn_that_its_source_stands_in_takes_the_results_from_its_row() -> None:
    """The source has all results of the turn and has not asked on: the fork has them in call order."""
    source = Driver(agent(max_turns=1))
    source.submit()
    source.ask_tools("look", "put")
    assert source.run.state is RunState.FAILED
    fork = forked(Source(source.run, tuple(source.messages), None), Fork())
    told = fork.last_message()["content"]
    assert [block["tool_use_id"] for block in told] == ["t10", "t11"]
    assert all(block["is_error"] for block in told)


def test_a_forks_turns_budget_deadline_and_provenance_are_its_own() -> None:
    """max_turns counts its own turns, narrowed by the agent; usage begins at nothing."""
    source = lived()
    body = Fork(turn=1, max_turns=2, budget=Budget(output_tokens=9_000), deadline_ms=2_000_000)
    driver = Driver()
    driver.run_id, driver.source = FORK, source_at(source, 1)
    who = Provenance("other")
    driver.feed(CommandInput(FORK, "c", Command(body, provenance=who)))
    assert driver.run.max_turns == 3
    assert driver.run.budget == Budget(output_tokens=9_000)
    assert driver.run.deadline_ms == 2_000_000
    assert driver.run.provenance == who
    assert driver.run.usage == Usage()
    assert forked(source_at(source, 1), Fork(turn=1, max_turns=99)).run.max_turns == 6
    assert forked(source_at(source, 1), Fork(turn=1)).run.provenance == source.run.provenance


@pytest.mark.parametrize(
    ("run_id", "code"),
    [
        ("run-1", "invalid_run_id"),
        ("run-1~", "invalid_run_id"),
        ("run-1~c.1.0", "invalid_run_id"),
        ("run-1~" + "x" * 65, "invalid_run_id"),
        ("run 1~x", "invalid_run_id"),
        ("run-1" + "~x" * 9, "too_many_generations"),
    ],
)
def test_an_id_that_no_fork_may_have_is_refused(run_id: str, code: str) -> None:
    """A fork is named after its source, with a suffix that no child has, in so many generations."""
    assert refused(forked(source_at(lived(), 1), Fork(turn=1), run_id)) == code


def test_as_many_generations_as_allowed_are_forked() -> None:
    """The bound is reached at the bound, not before."""
    assert forked(source_at(lived(), 1), Fork(turn=1), "run-1" + "~x" * 8).run.turn == 2


NOT_FORKED: list[tuple[str, Callable[[], Driver]]] = [
    ("unknown_source", lambda: forked(None, Fork(turn=1))),
    ("no_such_turn", lambda: forked(Source(lived().run, None, None), Fork(turn=9))),
    ("unknown_agent", lambda: forked(source_at(lived(), 1), Fork(turn=1), definition=None)),
    ("empty_message", lambda: forked(source_at(lived(), 1), Fork(turn=1, message=" "))),
    ("message_too_large", lambda: forked(source_at(lived(), 1), Fork(turn=1, message="x" * (256 << 10)))),
    ("message_needed", lambda: forked(source_at(lived(), 3), Fork())),
    ("invalid_max_turns", lambda: forked(source_at(lived(), 1), Fork(turn=1, max_turns=0))),
    ("deadline_passed", lambda: forked(source_at(lived(), 1), Fork(turn=1, deadline_ms=1_000_000))),
    ("price_unknown", lambda: forked(source_at(lived(), 1), Fork(turn=1, budget=Budget(cost_nano_usd=1)))),
]


@pytest.mark.parametrize(("code", "ask"), NOT_FORKED, ids=[code for code, _ in NOT_FORKED])
def test_what_can_not_be_forked_is_refused_with_a_reason(code: str, ask: Callable[[], Driver]) -> None:
    """Nothing is created; each fault has its own stable code."""
    assert refused(ask()) == code


def test_the_bounds_of_a_fork_hold_exactly() -> None:
    """One turn, a deadline a millisecond away and a message of just the size are taken."""
    source = lived()
    assert forked(source_at(source, 1), Fork(turn=1, max_turns=1)).run.max_turns == 2
    assert forked(source_at(source, 1), Fork(turn=1, deadline_ms=1_000_001)).run.deadline_ms == 1_000_001
    message = "x" * ((256 << 10) - 2)
    assert forked(source_at(source, 1), Fork(turn=1, message=message)).run.state is RunState.RUNNING


def test_a_turn_whose_calls_have_no_results_is_not_forked(running: Any) -> None:
    """Where the source still waits for a result there is nothing to answer the model with."""
    running.ask_tools("look")
    source = Source(running.run, tuple(running.messages), None)
    assert refused(forked(source, Fork(turn=1))) == "turn_not_finished"


def test_a_source_that_waits_may_be_forked_at_an_earlier_turn(running: Any) -> None:
    """Only the turn that is asked for has to be over."""
    running.ask_tools("look")
    running.tool_result("t10", rs.Completed(b'"x"'))
    running.ask_tools("buy")
    fork = forked(source_at(running, 1), Fork(turn=1))
    assert fork.last_message()["content"][0]["content"] == "x"


def test_a_fork_can_be_cancelled_and_resumed_as_any_run() -> None:
    """A fork that failed is taken up again where it stands."""
    fork: Any = forked(source_at(lived(), 2), Fork(turn=2))
    fork.reply(stop_reason="refusal")
    assert fork.run.closed.code == "refusal"
    fork.command(Resume())
    assert fork.run.state is RunState.RUNNING
    assert fork.run.turn == 3
    assert fork.run.execution == 1


def test_a_budget_counts_the_whole_transcript_that_a_fork_begins_with() -> None:
    """The first request of a fork is as large as what it shares: its worst case is reserved."""
    source = lived()
    size = sum(map(len, source.messages[:4]))
    fork = forked(source_at(source, 2), Fork(turn=2, budget=Budget(input_tokens=1_000_000)))
    assert fork.run.model is not None
    assert fork.run.model.reserved.input_tokens > size
    tight = forked(source_at(source, 2), Fork(turn=2, budget=Budget(input_tokens=size)))
    assert tight.run.closed is not None
    assert tight.run.closed.code == "budget_exceeded"
