"""What the orchestrator does now and then: keep offsets alive, delete what was consumed, stay up to date."""

from __future__ import annotations

import pytest

from perdure.processors.orchestrator.assignment import Phase
from perdure.processors.store_memory import MemoryStores
from perdure.processors.store_rows import meta_from
from perdure.topics.log import Isolation, TopicPartition
from tests.scenario.orchestrator_stage import Stage, Worker

HOUR_MS = 3_600_000


@pytest.fixture
def stage() -> Stage:
    return Stage()


def start(stage: Stage, stores: MemoryStores | None = None, **limits: int) -> Worker:
    worker = stage.worker(stores=stores, **limits)  # type: ignore[arg-type]
    stage.until(lambda: worker.host.phase is Phase.PROCESS)
    return worker


def live_on(stage: Stage, hours: int) -> None:
    """Let time pass in steps that keep the session alive."""
    for _ in range(hours * 720):
        stage.pass_ms(5_000)
        stage.step()


def low(stage: Stage, partition: int) -> int:
    at = TopicPartition(stage.topic("run-results"), partition)
    return stage.client.watermarks(at, Isolation.COMMITTED, 1.0).low


def test_results_are_deleted_when_old_and_consumed(stage: Stage) -> None:
    """Consumed results older than the limit leave run-results; younger ones stay."""
    worker = start(stage, results_kept_ms=3 * HOUR_MS)
    partition = stage.partition("run-1")
    stage.submit("run-1")
    stage.play_to_the_end()
    live_on(stage, 2)
    assert low(stage, partition) == 0
    another = next(f"run-{n}" for n in range(2, 99) if stage.partition(f"run-{n}") == partition)
    stage.submit(another)
    stage.play_to_the_end()
    count = len(stage.records("run-results"))
    live_on(stage, 4)
    assert 0 < low(stage, partition) < stage.committed("run-results", partition)  # type: ignore[operator]
    assert 0 < len(stage.records("run-results")) < count
    worker.stop()
    start(stage)
    stage.settle()
    assert stage.dead_letters() == []
    stage.check_histories()


def test_results_that_were_not_consumed_are_never_deleted(stage: Stage) -> None:
    """Results that lie unread stay, however old they are."""
    worker = start(stage, results_kept_ms=HOUR_MS)
    stage.submit("run-1")
    stage.settle()
    worker.stop()
    stage.reply(stage.model_requests("run-1")[-1], "look_up")
    stage.pass_ms(30 * HOUR_MS)
    start(stage, results_kept_ms=HOUR_MS)
    stage.until(lambda: "result-1" in {event.cause for event in stage.events("run-1")})
    stage.check_histories()


def test_offsets_of_idle_partitions_are_committed_again(stage: Stage) -> None:
    """A partition nothing happens in commits its offsets twice a day, so that they do not expire."""
    worker = start(stage)
    stage.submit("run-1")
    stage.play_to_the_end()
    before = worker.host.counts["transactions"]
    live_on(stage, 13)
    assert worker.host.counts["transactions"] == before + 1
    for partition in range(stage.partitions):
        assert stage.committed("run-results", partition) is not None


def test_rows_know_when_they_were_last_up_to_date(stage: Stage) -> None:
    """While a partition is owned its rows are up to date, and say so although nothing happens."""
    stores = MemoryStores()
    start(stage, stores)
    live_on(stage, 1)
    for partition in range(stage.partitions):
        value = stores.open(partition).get(b"m")
        assert value is not None
        assert stage.cluster.now_ms - meta_from(value).caught_up_ms < 120_000
