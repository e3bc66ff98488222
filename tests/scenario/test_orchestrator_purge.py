"""Purge: a run that ended long ago is forgotten from its end to its beginning, and its id stays used."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest

from perdure.processors.machine.inputs import MachineSettings
from perdure.processors.orchestrator.assignment import Phase
from perdure.processors.orchestrator.host import Orchestrator
from perdure.processors.store_memory import MemoryStores
from perdure.processors.store_rows import AGE, PURGED
from perdure.schemas.codec import decode, encode
from perdure.schemas.commands import Cancel, Command, CommandBody, Resume, Submit
from perdure.schemas.events import Event, RunPurged
from perdure.schemas.keys import EventKey
from perdure.topics.log import Record
from tests.scenario.orchestrator_stage import AGENT, Stage, Worker

KEPT_MS = 1_800_000
RUN = "run-0"
OTHER_TOPICS = ("run-status", "run-outcomes", "run-signals", "run-commands")


@pytest.fixture
def stage() -> Stage:
    stage = Stage(partitions=1)
    machine = MachineSettings(finished_runs_retention_ms=KEPT_MS)
    stage.settings = replace(stage.settings, machine=machine)
    return stage


def start(stage: Stage, stores: MemoryStores, purged_max: int = 200) -> Worker:
    worker = stage.worker(stores=stores, batch_purged_max=purged_max)
    stage.until(lambda: worker.host.phase is Phase.PROCESS)
    return worker


def left(stage: Stage, topic: str = "run-events") -> dict[bytes, Record]:
    """What compaction would leave of a topic at last: the newest record of each key, tombstones gone."""
    newest = {record.key or b"": record for record in stage.records(topic)}
    return {key: record for key, record in newest.items() if record.value is not None}


def history_left(stage: Stage, run_id: str = RUN) -> tuple[list[int], list[int]]:
    """(seqs of the events of a run that are left, seqs of its RunPurged)."""
    plain: list[int] = []
    purged: list[int] = []
    for record in left(stage).values():
        key = EventKey.parse(record.key)
        if key.run_id == run_id:
            is_purge = isinstance(decode(Event, record.value).body, RunPurged)
            (purged if is_purge else plain).append(key.seq)
    return sorted(plain), purged


def is_purged(stage: Stage, run_id: str = RUN) -> bool:
    plain, purged = history_left(stage, run_id)
    return plain == [] and purged != []


def ended_run(stage: Stage, stores: MemoryStores) -> Worker:
    """A run that has completed, with another that ends much later."""
    worker = start(stage, stores)
    stage.submit(RUN)
    stage.play_to_the_end()
    assert stage.outcomes(RUN)
    stage.pass_ms(KEPT_MS // 2)
    stage.submit("late")
    stage.play_to_the_end()
    return worker


def test_a_run_is_forgotten_when_its_time_has_come_and_not_before(stage: Stage) -> None:
    """Of its history RunPurged is left, of other topics and of its rows nothing but that its id is used."""
    stores = MemoryStores()
    worker = ended_run(stage, stores)
    ended_ms = stage.outcomes(RUN)[0].ended_ms
    stage.pass_ms(ended_ms + KEPT_MS - stage.clock.wall_ms() - 1_000)
    stage.settle()
    assert history_left(stage)[1] == []
    stage.pass_ms(1_000)
    stage.until(lambda: is_purged(stage))
    assert [key for topic in OTHER_TOPICS for key in left(stage, topic) if key == RUN.encode()] == []
    assert [key for key in stage.rows_of(worker, 0) if RUN.encode() in key] == [PURGED + RUN.encode()]
    assert history_left(stage, "late")[1] == []
    assert stage.outcomes("late")
    # and rows that are rebuilt from what is left say the same
    kept = {key: value for key, value in stage.rows_of(worker, 0).items() if key[:1] != AGE}
    worker.stop()
    stage.cluster.compact(stage.topic("run-events"), 0)
    assert stage.rows_of(start(stage, MemoryStores()), 0) == kept


def test_tombstones_go_from_the_last_event_to_the_first_after_the_purge_is_told(stage: Stage) -> None:
    """So that whatever compaction has taken, a beginning is left, or nothing."""
    worker = ended_run(stage, MemoryStores())
    count = len(stage.seqs(RUN))
    stage.pass_ms(KEPT_MS)
    stage.until(lambda: is_purged(stage))
    keys = [EventKey.parse(record.key) for record in stage.records("run-events")]
    seqs = [key.seq for key in keys if key.run_id == RUN]
    assert seqs == [*range(1, count + 1), count + 1, *range(count, 0, -1)]
    worker.stop()


@pytest.mark.parametrize("disk", ["kept", "lagging", "lost"])
@pytest.mark.parametrize("steps", range(14))
def test_a_purge_goes_on_after_a_kill_at_any_step(stage: Stage, steps: int, disk: str) -> None:
    """Whatever was left of rows and history, the purge ends as if nothing had happened."""
    stores = MemoryStores()
    ended_run(stage, stores).stop()
    # given a purge in small steps that is cut off in the middle, compacted as far as it got
    worker = start(stage, stores, purged_max=2)
    before = deepcopy(stores)
    stage.pass_ms(KEPT_MS)
    for _ in range(steps):
        stage.step()
    plain, _ = history_left(stage)
    assert plain == list(range(1, len(plain) + 1))
    worker.kill()
    stage.cluster.compact(stage.topic("run-events"), 0)
    # when another process takes over
    disks = {"kept": stores, "lagging": before, "lost": MemoryStores()}
    again = start(stage, disks[disk], purged_max=2)
    stage.until(lambda: is_purged(stage) and is_purged(stage, "late"))
    stage.settle()
    # then both are gone, once
    rows = stage.rows_of(again, 0)
    assert {key for key in rows if b"late" in key or RUN.encode() in key} == {
        PURGED + RUN.encode(),
        PURGED + b"late",
    }
    assert [type(decode(Event, each.value).body) for each in left(stage).values()] == [RunPurged, RunPurged]
    assert [key for topic in OTHER_TOPICS for key in left(stage, topic)] == []
    assert stage.dead_letters() == []


def test_an_id_is_never_used_again(stage: Stage) -> None:
    """A command for a purged run is told as refused, also after the loss of everything; what was answered
    long ago and is read again is not.
    """
    worker = ended_run(stage, MemoryStores())
    stage.pass_ms(2 * KEPT_MS)
    stage.until(lambda: is_purged(stage))
    stage.pass_ms(2 * KEPT_MS)
    stage.until(lambda: is_purged(stage, "late"))
    worker.kill()
    for _ in range(3):
        stage.cluster.compact(stage.topic("run-events"), 0)
        stage.pass_ms(stage.settings.delete_retention_ms + 1)
    assert {record.key for record in stage.records("run-events") if record.value is None} == set()
    start(stage, MemoryStores())
    bodies: tuple[CommandBody, ...] = (Submit(AGENT.agent, b'"again"'), Cancel("late"), Resume())
    for number, body in enumerate(bodies):
        stage.write("run-commands", 0, RUN.encode(), encode(Command(body, f"again-{number}")))
    stage.settle()
    assert [each.code for each in stage.dead_letters()] == ["run_purged"] * 3
    assert history_left(stage)[0] == []


class Slow:
    """A blob store that takes its time; ``may_end``: it has."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_end = False

    def is_forgotten(self, run_id: str) -> bool:
        self.asked.append(run_id)
        return self.may_end

    def close(self) -> None:
        """Nothing is held."""


