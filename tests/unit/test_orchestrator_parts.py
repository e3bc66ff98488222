"""The small parts of the orchestrator, each on its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.connectors.blob_folder import FolderBlobs
from perdure.processors import crash_points
from perdure.processors.blobs import BlobMissing, BlobUnreachable
from perdure.processors.clock import SystemClock
from perdure.processors.dead_letter import REASON_CHARS_MAX, dead_letter, dead_letter_key
from perdure.processors.orchestrator.forgetting import BlobForgetter
from perdure.processors.orchestrator.offsets import NextUnprocessed
from perdure.processors.orchestrator.settings import OrchestratorSettings
from perdure.processors.orchestrator.suspicion import Suspicion, Verdict
from perdure.processors.status import STATUS_INTERVAL_MS, conflate
from perdure.processors.store_rows import StatusRow
from perdure.processors.watchdog import ThreadWatchdog
from perdure.schemas.codec import decode, encode
from perdure.schemas.limits import DEAD_LETTER_HEAD_BYTES_MAX
from perdure.schemas.outputs import DeadLetter
from perdure.topics.log import Position, Record, TopicPartition
from perdure.topics.table import Namespace

SETTINGS = OrchestratorSettings(namespace=Namespace("n"), slot="0", partitions=4, token_key=b"secret")
COMMANDS, RESULTS = TopicPartition("c", 0), TopicPartition("r", 0)


def record(at: TopicPartition, offset: int, value: bytes | None = b"v", key: bytes | None = b"k") -> Record:
    return Record(at.topic, at.partition, offset, key, value, (), 0)


# ---- next_unprocessed


def test_both_inputs_of_a_touched_partition_are_sent() -> None:
    """A partition that is touched sends both inputs, moved or not; another sends none."""
    offsets = NextUnprocessed(
        [Position(COMMANDS, 5), Position(RESULTS, 0), Position(TopicPartition("c", 1), 3)]
    )
    moved = offsets.after([record(COMMANDS, 5), record(COMMANDS, 9)])
    assert offsets.positions({0}, moved) == (Position(COMMANDS, 10), Position(RESULTS, 0))
    offsets.advance(moved)
    assert offsets.of(COMMANDS) == 10


def test_offsets_that_fence_nobody_are_refused() -> None:
    """An empty list, an unknown partition and a negative offset never reach a transaction."""
    offsets = NextUnprocessed([Position(COMMANDS, 5)])
    for partitions in (set[int](), {7}, {0, 7}):
        with pytest.raises(AssertionError):
            offsets.positions(partitions, {})
    with pytest.raises(AssertionError):
        NextUnprocessed([Position(COMMANDS, -1001)])


def test_record_is_taken_once() -> None:
    """What was delivered before, or is below the base, or of another partition, is not taken again."""
    offsets = NextUnprocessed([Position(COMMANDS, 5)])
    assert [offsets.take(record(COMMANDS, n)) for n in (4, 5, 5, 7, 6)] == [False, True, False, True, False]
    assert not offsets.take(record(RESULTS, 5))


# ---- suspicion


def size_of(suspicion: Suspicion) -> int | None:
    """Asked through a function: every abort may change it."""
    return suspicion.size


def test_batch_is_halved_down_to_one_and_probed_before_it_is_condemned() -> None:
    """Two aborts halve; the last input is condemned only after a transaction without it has committed."""
    suspicion = Suspicion(SETTINGS)
    assert suspicion.aborted(8) is Verdict.AGAIN
    assert size_of(suspicion) is None
    for size in (4, 2, 1):
        assert suspicion.aborted(size * 2) is Verdict.AGAIN
        assert size_of(suspicion) == size
        if size > 1:
            assert suspicion.aborted(size) is Verdict.AGAIN
    assert suspicion.aborted(1) is Verdict.AGAIN
    assert suspicion.aborted(1) is Verdict.PROBE
    assert suspicion.aborted(1) is Verdict.PROBE
    suspicion.probed()
    assert suspicion.aborted(1) is Verdict.CONDEMN
    suspicion.committed()
    assert size_of(suspicion) == 2
    assert suspicion.aborted(1) is Verdict.AGAIN


def test_batch_without_inputs_condemns_nobody() -> None:
    """A batch that only told statuses is tried again, whatever happens."""
    suspicion = Suspicion(SETTINGS)
    assert {suspicion.aborted(0) for _ in range(10)} == {Verdict.AGAIN}


# ---- status


@given(st.lists(st.tuples(st.integers(0, 700), st.booleans()), min_size=1, max_size=40))
def test_no_change_stays_untold(changes: list[tuple[int, bool]]) -> None:
    """Whatever the times, musts are told at once, others at most once a second, and the last one gets out."""
    row: StatusRow | None = None
    now_ms, told = 0, list[int]()
    for pause_ms, must in changes:
        now_ms += pause_ms
        if row is not None and row.due_ms is not None and row.due_ms <= now_ms:
            told.append(row.due_ms)
            row = StatusRow(row.due_ms)
        conflated = conflate(row, now_ms, must=must)
        assert conflated.publish or not must
        if conflated.publish and not must and told:
            assert now_ms - told[-1] >= STATUS_INTERVAL_MS
        if conflated.publish:
            told.append(now_ms)
        row = conflated.row
        assert row is not None
        assert conflated.publish or row.due_ms == row.published_ms + STATUS_INTERVAL_MS


# ---- dead letters


@given(st.binary(max_size=100), st.text() | st.just("\ud800"), st.none() | st.binary(max_size=2_000))
def test_dead_letter_of_anything_can_be_written(value: bytes, reason: str, key: bytes | None) -> None:
    """Whatever the input and the reason, the dead letter encodes, and comes back equal."""
    letter = dead_letter(record(COMMANDS, 3, value, key), "code", reason * 50, 7)
    assert decode(DeadLetter, encode(letter)) == letter
    assert len(letter.reason) <= REASON_CHARS_MAX
    assert dead_letter_key(letter) == b"c/0/3"


def test_dead_letter_keeps_the_head_of_a_large_input() -> None:
    """Of a large input the head is kept, with the size of the whole."""
    value = bytes(2 * DEAD_LETTER_HEAD_BYTES_MAX)
    letter = dead_letter(record(COMMANDS, 3, value), "code", "", 7)
    assert (len(letter.head), letter.size) == (DEAD_LETTER_HEAD_BYTES_MAX, len(value))


# ---- settings


def test_secret_is_not_shown() -> None:
    """The token key is in no representation of the settings."""
    assert "secret" not in repr(SETTINGS)


# ---- watchdog


@pytest.mark.timeout(10)
def test_watchdog_tells_a_call_that_is_overdue() -> None:
    """A call that outlasts its limit is told by name; one that returned in time is not."""
    overdue = threading.Event()
    names: list[str] = []

    def tell(name: str, limit_s: float) -> None:
        names.append(name)
        overdue.set()

    watchdog = ThreadWatchdog(SystemClock(), tell)
    with watchdog.guard("quick", 60.0):
        pass
    with watchdog.guard("slow", 0.01):
        assert overdue.wait(5)
    watchdog.close()
    assert names == ["slow"]


@pytest.mark.timeout(20)
def test_watchdog_ends_the_process() -> None:
    """Left alone, the watchdog ends a process whose call hangs, with its own exit status."""
    program = (
        "import threading\n"
        "from perdure.processors.clock import SystemClock\n"
        "from perdure.processors.watchdog import ThreadWatchdog\n"
        "with ThreadWatchdog(SystemClock()).guard('send_offsets', 0.01):\n"
        "    threading.Event().wait()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, timeout=15)
    assert ended.returncode == 70
    assert b"send_offsets" in ended.stderr


# ---- crash points


def run_to(point: str, environment: dict[str, str]) -> int:
    program = f"from perdure.processors.crash_points import crash_point; crash_point({point!r})"
    return subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, check=False, timeout=15
    ).returncode


@pytest.mark.parametrize("point", get_args(crash_points.CrashPoint))
def test_crash_point_is_a_real_kill_and_fires_once(tmp_path: Path, point: str) -> None:
    """The armed point dies of SIGKILL; with a marker file, only the first time."""
    armed = {crash_points.CRASH_ENV: point, crash_points.CRASH_MARKER_ENV: str(tmp_path / "fired")}
    assert run_to(point, armed) == -signal.SIGKILL
    assert run_to(point, armed) == 0


def test_an_order_is_followed_once_at_the_wanted_pass(tmp_path: Path) -> None:
    """An order names point, signal and pass; whoever follows it leaves its pid, and nobody follows it
    again.
    """
    order = tmp_path / "order"
    environment = {**os.environ, crash_points.CRASH_ORDER_ENV: str(order)}
    program = (
        "import sys; from perdure.processors.crash_points import crash_point\n"
        "for name in sys.argv[1:]: print(name, flush=True); crash_point(name)"
    )
    passed = ["executor.before_tell", "executor.after_tell", "executor.before_tell", "executor.after_tell"]

    def passing() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program, *passed],
            env=environment, check=False, timeout=15, capture_output=True, text=True,
        )  # fmt: skip

    assert passing().returncode == 0
    order.write_text("executor.before_tell SIGTERM 2")
    ended = passing()
    assert ended.returncode == -signal.SIGTERM
    assert ended.stdout.split() == passed[:3]
    assert int((tmp_path / "order.taken").read_text()) > 0
    assert not order.exists()
    assert passing().returncode == 0


def test_other_points_stay_quiet() -> None:
    """A point that is not armed does nothing."""
    armed = {crash_points.CRASH_ENV: "model.mid_stream"}
    assert run_to("executor.after_call", armed) == 0
    assert run_to("executor.after_call", {}) == 0


class Blobs(FolderBlobs):
    """A folder that fails once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.failures = 1

    def forget(self, run_id: str) -> None:
        if self.failures:
            self.failures -= 1
            raise BlobUnreachable
        super().forget(run_id)


def test_blobs_are_deleted_beside_the_loop_and_again_after_a_failure(tmp_path: Path) -> None:
    """It is asked again and again, never waited for; true is only what has been done."""
    blobs = Blobs(tmp_path)
    ref = blobs.put("run-1", b"content", "text/plain")
    forgetter = BlobForgetter(blobs)
    pause = threading.Event()
    asked = 1
    while not forgetter.is_forgotten("run-1"):
        asked += 1
        assert asked < 1_000
        pause.wait(0.01)
    assert asked >= 4  # each try is begun with one question and ends with another
    with pytest.raises(BlobMissing):
        blobs.get(ref.uri)
    forgetter.close()
