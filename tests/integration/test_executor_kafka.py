"""The executor on a real broker, killed and stopped from outside, judged by a file no worker can rewrite."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from perdure.processors.headers import request_headers
from perdure.processors.offset_map import OffsetMap, decode, empty_map
from perdure.schemas.codec import decode as decode_record
from perdure.schemas.codec import encode
from perdure.schemas.requests import ToolRequest
from perdure.schemas.results import Result
from perdure.schemas.values import Effect
from perdure.topics.errors import Unavailable
from perdure.topics.kafka_log import KafkaLog
from perdure.topics.kafka_provision import KafkaProvision
from perdure.topics.log import ConsumerSpec, GroupProtocol, Outgoing, Position, Record, TopicPartition
from perdure.topics.provision import apply, plan
from perdure.topics.table import RUN_RESULTS, TOOL_REQUESTS, Namespace, Role

PARTITIONS = 2
WAIT_S = 40.0
PROGRAM = Path(__file__).with_name("executor_process.py")
CONSUMER, COOPERATIVE = GroupProtocol.CONSUMER, GroupProtocol.COOPERATIVE
ENDS = {"Completed", "Suspect", "Declined", "Failed"}


class Bench:
    """Topics of their own, worker processes, and what they did."""

    def __init__(self, bootstrap: str, namespace: str, folder: Path, protocol: GroupProtocol) -> None:
        self.names = Namespace(namespace)
        self._bootstrap = bootstrap
        self._protocol = protocol
        self._truth = folder / "truth"
        self._log = KafkaLog(bootstrap)
        self._provision()
        self._producer = self._log.producer("orchestrator")
        self._reader = self._log.consumer(ConsumerSpec("reader"))
        topic = self.names.topic(RUN_RESULTS)
        self._reader.assign([Position(TopicPartition(topic, p), 0) for p in range(PARTITIONS)])
        self._started = 0
        self.processes: list[subprocess.Popen[str]] = []
        self.told: dict[str, list[str]] = defaultdict(list)

    def _provision(self) -> None:
        """A broker that has just started may not know its coordinators yet."""
        admin = KafkaProvision(self._log.admin)
        end = time.monotonic() + WAIT_S
        while True:
            try:
                apply(admin, plan(admin, self.names, PARTITIONS, 1), empty_map)
            except Unavailable:
                assert time.monotonic() < end
            else:
                return

    def worker(self, crash: str | None = None) -> subprocess.Popen[str]:
        """Start a worker and wait until it stands. ``crash``: the point at which it kills itself."""
        self._started += 1
        arguments = {
            "bootstrap": self._bootstrap,
            "namespace": self.names.prefix,
            "worker": f"w{self._started}",
            "truth": str(self._truth),
            "protocol": self._protocol.value,
        }
        environment = {**os.environ, **({"PERDURE_CRASH": crash} if crash else {})}
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), json.dumps(arguments)],
            stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def ask(self, call_id: str, effect: Effect, ms: int, partition: int = 0) -> None:
        now_ms = time.time_ns() // 1_000_000
        request = ToolRequest(
            run_id=f"run-{call_id}",
            turn=1,
            call_id=call_id,
            attempt=1,
            request_id=call_id,
            execution=0,
            definition="d",
            tool="sleep",
            arguments=json.dumps({"ms": ms}).encode(),
            effect=effect,
            idempotency_key="k",
            start_by_ms=now_ms + 3_600_000,
            timeout_ms=60_000,
        )
        topic = self.names.topic(TOOL_REQUESTS)
        out = Outgoing(topic, partition, b"run", encode(request), request_headers(request))
        self._producer.produce(out)
        self._producer.poll(0)

    def until(self, reached: Callable[[], bool], wait_s: float = WAIT_S) -> None:
        """Read results until something holds."""
        self._producer.flush(5)
        end = time.monotonic() + wait_s
        while not reached():
            assert time.monotonic() < end, dict(self.told)
            for item in self._reader.poll(500, 0.1):
                if isinstance(item, Record):
                    result = decode_record(Result, item.value)
                    self.told[result.call_id].append(type(result.body).__name__)

    def begun(self) -> Counter[str]:
        """How often each call began, by the ground truth."""
        lines = self._truth.read_text().splitlines() if self._truth.exists() else []
        return Counter(line.split()[1] for line in lines if line.startswith("B "))

    def committed(self, partition: int = 0) -> tuple[int | None, OffsetMap]:
        at = TopicPartition(self.names.topic(TOOL_REQUESTS), partition)
        consumer = self._log.consumer(ConsumerSpec("look", group=self.names.group(Role.TOOL_EXECUTOR)))
        [found] = consumer.committed([at], 10)
        consumer.close()
        topic_id = self._log.describe([at.topic], 10)[at.topic].topic_id
        known = decode(found.offset or 0, found.metadata, topic_id)
        assert isinstance(known, OffsetMap), known
        return found.offset, replace(known, ages=())

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._reader.close()
        self._producer.close()


@pytest.fixture(params=[CONSUMER, COOPERATIVE], ids=["consumer", "cooperative"])
def bench(kafka: str, namespace: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(kafka, namespace, tmp_path, request.param)
    yield bench
    bench.close()


@pytest.mark.timeout(120)
def test_requests_are_executed_and_everything_is_committed(bench: Bench) -> None:
    """Calls run at once and out of order; SIGTERM ends the worker with nothing left open."""
    for number in range(100):
        effect = Effect.NON_IDEMPOTENT if number % 2 else Effect.READ_ONLY
        bench.ask(f"c{number}", effect, ms=number % 7 * 20, partition=number % PARTITIONS)
    worker = bench.worker()
    bench.until(lambda: sum("Completed" in told for told in bench.told.values()) == 100)
    worker.terminate()
    assert worker.wait(WAIT_S) == 0
    assert set(bench.begun().values()) == {1}
    assert bench.told["c1"] == ["Started", "Completed"]
    assert bench.told["c2"] == ["Completed"]
    for partition in range(PARTITIONS):
        assert bench.committed(partition) == (50, OffsetMap())


@pytest.mark.timeout(120)
@pytest.mark.parametrize("bench", [CONSUMER], indirect=True, ids=["consumer"])
@pytest.mark.parametrize(
    ("point", "told", "begun"),
    [
        ("executor.before_claim", ["Started", "Completed"], 1),
        ("executor.after_claim", ["Started", "Suspect"], 0),
        ("executor.after_call", ["Started", "Suspect"], 1),
        ("executor.after_result", ["Started", "Completed", "Suspect"], 1),
    ],
)
def test_a_worker_killed_around_a_call_leaves_it_done_at_most_once(
    bench: Bench, point: str, told: list[str], begun: int
) -> None:
    """Wherever around a non_idempotent call the worker dies, its successor executes it only if nobody had."""
    victim = bench.worker(crash=point)
    bench.ask("a", Effect.NON_IDEMPOTENT, ms=50)
    bench.until(lambda: victim.poll() is not None)
    assert victim.returncode == -signal.SIGKILL
    bench.worker()
    bench.until(lambda: bench.told["a"] == told)
    assert bench.begun()["a"] == begun


@pytest.mark.timeout(120)
def test_a_worker_stopped_past_its_session_executes_nothing_twice(bench: Bench) -> None:
    """A worker that sleeps through its session with calls running and waiting repeats none when it wakes."""
    sleeper = bench.worker()
    for number in range(20):
        bench.ask(f"c{number}", Effect.NON_IDEMPOTENT, ms=2_000, partition=number % PARTITIONS)
    bench.until(lambda: len(bench.begun()) == 20)
    sleeper.send_signal(signal.SIGSTOP)
    bench.worker()
    bench.until(lambda: any("Suspect" in told for told in bench.told.values()))
    for number in range(20, 30):
        bench.ask(f"c{number}", Effect.NON_IDEMPOTENT, ms=10, partition=number % PARTITIONS)
    sleeper.send_signal(signal.SIGCONT)
    bench.until(lambda: all("Completed" in bench.told[f"c{number}"] for number in range(30)))
    assert bench.begun() == {f"c{number}": 1 for number in range(30)}


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_under_kills_and_stops_every_call_ends_and_none_runs_twice(bench: Bench) -> None:
    """While workers die and freeze at random, each request is resolved and no claimed call begins a
    second time.
    """
    random = Random(bench.names.prefix)
    workers = [bench.worker(), bench.worker()]
    count = 0
    for round_number in range(6):
        for _ in range(60):
            effect = Effect.NON_IDEMPOTENT if count % 2 else Effect.READ_ONLY
            bench.ask(f"c{count}", effect, random.randrange(80), count % PARTITIONS)
            count += 1
        seen = count - random.randrange(20, 50)
        bench.until(lambda seen=seen: len(bench.told) >= seen)  # type: ignore[misc]
        victim = workers.pop(0)
        if round_number % 3 == 2:
            victim.send_signal(signal.SIGSTOP)
            replaced = bench.worker()
            bench.until(lambda count=count: len(bench.told) >= count)  # type: ignore[misc]
            victim.send_signal(signal.SIGCONT)
            workers += [replaced]
        else:
            victim.kill()
            workers.append(bench.worker())
    bench.until(lambda: all(ENDS & set(bench.told[f"c{number}"]) for number in range(count)), 60)
    begun = bench.begun()
    assert [call for call, times in begun.items() if times > 1 and int(call[1:]) % 2] == []
    doubtful = [n for n in range(1, count, 2) if "Completed" not in bench.told[f"c{n}"]]
    assert len(doubtful) < count / 4, "most calls are beyond doubt"
