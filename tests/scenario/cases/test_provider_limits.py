"""The limits of the provider's key, kept by all model-callers together."""

from __future__ import annotations

import pytest

from perdure import Agent
from perdure.processors.rate_limits import BURST_S, RateLimits
from perdure.schemas.events import ModelAttemptEnded
from perdure.schemas.values import Usage
from perdure.testing import Asked, Reply, ScriptedModel, TestBed, fails, says
from perdure.testing.script import Turn

AGENT = Agent("a", model="m", max_tokens=1_000)
RUNS = 40


class Times:
    """A model that notes when it is asked."""

    def __init__(self, answer: Turn) -> None:
        self.asked_ms: list[int] = []
        self.bed: TestBed | None = None
        self._answer = answer

    def __call__(self, asked: Asked) -> Turn:
        assert self.bed is not None
        self.asked_ms.append(self.bed.clock.wall_ms())
        return self._answer

    def most_in(self, seconds: float) -> int:
        """The most questions within any span of so many seconds."""
        span = seconds * 1000
        return max(sum(begun <= each < begun + span for each in self.asked_ms) for begun in self.asked_ms)


@pytest.mark.parametrize("callers", [1, 2])
def test_requests_keep_to_the_limit_however_many_model_callers_there_are(callers: int) -> None:
    """Forty runs at thirty a minute take more than a minute, whoever owns which partition; none fails."""
    times = Times(says("done"))
    with TestBed(
        AGENT, model=ScriptedModel(times), partitions=4, rates=RateLimits(requests_per_min=30)
    ) as bed:
        times.bed = bed
        for _ in range(callers - 1):
            bed.add("model-caller")
        bed.advance(60)
        runs = [bed.submit("go") for _ in range(RUNS)]
        bed.settle()
        assert {run.output for run in runs} == {"done"}
        assert len(times.asked_ms) == RUNS
        assert times.most_in(60) <= 30 + 30 * BURST_S / 60 + 2 * callers
        assert times.asked_ms[-1] - times.asked_ms[0] >= 60_000


def test_tokens_out_are_what_they_turned_out_to_be() -> None:
    """Answers far shorter than max_tokens do not make the others wait as if they were not."""
    short = Reply(("done",), "end_turn", Usage(10, 5))
    times = Times(short)
    rates = RateLimits(output_tokens_per_min=6_000)
    with TestBed(AGENT, model=ScriptedModel(times), rates=rates) as bed:
        times.bed = bed
        runs = [bed.submit("go") for _ in range(RUNS)]
        bed.settle()
        assert {run.output for run in runs} == {"done"}
        assert times.asked_ms[-1] - times.asked_ms[0] < 60_000


def test_a_retry_after_holds_for_every_run_of_the_key() -> None:
    """Told to wait by one answer, the model-caller asks nothing more until then; then all go on."""
    asked_ms: list[int] = []

    def answer(asked: Asked) -> Turn:
        asked_ms.append(bed.clock.wall_ms())
        return fails("rate_limited", retry_after_s=30) if asked.number == 1 else says("done")

    with TestBed(AGENT, model=ScriptedModel(answer), partitions=1) as bed:
        first = bed.submit("go")
        bed.until(lambda: first.bodies(ModelAttemptEnded))
        others = [bed.submit("go") for _ in range(5)]
        bed.settle()
        assert {run.output for run in (first, *others)} == {"done"}
        assert min(asked_ms[1:]) - asked_ms[0] >= 30_000


def test_what_waits_for_the_key_is_not_begun() -> None:
    """A model-caller that is killed with requests waiting leaves them to its successor, without a charge."""
    with TestBed(
        AGENT, model=ScriptedModel(["done"] * 3), partitions=1, rates=RateLimits(requests_per_min=1)
    ) as bed:
        runs = [bed.submit("go") for _ in range(3)]
        bed.until(lambda: any(run.output for run in runs))
        bed.restart("model-caller")
        bed.settle()
        assert {run.output for run in runs} == {"done"}
        assert [run.bodies(ModelAttemptEnded) for run in runs] == [[], [], []]
