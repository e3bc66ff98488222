"""``python -m benchmarks takeover``: from the kill -9 of a process until its work goes on elsewhere.

Two processes a role share the partitions, under a steady load of short runs. One is killed and, by the way
that is measured, started again in its slot at once, started again in a slot of another name, or not at all,
as if its machine were lost. It has been taken over when each partition has progress that was made after the
kill: any event for an orchestrator, a model's or a tool's answer for the executors.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from benchmarks import report
from chaos.app import ONE_CALL, READ_ONLY
from chaos.checker import EVENTS
from chaos.load import Load
from chaos.model_service import scripted_model
from chaos.worker import Worker, environment_of
from perdure.connectors.kafka_jars import KAFKA_VERSION
from perdure.connectors.local_kafka import LocalKafka
from perdure.connectors.settings import Settings
from perdure.console.topics import provisioned
from perdure.processors.clock import SystemEntropy, new_id
from perdure.schemas.codec import decode
from perdure.schemas.events import Event, ModelResponded, ToolCompleted
from perdure.topics.kafka_log import KafkaLog
from perdure.topics.log import ConsumerSpec, Position, Record, TopicPartition
from perdure.topics.table import Role

FOLDER: Final = Path(".perdure") / "takeover"
PARTITIONS: Final = 4
SIBLINGS: Final = 2
RATE: Final = 12.0
OPEN_MAX: Final = 60
LIMIT_S: Final = 90.0
REST_S: Final = 5.0
SESSION_TIMEOUT_S: Final = 6.0
"""The orchestrator's own setting, and what the local broker grants executors."""
IN_FLIGHT_MS: Final = 50
"""What the log takes in so soon after the kill may still have been the victim's."""

_begun_s: Final = time.perf_counter()


class Way(Enum):
    """What becomes of the process that was killed."""

    RESTARTED = "restarted_slot"
    RENAMED = "restarted_under_another_name"
    LOST = "lost_machine"


# An executor has no static membership, so a slot of another name is nothing else to it.
WAYS: Final = {
    Role.ORCHESTRATOR: tuple(Way),
    Role.MODEL_CALLER: (Way.RESTARTED, Way.LOST),
    Role.TOOL_EXECUTOR: (Way.RESTARTED, Way.LOST),
}
PROGRESS: Final[dict[Role, type[object]]] = {
    Role.ORCHESTRATOR: object,
    Role.MODEL_CALLER: ModelResponded,
    Role.TOOL_EXECUTOR: ToolCompleted,
}


class NotTakenOver(Exception):
    """The work of a killed process did not go on."""


@dataclass(slots=True)
class Scene:
    """What is put up: the workers in their places, and a reader of everything they write."""

    folder: Path
    environment: dict[str, str]
    workers: dict[Role, list[Worker]]
    names: int = 0

    def new_worker(self, role: Role) -> Worker:
        slot = f"{role.value}-{self.names}"
        self.names += 1
        return Worker(
            role, slot, self.environment, self.folder / "state" / self.namespace, self.folder / slot
        )

    def end(self) -> None:
        for workers in self.workers.values():
            for worker in workers:
                worker.end_at_once()

    @property
    def namespace(self) -> str:
        return self.environment["PERDURE_NAMESPACE"]


class Progress:
    """When each partition had an event of a kind that is younger than an instant."""

    def __init__(self, settings: Settings) -> None:
        log = KafkaLog(settings.bootstrap, settings.kafka)
        topic = f"{settings.namespace}.{EVENTS}"
        self._consumer = log.consumer(ConsumerSpec("perdure.takeover", fetch_wait_ms=5))
        self._consumer.assign([Position(TopicPartition(topic, each), 0) for each in range(PARTITIONS)])

    def wait(self, kind: type[object], after_ms: int, limit_s: float) -> float:
        """Seconds until every partition has one; raises :class:`NotTakenOver`."""
        begun_s, open_ones = time.monotonic(), set(range(PARTITIONS))
        while open_ones:
            if time.monotonic() > begun_s + limit_s:
                raise NotTakenOver(f"partitions {sorted(open_ones)} stand still")
            for item in self._consumer.poll(500, 0.01):
                if isinstance(item, Record) and item.value is not None and item.partition in open_ones:
                    event = decode(Event, item.value)
                    if event.at_ms > after_ms and isinstance(event.body, kind):
                        open_ones.discard(item.partition)
        return time.monotonic() - begun_s

    def close(self) -> None:
        self._consumer.close()


