"""The Faust view on a real broker, judged by a reader that shares no code with it."""

from __future__ import annotations

import io
import json
import random
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import fastavro
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from perdure.connectors.broker_settings import free_ports
from perdure.connectors.local_kafka import LocalKafka
from perdure.schemas.values import RunState
from perdure.topics import provision
from perdure.topics.errors import Unavailable
from perdure.topics.kafka_log import KafkaLog
from perdure.topics.partitioner import partition_of
from perdure.topics.table import BY_NAME, RUN_STATUS, Namespace
from tests.unit.view_records import Fed, fed, status, tombstone

PARTITIONS = 4
WAIT_S = 60.0
LOOK_S = 0.1
FRAME_BYTES = 10  # of a single-object encoding, before its body
ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("view_process.py")
SCHEMA = fastavro.parse_schema(json.loads((ROOT / "schemas" / "avro" / "Status.avsc").read_text()))

pytestmark = pytest.mark.timeout(150)


class Stage:
    """One namespace: its topics, a transactional writer, an independent judge, and the view's process."""

    def __init__(self, bootstrap: str, namespace: str, folder: Path) -> None:
        self.names = Namespace(namespace)
        self.topic = self.names.topic(RUN_STATUS)
        self.state_dir = folder / "state"
        self.port = free_ports()[0]
        self._bootstrap = bootstrap
        self._random = random.Random(7)
        self._seqs: Counter[str] = Counter()
        self._process: subprocess.Popen[bytes] | None = None
        log = KafkaLog(bootstrap)
        changes = until(lambda: _planned(log, self.names))
        provision.apply(log.provision, changes, lambda _: "")
        self._writer = ck.Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": namespace, "linger.ms": 0}
        )
        self._writer.init_transactions(WAIT_S)

    # ---- the writer

    def write(self, records: list[Fed], *, commit: bool = True) -> None:
        self._writer.begin_transaction()
        for key, value in records:
            assert key is not None
            partition = partition_of(key.decode(errors="replace"), PARTITIONS)
            self._writer.produce(self.topic, value, key, partition)
        self._writer.flush(WAIT_S)  # an aborted record has to be in the log to be a danger
        if commit:
            self._writer.commit_transaction(WAIT_S)
        else:
            self._writer.abort_transaction(WAIT_S)

    def feed(self, transactions: int, runs: int = 200) -> None:
        """Random changes: a third of the transactions aborted, a few runs purged, a few records late."""
        for number in range(transactions):
            records: list[Fed] = []
            for _ in range(10):
                run_id = f"run-{self._random.randrange(runs)}"
                self._seqs[run_id] += 1
                late = self._random.random() < 0.1
                state = self._random.choice(list(RunState))
                record = status(
                    run_id,
                    self._seqs[run_id] - 5 * late,
                    state,
                    agent=self._random.choice(["support", "billing"]),
                    tenant=self._random.choice([None, "acme", "globex"]),
                    tokens=self._random.randrange(1_000),
                    created_ms=int(run_id.removeprefix("run-")),
                )
                records.append(tombstone(run_id) if self._random.random() < 0.02 else fed(record))
            self.write(records, commit=number % 3 != 1)

    # ---- the judge

    def expected(self) -> dict[str, tuple[Any, ...]]:
        """The newest status of each run that is committed, read by hand."""
        consumer = ck.Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "judge",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
            }
        )
        consumer.assign([ck.TopicPartition(self.topic, number, 0) for number in range(PARTITIONS)])
        rows: dict[str, tuple[Any, ...]] = {}
        ended = 0
        while ended < PARTITIONS:
            message = consumer.poll(WAIT_S)
            assert message is not None, "the judge was told nothing"
            if (error := message.error()) is not None:
                assert error.code() == ck.KafkaError._PARTITION_EOF, error
                ended += 1
                continue
            key, value = message.key(), message.value()
            assert isinstance(key, bytes)
            if value is None:
                rows.pop(key.decode(), None)
                continue
            read: Any = fastavro.schemaless_reader(io.BytesIO(value[FRAME_BYTES:]), SCHEMA, None)
            held = rows.get(read["run_id"])
            if held is None or held[0] <= read["seq"]:
                rows[read["run_id"]] = (
                    read["seq"], read["state"], read["agent"], read["provenance"]["tenant"],
                    read["usage"]["input_tokens"],
                )  # fmt: skip
        consumer.close()
        return rows

    # ---- the view

    def start(self) -> None:
        asked = {
            "bootstrap": self._bootstrap,
            "namespace": self.names.prefix,
            "state_dir": str(self.state_dir),
            "port": self.port,
        }
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), json.dumps(asked)], stdout=subprocess.DEVNULL
        )

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(WAIT_S)

    def stop(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(WAIT_S)

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def ask(self, path: str) -> Any:
        """The answer, or None while there is none."""
        assert self._process is not None
        assert self._process.poll() is None, "the view has ended"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=WAIT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                if error.code not in {404, 503}:
                    raise
            return None
        except OSError:
            return None

    def rows(self) -> dict[str, tuple[Any, ...]] | None:
        found: dict[str, tuple[Any, ...]] = {}
        after: str | None = ""
        while after is not None:
            page = self.ask(f"/runs?limit=77&after={after}")
            if page is None:
                return None
            for run in page["runs"]:
                found[run["run_id"]] = (
                    run["seq"], run["state"], run["agent"], run["tenant"], run["usage"]["input_tokens"]
                )  # fmt: skip
            after = page["next"]
        return found

    def await_equal(self) -> None:
        """Rows and counts of the view become those of the judge."""
        expected = self.expected()
        try:
            until(lambda: self.rows() == expected or None)
        except TimeoutError:
            assert self.rows() == expected
            raise
        counts = self.ask("/counts")
        assert counts["runs"] == len(expected)
        states = Counter(row[1] for row in expected.values())
        assert {name: number for name, number in counts["states"].items() if number} == states
        assert counts["usage"]["input_tokens"] == sum(row[4] for row in expected.values())
        for field, column in (("agent", 2), ("tenant", 3)):
            runs = Counter(row[column] for row in expected.values())
            assert {each[field]: each["runs"] for each in counts[f"{field}s"]} == runs


def until(look: Callable[[], Any]) -> Any:
    """What ``look`` finds, once it finds something."""
    give_up = time.monotonic() + WAIT_S
    while time.monotonic() < give_up:
        if (found := look()) is not None:
            return found
        time.sleep(LOOK_S)
    raise TimeoutError


def _planned(log: KafkaLog, names: Namespace) -> tuple[provision.Change, ...] | None:
    try:
        return provision.plan(log.provision, names, PARTITIONS, 1)
    except Unavailable:  # a broker that has just begun
        return None


@pytest.fixture
def stage(kafka: str, namespace: str, tmp_path: Path) -> Iterator[Stage]:
    staged = Stage(kafka, namespace, tmp_path)
    try:
        yield staged
    finally:
        staged.end()


def test_the_view_is_the_fold_of_what_is_committed_through_kill_and_loss(stage: Stage) -> None:
    """Rows and aggregates equal an independent fold: after recovery with aborted transactions at its end,
    live, after kill -9 in the middle of a feed, and after the folder was deleted.
    """
    stage.feed(60)
    stage.feed(2)
    stage.write([fed(status("run-0", 10**6))], commit=False)
    stage.start()
    stage.await_equal()
    stage.feed(40)
    stage.await_equal()

    stage.feed(20)
    stage.kill()
    stage.feed(20)
    stage.start()
    stage.await_equal()
    stage.feed(10)
    stage.await_equal()
    assert stage.stop() == 0

    shutil.rmtree(stage.state_dir)
    stage.feed(10)
    stage.start()
    stage.await_equal()
    assert stage.stop() == 0


def test_poison_does_not_stop_the_view_and_a_topic_made_anew_is_read_anew(stage: Stage) -> None:
    """Records that are none are shown or left out; nothing of a topic that was deleted remains."""
    stage.feed(5)
    stage.write([(b"poisoned", b"garbage"), (b"\xff\x00", b"?"), (b"__faust\x00offset__", b"1")])
    stage.write([fed(status("last", 1))])
    stage.start()
    until(lambda: stage.ask("/runs/last"))
    assert stage.ask("/runs/poisoned")["state"] == "unreadable"
    assert stage.ask("/counts")["states"]["unreadable"] == 1
    assert stage.ask("/healthz")["records_left_out"] == 2

    admin = AdminClient({"bootstrap.servers": stage._bootstrap})
    admin.delete_topics([stage.topic])[stage.topic].result(WAIT_S)
    spec = BY_NAME[RUN_STATUS]
    until(lambda: _created(admin, NewTopic(stage.topic, PARTITIONS, 1, config=dict(spec.settings(1)))))
    stage.write([fed(status("first", 1))])
    until(lambda: stage.ask("/runs/first"))
    stage.await_equal()
    assert stage.stop() == 0


def _created(admin: AdminClient, topic: NewTopic) -> bool | None:
    try:
        admin.create_topics([topic])[topic.topic].result(WAIT_S)
    except ck.KafkaException as error:
        if error.args[0].code() == ck.KafkaError.TOPIC_ALREADY_EXISTS:  # its deletion is still under way
            return None
        raise
    return True


@pytest.mark.slow
def test_the_view_goes_on_after_the_broker_was_away(tmp_path: Path) -> None:
    """A broker that is killed and comes back is followed again, without a new process for the view."""
    with LocalKafka(tmp_path / "kafka") as broker:
        stage = Stage(broker.bootstrap, "outage", tmp_path)
        try:
            stage.feed(10)
            stage.start()
            stage.await_equal()
            broker.kill()
            assert stage.rows() is not None
            broker.start()
            stage.feed(10)
            stage.await_equal()
            assert stage.stop() == 0
        finally:
            stage.end()
