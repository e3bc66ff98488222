"""The orchestrator on a real broker, killed at the worst moments, judged by a reader of its own."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from perdure.processors.clock import SystemClock, SystemEntropy
from perdure.processors.crash_points import CRASH_ENV, CRASH_MARKER_ENV
from perdure.processors.definitions import DefinitionBook, publish
from perdure.processors.machine.apply import fold
from perdure.processors.orchestrator import processing, transaction
from perdure.processors.orchestrator.assignment import Phase
from perdure.processors.orchestrator.host import Orchestrator
from perdure.processors.orchestrator.settings import OrchestratorSettings
from perdure.processors.store_rocks import RocksStores
from perdure.schemas.codec import decode, encode
from perdure.schemas.commands import Command, Submit
from perdure.schemas.events import Event
from perdure.schemas.outputs import Outcome
from perdure.schemas.requests import ModelRequest, ToolRequest
from perdure.topics.kafka_log import KafkaLog
from perdure.topics.table import TOPICS, Namespace
from tests.scenario.orchestrator_stage import AGENT, answered, played

PARTITIONS = 4
WAIT_S = 45.0
SCRIPT = Path(__file__).with_name("orchestrator_process.py")

T = TypeVar("T")


class Installation:
    """One namespace on the broker: topics, clients, both executors played by hand."""

    def __init__(self, bootstrap: str, namespace: str, folder: Path) -> None:
        self.bootstrap = bootstrap
        self.names = Namespace(namespace)
        self.folder = folder
        self.log = KafkaLog(bootstrap)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._hosts: list[Orchestrator] = []
        self._result_ids = itertools.count(1)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        wanted = [
            NewTopic(
                self.names.topic(spec.name), spec.partitions(PARTITIONS), 1, config=dict(spec.settings(1))
            )
            for spec in TOPICS
        ]
        for future in admin.create_topics(wanted).values():
            future.result(WAIT_S)
        # librdkafka's own default partitioner: most commands land on a wrong partition and are forwarded.
        self._client = ck.Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._executors = self._reader("model-requests", "tool-requests")
        self._answered: set[str] = set()
        self._seen: dict[str, list[ck.Message]] = defaultdict(list)
        self._judge = self._reader("run-events", "run-outcomes", "dead-letters")
        book = DefinitionBook(self.log, self.names, SystemClock(), "deployer")
        producer = self.log.producer("deployer")
        publish(AGENT, book, producer, self.names, SystemClock())
        assert publish(AGENT, book, producer, self.names, SystemClock())
        producer.close()
        book.close()

    def _reader(self, *topics: str) -> ck.Consumer:
        consumer = ck.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "nobody",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
            }
        )
        consumer.assign(
            [
                ck.TopicPartition(self.names.topic(spec.name), partition, 0)
                for spec in TOPICS
                if spec.name in topics
                for partition in range(spec.partitions(PARTITIONS))
            ]
        )
        return consumer

    # ---- processes

    def start(self, slot: str, crash: str | None = None) -> subprocess.Popen[bytes]:
        arguments = {
            "bootstrap": self.bootstrap,
            "namespace": self.names.prefix,
            "slot": slot,
            "partitions": PARTITIONS,
            "folder": str(self.folder / slot),
        }
        environment = dict(os.environ)
        if crash is not None:
            environment |= {CRASH_ENV: crash, CRASH_MARKER_ENV: str(self.folder / f"{slot}.crashed")}
        process = subprocess.Popen([sys.executable, str(SCRIPT), json.dumps(arguments)], env=environment)
        self._processes.append(process)
        return process

    def host(self, slot: str, **limits: int) -> Orchestrator:
        """An orchestrator in this process, stepped by the test."""
        settings = OrchestratorSettings(
            namespace=self.names,
            slot=slot,
            partitions=PARTITIONS,
            token_key=b"k" * 32,
            poll_wait_ms_max=20,
            **limits,  # type: ignore[arg-type]
        )
        book = DefinitionBook(self.log, self.names, SystemClock(), "book")
        stores = RocksStores(self.folder / slot)
        host = Orchestrator(self.log, stores, SystemClock(), SystemEntropy(), book, settings)
        self._hosts.append(host)
        return host

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait(WAIT_S)
        for host in self._hosts:
            host.close()
        self._executors.close()
        self._judge.close()
        self._client.flush(WAIT_S)

    # ---- client and executors

    def submit(self, run_id: str) -> None:
        command = Command(Submit("support", b'"hello"'), command_id=f"submit-{run_id}")
        topic = self.names.topic("run-commands")
        self._client.produce(topic, key=run_id.encode(), value=encode(command))

    def play(self) -> None:
        """Answer the requests that have arrived, each once."""
        for message in self._executors.consume(500, 0.02):
            assert message.error() is None, message.error()
            topic = self.names.name(message.topic() or "")
            kind: type[ModelRequest | ToolRequest] = (
                ModelRequest if topic == "model-requests" else ToolRequest
            )
            request = decode(kind, message.value())
            if request.request_id in self._answered:
                continue
            self._answered.add(request.request_id)
            key, result = answered(request, played(request), f"result-{next(self._result_ids)}")
            partition = message.partition()
            assert partition is not None
            self._client.produce(
                self.names.topic("run-results"), key=key, value=encode(result), partition=partition
            )
        self._client.poll(0)

    # ---- the judge

    def look(self) -> None:
        for message in self._judge.consume(1_000, 0.0):
            assert message.error() is None, message.error()
            self._seen[self.names.name(message.topic() or "") or ""].append(message)

    def outcomes(self) -> list[Outcome]:
        self.look()
        return [decode(Outcome, message.value()) for message in self._seen["run-outcomes"]]

    def histories(self) -> dict[str, list[Event]]:
        self.look()
        found: dict[str, list[Event]] = defaultdict(list)
        for message in self._seen["run-events"]:
            event = decode(Event, message.value())
            assert message.key() == f"{event.run_id}/{event.seq}".encode()
            found[event.run_id].append(event)
        return found

    def until(self, condition: Callable[[], T], *hosts: Orchestrator, wait_s: float = WAIT_S) -> T:
        """Play, and step ``hosts``, until ``condition`` holds."""
        end_s = time.monotonic() + wait_s
        while not (found := condition()):
            assert time.monotonic() < end_s, "it did not come about"
            for host in hosts:
                host.step()
            self.play()
        return found

    def judge(self, run_ids: list[str]) -> None:
        """Every run ended once, with a history that has no gap and no double."""
        assert sorted(outcome.run_id for outcome in self.outcomes()) == sorted(run_ids)
        histories = self.histories()
        assert sorted(histories) == sorted(run_ids)
        for run_id, events in histories.items():
            assert [event.seq for event in events] == list(range(1, len(events) + 1)), run_id
            assert len(events) == 9, [type(event.body).__name__ for event in events]
            fold(events)
        assert self._seen["dead-letters"] == []


@pytest.fixture
def installation(kafka: str, namespace: str, tmp_path: Path) -> Iterator[Installation]:
    opened = Installation(kafka, namespace, tmp_path)
    yield opened
    opened.close()


def submit_all(installation: Installation, count: int) -> list[str]:
    run_ids = [f"run-{n}" for n in range(count)]
    for run_id in run_ids:
        installation.submit(run_id)
    return run_ids


def test_runs_end_and_a_restart_finds_them_ended(installation: Installation) -> None:
    """Runs from a plain producer with its own partitioner end once each, and stay so after a restart."""
    host = installation.host("a")
    run_ids = submit_all(installation, 20)
    installation.until(lambda: len(installation.outcomes()) == 20, host)
    assert host.counts["forwarded"] > 0
    host.close()
    again = installation.host("a")
    installation.until(lambda: again.phase is Phase.PROCESS, again)
    for _ in range(10):
        again.step()
    assert again.counts["events"] == 0
    installation.judge(run_ids)


@pytest.mark.parametrize("point", ["orchestrator.before_commit", "orchestrator.after_commit"])
def test_killed_around_the_commit(installation: Installation, point: str) -> None:
    """A process killed between offsets and commit, or between commit and rows, changes nothing twice."""
    run_ids = submit_all(installation, 30)
    first = installation.start("a", crash=point)
    installation.until(lambda: first.poll() is not None)
    assert first.returncode == -9
    installation.start("a", crash=point)
    installation.until(lambda: len(installation.outcomes()) == 30)
    installation.judge(run_ids)


@pytest.mark.slow
def test_two_processes_killed_while_runs_flow(installation: Installation) -> None:
    """Processes killed again and again, one of them losing its disk, end every run exactly once."""
    count = 120
    run_ids = [f"run-{n}" for n in range(count)]
    waiting = iter(run_ids)
    processes = {slot: installation.start(slot) for slot in ("a", "b")}

    def feed(upto: int) -> bool:
        for run_id in itertools.islice(waiting, 3):
            installation.submit(run_id)
        return len(installation.outcomes()) >= upto

    for kill, slot in enumerate(("a", "b", "a"), 1):
        folder = installation.folder / slot
        installation.until(lambda: feed(25 * kill) and folder.exists())  # noqa: B023 - called within the round
        processes[slot].kill()
        processes[slot].wait(WAIT_S)
        if kill == 2:
            shutil.rmtree(folder)
        processes[slot] = installation.start(slot)
    installation.until(lambda: feed(count))
    installation.judge(run_ids)


@pytest.mark.slow
def test_membership_that_ended_within_a_batch_is_fenced(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process evicted between its poll and its commit, and taken over meanwhile, commits nothing."""
    stalled = installation.host("a", session_timeout_ms=6_000, max_poll_interval_ms=6_000)
    run_ids = submit_all(installation, 10)
    installation.until(lambda: stalled.phase is Phase.PROCESS, stalled)
    successor = installation.host("b")
    real = transaction.commit_transaction
    stalls: list[str] = []

    def commit_transaction(*arguments: Any) -> Any:
        settings = arguments[4]
        if settings.slot == "a" and not stalls:
            stalls.append("a")
            installation.until(lambda: len(successor.ready_partitions) == PARTITIONS, successor)
        return real(*arguments)

    monkeypatch.setattr(processing, "commit_transaction", commit_transaction)
    installation.until(lambda: stalled.counts["fenced"] > 0, stalled)
    installation.until(lambda: len(installation.outcomes()) == 10, successor, stalled)
    installation.judge(run_ids)


def test_rebuilt_rows_equal_kept_ones(installation: Installation) -> None:
    """Rows rebuilt from a real log equal the rows that grew with it."""
    host = installation.host("a")
    run_ids = submit_all(installation, 12)
    installation.until(lambda: len(installation.outcomes()) == 12, host)
    host.close()
    kept = rows_of(RocksStores(installation.folder / "a"))
    shutil.rmtree(installation.folder / "a")
    again = installation.host("a")
    installation.until(lambda: again.phase is Phase.PROCESS, again)
    again.close()
    assert rows_of(RocksStores(installation.folder / "a")) == kept
    installation.judge(run_ids)


def rows_of(stores: RocksStores) -> list[dict[bytes, bytes]]:
    """All rows but place, published statuses and age marks, which are no part of the fold."""
    found: list[dict[bytes, bytes]] = []
    for partition in range(PARTITIONS):
        store = stores.open(partition)
        rows: Any = store.scan(b"", b"\xff", 1_000_000)
        found.append({key: value for key, value in rows if key[:1] not in {b"m", b"s", b"w", b"a"}})
        store.close()
    return found
