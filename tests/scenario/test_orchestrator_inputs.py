"""Whatever others write to run-commands and run-results is answered, set aside or skipped; nothing stops."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.processors.machine.decide import decide
from perdure.processors.orchestrator import batch as batch_module
from perdure.schemas.codec import decode, encode
from perdure.schemas.commands import Cancel, Command, Submit
from perdure.schemas.limits import DEAD_LETTER_HEAD_BYTES_MAX
from perdure.schemas.results import Completed, Lost, Result
from perdure.schemas.values import LogPosition
from tests.scenario.orchestrator_stage import Stage

INPUTS = ("run-commands", "run-results")
SUBMIT = encode(Command(Submit("support", b'"hi"')))


@pytest.fixture
def stage() -> Stage:
    return Stage()


def result_of(run_id: str, **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "result_id": "r1",
        "run_id": run_id,
        "turn": 1,
        "call_id": "c",
        "attempt": 1,
        "request_id": "q",
        "worker": "w",
        "body": Completed(b'"ok"'),
    }
    return encode(Result(**(fields | changes)))


def check_still_working(stage: Stage) -> None:
    """A run submitted now, in every partition, comes to its end."""
    for partition in range(stage.partitions):
        run_id = next(f"after-{n}" for n in range(100) if stage.partition(f"after-{n}") == partition)
        stage.submit(run_id)
    stage.play_to_the_end()
    stage.check_histories()


@pytest.mark.parametrize("topic", INPUTS)
def test_tombstones_are_counted_and_skipped(stage: Stage, topic: str) -> None:
    """A tombstone on an input topic changes nothing but a count, and the partition goes on."""
    worker = stage.worker()
    for key in (b"run-1", b"", b"\xff"):
        stage.write(topic, 0, key, None)
    stage.settle()
    assert worker.host.counts["tombstone"] == 3
    assert stage.dead_letters() == []
    assert stage.committed(topic, 0) == 3
    check_still_working(stage)


@pytest.mark.parametrize("topic", INPUTS)
@pytest.mark.parametrize("value", [b"", b"\x00", b"garbage" * 100, b"\xc3\x01" + b"\xff" * 30])
def test_bytes_that_are_no_record(stage: Stage, topic: str, value: bytes) -> None:
    """What can not be decoded is dead-lettered with its place, head and digest, and the partition goes on."""
    stage.worker()
    stage.write(topic, 1, b"run-9", value)
    stage.settle()
    letter = stage.dead_letters()[0]
    assert letter.source == LogPosition(stage.topic(topic), 1, 0)
    assert (letter.head, letter.size) == (value, len(value))
    assert letter.sha256 == hashlib.sha256(value).digest()
    check_still_working(stage)


def test_record_of_another_kind(stage: Stage) -> None:
    """A command on run-results and a result on run-commands are no records of their topic."""
    stage.worker()
    stage.write("run-results", 0, b"run-1", encode(Command(Cancel("x"))))
    stage.write("run-commands", 0, b"run-1", result_of("run-1"))
    stage.settle()
    assert {letter.code for letter in stage.dead_letters()} == {"unknown_fingerprint"}
    check_still_working(stage)


@pytest.mark.parametrize("topic", INPUTS)
def test_oversized_input_is_kept_as_head_digest_and_place(stage: Stage, topic: str) -> None:
    """A record over perdure's own limit is dead-lettered as its head, whatever is in it."""
    stage.worker()
    run_id = next(f"run-{n}" for n in range(50) if stage.partition(f"run-{n}") == 2)
    text = b'"' + b"x" * (1 << 20) + b'"'
    value = encode(Command(Submit("support", text))) if topic == "run-commands" else result_of(run_id)
    value = value if topic == "run-commands" else result_of(run_id, body=Completed(text))
    stage.write(topic, 2, run_id.encode(), value)
    stage.settle()
    letter = stage.dead_letters()[0]
    assert letter.code == "too_large"
    assert letter.head == value[:DEAD_LETTER_HEAD_BYTES_MAX]
    assert (letter.size, letter.sha256) == (len(value), hashlib.sha256(value).digest())
    assert stage.events(run_id) == []
    check_still_working(stage)


@pytest.mark.parametrize(
    "key", [b"", b"a/b", b"sp ace", b"\xff\xfe", b"x" * 129, b"x" * 2_000_000, "ü".encode()]
)
def test_key_that_is_no_run_id(stage: Stage, key: bytes) -> None:
    """A command whose key is no run id is dead-lettered."""
    stage.worker()
    stage.write("run-commands", 3, key, encode(Command(Submit("support", b'"hi"'))))
    stage.settle()
    assert len(stage.dead_letters()) == 1
    check_still_working(stage)


@pytest.mark.parametrize("command_id", ["", "x" * 257])
def test_command_id_out_of_bounds(stage: Stage, command_id: str) -> None:
    """A command id that is empty or too long for a key is refused."""
    stage.worker()
    stage.submit("run-1", command_id=command_id)
    stage.settle()
    assert len(stage.dead_letters()) == 1
    assert stage.events() == []


def test_command_for_a_run_that_does_not_exist(stage: Stage) -> None:
    """A command no event can answer is answered by a dead letter."""
    stage.worker()
    stage.command("nobody", Cancel("x"))
    stage.settle()
    assert [letter.code for letter in stage.dead_letters()] == ["unknown_run"]
    check_still_working(stage)


def test_result_for_a_run_that_does_not_exist(stage: Stage) -> None:
    """A result for an unknown run is never dropped in silence."""
    stage.worker()
    stage.write("run-results", stage.partition("nobody"), b"k", result_of("nobody"))
    stage.settle()
    assert [letter.code for letter in stage.dead_letters()] == ["unknown_run"]


