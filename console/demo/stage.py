"""The demo's stage: a folder, a Kafka, topics of its own, and the outside world that knows nothing of us.

A folder a demo, ``.perdure/demo/<namespace>``, is never used twice: whatever an earlier one left half-written
cannot be tripped over. Folders of demos that no longer run are removed by the next one.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sys
from collections.abc import Generator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

from confluent_kafka import KafkaException

from perdure.connectors.local_kafka import BOOTSTRAP_VARIABLE, LocalKafka
from perdure.connectors.settings import CONFIG_VARIABLE, KAFKA_PREFIX, PREFIX, Settings, load_settings
from perdure.console.demo.child import REPOSITORY, Child, pause
from perdure.console.demo.report import Teller
from perdure.console.topics import provisioned
from perdure.processors.clock import SystemEntropy, new_id
from perdure.schemas.errors import Retry, Stop
from perdure.topics.kafka_log import KafkaLog
from perdure.topics.table import INPUTS, TOPICS, Namespace

FOLDER: Final = Path(".perdure") / "demo"
LOCK: Final = "lock"
PARTITIONS: Final = 4
"""One run lives in one partition; the default number would only take longer to make."""
LOOK_S: Final = 0.02
SERVER_LOOKS_MAX: Final = 1_000
TOPICS_ATTEMPTS_MAX: Final = 3
ASK_TIMEOUT_S: Final = 15.0
SEND_STEP: Final = 1
"""The step of the script in which the model asks for the message."""

CUSTOMER: Final = "c-17"
INPUT: Final = f"Tell customer {CUSTOMER} that the parcel has arrived."
SCRIPT: Final[list[dict[str, Any]]] = [
    {
        "content": [
            {"type": "text", "text": "I look the customer up."},
            {"type": "tool_use", "name": "find_customer", "input": {"customer_id": CUSTOMER}},
        ]
    },
    {
        "content": [
            {"type": "text", "text": "Greta is in the books, so I write to her."},
            {
                "type": "tool_use",
                "name": "send_message",
                "input": {
                    "to": "greta.17@example.com",
                    "text": "Hello Greta, your parcel has arrived. It waits for you at the counter.",
                },
            },
        ]
    },
    {"content": [{"type": "text", "text": "I told Greta by e-mail that her parcel has arrived."}]},
]


class ExamplesMissing(Stop):
    """The demo runs the examples, and they are not there."""

    code = "demo_examples_missing"
    remedy = "Run it from a clone of the repository: make demo."


class ServerFailed(Stop):
    """A server of the demo's outside world did not start."""

    code = "demo_server_failed"
    remedy = "Read its log."


@dataclass(frozen=True, slots=True)
class Stage:
    """``model_log``: None with the real model. ``service_held``, ``model_held``: marker files, there while
    the request is held. ``environment``: what workers are started with.
    """

    folder: Path
    settings: Settings
    environment: Mapping[str, str]
    database: Path
    model_log: Path | None
    service_held: Path
    model_held: Path


@contextmanager
def stage(
    home: Path, tell: Teller, *, is_live: bool, holds_service: bool, holds_model: bool
) -> Generator[Stage]:
    """Put it up, take it down at the block's end, whatever ends that. ``home``: the folder of folders."""
    if not (REPOSITORY / "examples" / "outside").is_dir():
        raise ExamplesMissing
    namespace = Namespace(f"demo-{new_id(SystemEntropy())[:12]}")
    with ExitStack() as stack:
        folder = stack.enter_context(_folder(home.absolute(), namespace.prefix))
        environment = _kafka(stack, folder, namespace, tell, is_live=is_live)
        service_held, model_held = folder / "service-held", folder / "model-held"
        database, model_log = folder / "messages.sqlite", folder / "model.jsonl"

        holding = [f"--hold-after-store={service_held}"] if holds_service else []
        url = _server(stack, folder, "message_service", [f"--db={database}", *holding])
        environment["MESSAGE_SERVICE_URL"] = url
        tell.step("outside", f"a message service at {url}, which does not deduplicate")
        if not is_live:
            script = folder / "script.json"
            script.write_text(json.dumps(SCRIPT))
            holding = ["--hold-mid-stream", str(SEND_STEP), str(model_held)] if holds_model else []
            told = [f"--script={script}", f"--log={model_log}", *holding]
            url = _server(stack, folder, "scripted_anthropic", told)
            environment["PERDURE_ANTHROPIC_BASE_URL"] = url
            tell.step("outside", f"a scripted server at {url}, which speaks the Messages API")
        yield Stage(
            folder=folder,
            settings=load_settings(environment, folder=REPOSITORY).settings,
            environment=environment,
            database=database,
            model_log=None if is_live else model_log,
            service_held=service_held,
            model_held=model_held,
        )


