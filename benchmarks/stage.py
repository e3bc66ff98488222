"""What is measured, put up and taken down: a broker, topics of its own, one worker process a role."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException

from benchmarks.workload import MODEL_PLACE, app_place
from perdure.connectors.agent import load_app
from perdure.connectors.client import Client
from perdure.connectors.java import JavaProcess
from perdure.connectors.local_kafka import BOOTSTRAP_VARIABLE, LocalKafka
from perdure.connectors.settings import Settings, load_settings
from perdure.console.topics import provisioned
from perdure.processors.clock import SystemEntropy, new_id
from perdure.schemas.values import Effect
from perdure.topics.kafka_log import KafkaLog
from perdure.topics.table import INPUTS, TOPICS, Namespace, Role

FOLDER: Final = Path(".perdure") / "bench"
ROOT: Final = Path(__file__).absolute().parents[1]
LOCK: Final = "lock"
NAME_CHARS: Final = 12
DRAIN_S: Final = 30.0
KILL_S: Final = 5.0
ASK_S: Final = 15.0
LOG_TAIL_CHARS: Final = 2_000
BROKER: Final = "broker"


class WorkerGone(Exception):
    """A worker ended while it was needed."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the workers serve. ``app``, ``model``: places (module:object) of an App and of a function that
    makes a ModelPort; without a model they ask the Messages API. ``told``: further settings of the workers.
    """

    app: str
    model: str | None = MODEL_PLACE
    told: Mapping[str, object] = field(default_factory=dict[str, object])


def usual(effect: Effect) -> Load:
    """The workload of the main benchmark, its tool declared with ``effect``."""
    return Load(app_place(effect))


@dataclass(frozen=True, slots=True)
class Wanted:
    """``flush``: the local broker calls fsync for every append. ``profile``: cpu, wall or None."""

    partitions: int
    load: Load
    flush: bool
    profile: str | None
    folder: Path
    keep: bool


@dataclass(slots=True)
class Stage:
    """``pids``: by name, of the workers and, if it is ours, the broker."""

    folder: Path
    settings: Settings
    wanted: Wanted
    is_given: bool
    pids: dict[str, int]
    workers: dict[Role, JavaProcess]

    @property
    def log(self) -> KafkaLog:
        return KafkaLog(self.settings.bootstrap, self.settings.kafka)

    def look(self) -> None:
        """Raises :class:`WorkerGone` if a worker has ended."""
        for role, worker in self.workers.items():
            if not worker.running:
                raise WorkerGone(role.value)

    def told(self) -> str:
        """The end of what each worker has said."""
        tails = {
            role.value: (self.folder / f"{role.value}.log").read_text(errors="replace")[-LOG_TAIL_CHARS:]
            for role in self.workers
        }
        return "\n".join(f"{name}: {tail.strip() or '(nothing)'}" for name, tail in tails.items())

    def kill(self, role: Role) -> None:
        """Kill -9, and wait until it is gone."""
        self.workers[role].signal(signal.SIGKILL)
        self.workers[role].wait(KILL_S)

    def start(self, role: Role) -> None:
        """Start a worker of the role, with the settings of the one before."""
        self.workers[role] = _start(role, self.folder, self.settings, self.wanted)
        self.pids[role.value] = self.workers[role].pid

    def end_workers(self) -> None:
        """Let all of them drain; by force, if that takes too long. Idempotent."""
        for worker in self.workers.values():
            if worker.running:
                worker.signal(signal.SIGTERM)
        for worker in self.workers.values():
            if not worker.wait(DRAIN_S):
                worker.signal(signal.SIGKILL)
                worker.wait(KILL_S)


@contextmanager
def stage(wanted: Wanted, tell: Callable[[str], None]) -> Generator[Stage]:
    """Put it up; take it down at the block's end, whatever ends that."""
    namespace = f"bench-{new_id(SystemEntropy())[:NAME_CHARS]}"
    with ExitStack() as stack:
        folder = stack.enter_context(_folder(wanted.folder.absolute(), namespace, keep=wanted.keep))
        given = os.environ.get(BOOTSTRAP_VARIABLE)
        pids: dict[str, int] = {}
        if given:
            bootstrap = given
        else:
            overrides = {"log.flush.interval.messages": "1"} if wanted.flush else {}
            broker = LocalKafka(folder / "kafka", overrides=overrides)
            stack.callback(broker.kill)  # nobody reads its data again
            bootstrap = broker.start().bootstrap
            pids[BROKER] = broker.pid
        tell(f"Kafka at {bootstrap}")
        settings = _settings(wanted, folder, bootstrap, namespace, is_given=bool(given))
        if given:
            stack.callback(_remove_topics, settings)
        provisioned(settings)
        with Client(settings) as client:
            for agent in load_app(wanted.load.app, ROOT).agents:
                client.publish(agent)
        put_up = Stage(folder, settings, wanted, bool(given), pids, {})
        stack.callback(put_up.end_workers)
        for role in Role:
            put_up.start(role)
        yield put_up