def main(given: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks takeover", description=__doc__)
    parser.add_argument("--kills", type=int, default=5, help="of each kind (%(default)s)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where its files go (%(default)s)")
    options = parser.parse_args(given)
    folder = options.folder.absolute() / new_id(SystemEntropy())[-8:].lower()
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        broker = LocalKafka(folder / "kafka")
        stack.callback(broker.kill)
        settings = Settings(
            bootstrap=broker.start().bootstrap, namespace="takeover", partitions=PARTITIONS,
            state_dir=folder / "state",
        )  # fmt: skip
        provisioned(settings)
        port = stack.enter_context(scripted_model(folder, ONE_CALL))
        environment = environment_of(
            settings.bootstrap, settings.namespace, settings.state_dir, port, folder / "truth.log", PARTITIONS
        )
        scene = Scene(folder, environment, {})
        for role in Role:
            scene.workers[role] = [scene.new_worker(role) for _ in range(SIBLINGS)]
            for worker in scene.workers[role]:
                worker.start()
        stack.callback(scene.end)
        load = Load(settings.bootstrap, settings.namespace, (READ_ONLY,), RATE, OPEN_MAX)
        stack.callback(load.close)
        load.start()
        progress = Progress(settings)
        stack.callback(progress.close)
        try:
            figures = measure(scene, progress, options.kills)
        except NotTakenOver as error:
            print(f"not taken over: {error}", file=sys.stderr)
            return 2
    print(json.dumps(figures))
    return 0


def measure(scene: Scene, progress: Progress, kills: int) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "benchmark": "perdure takeover",
        "at": report.now(),
        "machine": report.machine(),
        "versions": report.versions(KAFKA_VERSION),
        "kills_of_each_kind": kills,
        "session_timeout_s": SESSION_TIMEOUT_S,
    }
    for kind in PROGRESS.values():
        progress.wait(kind, 0, LIMIT_S)
    figures["undisturbed_s"] = {
        role.value: round(progress.wait(kind, _now_ms(), LIMIT_S), 2) for role, kind in PROGRESS.items()
    }
    figures["seconds_until_taken_over"] = {
        role.value: {way.value: _figures([_strike(scene, progress, role, way) for _ in range(kills)])
                     for way in ways}
        for role, ways in WAYS.items()
    }  # fmt: skip
    return figures


def _strike(scene: Scene, progress: Progress, role: Role, way: Way) -> float:
    """Kill the worker that has been there longest, and see its work go on; seconds."""
    workers = scene.workers[role]
    victim = workers.pop(0)
    killed_ms = _now_ms()
    victim.kill()
    successor = scene.new_worker(role) if way is Way.RENAMED else victim
    workers.append(successor)
    if way is not Way.LOST:
        successor.start()
    taken_s = progress.wait(PROGRESS[role], killed_ms + IN_FLIGHT_MS, LIMIT_S)
    print(
        f"{time.perf_counter() - _begun_s:6.1f} s  {role.value} {way.value}: {taken_s:.2f} s",
        file=sys.stderr, flush=True,
    )  # fmt: skip
    if way is Way.LOST:
        successor.start()
    time.sleep(REST_S)  # until the successor has its share
    progress.wait(PROGRESS[role], _now_ms(), LIMIT_S)
    return taken_s


def _figures(seconds: Sequence[float]) -> dict[str, float]:
    return {
        "mean": round(statistics.mean(seconds), 2),
        "least": round(min(seconds), 2),
        "most": round(max(seconds), 2),
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
