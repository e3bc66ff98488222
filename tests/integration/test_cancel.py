"""Cancels and kills with real processes: what is stopped has stopped, and the run goes on afterwards."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.connectors.client import Client
from perdure.connectors.guardian_process import read_stat
from perdure.connectors.settings import load_settings
from tests.integration.cancel_command import GRACE_S
from tests.integration.worker_stage import WorkerStage, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

DOUBTFUL = 2  # the command and the MCP call are non_idempotent
DEAD_S = GRACE_S + 0.5
START_S = 60.0
STOP_S = 15.0  # a machine that does other things too
LOOK_S = 0.005
KINDS = ("thread", "async", "mcp")
END = {"content": [{"type": "text", "text": "Enough."}]}
TOOLS = ("block", "wait", "command", "request", "serve")


def asking(*names: str) -> list[dict[str, Any]]:
    return [{"content": [{"type": "tool_use", "name": name, "input": {}} for name in names]}, END]


class Silent:
    """A service that takes a request and never answers; it notes when the other side hangs up."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self.asked = threading.Event()
        self.left = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            connection, _ = self._server.accept()
        except OSError:
            return
        with connection:
            connection.recv(65_536)
            self.asked.set()
            while connection.recv(65_536):
                pass
            self.left.set()

    def close(self) -> None:
        self._server.close()
        self._thread.join(0.1)


@pytest.fixture
def silent() -> Iterator[Silent]:
    made = Silent()
    yield made
    made.close()


@pytest.fixture
def stage(
    kafka: str, namespace: str, tmp_path: Path, silent: Silent, request: pytest.FixtureRequest
) -> Iterator[WorkerStage]:
    made = WorkerStage(kafka, namespace, tmp_path, asking(*request.param))
    made.environment = {
        **made.environment,
        "CANCEL_FOLDER": str(tmp_path),
        "CANCEL_URL": silent.url,
    }
    try:
        made.answered("topics", "apply")
        yield made
    finally:
        made.close()


def pids(stage: WorkerStage) -> list[int]:
    file = stage.folder / "pids"
    return [int(each) for each in file.read_text().split()] if file.exists() else []


def lives(process: int) -> bool:
    stat = read_stat(process)
    return stat is not None and stat[0] not in {"Z", "X"}


def state_of(client: Client) -> str:
    return client.status("run-1").state.value


def give_up(client: Client) -> int:
    """Decide every question about what nobody can tell; how many there were."""
    until(lambda: state_of(client) == "awaiting_approval", START_S, "a person is asked")
    asked = client.approvals("run-1")
    for each in asked:
        assert each.kind == "ambiguity"
        client.give_up(each, by="somebody")
    return len(asked)


@pytest.fixture
def client(stage: WorkerStage) -> Iterator[Client]:
    with Client(load_settings(stage.environment, folder=stage.folder).settings) as made:
        yield made


@pytest.mark.parametrize("stage", [TOOLS], indirect=True)
def test_a_cancel_reaches_every_kind_of_tool_and_a_resume_goes_on(
    stage: WorkerStage, silent: Silent, client: Client
) -> None:
    """A thread, a coroutine, a command with a child that ignores SIGTERM, a request and an MCP call, all of
    one turn: each is stopped; the resumed run asks about those that may have had an effect, then ends.
    """
    stage.start("tests.integration.cancel_app:app")
    stage.answered("submit", "holder", "Hold on.", "--run-id", "run-1")

    def all_began() -> bool:
        touched = all((stage.folder / f"{kind}-began").exists() for kind in KINDS)
        return touched and silent.asked.is_set() and len(pids(stage)) == 2

    until(all_began, START_S, f"every tool runs\n{stage.log()}")
    assert all(map(lives, pids(stage)))
    stage.answered("cancel", "run-1")
    for kind in KINDS:
        until((stage.folder / f"{kind}-aborted").exists, STOP_S, f"{kind} is told")
    until(silent.left.is_set, STOP_S, "the request is given up")
    until(lambda: not any(map(lives, pids(stage))), STOP_S, "the command is dead")
    assert state_of(client) == "cancelled"

    stage.answered("resume", "run-1")
    assert give_up(client) == DOUBTFUL
    until(lambda: state_of(client) == "completed", START_S, f"it completes\n{stage.log()}")
    assert stage.stop() == 0, stage.log()


@pytest.mark.parametrize("stage", [("command",)], indirect=True)
def test_nothing_of_a_command_outlives_a_killed_worker(stage: WorkerStage, client: Client) -> None:
    """After kill -9 no descendant lives after the grace period and half a second; what became of the call is
    asked then, not guessed.
    """
    stage.start("tests.integration.cancel_command:agent")
    stage.answered("submit", "holder", "Hold on.", "--run-id", "run-1")
    until(lambda: len(pids(stage)) == 2, START_S, f"the command runs\n{stage.log()}")
    running = pids(stage)
    assert all(map(lives, running))
    assert stage.worker is not None
    stage.worker.kill()
    killed_s = time.monotonic()
    stage.worker.wait()
    while any(map(lives, running)):
        assert time.monotonic() - killed_s < DEAD_S, "something outlived the worker"
        time.sleep(LOOK_S)  # a poll of other processes, bounded above
    # when another worker takes over
    stage.start("tests.integration.cancel_command:agent")
    assert give_up(client) == 1
    until(lambda: state_of(client) == "completed", START_S, f"it completes\n{stage.log()}")
    assert pids(stage) == running, "the command was executed again"
    assert stage.stop() == 0, stage.log()