def _settings(wanted: Wanted, folder: Path, bootstrap: str, namespace: str, *, is_given: bool) -> Settings:
    """Settings of the environment and the working folder are for the cluster that was given."""
    flags: dict[str, object] = {
        "bootstrap": bootstrap,
        "namespace": namespace,
        "partitions": wanted.partitions,
        "state_dir": str(folder / "state"),
        "app": None,
        "log_level": "warning",
    }
    return load_settings(
        os.environ if is_given else {}, folder=Path.cwd() if is_given else folder, flags=flags
    ).settings


def _start(role: Role, folder: Path, settings: Settings, wanted: Wanted) -> JavaProcess:
    """A worker dies with this process; its settings may hold secrets, so they are a file, not arguments."""
    told: dict[str, object] = {
        "bootstrap": settings.bootstrap,
        "namespace": settings.namespace,
        "partitions": settings.partitions,
        "replication": settings.replication,
        "state_dir": str(settings.state_dir),
        "tool_concurrency": settings.tool_concurrency,
        "model_concurrency": settings.model_concurrency,
        "log_level": settings.log_level,
        **{f"kafka.{name}": value for name, value in settings.kafka.items()},
        **wanted.load.told,
    }
    if role is Role.TOOL_EXECUTOR:
        told["app"] = wanted.load.app
    file = folder / f"{role.value}.json"
    file.touch(mode=0o600)
    file.write_text(json.dumps(told))
    profiled = ["--profile", wanted.profile] if wanted.profile is not None else []
    model = ["--model", wanted.load.model] if wanted.load.model is not None else []
    command = [sys.executable, "-m", "benchmarks.role", role.value, str(file), *model, *profiled]
    with (folder / f"{role.value}.log").open("a") as output:
        return JavaProcess(command, output=output)


@contextmanager
def _folder(home: Path, name: str, *, keep: bool) -> Generator[Path]:
    """A fresh folder, locked while it is used; what benchmarks that were killed have left is removed."""
    home.mkdir(parents=True, exist_ok=True)
    for old in home.iterdir():
        with suppress(OSError), (old / LOCK).open("r") as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(old)
    folder = home / name
    folder.mkdir()
    with (folder / LOCK).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            yield folder
        finally:
            if keep:
                (folder / LOCK).unlink()  # without it no later benchmark takes the folder for a left one
            else:
                shutil.rmtree(folder, ignore_errors=True)


def _remove_topics(settings: Settings) -> None:
    """Leave somebody else's cluster as it was, as far as it lets us."""
    names = Namespace(settings.namespace)
    client = KafkaLog(settings.bootstrap, settings.kafka).admin.client
    futures: list[Future[Any]] = []
    with suppress(KafkaException):
        futures += client.delete_topics([names.topic(spec.name) for spec in TOPICS]).values()
        futures += client.delete_consumer_groups([names.group(role) for role in INPUTS]).values()
    for future in futures:
        with suppress(KafkaException, TimeoutError):
            future.result(ASK_S)