def test_the_first_event_goes_only_after_the_blobs(stage: Stage) -> None:
    """So that a purge which is cut off is known as long as there is anything left to delete."""
    ended_run(stage, MemoryStores()).stop()
    slow = Slow()
    worker = stage.worker()
    worker.host = Orchestrator(
        worker.log, worker.stores, stage.clock, stage.entropy, stage.definitions, worker.settings,
        forgetter=slow,
    )  # fmt: skip
    stage.until(lambda: worker.host.phase is Phase.PROCESS)
    stage.pass_ms(KEPT_MS)
    stage.until(lambda: history_left(stage)[0] == [1])
    stage.pass_ms(60_000)
    for _ in range(10):
        stage.settle()
        stage.pass_ms(1_000)
    assert 2 <= slow.asked.count(RUN) <= 20
    assert set(slow.asked) == {RUN, "late"}
    assert history_left(stage)[0] == [1]
    slow.may_end = True
    stage.until(lambda: is_purged(stage))


def test_an_attempt_of_which_nobody_knows_keeps_its_run(stage: Stage) -> None:
    """A cancelled run with a call that may have had an effect stays until somebody says what became of it."""
    start(stage, MemoryStores())
    stage.submit(RUN)
    stage.settle()
    stage.reply(stage.model_requests(RUN)[0], "send")
    stage.settle()
    stage.command(RUN, Cancel("enough"))
    stage.settle()
    assert stage.outcomes(RUN)
    stage.pass_ms(10 * KEPT_MS)
    stage.settle()
    assert history_left(stage)[1] == []
    # when its result comes after all
    stage.play()
    stage.settle()
    stage.pass_ms(KEPT_MS)
    stage.until(lambda: is_purged(stage))


def test_a_run_that_was_resumed_is_not_purged_under_its_feet(stage: Stage) -> None:
    """Its time counts from its last end."""
    start(stage, MemoryStores())
    stage.submit(RUN)
    stage.settle()
    stage.command(RUN, Cancel("enough"))
    stage.settle()
    stage.pass_ms(KEPT_MS - 1_000)
    stage.command(RUN, Resume("go on"))
    stage.settle()
    stage.pass_ms(KEPT_MS)
    stage.settle()
    assert history_left(stage)[1] == []
    stage.until(lambda: not stage.play() and len(stage.outcomes(RUN)) == 2)
    stage.settle()
    stage.pass_ms(KEPT_MS - 1_000)
    stage.settle()
    assert history_left(stage)[1] == []
    stage.pass_ms(1_000)
    stage.until(lambda: is_purged(stage))
