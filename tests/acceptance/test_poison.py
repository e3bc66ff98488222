"""Nothing that others write to perdure's topics stops it."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from chaos.outside import Codec, feed, newest, outcomes, read_all
from tests.acceptance.fleet import Fleet, wait_until

WAIT_S = 60.0
PARTITIONS = 4
OVER_THE_LIMIT_BYTES = (1 << 20) + 4096
OTHERS_WRITE = (
    "run-commands",
    "run-results",
    "model-requests",
    "tool-requests",
    "agent-definitions",
    "run-signals",
)

pytestmark = pytest.mark.timeout(4 * WAIT_S)


@pytest.fixture
def fleet(kafka: str, namespace: str, tmp_path: Path) -> Iterator[Fleet]:
    """Topics are made, all roles run."""
    fleet = Fleet(kafka, namespace, tmp_path)
    try:
        made = fleet.perdure("topics", "apply")
        assert made.returncode == 0, made.stderr
        fleet.start_all()
        yield fleet
    finally:
        fleet.close()


def garbage(seed: int) -> Iterator[tuple[bytes | None, bytes | None]]:
    """(key, value): random bytes, other people's schemas, tombstones, too much, for known and unknown
    keys.
    """
    chance = random.Random(seed)
    yield b"run-a", None
    yield None, None
    yield None, b""
    yield b"run-a", b""
    yield b"\xff\xfe", b"\xc3\x01"
    for size in (1, 9, 10, 11, 200, 5000):
        yield b"run-a", chance.randbytes(size)
    wrong = Codec("RunSignal").encode({"execution": 0, "reason": "a record of another type"})
    yield b"run-a", wrong
    yield b"run-a", wrong[:10] + chance.randbytes(40)
    yield b"run-a", b"\xc3\x01" + bytes(8) + b"a schema that nobody knows"
    yield b"run-big", chance.randbytes(OVER_THE_LIMIT_BYTES)


def pour(fleet: Fleet, topics: tuple[str, ...]) -> int:
    """Write the garbage to every partition of the topics; how many records that were."""
    producer = Producer({"bootstrap.servers": fleet.bootstrap, "message.max.bytes": 4 << 20})
    count = 0
    for topic in topics:
        partitions = len(
            producer.list_topics(fleet.topic(topic), timeout=10).topics[fleet.topic(topic)].partitions
        )
        for partition in range(partitions):
            for key, value in garbage(partition):
                producer.produce(fleet.topic(topic), key=key, value=value, partition=partition)
                count += 1
            producer.flush(30)
    assert producer.flush(30) == 0
    return count


def dead_letters(fleet: Fleet) -> list[dict[str, Any]]:
    codec = Codec("DeadLetter")
    found = [value for _, value, _, _ in read_all(fleet.bootstrap, fleet.topic("dead-letters"))]
    return [codec.decode(value) for value in found if value is not None]


def all_ended(fleet: Fleet, run_ids: list[str]) -> Callable[[], bool]:
    def look() -> bool:
        found = outcomes(fleet.bootstrap, fleet.topic("run-outcomes"))
        return all(found[run_id, 0] == 1 for run_id in run_ids)

    return look


def test_garbage_on_every_topic_is_set_aside_and_work_goes_on(fleet: Fleet) -> None:
    """Random bytes, wrong schemas, tombstones and oversized records: dead letters with reasons; runs
    complete.
    """
    poured = pour(fleet, OTHERS_WRITE)
    run_ids = [f"after-{number}" for number in range(8)]
    feed(fleet.bootstrap, fleet.topic("run-commands"), "mailer", run_ids)
    wait_until(all_ended(fleet, run_ids), WAIT_S, "runs behind the garbage end", interval_s=0.5)
    letters = dead_letters(fleet)
    sources = {letter["source"]["topic"] for letter in letters}
    assert {fleet.topic("run-commands"), fleet.topic("run-results")} <= sources
    assert all(letter["code"] and letter["reason"] for letter in letters)
    big = [letter for letter in letters if letter["size"] >= OVER_THE_LIMIT_BYTES]
    assert big
    assert all(len(letter["head"]) < OVER_THE_LIMIT_BYTES for letter in big)
    assert all(worker.poll() is None for worker in fleet.workers.values()), "no process ended over it"
    print(json.dumps({"poured": poured, "dead_letters": len(letters), "runs": len(run_ids)}))  # noqa: T201


def test_a_command_for_an_unknown_run_is_answered_by_a_dead_letter(fleet: Fleet) -> None:
    """Its sender finds it with a stable reason; nothing else happens."""
    codec = Codec("Command")
    producer = Producer({"bootstrap.servers": fleet.bootstrap})
    body = ("dev.perdure.Cancel", {"reason": "no such run"})
    producer.produce(
        fleet.topic("run-commands"), key=b"nobody", value=codec.encode({"body": body, "command_id": "c-1"})
    )
    assert producer.flush(10) == 0
    wait_until(lambda: len(dead_letters(fleet)) == 1, WAIT_S, "the answer")
    assert dead_letters(fleet)[0]["code"] == "unknown_run"


def test_a_damaged_history_quarantines_its_run_and_no_other(fleet: Fleet) -> None:
    """A corrupt record on run-events: that run is visibly set aside; the others of its partition go on."""
    run_ids = [f"fine-{number}" for number in range(12)]
    feed(fleet.bootstrap, fleet.topic("run-commands"), "mailer", run_ids[:6])
    wait_until(all_ended(fleet, run_ids[:6]), WAIT_S, "six runs end", interval_s=0.5)
    victim = run_ids[0]
    home = next(
        partition
        for key, _, partition, _ in read_all(fleet.bootstrap, fleet.topic("run-events"))
        if key.startswith(f"{victim}/".encode())
    )
    producer = Producer({"bootstrap.servers": fleet.bootstrap})
    producer.produce(
        fleet.topic("run-events"), key=f"{victim}/99".encode(), value=os.urandom(64), partition=home
    )
    assert producer.flush(10) == 0
    fleet.kill("orchestrator")  # it reads the history again only when it takes it over
    fleet.start("orchestrator")
    feed(fleet.bootstrap, fleet.topic("run-commands"), "mailer", run_ids[6:])
    wait_until(all_ended(fleet, run_ids[6:]), WAIT_S, "the others go on", interval_s=0.5)
    codec = Codec("Status")

    def told() -> bool:
        rows = newest(fleet.bootstrap, fleet.topic("run-status"))
        return bool(codec.decode(rows[victim.encode()])["code"] == "quarantined")

    wait_until(told, WAIT_S, "the quarantine is visible")
    assert any(letter["code"] == "history_damaged" for letter in dead_letters(fleet))
    assert all(worker.poll() is None for worker in fleet.workers.values())
