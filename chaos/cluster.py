"""Three brokers on loopback, each also reached through a proxy that can hold back or lose what passes."""

from __future__ import annotations

import os
import signal
import socket
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from chaos.proxy import Proxy
from perdure.connectors.broker_settings import HOST, PORT_MAX, PORT_MIN
from perdure.connectors.local_kafka import LocalKafka, cluster_id_of

BROKERS: Final = 3
HEAP_MB: Final = 384
PORTS_PER_BROKER: Final = 3
REPLICATED: Final = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "1",
    "unclean.leader.election.enable": "false",
    # A broker that is killed leaves the in-sync replicas, and its partitions get a leader, within seconds.
    "replica.lag.time.max.ms": "5000",
    "controller.quorum.election.timeout.ms": "1000",
    "controller.quorum.fetch.timeout.ms": "2000",
    "group.consumer.session.timeout.ms": "6000",
}


class Cluster:
    """``bootstrap``: the brokers themselves. ``proxied``: the same brokers behind their proxies."""

    def __init__(self, folder: Path, overrides: dict[str, str] | None = None) -> None:
        ports = _free_ports(BROKERS * PORTS_PER_BROKER)
        self._plain = ports[:BROKERS]
        controllers = ports[BROKERS : 2 * BROKERS]
        behind = ports[2 * BROKERS :]
        self.proxies = [Proxy(HOST, port) for port in behind]
        voters = ",".join(f"{number + 1}@{HOST}:{port}" for number, port in enumerate(controllers))
        self.brokers = [
            LocalKafka(
                folder / f"kafka-{number + 1}",
                port=self._plain[number],
                heap_mb=HEAP_MB,
                cluster_id=cluster_id_of(folder),
                overrides={
                    **REPLICATED,
                    **(overrides or {}),
                    "node.id": str(number + 1),
                    "controller.quorum.voters": voters,
                    "listeners": f"PLAINTEXT://{HOST}:{self._plain[number]},"
                    f"PROXIED://{HOST}:{behind[number]},CONTROLLER://{HOST}:{controllers[number]}",
                    "advertised.listeners": f"PLAINTEXT://{HOST}:{self._plain[number]},"
                    f"PROXIED://{HOST}:{self.proxies[number].port}",
                    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,"
                    "CONTROLLER:PLAINTEXT",
                },
            )
            for number in range(BROKERS)
        ]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{port}" for port in self._plain)

    @property
    def proxied(self) -> str:
        return ",".join(f"{HOST}:{proxy.port}" for proxy in self.proxies)

    def start(self) -> None:
        """All at once: a lone node has no quorum and would never be ready."""
        failures: list[BaseException] = []

        def start(broker: LocalKafka) -> None:
            try:
                broker.start()
            except Exception as failure:  # noqa: BLE001 - told by the thread that waits
                failures.append(failure)

        threads = [threading.Thread(target=start, args=(broker,)) for broker in self.brokers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            self.close()
            raise failures[0]

    def close(self) -> None:
        """Nobody reads their data again."""
        for broker in self.brokers:
            if broker.running:
                broker.send(signal.SIGCONT)
            broker.kill()
        for proxy in self.proxies:
            proxy.close()


def _free_ports(count: int) -> list[int]:
    """Held until all are found, so that they are as many different ones."""
    span = PORT_MAX - PORT_MIN
    begin = os.getpid() * 16 % span
    found: list[int] = []
    with ExitStack() as stack:
        for step in range(span):
            probe = stack.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, PORT_MIN + (begin + step) % span))
            except OSError:
                continue
            found.append(int(probe.getsockname()[1]))
            if len(found) == count:
                return found
    raise OSError(f"there are no {count} free ports")