def _kafka(
    stack: ExitStack, folder: Path, namespace: Namespace, tell: Teller, *, is_live: bool
) -> dict[str, str]:
    """A Kafka with the demo's topics; the environment that leads to it."""
    given = os.environ.get(BOOTSTRAP_VARIABLE)
    if given:
        bootstrap = given
        tell.step("kafka", f"the cluster at {given}")
    else:
        broker = stack.enter_context(LocalKafka(folder / "kafka"))
        bootstrap = broker.bootstrap
        tell.step("kafka", f"one real broker at {bootstrap} (pid {broker.pid})")
    environment = _environment(folder, bootstrap, namespace, is_given=bool(given), is_live=is_live)
    settings = load_settings(environment, folder=REPOSITORY).settings
    if given:
        stack.callback(_remove_topics, KafkaLog(settings.bootstrap, settings.kafka), namespace)
    _make_topics(settings)
    tell.step("topics", f"{len(TOPICS)}, of the namespace {namespace.prefix}")
    return environment


def _make_topics(settings: Settings) -> None:
    """A broker that has just come up on a busy machine may need more than one question's time."""
    for _ in range(TOPICS_ATTEMPTS_MAX - 1):
        with suppress(Retry):
            provisioned(settings)
            return
    provisioned(settings)


@contextmanager
def _folder(home: Path, name: str) -> Generator[Path]:
    """A fresh folder, locked while it is used; those that nobody uses any more are removed before."""
    home.mkdir(parents=True, exist_ok=True)
    for old in home.iterdir():
        with suppress(OSError), _locked(old / LOCK):
            shutil.rmtree(old)
    folder = home / name
    folder.mkdir()
    with _locked(folder / LOCK):
        yield folder


@contextmanager
def _locked(path: Path) -> Generator[TextIO]:
    """Hold the lock; raises ``OSError`` if it is held, or if there is no such folder."""
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield held


def _environment(
    folder: Path, bootstrap: str, namespace: Namespace, *, is_given: bool, is_live: bool
) -> dict[str, str]:
    """What workers get: this process's environment, without settings that are meant for another Kafka."""
    kept = (KAFKA_PREFIX, CONFIG_VARIABLE, "PERDURE_REPLICATION") if is_given else ()
    environment = {
        name: value
        for name, value in os.environ.items()
        if (not name.startswith(PREFIX) or name.startswith(kept)) and (is_live or "ANTHROPIC" not in name)
    }
    if not is_given:
        (folder / "perdure.toml").touch()  # somebody's own file speaks of another Kafka
        environment[CONFIG_VARIABLE] = str(folder / "perdure.toml")
    if not is_live:
        environment["PERDURE_ANTHROPIC_API_KEY"] = "scripted"
    outside = ",".join(
        filter(None, ["127.0.0.1", environment.get("NO_PROXY") or environment.get("no_proxy")])
    )
    return environment | {
        BOOTSTRAP_VARIABLE: bootstrap,
        "PERDURE_NAMESPACE": namespace.prefix,
        "PERDURE_PARTITIONS": str(PARTITIONS),
        "PERDURE_STATE_DIR": str(folder / "state"),
        "NO_PROXY": outside,
        "no_proxy": outside,
    }


def _server(stack: ExitStack, folder: Path, name: str, arguments: list[str]) -> str:
    """Start a program of examples/outside; the address it listens on."""
    port_file = folder / f"{name}.port"
    program = REPOSITORY / "examples" / "outside" / f"{name}.py"
    command = [sys.executable, str(program), f"--port-file={port_file}", "--die-with-parent", *arguments]
    server = Child(name, command, os.environ, folder / f"{name}.log")
    stack.callback(server.kill)
    for _ in range(SERVER_LOOKS_MAX):
        if port_file.exists():
            return f"http://127.0.0.1:{port_file.read_text().strip()}"
        if server.exit_code is not None:
            break
        pause(LOOK_S)
    raise ServerFailed(f"{name}, {server.log}: {server.log_tail()}")


def _remove_topics(log: KafkaLog, namespace: Namespace) -> None:
    """Leave somebody else's cluster as it was, as far as it lets us."""
    client = log.admin.client
    futures: list[Future[Any]] = []
    with suppress(KafkaException):
        futures += client.delete_topics([namespace.topic(spec.name) for spec in TOPICS]).values()
        futures += client.delete_consumer_groups([namespace.group(role) for role in INPUTS]).values()
    for future in futures:
        with suppress(KafkaException, TimeoutError):
            future.result(ASK_TIMEOUT_S)


def terminate_on_sigterm() -> None:
    """Let SIGTERM and SIGHUP end the process as Ctrl-C does: with its blocks left one by one."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
