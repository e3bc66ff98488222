"""Decisions of people: the first valid one counts, once; every other is told why it does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from perdure import Agent, ApprovalRule, tool
from perdure.processors.machine.inputs import MachineSettings
from perdure.schemas.commands import Cancel
from perdure.schemas.events import DecisionRecorded
from perdure.testing import ScriptedModel, TestBed, calls, fails, use

RAN: Counter[str] = Counter()


@tool(effect="non_idempotent", needs_approval=True)
def pay(to: str) -> str:
    """Pay somebody."""
    RAN[to] += 1
    return f"paid {to}"


AGENT = Agent("cashier", model="m", tools=[pay])


@pytest.fixture(autouse=True)
def fresh() -> None:
    RAN.clear()


def bed_of(*script: object, machine: MachineSettings | None = None) -> TestBed:
    turns = script or (calls(use("pay", "a", to="Ada"), use("pay", "b", to="Bob")), "done")
    return TestBed(AGENT, model=ScriptedModel(list(turns)), machine=machine)  # type: ignore[arg-type]


def test_the_same_decision_twice_is_answered_once() -> None:
    """A decision that is sent again under its command id changes nothing and is told nothing new."""
    with bed_of() as bed:
        run = bed.submit("go")
        bed.settle()
        run.decide("a", "approve", command_id="once")
        run.decide("a", "approve", command_id="once")
        bed.settle()
        run.decide("a", "approve", command_id="once")
        bed.settle()
        assert RAN == {"Ada": 1}
        assert len(run.bodies(DecisionRecorded)) == 1
        assert run.rejections == []


@pytest.mark.parametrize("first", ["approve", "reject"])
@pytest.mark.parametrize("second", ["approve", "reject", "ran"])
def test_the_first_valid_decision_wins(first: str, second: str) -> None:
    """Whoever comes second, in whatever sense, is rejected, also while the first still takes effect."""
    with bed_of() as bed:
        run = bed.submit("go")
        bed.settle()
        token = run.pending[0].token
        bed.crash("tool-executor")
        run.decide("a", first)
        run.decide("a", second, token=token, result="x")
        bed.settle()
        bed.add("tool-executor")
        bed.settle()
        run.decide("a", second, token=token, result="x")
        bed.settle()
        assert dict(RAN) == ({"Ada": 1} if first == "approve" else {})
        [recorded] = run.bodies(DecisionRecorded)
        assert recorded.verdict == first
        early = "not_pending" if first == "approve" else "already_decided"
        assert run.rejections == [early, "already_decided"]
        assert [each.call_id for each in run.pending] == ["b"]


def test_each_decision_that_does_not_count_has_its_own_stable_reason() -> None:
    """Wrong token, wrong call, wrong verdict: state and question stay, and the reason says which it was."""
    with bed_of() as bed:
        run = bed.submit("go")
        bed.settle()
        tokens = {each.call_id: each.token for each in run.pending}
        before = (run.state, [each.token for each in run.pending])
        run.decide("a", "approve", token=tokens["b"])
        run.decide("a", "approve", token="")
        run.decide("a", "approve", token="\N{SNOWMAN}")
        run.decide("nobody", "approve", token=tokens["a"])
        run.decide("a", "ran", result="x")
        run.decide("a", "give_up")
        bed.settle()
        assert run.rejections == [
            "token_mismatch",
            "token_forged",
            "token_forged",
            "unknown_call",
            "verdict_not_allowed",
            "verdict_not_allowed",
        ]
        assert (run.state, [each.token for each in run.pending]) == before
        assert RAN == {}


def test_a_decision_before_the_question_is_told_so_and_does_not_decide_it() -> None:
    """A decision about a call that nobody asked about yet is rejected; the question comes all the same."""
    with bed_of() as bed:
        run = bed.submit("go")
        run.decide("a", "approve", token="guessed")
        bed.settle()
        assert run.rejections == ["unknown_call"]
        assert [each.call_id for each in run.pending] == ["a", "b"]


@pytest.mark.parametrize("late_by_s", [0, 1, 3_600])
def test_a_decision_after_its_time_out_is_rejected(late_by_s: int) -> None:
    """The question's deadline is the last moment; the run has timed out and says so to whoever is late."""
    with bed_of(machine=MachineSettings(approval_timeout_ms=60_000)) as bed:
        run = bed.submit("go")
        bed.until(lambda: run.pending)
        token = run.pending[0].token
        bed.advance(62 + late_by_s)
        assert run.state == "timed_out"
        run.decide("a", "approve", token=token)
        bed.settle()
        assert run.rejections == ["decision_expired"]
        assert run.pending == []
        assert RAN == {}


def test_a_decision_after_the_cancel_is_rejected() -> None:
    """Also one that was sent in the same instant: the log's order decides."""
    with bed_of() as bed:
        run = bed.submit("go")
        bed.settle()
        token = run.pending[0].token
        run.send(Cancel("enough"))
        run.decide("a", "approve", token=token)
        bed.settle()
        run.decide("b", "approve", token=token)
        bed.settle()
        assert run.state == "cancelled"
        assert run.rejections == ["run_cancelled", "run_cancelled"]
        assert RAN == {}


def test_the_token_of_an_ended_execution_decides_nothing_in_the_next() -> None:
    """After a resume the calls are closed; a decision that comes then finds nothing to decide."""
    with bed_of() as bed:
        run = bed.submit("go")
        bed.settle()
        token = run.pending[0].token
        run.cancel()
        bed.settle()
        run.resume()
        run.decide("a", "approve", token=token)
        bed.settle()
        assert run.state == "completed"
        assert RAN == {}
        [reason] = run.rejections
        assert reason in {"already_decided", "unknown_call", "run_terminal"}


