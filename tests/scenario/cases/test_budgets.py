"""What a run has used stays used: across retries, crashes and resumes, on whatever worker."""

from __future__ import annotations

from functools import partial

import pytest

from perdure import Agent, tool
from perdure.schemas.values import Budget, Usage
from perdure.testing import Asked, Failure, Reply, ScriptedModel, TestBed, TestRun, calls, fails, use

SPENT = Usage(input_tokens=1_000, output_tokens=100)
BUDGET = Budget(input_tokens=8_000)


@tool(effect="read_only")
def look(at: int) -> str:
    """Look."""
    return f"saw {at}"


AGENT = Agent("looker", model="m", tools=[look])


def bed_of(seed: int = 1, fail_every: int = 0) -> TestBed:
    def answer(asked: Asked) -> Reply | Failure:
        if fail_every and asked.number % fail_every == 0:
            return fails("overloaded", usage=None if asked.number % 2 else SPENT, after="half")
        return calls(use("look", at=asked.number), usage=SPENT)

    return TestBed(AGENT, model=ScriptedModel(answer), seed=seed)


@pytest.mark.parametrize("crashed", [None, "orchestrator", "model-caller"])
@pytest.mark.parametrize("keeps_disk", [True, False])
def test_a_resume_elsewhere_continues_the_totals_and_does_not_reset_the_budget(
    crashed: str | None, keeps_disk: bool
) -> None:
    """A run that its budget ended is at its end on every worker, until somebody grants more."""
    with bed_of() as bed:
        run = bed.submit("go", budget=BUDGET)
        bed.settle()
        assert (run.state, run.code) == ("failed", "budget_exceeded")
        used = run.usage
        assert used.input_tokens <= 8_000
        if crashed:
            bed.restart(crashed, keeps_disk=keeps_disk)
        run.resume()
        bed.settle()
        # the same budget: not one more question
        assert (run.state, run.code) == ("failed", "budget_exceeded")
        assert run.usage == used
        run.resume(budget=Budget(input_tokens=16_000))
        bed.settle()
        assert (run.state, run.code) == ("failed", "budget_exceeded")
        assert used.input_tokens < run.usage.input_tokens <= 16_000
        assert [each.usage.input_tokens for each in run.outcomes] == sorted(
            each.usage.input_tokens for each in run.outcomes
        )
        assert run.usage.input_tokens == 1_000 * len(bed.model.asked)


def has_asked(bed: TestBed, run: TestRun, count: int) -> bool:
    return len(bed.model.asked) >= count or run.outcome is not None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("crashed", ["model-caller", "orchestrator"])
def test_a_budget_holds_through_failures_of_unknown_cost_and_kills_in_mid_stream(
    seed: int, crashed: str
) -> None:
    """Recorded plus reserved never exceeds the budget (the bed checks it after every event)."""
    with bed_of(seed, fail_every=3) as bed:
        run = bed.submit("go", budget=BUDGET)
        for asked in (2, 4):
            bed.until(partial(has_asked, bed, run, asked))
            bed.restart(crashed)
        bed.settle()
        assert (run.state, run.code) == ("failed", "budget_exceeded")
        assert run.usage.input_tokens <= 8_000
