"""What every test may ask for: a real broker, names of its own. What none may: reach a paid model."""

from __future__ import annotations

import ipaddress
import os
import re
import sys
import uuid
from collections.abc import Iterator

import pytest

from perdure.connectors.local_kafka import BOOTSTRAP_VARIABLE, LocalKafka

_NAME_CHARS_MAX = 40
_PAID = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")


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
    """Before anything is imported or started: child processes inherit an environment without keys."""
    for name in _PAID:
        os.environ.pop(name, None)
    sys.addaudithook(_refuse_the_outside)


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