@pytest.mark.parametrize("run_id", ["", "a/b", "x" * 200])
def test_result_with_a_run_id_that_is_none(stage: Stage, run_id: str) -> None:
    """A result that names no possible run is dead-lettered."""
    stage.worker()
    stage.write("run-results", 0, b"k", result_of(run_id))
    stage.settle()
    assert len(stage.dead_letters()) == 1


def test_result_on_the_wrong_partition(stage: Stage) -> None:
    """A result found on another partition than its run's is dead-lettered, not applied."""
    stage.worker()
    wrong = (stage.partition("run-1") + 1) % stage.partitions
    stage.write("run-results", wrong, b"k", result_of("run-1"))
    stage.settle()
    assert [letter.code for letter in stage.dead_letters()] == ["misplaced"]


def test_lost_requests_are_told(stage: Stage) -> None:
    """That requests were deleted unanswered reaches operators as a dead letter."""
    stage.worker()
    lost = result_of("", turn=0, call_id="", attempt=0, request_id="", body=Lost(3, 9))
    stage.write("run-results", 0, b"k", lost)
    stage.settle()
    assert [letter.code for letter in stage.dead_letters()] == ["requests_lost"]
    assert "3 to below 9" in stage.dead_letters()[0].reason


def test_command_on_the_wrong_partition_is_forwarded_once(stage: Stage) -> None:
    """A misplaced command reaches its run under the identity of its first place, also when read again."""
    worker = stage.worker()
    wrong = (stage.partition("run-1") + 1) % stage.partitions
    stage.command("run-1", Submit("support", b'"hi"'), partition=wrong)
    stage.settle()
    created = stage.events("run-1")[0]
    assert created.cause == f"{stage.topic('run-commands')}/{wrong}/0"
    forwarded = [r for r in stage.records("run-commands") if r.partition == stage.partition("run-1")]
    assert decode(Command, forwarded[0].value).origin == LogPosition(stage.topic("run-commands"), wrong, 0)
    stage.write("run-commands", forwarded[0].partition, forwarded[0].key, forwarded[0].value)
    stage.settle()
    assert worker.host.counts["duplicate"] == 1
    assert worker.host.counts["forwarded"] == 1
    assert stage.dead_letters() == []
    stage.check_histories()


def test_forwarded_command_found_misplaced_again(stage: Stage) -> None:
    """A command that was forwarded already and still stands wrong is dead-lettered: nothing circles."""
    stage.worker()
    wrong = (stage.partition("run-1") + 1) % stage.partitions
    origin = LogPosition(stage.topic("run-commands"), 0, 7)
    command = Command(Submit("support", b'"hi"'), origin=origin)
    stage.write("run-commands", wrong, b"run-1", encode(command))
    stage.settle()
    assert [letter.code for letter in stage.dead_letters()] == ["misplaced"]
    assert stage.events() == []


def test_input_that_makes_the_machine_fail(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """An input the machine trips over is set aside alone; inputs around it in the same batch are handled."""

    def trips(run: Any, given: Any, context: Any) -> Any:
        if getattr(given, "run_id", "") == "run-1":
            raise ZeroDivisionError("a defect")
        return decide(run, given, context)

    monkeypatch.setattr(batch_module, "decide", trips)
    stage.worker()
    for n in range(3):
        stage.submit(f"run-{n}")
    stage.settle()
    letter = stage.dead_letters()[0]
    assert (letter.code, letter.key) == ("input_failed", b"run-1")
    assert {event.run_id for event in stage.events()} == {"run-0", "run-2"}


def test_timer_that_makes_the_machine_fail(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose timer the machine trips over rests; the host neither spins nor keeps others waiting."""

    def trips(run: Any, given: Any, context: Any) -> Any:
        if type(given).__name__ == "TimerInput" and given.run_id == "run-1":
            raise ZeroDivisionError("a defect")
        return decide(run, given, context)

    monkeypatch.setattr(batch_module, "decide", trips)
    stage.worker()
    deadline_ms = stage.cluster.now_ms + 1_000
    for run_id in ("run-1", "run-2"):
        stage.command(run_id, Submit("support", b'"hi"', deadline_ms=deadline_ms))
    stage.settle()
    stage.pass_ms(2_000)
    stage.settle()
    assert [outcome.run_id for outcome in stage.outcomes()] == ["run-2"]
    monkeypatch.undo()
    stage.until(lambda: len(stage.outcomes()) == 2)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(INPUTS),
            st.integers(0, 3),
            st.binary(max_size=12) | st.just(b"run-1"),
            st.none() | st.binary(max_size=60) | st.binary(max_size=40).map(lambda tail: SUBMIT[:30] + tail),
        ),
        max_size=12,
    )
)
def test_any_bytes_on_any_input(written: list[tuple[str, int, bytes, bytes | None]]) -> None:
    """Any mixture of keys and values is consumed to its end, and every one of them is accounted for."""
    stage = Stage()
    worker = stage.worker()
    for topic, partition, key, value in written:
        stage.write(topic, partition, key, value)
    stage.settle()
    for topic in INPUTS:
        for partition in range(stage.partitions):
            expected = sum(1 for each in written if each[:2] == (topic, partition))
            assert (stage.committed(topic, partition) or 0) >= expected
    counts = worker.host.counts
    assert counts["dead_letter"] == len(stage.dead_letters())
    assert counts["tombstone"] == sum(1 for each in written if each[3] is None)
    check_still_working(stage)
