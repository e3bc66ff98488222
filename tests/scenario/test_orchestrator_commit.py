"""The commit path when it is disturbed: nothing is lost, nothing happens twice."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from perdure.processors.orchestrator.assignment import Phase
from perdure.processors.orchestrator.host import SlotTaken
from perdure.processors.store_memory import MemoryStores
from perdure.schemas.commands import Submit
from perdure.topics.log import (
    CommitStatus,
    CommittedOffset,
    ConsumerSpec,
    GroupMetadata,
    Position,
    TopicPartition,
)
from perdure.topics.model_consumer import ModelConsumer
from perdure.topics.model_faults import Api, Fate
from perdure.topics.model_transactional import ModelTransactionalProducer
from tests.scenario.orchestrator_stage import Stage, Worker

RUNS = 12


@pytest.fixture
def stage() -> Stage:
    return Stage()


def submit_all(stage: Stage, count: int = RUNS) -> list[str]:
    run_ids = [f"run-{n}" for n in range(count)]
    for run_id in run_ids:
        stage.submit(run_id)
    return run_ids


def check_all_done(stage: Stage, run_ids: list[str]) -> None:
    """Each run has one outcome, and exactly the requests of an undisturbed life."""
    stage.check_histories()
    assert sorted(outcome.run_id for outcome in stage.outcomes()) == sorted(run_ids)
    for run_id in run_ids:
        assert [request.turn for request in stage.model_requests(run_id)] == [1, 2]
        assert [request.attempt for request in stage.tool_requests(run_id)] == [1]
        assert len(stage.events(run_id)) == 9


def test_undisturbed_life_is_what_the_others_are_compared_with(stage: Stage) -> None:
    """Without any fault, every run takes two model requests, one tool request and nine events."""
    stage.worker()
    run_ids = submit_all(stage)
    stage.play_to_the_end()
    check_all_done(stage, run_ids)


@pytest.mark.parametrize("fate", [Fate.LOST, Fate.UNANSWERED, Fate.HELD])
@pytest.mark.parametrize("api", [Api.PRODUCE, Api.TXN_OFFSETS, Api.END_TXN, Api.INIT])
@pytest.mark.parametrize("nth", [1, 2, 4])
def test_unknown_outcome_of_any_request(stage: Stage, api: Api, fate: Fate, nth: int) -> None:
    """Whichever request goes unanswered, taking effect or not or later, each run still lives one life."""
    worker = stage.worker()
    stage.until(lambda: worker.host.phase is Phase.PROCESS)
    run_ids = submit_all(stage)
    for _ in range(nth):
        stage.step()
        stage.play()
    stage.cluster.faults.inject(api, worker.settings.transactional_id, fate)
    for _ in range(80):
        stage.step()
        stage.play()
        stage.pass_ms(50)
        stage.cluster.faults.release()
    stage.play_to_the_end()
    check_all_done(stage, run_ids)


@pytest.mark.parametrize("held_ms", [100, 3_000])
def test_markers_that_come_late(stage: Stage, held_ms: int) -> None:
    """Markers that reach partitions and offsets late and one by one neither lose nor double anything."""
    stage.cluster.faults.marker_delay_ms = held_ms
    stage.worker()
    run_ids = submit_all(stage)
    stage.play_to_the_end(ms_max=600_000)
    check_all_done(stage, run_ids)


def test_records_that_leave_after_their_offsets(stage: Stage) -> None:
    """Records that reach the log only at commit, after the offsets were acknowledged, are all there."""
    stage.cluster.faults.late_records = True
    stage.worker()
    run_ids = submit_all(stage)
    stage.play_to_the_end()
    check_all_done(stage, run_ids)


@pytest.mark.parametrize("steps", range(1, 9))
@pytest.mark.parametrize("keeps_disk", [True, False])
def test_killed_at_any_step(stage: Stage, steps: int, keeps_disk: bool) -> None:
    """Killed after any number of steps, started again with its disk or without: each run lives one life."""
    stores = MemoryStores()
    run_ids = submit_all(stage)
    for life in range(4):
        worker = stage.worker(stores=stores if keeps_disk else None)
        for _ in range(steps + life):
            stage.step()
            stage.play()
        worker.kill()
    stage.worker(stores=stores if keeps_disk else None)
    stage.play_to_the_end()
    check_all_done(stage, run_ids)


class Died(Exception):
    """Stands for SIGKILL at a crash point."""


@pytest.mark.parametrize("point", ["orchestrator.before_commit", "orchestrator.after_commit"])
@pytest.mark.parametrize("nth", [1, 2, 4])
def test_killed_around_the_commit(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, point: str, nth: int
) -> None:
    """Killed between offsets and commit, or between commit and rows: each run lives one life."""
    reached = 0

    def crash_point(name: str) -> None:
        nonlocal reached
        reached += name == point
        if name == point and reached == nth:
            raise Died

    monkeypatch.setattr("perdure.processors.orchestrator.transaction.crash_point", crash_point)
    stores = MemoryStores()
    worker = stage.worker(stores=stores)
    run_ids = submit_all(stage)

    def go_on() -> None:
        for _ in range(1_000):
            stage.step()
            stage.play()

    with pytest.raises(Died):
        go_on()
    worker.kill()
    stage.worker(stores=stores)
    stage.play_to_the_end()
    check_all_done(stage, run_ids)


def test_commit_that_lands_between_the_questions_of_the_successor(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A predecessor whose offsets were taken may still commit: its successor waits, then asks for the end.

    Its records reach the log last, as they may; a successor that had asked for the end of run-events first
    would go on from the new offsets without those events.
    """
    stage.cluster.faults.late_records = True
    first = stage.worker("a")
    stage.until(lambda: first.host.phase is Phase.PROCESS)
    run_ids = submit_all(stage)
    successors: list[Worker] = []

    def take_over(name: str) -> None:
        if name != "orchestrator.before_commit" or successors:
            return
        first.log.stop()
        stage.workers.remove(first)
        successors.append(stage.worker("b"))
        stage.until(lambda: successors[0].host.phase is Phase.COMMITTED)
        stage.step()
        assert successors[0].host.phase is Phase.COMMITTED, "it waits for the open transaction"

    monkeypatch.setattr("perdure.processors.orchestrator.transaction.crash_point", take_over)
    while not successors:
        first.host.step()
    assert len(stage.events()) > 0, "the predecessor has committed"
    stage.play_to_the_end()
    check_all_done(stage, run_ids)