@pytest.mark.parametrize("failures", [1, 5, 21])
def test_an_approval_stays_consumed_through_failures_of_the_model_that_follow(failures: int) -> None:
    """Approved, executed, then the model fails again and again: nothing is asked or executed twice."""
    script = [calls(use("pay", "a", to="Ada")), *[fails("provider_error")] * failures, "done"]
    with bed_of(*script) as bed:
        run = bed.submit("go")
        bed.settle()
        run.decide("a", "approve")
        bed.settle()
        if failures > MachineSettings().model_failures_max:
            assert (run.state, run.code) == ("failed", "model_failures_exceeded")
            run.resume()
            bed.settle()
        assert run.state == "completed"
        assert RAN == {"Ada": 1}
        assert len(run.bodies(DecisionRecorded)) == 1
        assert run.kinds.count("ApprovalRequested") == 1


@pytest.mark.parametrize(
    ("point", "nth", "crashed"),
    [
        ("orchestrator.before_commit", 1, "orchestrator"),
        ("orchestrator.after_commit", 1, "orchestrator"),
        ("executor.before_claim", 1, "tool-executor"),
    ],
)
def test_an_approval_survives_a_crash_before_the_tool_starts(
    die_at: Callable[..., None], point: str, nth: int, crashed: str
) -> None:
    """Approve, then a crash before the tool starts: it runs once, and nobody is asked again."""
    with bed_of(calls(use("pay", "a", to="Ada")), "done") as bed:
        run = bed.submit("go")
        bed.settle()
        die_at(point, nth)
        run.decide("a", "approve")
        bed.settle()
        assert not any(worker.role.value == crashed for worker in bed.workers)
        bed.add(crashed)
        bed.settle()
        assert run.state == "completed"
        assert RAN == {"Ada": 1}
        assert len(run.bodies(DecisionRecorded)) == 1
        assert run.kinds.count("ApprovalRequested") == 1


LIMITED = Agent(
    "limited",
    model="m",
    tools=[
        tool(effect="non_idempotent", needs_approval={"properties": {"to": {"const": "Ada"}}}, name="give")(
            pay.function
        ),
        tool(effect="idempotent_write", name="erase")(pay.function),
    ],
    approvals=[ApprovalRule("er*", arguments={"properties": {"to": {"pattern": "^B"}}})],
    approval_timeout_s=3_600,
)


def test_only_calls_that_a_condition_or_a_rule_fits_wait_for_a_person() -> None:
    """The rest of the turn runs meanwhile; each question names who would carry it out, and its deadline."""
    script = calls(
        use("give", "a", to="Ada"), use("give", "c", to="Cy"), use("erase", "b", to="Bob"),
        use("erase", "d", to="Dan"),
    )  # fmt: skip
    with TestBed(LIMITED, model=ScriptedModel([script, "done"])) as bed:
        run = bed.submit("go")
        bed.settle()
        assert dict(RAN) == {"Cy": 1, "Dan": 1}
        assert sorted(each.call_id for each in run.pending) == ["a", "b"]
        for each in run.pending:
            assert each.recipient is not None
            assert each.recipient.executor == "function"
            assert each.deadline_ms == each.requested_ms + 3_600_000
        run.decide("a", "approve")
        run.decide("b", "reject", message="keep it")
        bed.settle()
        assert dict(RAN) == {"Cy": 1, "Dan": 1, "Ada": 1}
        assert [each["tool_use_id"] for each in run.results] == ["a", "c", "b", "d"]
        assert run.state == "completed"


def test_an_approval_that_times_out_ends_honestly_and_can_be_resumed() -> None:
    """The free call's result is kept, the other was not executed, and the model is asked a valid question."""
    script = calls(use("give", "a", to="Ada"), use("give", "c", to="Cy"))
    with TestBed(LIMITED, model=ScriptedModel([script, "done"])) as bed:
        run = bed.submit("go")
        bed.settle()
        bed.advance(3_700)
        assert (run.state, run.code) == ("timed_out", "approval")
        run.resume()
        bed.settle()
        assert run.state == "completed"
        assert [each.get("is_error", False) for each in run.results] == [True, False]
        assert "not executed" in str(run.results[0])
        assert dict(RAN) == {"Cy": 1}


@pytest.mark.parametrize("crashed", [None, "orchestrator", "tool-executor"])
def test_edited_arguments_are_what_is_executed_and_what_the_model_is_told(crashed: str | None) -> None:
    """Across crashes too; the assistant's message is sent as it was said."""
    with bed_of(calls(use("pay", "a", to="Ada")), "done") as bed:
        run = bed.submit("go")
        bed.settle()
        run.decide("a", "approve", arguments={"to": 5})
        run.decide("a", "approve", arguments={"to": "Bob"}, by="Eve")
        if crashed:
            bed.restart(crashed)
        bed.settle()
        assert run.rejections == ["invalid_arguments"]
        assert dict(RAN) == {"Bob": 1}
        assert run.messages[1]["content"][0]["input"] == {"to": "Ada"}
        assert '{"to":"Bob"}' in run.messages[2]["content"][-1]["text"]
        [recorded] = run.bodies(DecisionRecorded)
        assert (recorded.arguments, recorded.decided_by) == (b'{"to":"Bob"}', "Eve")
        assert run.state == "completed"
