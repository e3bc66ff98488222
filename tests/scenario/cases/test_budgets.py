"""Budgets: of an agent, narrowed by a submit, in tokens and in money."""

from __future__ import annotations

import pytest

from perdure import Agent, Budget
from perdure.connectors.agent import UnusableAgent
from perdure.connectors.client import Client
from perdure.connectors.client_errors import NoAnswerYet
from perdure.connectors.refusals import RunRefused
from perdure.connectors.settings import Settings
from perdure.testing import ScriptedModel, TestBed
from perdure.topics.model_log import ModelLog

SMALL = Budget(output_tokens=2_000)


class SteppingClock:
    """Each look at the boot clock moves it, so that every wait ends."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def wall_ms(self) -> int:
        return 1_700_000_000_000

    def boot_s(self) -> float:
        self.now_s += 0.25
        return self.now_s


def bed_of(budget: Budget | None) -> TestBed:
    return TestBed(Agent("a", model="nobody-s-model", budget=budget), model=ScriptedModel(["done"] * 3))


def test_the_budget_of_an_agent_holds_for_each_of_its_runs() -> None:
    """It is a part of the definition, so that what a run may use is pinned with the rest."""
    with bed_of(SMALL) as bed:
        run = bed.submit("go")
        bed.settle()
        assert bed.history.runs[run.run_id].budget == SMALL
        assert run.model_requests[0].max_tokens == SMALL.output_tokens
    assert Agent("a", model="m", budget=SMALL).digest != Agent("a", model="m").digest


def test_a_submit_narrows_the_budget_and_never_widens_it() -> None:
    """Kind by kind the tighter bound holds."""
    with bed_of(Budget(output_tokens=2_000, input_tokens=50_000)) as bed:
        run = bed.submit("go", budget=Budget(output_tokens=9_000, input_tokens=9_000))
        bed.settle()
        assert bed.history.runs[run.run_id].budget == Budget(output_tokens=2_000, input_tokens=9_000)


def test_a_budget_in_money_without_a_price_is_refused_where_its_sender_sees_it() -> None:
    """There is no run; whoever asked is told why, and may ask again with another budget."""
    with bed_of(None) as bed:
        run = bed.submit("go", run_id="order-1", budget=Budget(cost_nano_usd=1_000_000))
        bed.settle()
        assert [letter.code for letter in bed.dead_letters] == ["price_unknown"]
        with pytest.raises(RunRefused, match="price_unknown") as refused:
            bed.client.accepted("order-1")
        assert refused.value.reason == "price_unknown"
        assert run.state is None
        again = bed.submit("go", run_id="order-1", budget=Budget(output_tokens=100_000))
        bed.settle()
        bed.client.accepted("order-1")
        assert again.output == "done"


def test_a_mended_submit_is_not_told_of_the_refusal_before_it() -> None:
    """Same run id, another command: what was set aside earlier says nothing about it."""
    with bed_of(None) as bed:
        bed.submit("go", run_id="order-1", budget=Budget(cost_nano_usd=1_000_000))
        bed.settle()
        bed.crash("orchestrator")
        settings = Settings(namespace=bed.names.prefix, partitions=bed.partitions)
        client = Client(settings, log=ModelLog(bed.cluster), clock=SteppingClock())
        client.submit("a", "go", run_id="order-1")
        with pytest.raises(NoAnswerYet):
            client.accepted("order-1", timeout_s=5)
        refusal = client.refusal("order-1")
        assert refusal is not None
        assert refusal.code == "price_unknown"


def test_a_budget_that_no_run_could_begin_with_is_a_mistake() -> None:
    """Zero tokens of a kind that every turn needs."""
    with pytest.raises(UnusableAgent):
        Agent("a", model="m", budget=Budget(input_tokens=0))
