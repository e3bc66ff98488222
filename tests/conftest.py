"""What every test may ask for: a real broker, names of its own. What none may: reach a paid model."""

from __future__ import annotations

import ipaddress
import os
import re
import signal
import sys
import uuid
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest

from perdure.connectors.local_kafka import BOOTSTRAP_VARIABLE, LocalKafka

_NAME_CHARS_MAX = 40
# The standard library keeps this one until the interpreter ends.
_HELPER = "multiprocessing.resource_tracker"
_PAID = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
_KEPT = (BOOTSTRAP_VARIABLE, "PERDURE_KAFKA_JARS")


def _refuse_the_outside(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook: Python code under test connects to this machine only."""
    if event != "socket.connect":
        return
    address = arguments[1]
    if not isinstance(address, tuple) or not isinstance(address[0], str):  # a Unix socket
        return
    host = address[0]
    try:
        inside = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        inside = False
    if not inside:
        raise PermissionError(f"a test tried to connect to {host}")


def pytest_configure() -> None:
    """Before anything is started: child processes inherit no keys, and no settings of somebody's shell."""
    for name in list(os.environ):
        if name in _PAID or (name.startswith("PERDURE_") and name not in _KEPT):
            del os.environ[name]
    sys.addaudithook(_refuse_the_outside)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process that a test started and did not end fails the session; it is named and ended by its pid."""
    left = _living_children()
    for pid, command in left.items():
        print(f"\na test left process {pid} behind: {command}", file=sys.stderr)  # noqa: T201
        os.kill(pid, signal.SIGKILL)
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _living_children() -> dict[int, str]:
    """Command lines of this process's children by pid, without those that have ended (empty command line)."""
    pids = [
        pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()
    ]
    commands = {int(pid): _command_line(pid) for pid in pids}
    return {pid: command for pid, command in commands.items() if command and _HELPER not in command}


def _command_line(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:  # it has just ended
        return ""


def _encodable(value: object) -> object:
    """A report without lone surrogates: what one test process tells the other goes through UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {
            _encodable(key): _encodable(each) for key, each in cast("dict[object, object]", value).items()
        }
    if isinstance(value, list | tuple):
        parts = [_encodable(each) for each in cast("Sequence[object]", value)]
        return tuple(parts) if isinstance(value, tuple) else parts
    return value


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, object, object]:
    """Tests of broken texts log them, too."""
    return _encodable((yield))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that ask for the broker carry the marker, so that ``-m 'not kafka'`` leaves the rest."""
    for item in items:
        if isinstance(item, pytest.Function) and "kafka" in item.fixturenames:
            item.add_marker(pytest.mark.kafka)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``bootstrap.servers`` of a real cluster: PERDURE_BOOTSTRAP, else one broker for the session."""
    given = os.environ.get(BOOTSTRAP_VARIABLE)
    if given:
        yield given
        return
    broker = LocalKafka(tmp_path_factory.mktemp("kafka")).start()
    try:
        yield broker.bootstrap
    finally:
        broker.kill()  # nobody reads its data again


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    """A prefix for topics, groups and transactional ids that no other test has, legal in a topic's name."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", str(request.node.name)).strip("-")[:_NAME_CHARS_MAX]
    return f"{name}-{uuid.uuid4().hex[:8]}"
