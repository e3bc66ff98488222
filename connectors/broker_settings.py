"""The settings of the local broker: one KRaft node that is broker and controller, on loopback."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"
# Below the kernel's ephemeral range: a client that keeps reconnecting to a stopped broker would sooner or
# later be given that very port as its own and be connected to itself; the broker could never come back.
PORT_MIN: Final = 20_000
PORT_MAX: Final = 30_000
MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
OFFSETS_RETENTION_MINUTES: Final = 60 * 24 * 30
_CLEANER_BUFFER_BYTES: Final = 8 * 1024 * 1024
_SEGMENT_INDEX_BYTES: Final = 1024 * 1024


def broker_settings(data: Path, ports: tuple[int, int]) -> dict[str, str]:
    """``server.properties`` of the node, by name. ``ports``: for clients, for the controller."""
    clients, controller = ports
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listeners": f"PLAINTEXT://{HOST}:{clients},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{clients}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(data),
        **common_settings(),
    }


def common_settings() -> dict[str, str]:
    """What holds wherever the one-node broker runs; docker-compose.yml sets the same."""
    return {**_TOPICS, **_SESSION, **_GROUPS, **_SMALL}


_TOPICS: Final[Mapping[str, str]] = {
    "auto.create.topics.enable": "false",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "message.max.bytes": str(MESSAGE_BYTES_MAX),
    "replica.fetch.max.bytes": str(MESSAGE_BYTES_MAX),
    # A transaction whose producer died holds readers back until it is found: look each second, not each ten.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}

_SESSION: Final[Mapping[str, str]] = {
    # A killed broker may register again only when its session has run out: 3 s instead of 9.
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
}

_GROUPS: Final[Mapping[str, str]] = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    # KIP-848: sessions are the broker's to set, and 45 s is long to wait for a killed process.
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    # An expired offset would make a role read its inputs from an end.
    "offsets.retention.minutes": str(OFFSETS_RETENTION_MINUTES),
}

_SMALL: Final[Mapping[str, str]] = {
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    "num.recovery.threads.per.data.dir": "2",
    "log.cleaner.threads": "1",
    "log.cleaner.dedupe.buffer.size": str(_CLEANER_BUFFER_BYTES),
    # Index files are allocated whole for each partition.
    "log.index.size.max.bytes": str(_SEGMENT_INDEX_BYTES),
}


def properties_text(settings: Mapping[str, str]) -> str:
    """Java's properties format, with what it would take for an escape escaped."""
    lines = (f"{name}={value.replace(chr(92), chr(92) * 2)}" for name, value in settings.items())
    return "".join(f"{line}\n" for line in lines)


def free_ports(wanted: int | None = None) -> tuple[int, int]:
    """Two ports of loopback that nobody listens on now; the first is ``wanted`` if that is given.

    The search begins at a place that depends on this process, so that two processes do not race for one port.
    """
    span = PORT_MAX - PORT_MIN
    begin = os.getpid() * 16 % span
    ordered = (PORT_MIN + (begin + step) % span for step in range(span))
    free = (port for port in ordered if port != wanted and _is_free(port))
    first = next(free) if wanted is None else wanted
    return first, next(free)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As Java does: a port whose old connections still fade away (TIME_WAIT) counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
