"""Timers that are overdue at a restart wait for what lay unread meanwhile."""

from __future__ import annotations

import pytest

from perdure.schemas.values import RunState
from tests.scenario.orchestrator_stage import Stage

OUTAGE_MS = 3 * 3_600_000
OTHERS = 12


@pytest.fixture
def stage() -> Stage:
    return Stage(partitions=1)


def test_result_that_came_in_time_does_not_lose_to_a_timer_that_nobody_fired(stage: Stage) -> None:
    """After an outage longer than the attempt's deadline the waiting answer counts, although much lies
    before it.
    """
    worker = stage.worker()
    stage.submit("run-1")
    stage.settle()
    (request,) = stage.model_requests("run-1")
    worker.kill()
    for number in range(OTHERS):  # more than a batch, so that the answer is not in the first one
        stage.submit(f"other-{number}")
        stage.reply(request, text="a copy that is no longer pending by then")
    stage.pass_ms(OUTAGE_MS)
    stage.worker(batch_inputs_max=1)
    stage.until(lambda: stage.outcomes("run-1") != [])
    assert [outcome.state for outcome in stage.outcomes("run-1")] == [RunState.COMPLETED]
    assert "ModelAttemptEnded" not in stage.kinds("run-1")
    stage.check_histories()


def test_overdue_timers_fire_once_the_inputs_are_read_or_silent(stage: Stage) -> None:
    """Held back is not lost: with nothing more to read the watchdog ends the attempt and asks again."""
    worker = stage.worker()
    stage.submit("run-1")
    stage.settle()
    worker.kill()
    stage.submit("other")
    stage.pass_ms(OUTAGE_MS)
    stage.worker(batch_inputs_max=1)
    stage.until(lambda: len(stage.model_requests("run-1")) > 1)
    assert stage.kinds("run-1")[-2:] == ["ModelAttemptEnded", "TurnStarted"]
    stage.check_histories()