def test_membership_is_captured_in_the_callback_only(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions use the membership of the assign callback; one asked for later may be newer."""
    asked: list[str] = []
    group_metadata = ModelConsumer.group_metadata

    def spy(self: ModelConsumer) -> GroupMetadata:
        asked.append(self.client_id)
        return group_metadata(self)

    monkeypatch.setattr(ModelConsumer, "group_metadata", spy)
    stage.worker()
    submit_all(stage)
    stage.play_to_the_end()
    assert len(asked) == 1


def test_stalled_worker_is_fenced_when_it_goes_on(stage: Stage) -> None:
    """A worker that stood still while another took its partitions over commits nothing any more."""
    run_ids = submit_all(stage)
    stalled = stage.worker("a")
    for _ in range(12):
        stage.step()
    stalled.log.stop()
    stage.workers.remove(stalled)
    successor = stage.worker("b")
    stage.until(lambda: len(successor.host.ready_partitions) == stage.partitions)
    stage.play()
    stalled.log.go_on()
    stage.workers.append(stalled)
    stage.play_to_the_end()
    check_all_done(stage, run_ids)


def test_two_workers_share_and_hand_over(stage: Stage) -> None:
    """Workers that come and go share the partitions; the runs of each go on where they were."""
    run_ids = submit_all(stage, 24)
    first = stage.worker("a")
    stage.until(lambda: len(first.host.ready_partitions) == 4)
    second = stage.worker("b")
    stage.until(lambda: len(second.host.ready_partitions) == 2)
    for _ in range(5):
        stage.step()
        stage.play()
    first.kill()
    stage.until(lambda: len(second.host.ready_partitions) == 4)
    stage.play_to_the_end()
    assert len(stage.outcomes()) == len(run_ids)
    stage.check_histories()


def test_second_process_with_the_same_slot_ends_the_first(stage: Stage) -> None:
    """The slot's instance id belongs to the newer process; the older one says so and stops."""
    first = stage.worker("a")
    stage.until(lambda: len(first.host.ready_partitions) == 4)
    stage.workers.remove(first)
    second = stage.worker("a")
    stage.until(lambda: len(second.host.ready_partitions) == 4)

    def go_on() -> None:
        for _ in range(1_000):
            first.host.step()
            stage.pass_ms(10)

    with pytest.raises(SlotTaken):
        go_on()
    first.host.close()


def test_offsets_of_both_inputs_are_sent_by_timers_alone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that only a timer asked for carries the offsets of both inputs, and so fences."""
    sent: list[Sequence[Position]] = []
    send_offsets = ModelTransactionalProducer.send_offsets

    def spy(
        self: ModelTransactionalProducer,
        offsets: Sequence[Position],
        group: GroupMetadata,
        timeout_s: float,
    ) -> None:
        sent.append(offsets)
        send_offsets(self, offsets, group, timeout_s)

    monkeypatch.setattr(ModelTransactionalProducer, "send_offsets", spy)
    stage.worker()
    deadline_ms = stage.cluster.now_ms + 5_000
    stage.command("run-1", Submit("support", b'"hi"', deadline_ms=deadline_ms))
    stage.settle()
    sent.clear()
    stage.until(lambda: stage.outcomes("run-1"))
    partition = stage.partition("run-1")
    assert list(sent[-1]) == [
        Position(TopicPartition(stage.topic("run-commands"), partition), 1),
        Position(TopicPartition(stage.topic("run-results"), partition), 0),
    ]


def test_groups_offsets_reset_to_the_start(stage: Stage) -> None:
    """With every input read again from the start, no run changes and no outcome is doubled."""
    worker = stage.worker()
    run_ids = submit_all(stage)
    stage.play_to_the_end()
    before = stage.events()
    worker.stop()
    stage.pass_ms(60_000)
    inputs = [
        CommittedOffset(TopicPartition(stage.topic(topic), partition), 0)
        for topic in ("run-commands", "run-results")
        for partition in range(stage.partitions)
    ]
    tool = stage.client.consumer(ConsumerSpec("kafka-consumer-groups", group=stage.settings.group))
    assert tool.commit(inputs).status is CommitStatus.ACKNOWLEDGED
    tool.close()
    again = stage.worker()
    stage.settle()
    stage.pass_ms(10_000)
    stage.settle()
    assert again.host.counts["duplicate"] >= len(run_ids)
    assert stage.events() == before
    check_all_done(stage, run_ids)


def test_commit_refused_for_one_input_costs_that_input_only(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """When the broker refuses what one input leads to, that one is found and set aside; the others go on."""
    caplog.set_level(logging.ERROR)
    stage.worker()
    stage.settle()
    stage.cluster._topics[stage.topic("run-events")].config["max.message.bytes"] = "5000"
    submit_all(stage, 8)
    stage.submit("run-8", "x" * 6_000)
    stage.until(stage.dead_letters)
    letter = stage.dead_letters()[0]
    assert (letter.key, letter.code) == (b"run-8", "transaction_refused")
    stage.until(lambda: len(stage.model_requests()) == 8)
    stage.check_histories()
    assert stage.events("run-8") == []


def test_trouble_with_the_coordinator_never_costs_an_input(stage: Stage) -> None:
    """However long commits fail for want of a coordinator, no input is dead-lettered."""
    worker = stage.worker()
    stage.settle()
    run_ids = submit_all(stage, 4)
    stage.cluster.faults.transaction_coordinator_down = True
    for _ in range(50):
        stage.step()
        stage.pass_ms(100)
    stage.cluster.faults.transaction_coordinator_down = False
    stage.play_to_the_end()
    assert worker.host.counts["dead_letter"] == 0
    check_all_done(stage, run_ids)
