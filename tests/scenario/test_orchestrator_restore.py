"""Restore: the rows are the fold of run-events, up to the bound, and of nothing else."""

from __future__ import annotations

import logging

import pytest

from perdure.processors.orchestrator.assignment import PartitionCountsDiffer, Phase
from perdure.processors.store_fold import fold_event
from perdure.processors.store_memory import MemoryStores
from perdure.processors.store_overlay import Overlay
from perdure.processors.store_rows import STATUS, STATUS_TIMER
from perdure.schemas.codec import encode
from perdure.schemas.commands import Cancel
from perdure.schemas.events import CommandRejected, Event
from perdure.topics.log import Outgoing, Position, TopicPartition
from perdure.topics.model_consumer import ModelConsumer
from perdure.topics.table import DELETE_RETENTION_MS
from tests.scenario.orchestrator_stage import Stage, Worker

RUNS = 10


@pytest.fixture
def stage() -> Stage:
    return Stage()


def submit_all(stage: Stage, count: int = RUNS) -> list[str]:
    run_ids = [f"run-{n}" for n in range(count)]
    for run_id in run_ids:
        stage.submit(run_id)
    return run_ids


def start(
    stage: Stage, stores: MemoryStores | None = None, delete_retention_ms: int = DELETE_RETENTION_MS
) -> Worker:
    """A worker that has restored everything."""
    worker = stage.worker(stores=stores, delete_retention_ms=delete_retention_ms)
    stage.until(lambda: worker.host.phase is Phase.PROCESS)
    return worker


def half_way(stage: Stage, worker: Worker) -> None:
    """Some runs done, some in the middle."""
    submit_all(stage)
    for _ in range(4):
        stage.settle()
        stage.play()
        stage.pass_ms(300)
    for n in range(RUNS, RUNS + 4):
        stage.submit(f"run-{n}")
    stage.settle()
    assert worker.host.phase is Phase.PROCESS


def rows_without_status(stage: Stage, worker: Worker, partition: int) -> dict[bytes, bytes]:
    """All rows but those of published statuses: what a timer published is not an event."""
    rows = stage.rows_of(worker, partition)
    return {key: value for key, value in rows.items() if key[:1] not in {STATUS, STATUS_TIMER, b"a"}}


def run_in(stage: Stage, partition: int) -> str:
    return next(f"run-{n}" for n in range(100) if stage.partition(f"run-{n}") == partition)


def append_event(stage: Stage, key: bytes, value: bytes | None, partition: int) -> None:
    """Somebody writes to run-events who should not."""
    stage.write("run-events", partition, key, value)


def test_empty_disk_is_rebuilt_row_by_row(stage: Stage) -> None:
    """Rows rebuilt from nothing equal the rows that were kept, and the fold of run-events."""
    stores = MemoryStores()
    worker = start(stage, stores)
    half_way(stage, worker)
    kept = [rows_without_status(stage, worker, p) for p in range(stage.partitions)]
    worker.kill()
    again = start(stage)
    assert [rows_without_status(stage, again, p) for p in range(stage.partitions)] == kept
    for partition in range(stage.partitions):
        overlay = Overlay(MemoryStores().open(0))
        for event in stage.events():
            if stage.partition(event.run_id) == partition:
                fold_event(overlay, event)
        folded = overlay.changes()
        assert {k: v for k, v in folded.items() if v is not None and k[:1] not in {STATUS, STATUS_TIMER}} == (
            kept[partition]
        )
    stage.play_to_the_end()
    stage.check_histories()


