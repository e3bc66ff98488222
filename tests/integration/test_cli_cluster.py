"""``perdure topics`` and ``perdure doctor`` on a real broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from perdure.connectors.settings import Settings
from perdure.console.findings import Level
from perdure.console.main import main
from perdure.console.slots import take_slot
from perdure.console.topics import provisioned
from perdure.console.verification import verify
from perdure.processors.clock import SystemClock
from perdure.processors.orchestrator.owned import Owned
from perdure.processors.orchestrator.partition_restore import PartitionRestore
from perdure.processors.orchestrator.settings import OrchestratorSettings
from perdure.processors.store_rocks import RocksStores
from perdure.schemas.codec import encode
from perdure.schemas.events import Event, EventBody, RunCreated, RunWaiting
from perdure.schemas.values import Provenance
from perdure.topics.kafka_log import KafkaLog
from perdure.topics.log import Eof, Outgoing, Record
from perdure.topics.partitioner import partition_of
from perdure.topics.table import TOPICS, Namespace, Role

PARTITIONS = 2
CREATED: EventBody = RunCreated(
    "a", None, None, b'"i"', Provenance(), 5, waiting_for="agent a", retry_at_ms=9
)

BODIES: tuple[EventBody, ...] = (CREATED, RunWaiting("agent a", 99))


class Line:
    """Runs commands against one namespace."""

    def __init__(self, kafka: str, namespace: str, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.settings = Settings(bootstrap=kafka, namespace=namespace, partitions=PARTITIONS, state_dir=state)
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str]:
        options = ["--bootstrap", self.settings.bootstrap, "--namespace", self.settings.namespace]
        options += ["--state-dir", str(self.settings.state_dir), "--set", f"partitions={PARTITIONS}"]
        with pytest.raises(SystemExit) as ended:
            main([*options, *arguments])
        out, err = self._capsys.readouterr()
        code = ended.value.code
        assert code is None or isinstance(code, int), err
        return code or 0, out

    def findings(self, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
        code, out = self("doctor", "--json", "--patience-s", "1", *arguments)
        told = json.loads(out)
        assert told["ok"] is (code == 0)
        found: list[dict[str, Any]] = told["findings"]
        return code, found


@pytest.fixture
def line(kafka: str, namespace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Line:
    return Line(kafka, namespace, tmp_path / "state", capsys)


def test_topics_are_planned_made_once_and_never_resized(line: Line) -> None:
    """The plan names every topic and changes nothing; apply is idempotent; another count is refused."""
    code, out = line("topics", "plan", "--json")
    planned = json.loads(out)
    assert code == 0
    assert sum(each.startswith("create ") for each in planned) == len(TOPICS)
    assert json.loads(line("topics", "plan", "--json")[1]) == planned
    assert line("topics", "apply")[0] == 0
    assert json.loads(line("topics", "apply", "--json")[1]) == []
    code, out = line("topics", "apply", "--json", "--set", "partitions=3")
    assert code == 2
    assert json.loads(out)["error"]["code"] == "partitions_differ"


def test_doctor_names_what_is_missing_and_what_is_well(line: Line) -> None:
    """Without topics it fails and says how to make them; with topics and no workers it has but notes."""
    code, found = line.findings()
    assert code == 1
    missing = [each for each in found if each["check"] == "topics"]
    assert {each["level"] for each in missing} == {"problem"}
    assert {each["remedy"] for each in missing} == {"Run `perdure topics apply`."}
    line("topics", "apply")
    code, found = line.findings("--verify")
    assert code == 0, found
    levels = {each["check"]: each["level"] for each in found}
    assert levels["broker"] == levels["topics"] == levels["transactions"] == levels["schemas"] == "ok"
    assert levels["groups"] == "note"
    (version,) = (each["text"] for each in found if each["check"] == "version")
    assert version.endswith("is Kafka 4.2.")


def test_doctor_finds_a_transaction_that_does_not_end(line: Line) -> None:
    """A partition whose committed end stands still below its end is named, with the repair that loses
    nothing.
    """
    provisioned(line.settings)
    topic = Namespace(line.settings.namespace).topic("run-outcomes")
    producer = Producer(
        {
            "bootstrap.servers": line.settings.bootstrap,
            "transactional.id": line.settings.namespace,
            "log_level": 0,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"x", b"k", partition=1)
    producer.flush(10)
    code, found = line.findings()
    producer.abort_transaction(30)
    hanging = [each for each in found if each["check"] == "transactions"]
    assert code == 1
    assert [each["level"] for each in hanging] == ["problem"]
    assert f"{topic}/1" in hanging[0]["text"]
    assert "never `abort`" in hanging[0]["remedy"]
    assert line.findings()[0] == 0


def test_doctor_tells_records_that_perdure_cannot_have_written(line: Line) -> None:
    """Garbage on run-events is a problem; on run-commands, where anybody writes, it is not."""
    provisioned(line.settings)
    producer = KafkaLog(line.settings.bootstrap).producer("test")
    for name in ("run-commands", "run-events"):
        topic = Namespace(line.settings.namespace).topic(name)
        producer.produce(Outgoing(topic, 0, b"r/1", b"garbage"))
    assert producer.flush(10) == 0
    code, found = line.findings()
    schemas = {each["text"].partition(":")[0]: each["level"] for each in found if each["check"] == "schemas"}
    assert code == 1
    assert schemas == {"run-commands": "note", "run-events": "problem"}
    producer.close()


def test_rows_that_differ_from_the_fold_of_the_events_are_found(line: Line) -> None:
    """Equal rows are told equal; a row that was changed, lost or added behind the log's back is named."""
    settings = line.settings
    provisioned(settings)
    log = KafkaLog(settings.bootstrap)
    topic = Namespace(settings.namespace).topic("run-events")
    partition = partition_of("r", PARTITIONS)
    producer = log.producer("test")
    for seq, body in enumerate(BODIES, 1):
        producer.produce(Outgoing(topic, partition, f"r/{seq}".encode(), encode(Event("r", seq, 5, body))))
    assert producer.flush(10) == 0
    producer.close()

    slot = take_slot(settings.state_dir, settings.namespace, Role.ORCHESTRATOR)
    owned = _restored(settings, log, topic, partition, slot.store)
    try:
        (told,) = verify(settings, log, SystemClock())
        assert told.level is Level.OK, told
        rows = {key: owned.store.get(key) for key in (b"rr",)}
        for changes, what in (
            ({b"rr": _with_another_end(rows[b"rr"])}, "r r is different"),
            ({b"rr": None}, "r r is missing"),
            ({b"rr": rows[b"rr"], b"rother": b"x"}, "r other is surplus"),
        ):
            owned.store.write(changes)
            (told,) = verify(settings, log, SystemClock())
            assert told.level is Level.PROBLEM
            assert what in told.text
    finally:
        owned.close()
        slot.release()


def _with_another_end(row: bytes | None) -> bytes:
    assert row
    return row[:-1] + bytes([row[-1] ^ 1])


def _restored(settings: Settings, log: KafkaLog, topic: str, partition: int, folder: Path) -> Owned:
    """Rows of one partition, restored as an orchestrator does, its store left open."""
    info = log.describe([topic], 10)[topic]
    limits = OrchestratorSettings(
        namespace=Namespace(settings.namespace), slot="t", partitions=PARTITIONS, token_key=b"k"
    )
    owned = Owned(partition, info.topic_id, RocksStores(folder), SystemClock(), limits)
    restore = PartitionRestore(owned, 0, 2, 0)
    for seq, body in enumerate(BODIES, 1):
        event = Event("r", seq, 5, body)
        restore.take(Record(topic, partition, seq - 1, f"r/{seq}".encode(), encode(event), (), 5))
    restore.take(Eof(topic, partition, 2))
    return owned
