"""``perdure dev``: a local broker, the topics and every role, as one process tree.

The broker keeps its data under ``.perdure/``. Each role is a process of its own (``perdure worker``), started
again if it dies. Ctrl-C, SIGTERM or the end of the terminal stops all of it: workers drain, then the broker
stops. If this process is killed, the kernel takes its children with it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

import typer

from perdure.connectors.settings import Source
from perdure.console.session import Session
from perdure.topics.table import Role

if TYPE_CHECKING:
    from perdure.connectors.java import JavaProcess

BROKER_FOLDER: Final = Path(".perdure/kafka")
PORT_DEFAULT: Final = 9092
LOOK_S: Final = 0.5
RESTART_DELAY_S: Final = 2.0
DRAIN_S: Final = 20.0
KILL_S: Final = 5.0


def register(app: typer.Typer) -> None:
    app.command("dev")(dev)


def dev(
    ctx: typer.Context,
    app: Annotated[str | None, typer.Option(help="module:object, the agents to serve.")] = None,
    port: Annotated[int, typer.Option(help="Where the local broker listens.")] = PORT_DEFAULT,
    folder: Annotated[Path, typer.Option(help="Where the local broker keeps its data.")] = BROKER_FOLDER,
) -> None:
    """A local broker, its topics and all roles, until Ctrl-C; with --bootstrap that cluster is used."""
    from perdure.console.topics import provisioned

    session: Session = ctx.obj
    if app is not None:
        session.flags = {**session.flags, "app": app}
    _check_app(session)
    stop = threading.Event()
    with _stopping(stop), _broker(session, folder, port) as bootstrap:
        session.flags = {**session.flags, "bootstrap": bootstrap}
        session.__dict__.pop("loaded", None)
        provisioned(session.settings)
        roles = _roles(session)
        session.say(f"Kafka at {bootstrap}; topics {session.settings.namespace}.*")
        if bootstrap != type(session.settings)().bootstrap:
            session.say(f"  export PERDURE_BOOTSTRAP={bootstrap}")
        session.say("Ctrl-C stops everything.")
        Tree(session, roles).run(stop)


class Tree:
    """The worker processes of ``dev``."""

    def __init__(self, session: Session, roles: tuple[Role, ...]) -> None:
        self._session = session
        self._processes: dict[Role, JavaProcess | None] = dict.fromkeys(roles)
        self._rests: dict[Role, int] = {}

    def run(self, stop: threading.Event) -> None:
        """Keep one process of each role alive until ``stop``; then drain them all."""
        try:
            while not stop.is_set():
                for role, process in self._processes.items():
                    if process is None or not process.running:
                        self._again(role, process)
                stop.wait(LOOK_S)
        finally:
            self._drain()

    def _again(self, role: Role, process: JavaProcess | None) -> None:
        if process is not None:
            looks = self._rests.setdefault(role, round(RESTART_DELAY_S / LOOK_S))
            self._rests[role] = looks - 1
            if looks > 0:
                return
            self._session.note(f"{role.value} ended; it is started again")
        self._rests.pop(role, None)
        self._processes[role] = self._start(role)

    def _start(self, role: Role) -> JavaProcess:
        from perdure.connectors.java import JavaProcess

        command = [sys.executable, "-m", "perdure.console.main", "worker", "--role", role.value]
        for name, value in self._session.flags.items():
            if value is not None:
                command += ["--set", f"{name}={value}"]
        if self._session.file is not None:
            command += ["--config", str(self._session.file.absolute())]
        return JavaProcess(command, output=sys.stderr)

    def _drain(self) -> None:
        """Drain all, then end by force what is left."""
        alive = [each for each in self._processes.values() if each is not None and each.running]
        for each in alive:
            each.signal(signal.SIGTERM)
        for each in alive:
            if not each.wait(DRAIN_S):
                each.signal(signal.SIGKILL)
                each.wait(KILL_S)


def _roles(session: Session) -> tuple[Role, ...]:
    """Every role that can work here; a note on each that can not."""
    settings = session.settings
    roles = [Role.ORCHESTRATOR]
    if settings.anthropic_api_key is not None:
        roles.append(Role.MODEL_CALLER)
    else:
        session.note("No ANTHROPIC_API_KEY: no model-caller is started, runs wait at their first turn.")
    if settings.app is not None:
        roles.append(Role.TOOL_EXECUTOR)
    else:
        session.note("No --app module:object: no tools are served.")
    return tuple(roles)


def _check_app(session: Session) -> None:
    """Raise what is wrong with the agents: the workers would end of it again and again."""
    from perdure.connectors.agent import load_app

    place = session.settings.app
    if place is not None:
        load_app(place)


@contextmanager
def _broker(session: Session, folder: Path, port: int) -> Generator[str]:
    """The bootstrap address: the configured cluster, or a local broker that lives as long as the block."""
    from perdure.connectors.local_kafka import LocalKafka

    origin = session.loaded.origins.get("bootstrap")
    if origin is not None and origin.source is not Source.DEFAULT:
        yield session.settings.bootstrap
        return
    session.say("Starting Kafka (the first time its jars are fetched) ...")
    with LocalKafka(folder, port=port) as broker:
        yield broker.bootstrap


@contextmanager
def _stopping(stop: threading.Event) -> Generator[None]:
    """Signals set ``stop``; before the workers run they interrupt whatever is going on."""

    def heard(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        if number == signal.SIGINT and os.isatty(sys.stderr.fileno()):
            print("\nstopping ...", file=sys.stderr)

    before = {each: signal.signal(each, heard) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
