"""docker-compose.yml: its shape, and that it runs the same broker as everything else here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.connectors.broker_settings import common_settings
from perdure.connectors.kafka_jars import KAFKA_VERSION

ROOT = Path(__file__).parents[2]
SERVICE_KEYS = {
    "build",
    "command",
    "depends_on",
    "environment",
    "healthcheck",
    "image",
    "init",
    "ports",
    "profiles",
    "restart",
    "stop_grace_period",
    "volumes",
}


@pytest.fixture
def compose() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return read


def test_the_file_has_only_keys_that_compose_knows(compose: dict[str, Any]) -> None:
    """A misspelt key would be ignored or refused by compose, so each is compared with the known ones."""
    assert set(compose) == {"name", "services", "volumes"}
    for name, service in compose["services"].items():
        assert set(service) <= SERVICE_KEYS, name
        assert ("image" in service) != ("build" in service), name


def test_each_named_volume_is_declared_and_used(compose: dict[str, Any]) -> None:
    """Data lies in volumes that outlive the containers."""
    used = {mount.split(":")[0] for service in compose["services"].values() for mount in service["volumes"]}
    assert used == set(compose["volumes"])


def test_the_broker_is_the_same_version_with_the_same_settings(compose: dict[str, Any]) -> None:
    """The official image of the very version that Maven fetches, with each setting of the local broker."""
    kafka = compose["services"]["kafka"]
    assert kafka["image"] == f"apache/kafka:{KAFKA_VERSION}"
    environment = kafka["environment"]
    for name, value in common_settings().items():
        assert environment[f"KAFKA_{name.upper().replace('.', '_')}"] == value, name


def test_environment_values_are_text(compose: dict[str, Any]) -> None:
    """A bare true or number would reach the container in YAML's spelling, not in ours."""
    for service in compose["services"].values():
        assert all(isinstance(value, str) for value in service["environment"].values())


def test_the_broker_is_reached_only_from_this_machine(compose: dict[str, Any]) -> None:
    """An open broker without a password is published on loopback alone."""
    for service in compose["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_each_advertised_listener_has_a_protocol_and_a_socket(compose: dict[str, Any]) -> None:
    """A listener that is advertised but not opened, or has no protocol, keeps Kafka from starting."""
    environment = compose["services"]["kafka"]["environment"]
    opened = set(re.findall(r"(\w+)://", environment["KAFKA_LISTENERS"]))
    advertised = set(re.findall(r"(\w+)://", environment["KAFKA_ADVERTISED_LISTENERS"]))
    protocols = set(re.findall(r"(\w+):\w+", environment["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"]))
    assert advertised == opened - {environment["KAFKA_CONTROLLER_LISTENER_NAMES"]}
    assert protocols == opened


def test_the_worker_waits_for_a_healthy_broker(compose: dict[str, Any]) -> None:
    """The worker starts after the health check has passed, at the address that the network resolves."""
    worker, kafka = compose["services"]["worker"], compose["services"]["kafka"]
    assert worker["depends_on"]["kafka"]["condition"] == "service_healthy"
    assert kafka["healthcheck"]["test"][0] == "CMD"
    address = worker["environment"]["PERDURE_BOOTSTRAP"]
    assert f"://{address}" in kafka["environment"]["KAFKA_ADVERTISED_LISTENERS"]
