"""The checker sees what is wrong: each fault is planted into a history that is right without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.checker import DEAD_LETTERS, EVENTS, OUTCOMES, Checker, Verdict, judge
from perdure.schemas.codec import encode
from perdure.schemas.events import (
    ApprovalRequested,
    DecisionRecorded,
    Event,
    EventBody,
    ReconciliationAnswered,
    RunCompleted,
    RunCreated,
    ToolCompleted,
    ToolDispatched,
    TurnStarted,
)
from perdure.schemas.outputs import Outcome
from perdure.schemas.values import Answer, PendingKind, Provenance, ResultSource, RunState, Usage
from perdure.schemas.values import Verdict as Said

RUN, CALL = "r-1", "call-1"
CREATED = RunCreated("a", "1", "d", b'"x"', Provenance(), 5)
TURN = TurnStarted(1, 1, "q-1", 0, 1, 1)
SENT = ToolDispatched(1, CALL, 1, "q-2", 0, 1, 1)
RESULT = ToolCompleted(1, CALL, 1, b'"y"', is_error=False, source=ResultSource.EXECUTED)
END = RunCompleted(b'"z"', "end_turn")
SOUND: tuple[EventBody, ...] = (CREATED, TURN, SENT, RESULT, END)
EXECUTED = f"non_idempotent {RUN} {CALL} 1 key 42"
OUTCOME = Outcome(
    run_id=RUN, execution=0, state=RunState.COMPLETED, agent="a", definition="d", seq=5, output=b'"z"',
    stop_reason="end_turn", code=None, message=None, phase=None, usage=Usage(), turns=1, created_ms=1,
    ended_ms=1, provenance=Provenance(),
)  # fmt: skip


@pytest.fixture
def truth(tmp_path: Path) -> Path:
    return tmp_path / "truth.log"


def judged(
    truth: Path, bodies: tuple[EventBody, ...], executed: list[str], outcomes: int = 1, skip: int = 0
) -> Verdict:
    truth.write_text("".join(f"{line}\n" for line in executed))
    checker = Checker()
    for number, body in enumerate(bodies, 1):
        checker.take(EVENTS, encode(Event(RUN, number + (skip if number > 1 else 0), 1, body)))
    for _ in range(outcomes):
        checker.take(OUTCOMES, encode(OUTCOME))
    checker.take(DEAD_LETTERS, None)
    return judge(checker, truth, [RUN])


def test_a_sound_history_has_no_fault(truth: Path) -> None:
    """One run, one execution, one outcome."""
    verdict = judged(truth, SOUND, [EXECUTED])
    assert verdict.faults == []
    assert (verdict.runs, verdict.executions, verdict.lost, verdict.doubled) == (1, 1, 0, 0)


def test_a_run_that_waits_for_a_person_is_not_lost(truth: Path) -> None:
    """It neither ended nor is it forgotten: somebody is asked."""
    asked = ApprovalRequested(1, CALL, PendingKind.AMBIGUITY, b"{}", (), "t", None)
    verdict = judged(truth, (CREATED, TURN, SENT, asked), [EXECUTED], outcomes=0)
    assert verdict.is_clean
    assert verdict.waiting == 1


@pytest.mark.parametrize(
    ("bodies", "executed", "outcomes", "skip", "fault"),
    [
        (SOUND[:-1], [EXECUTED], 0, 0, "lost"),
        (SOUND, [EXECUTED], 0, 0, "lost"),
        ((), [], 0, 0, "lost"),
        (SOUND, [EXECUTED], 2, 0, "doubled"),
        ((CREATED, TURN, TURN, SENT, RESULT, END), [EXECUTED], 1, 0, "doubled"),
        ((CREATED, TURN, SENT, RESULT, RESULT, END), [EXECUTED], 1, 0, "doubled"),
        (SOUND, [EXECUTED], 1, 1, "history"),
        ((*SOUND, TURN), [EXECUTED], 1, 0, "late"),
        (SOUND, [EXECUTED, EXECUTED], 1, 0, "unlicensed"),
        (SOUND, [EXECUTED, EXECUTED.replace(" 1 ", " 2 ")], 1, 0, "unlicensed"),
        (SOUND, [EXECUTED, EXECUTED.replace("key", "yek")], 1, 0, "key"),
        (SOUND, [], 1, 0, "invented"),
    ],
)
def test_each_planted_fault_is_found(
    truth: Path, bodies: tuple[EventBody, ...], executed: list[str], outcomes: int, skip: int, fault: str
) -> None:
    """Lost, doubled, out of order, late, unlicensed, with another key, or made up."""
    verdict = judged(truth, bodies, executed, outcomes, skip)
    assert fault in {each.partition(":")[0] for each in verdict.faults}


@pytest.mark.parametrize(
    "licence",
    [
        DecisionRecorded(1, CALL, Said.DID_NOT_RUN, "somebody"),
        ReconciliationAnswered(1, CALL, 1, 1, Answer.DID_NOT_HAPPEN, "", None),
    ],
)
def test_a_decision_licenses_one_more_execution_and_not_two(truth: Path, licence: EventBody) -> None:
    """By a person or by a reconciliation tool; it still counts as an effect that happened twice."""
    bodies = (CREATED, TURN, SENT, licence, RESULT, END)
    again = [EXECUTED, EXECUTED.replace(" 1 ", " 2 ")]
    verdict = judged(truth, bodies, again)
    assert verdict.is_clean
    assert verdict.effects_twice == 1
    assert judged(truth, bodies, [*again, EXECUTED.replace(" 1 ", " 3 ")]).unlicensed == 1