def test_kept_disk_is_not_read_again(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """A restart with its rows reads only the newest event again, to see that they belong to this log."""
    stores = MemoryStores()
    worker = start(stage, stores)
    half_way(stage, worker)
    worker.stop()
    stage.pass_ms(10_000)
    caplog.set_level(logging.INFO)
    start(stage, stores)
    restored = [r.__dict__ for r in caplog.records if r.__dict__.get("action") == "restored"]
    assert len(restored) == stage.partitions
    assert all("count_records" not in each for each in restored)


def test_rows_that_lag_the_log_catch_up(stage: Stage) -> None:
    """Rows older than the log, as after a power loss, are brought up to the bound."""
    old, new = MemoryStores(), MemoryStores()
    worker = start(stage, old)
    submit_all(stage)
    stage.settle()
    worker.kill()
    ahead = start(stage, new)
    half_way(stage, ahead)
    expected = [rows_without_status(stage, ahead, p) for p in range(stage.partitions)]
    ahead.kill()
    again = start(stage, old)
    assert [rows_without_status(stage, again, p) for p in range(stage.partitions)] == expected


def test_open_transaction_below_the_bound_is_waited_out(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """Restore does not end below the bound; it waits for the open transaction, alarms once, then goes on."""
    caplog.set_level(logging.ERROR)
    worker = start(stage)
    submit_all(stage)
    stage.settle()
    worker.kill()
    partition = stage.partition("run-1")
    alien = stage.client.transactional("alien", 900_000)
    alien.init(1.0)
    alien.begin()
    alien.produce(Outgoing(stage.topic("run-events"), partition, b"alien/1", b"x"))
    again = stage.worker()
    stage.until(lambda: len(again.host.ready_partitions) == stage.partitions - 1)
    for _ in range(700):
        stage.step()
        stage.pass_ms(100)
    assert partition not in again.host.ready_partitions
    assert [r.__dict__["action"] for r in caplog.records].count("restore_hanging") == 1
    alien.abort(1.0)
    stage.until(lambda: partition in again.host.ready_partitions)
    stage.play_to_the_end()
    stage.check_histories()


def test_partitions_work_while_another_is_restored(stage: Stage) -> None:
    """Partitions are resumed one by one: one that waits does not keep the others from working."""
    stage.worker()
    stage.settle()
    stage.workers[0].kill()
    waiting = stage.partition("run-1")
    other = next(f"run-{n}" for n in range(50) if stage.partition(f"run-{n}") != waiting)
    alien = stage.client.transactional("alien", 900_000)
    alien.init(1.0)
    alien.begin()
    alien.produce(Outgoing(stage.topic("run-events"), waiting, b"alien/1", b"x"))
    worker = stage.worker()
    stage.submit("run-1")
    stage.submit(other)
    stage.until(lambda: stage.model_requests(other))
    assert waiting not in worker.host.ready_partitions
    assert stage.events("run-1") == []
    alien.abort(1.0)
    stage.play_to_the_end()


def test_records_that_slip_through_a_pause(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs delivered before their partition is restored are kept: they would not come again."""
    waiting = stage.partition("run-1")
    alien = stage.client.transactional("alien", 900_000)
    alien.init(1.0)
    alien.begin()
    alien.produce(Outgoing(stage.topic("run-events"), waiting, b"alien/1", b"x"))
    monkeypatch.setattr(ModelConsumer, "pause", lambda self, partitions: None)
    run_ids = submit_all(stage)
    stage.worker()
    other = next(run_id for run_id in run_ids if stage.partition(run_id) != waiting)
    stage.until(lambda: stage.model_requests(other))
    assert stage.events("run-1") == []
    alien.abort(1.0)
    stage.play_to_the_end()
    stage.check_histories()


def test_commit_of_a_stalled_predecessor_is_waited_for(stage: Stage) -> None:
    """What a predecessor commits while its successor asks for offsets is below the bound: it is folded."""
    first = start(stage)
    submit_all(stage)
    stage.cluster.faults.marker_delay_ms = None
    for _ in range(3):
        stage.step()
    first.kill()
    second = stage.worker("b")
    for _ in range(100):
        stage.step()
        stage.pass_ms(200)
    stage.cluster.faults.marker_delay_ms = 0
    stage.cluster.release_markers()
    stage.until(lambda: second.host.phase is Phase.PROCESS)
    stage.play_to_the_end()
    assert len(stage.outcomes()) == RUNS
    stage.check_histories()


@pytest.mark.parametrize("value", [b"", b"garbage", encode(Event("run-x", 99, 1, CommandRejected("a", "b")))])
def test_corrupt_event_quarantines_its_run_only(
    stage: Stage, caplog: pytest.LogCaptureFixture, value: bytes
) -> None:
    """A record of run-events that is no event of its key stops that run, visibly, and no other."""
    caplog.set_level(logging.ERROR)
    worker = start(stage)
    run_ids = submit_all(stage)
    stage.settle()
    victim = run_ids[0]
    partition = stage.partition(victim)
    stage.play()
    append_event(stage, f"{victim}/{len(stage.events(victim)) + 1}".encode(), value, partition)
    offset = stage.records("run-events")[-1].offset
    worker.kill()
    stage.worker()
    stage.until(stage.dead_letters)
    letter = stage.dead_letters()[0]
    assert (letter.code, letter.key) == ("history_damaged", victim.encode())
    assert stage.statuses(victim)[-1].code == "quarantined"
    assert "run_quarantined" in {r.__dict__.get("action") for r in caplog.records}
    assert offset >= 0
    stage.command(victim, Cancel("x"))
    stage.until(lambda: "run_quarantined" in {each.code for each in stage.dead_letters()})
    stage.until(lambda: (stage.play(), len(stage.outcomes()) == RUNS - 1)[1])
    assert stage.outcomes(victim) == []


def test_quarantine_is_kept_and_told_once(stage: Stage) -> None:
    """A quarantined run stays so over restarts with the same disk, without being announced again."""
    stores = MemoryStores()
    worker = start(stage, stores)
    submit_all(stage, 1)
    stage.settle()
    append_event(stage, b"run-0/3", b"garbage", stage.partition("run-0"))
    worker.kill()
    second = stage.worker(stores=stores)
    stage.until(stage.dead_letters)
    second.stop()
    stage.worker(stores=stores)
    stage.settle()
    stage.command("run-0", Cancel("x"))
    stage.until(lambda: len(stage.dead_letters()) == 2)
    assert [letter.code for letter in stage.dead_letters()] == ["history_damaged", "run_quarantined"]


def test_gap_that_remains_is_damage(stage: Stage) -> None:
    """Events after a missing one are held until the bound; if it never comes the run is quarantined."""
    worker = start(stage)
    submit_all(stage, 2)
    stage.settle()
    event = stage.events("run-0")[-1]
    late = Event("run-0", event.seq + 2, event.at_ms, CommandRejected("Cancel", "x"))
    append_event(stage, f"run-0/{late.seq}".encode(), encode(late), stage.partition("run-0"))
    worker.kill()
    stage.worker()
    stage.until(stage.dead_letters)
    assert "missing" in stage.dead_letters()[0].reason


def test_gap_that_closes_is_none(stage: Stage) -> None:
    """Events that stand in another order than their seq are folded in order, once all are there."""
    worker = start(stage)
    submit_all(stage, 1)
    stage.settle()
    event = stage.events("run-0")[-1]
    for seq in (event.seq + 2, event.seq + 1):
        late = Event("run-0", seq, event.at_ms, CommandRejected("Cancel", "x"))
        append_event(stage, f"run-0/{seq}".encode(), encode(late), stage.partition("run-0"))
    worker.kill()
    start(stage)
    stage.command("run-0", Cancel("x"))
    stage.until(lambda: stage.outcomes("run-0"))
    assert stage.dead_letters() == []
    assert stage.outcomes("run-0")[0].seq == event.seq + 3


def next_offset(worker: Worker, partition: int) -> int | None:
    """How far a partition's restore has read."""
    assignment = worker.host._assignment
    restore = assignment._restore if assignment is not None else None
    return restore._waiting[partition].next_offset if restore is not None else None


def test_killed_while_a_gap_is_held(stage: Stage) -> None:
    """Rows never pass an event that is held: killed meanwhile, the next restore finds the same events."""
    worker = start(stage)
    submit_all(stage)
    stage.settle()
    event = stage.events("run-0")[-1]
    partition = stage.partition("run-0")
    late = [
        Event("run-0", seq, event.at_ms, CommandRejected("Cancel", "x"))
        for seq in range(event.seq + 1, event.seq + 5)
    ]
    neighbour = next(f"run-{n}" for n in range(1, RUNS) if stage.partition(f"run-{n}") == partition)
    other = Event(neighbour, stage.seqs(neighbour)[-1] + 1, event.at_ms, CommandRejected("Cancel", "x"))
    for each in (*late[1:], other, late[0]):
        append_event(stage, f"{each.run_id}/{each.seq}".encode(), encode(each), partition)
    worker.kill()
    stores = MemoryStores()
    last_offset = max(r.offset for r in stage.records("run-events") if r.partition == partition)
    halfway = stage.worker(stores=stores, restore_slice_records=1)
    while next_offset(halfway, partition) != last_offset:
        halfway.host.step()
    halfway.kill()
    start(stage, stores)
    stage.command("run-0", Cancel("x"))
    stage.until(lambda: stage.outcomes("run-0"))
    assert stage.dead_letters() == []


def test_record_that_names_no_run_is_ignored(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """A record of run-events without an event's key is of no history; it is logged, nothing stops."""
    caplog.set_level(logging.ERROR)
    worker = start(stage)
    submit_all(stage)
    stage.settle()
    for key in (b"", b"\xff", b"run-1", b"run-1/", b"run-1/x", b"run-1/-1", b"run-1/01"):
        append_event(stage, key, b"x", 0)
    worker.kill()
    stage.worker()
    stage.play_to_the_end()
    assert [r.__dict__["action"] for r in caplog.records].count("alien_event_ignored") == 7
    assert stage.dead_letters() == []


def test_purged_run_is_gone(stage: Stage) -> None:
    """Tombstones from the last event to the first take a run away, on a kept disk and on an empty one."""
    stores = MemoryStores()
    worker = start(stage, stores)
    submit_all(stage, 2)
    stage.play_to_the_end()
    worker.stop()
    for seq in reversed(stage.seqs("run-0")):
        append_event(stage, f"run-0/{seq}".encode(), None, stage.partition("run-0"))
    kept = start(stage, stores)
    rows = rows_without_status(stage, kept, stage.partition("run-0"))
    assert [key for key in rows if b"run-0" in key] == []
    kept.stop()
    stage.pass_ms(10_000)
    empty = start(stage)
    assert rows_without_status(stage, empty, stage.partition("run-0")) == rows
    assert stage.dead_letters() == []


def test_tombstone_at_the_end_of_a_history_is_damage(stage: Stage) -> None:
    """A history whose last events were deleted, the first not, is damaged."""
    worker = start(stage)
    submit_all(stage, 1)
    stage.settle()
    last = stage.seqs("run-0")[-1]
    append_event(stage, f"run-0/{last}".encode(), None, stage.partition("run-0"))
    worker.kill()
    stage.worker()
    stage.until(stage.dead_letters)
    assert stage.dead_letters()[0].code == "history_damaged"


def wiped(caplog: pytest.LogCaptureFixture) -> set[int]:
    return {r.__dict__["partition"] for r in caplog.records if r.__dict__.get("action") == "store_wiped"}


def test_rows_of_another_incarnation_are_wiped(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """Rows that belong to a run-events that was deleted and created anew are wiped."""
    stores = MemoryStores()
    worker = start(stage, stores)
    submit_all(stage)
    stage.settle()
    worker.stop()
    stage.cluster.recreate_topic(stage.topic("run-events"))
    again = start(stage, stores)
    assert wiped(caplog) == set(range(stage.partitions))
    assert {r.__dict__.get("reason") for r in caplog.records} >= {"run-events was created anew"}
    assert all(rows_without_status(stage, again, p) == {} for p in range(stage.partitions))


def test_rows_of_another_history_are_wiped(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """Rows whose newest event does not stand where they say are wiped and rebuilt."""
    stores, other = MemoryStores(), MemoryStores()
    worker = start(stage, stores)
    submit_all(stage)
    stage.settle()
    worker.kill()
    stranger = Stage()
    strange = start(stranger, other)
    for n in range(20, 40):
        stranger.submit(f"run-{n}")
    stranger.settle()
    strange.kill()
    again = start(stage, other)
    assert wiped(caplog) == set(range(stage.partitions))
    mine = Worker(stage, "x", stores, stage.settings)
    for partition in range(stage.partitions):
        assert rows_without_status(stage, again, partition) == rows_without_status(stage, mine, partition)


def test_rows_that_were_away_too_long_are_wiped(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """Rows older than half of the tombstones' life may have missed deletions, and are wiped."""
    stores = MemoryStores()
    worker = start(stage, stores, delete_retention_ms=1_000_000)
    submit_all(stage)
    stage.settle()
    worker.stop()
    stage.pass_ms(499_000)
    worker = start(stage, stores, delete_retention_ms=1_000_000)
    assert wiped(caplog) == set()
    worker.stop()
    stage.pass_ms(501_000)
    start(stage, stores, delete_retention_ms=1_000_000)
    assert wiped(caplog) == set(range(stage.partitions))


def test_unreadable_rows_are_wiped(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """Rows another version wrote are wiped, whether their place can be read or not."""
    for value in (b"garbage", b"\x81\xa8topic_id\xa1x"):
        stores = MemoryStores()
        for partition in range(stage.partitions):
            stores.open(partition).write({b"m": value, b"rrun-1": b"old"})
        caplog.clear()
        worker = start(stage, stores)
        assert wiped(caplog) == set(range(stage.partitions))
        worker.stop()
        stage.pass_ms(10_000)


def test_row_that_can_not_be_read_starts_over(stage: Stage) -> None:
    """A row found damaged while working costs no input: rows are restored, the batch is repeated."""
    stores = MemoryStores()
    start(stage, stores)
    run_ids = submit_all(stage)
    stage.settle()
    for run_id in run_ids:
        stores.open(stage.partition(run_id)).write({b"r" + run_id.encode(): b"garbage"})
    stage.play_to_the_end()
    assert len(stage.outcomes()) == RUNS
    assert stage.dead_letters() == []
    stage.check_histories()


def test_partition_counts_that_differ_stop_the_process(stage: Stage) -> None:
    """With another partition count than the pinned one nothing is processed, and the process says so."""
    stage.cluster.delete_topic(stage.topic("run-results"))
    stage.cluster.create_topic(stage.topic("run-results"), 7)
    worker = stage.worker()
    stage.submit("run-1")
    with pytest.raises(PartitionCountsDiffer, match="run-results has 7"):
        stage.settle()
    assert stage.events() == []
    worker.host.close()


def test_log_start_that_moved_over_committed_offsets(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """Inputs that were deleted before they were read are told, and reading goes on behind them."""
    worker = start(stage)
    stage.submit("run-1")
    stage.settle()
    worker.stop()
    partition = stage.partition("run-1")
    for n in range(3):
        stage.write("run-results", partition, b"k", b"garbage%d" % n)
    at = TopicPartition(stage.topic("run-results"), partition)
    stage.client.delete_records([Position(at, 2)], 1.0)
    start(stage)
    stage.settle()
    assert "inputs_missing" in {r.__dict__.get("action") for r in caplog.records}
    assert [letter.head for letter in stage.dead_letters()] == [b"garbage2"]
    stage.play_to_the_end()
