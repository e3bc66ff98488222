"""A steady load of real runs, and how far it has come: others' code alone."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, Message, Producer

from chaos.checker import EVENTS, OUTCOMES, Checker, Reader
from chaos.outside import Codec

SEND_S_MAX: Final = 180.0
READ_S: Final = 0.2


class Load:
    """Submits ``rate`` runs a second, agents in turn, while fewer than ``open_max`` have not settled.

    ``acknowledged``: runs the cluster has confirmed; only these are promised anything.
    """

    def __init__(
        self, bootstrap: str, namespace: str, agents: Sequence[str], rate: float, open_max: int
    ) -> None:
        self.acknowledged: list[str] = []
        self.refused: list[str] = []
        self._agents = agents
        self._pause_s = 1.0 / rate
        self._open_max = open_max
        self._topic = f"{namespace}.run-commands"
        self._codec = Codec("Command")
        self._checker = Checker()
        self._reader = Reader(bootstrap, namespace, (EVENTS, OUTCOMES))
        self._settled: set[str] = set()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": int(SEND_S_MAX * 1_000),
                "log_level": 0,
            }
        )
        self._submitted = 0
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._submit, name="load", daemon=True),
            threading.Thread(target=self._read, name="progress", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def open(self) -> list[str]:
        """Acknowledged runs that have not settled, as far as was read."""
        return [run_id for run_id in list(self.acknowledged) if run_id not in self._settled]

    @property
    def settled(self) -> int:
        return len(self._settled)

    def stop_submitting(self) -> None:
        self._is_over.set()
        self._threads[0].join()
        self._producer.flush(SEND_S_MAX)

    def close(self) -> None:
        self._is_over.set()
        self._open_max = -1
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self._reader.close()

    def _submit(self) -> None:
        while not self._is_over.wait(self._pause_s):
            self._producer.poll(0)
            if self._submitted - len(self._settled) >= self._open_max:
                continue
            run_id = f"run-{self._submitted:06d}"
            body = {
                "agent": self._agents[self._submitted % len(self._agents)],
                "input": json.dumps(run_id).encode(),
            }
            value = self._codec.encode({"body": ("dev.perdure.Submit", body)})
            self._submitted += 1
            self._producer.produce(self._topic, key=run_id.encode(), value=value, on_delivery=self._told)

    def _told(self, error: KafkaError | None, message: Message) -> None:
        run_id = (message.key() or b"").decode()
        (self.refused if error is not None else self.acknowledged).append(run_id)

    def _read(self) -> None:
        while self._open_max >= 0:
            touched: set[str] = set()
            for topic, key, value in self._reader.more(READ_S):
                self._checker.take(topic, value)
                touched.add(key.decode().partition("/")[0])
            for run_id in touched:
                settled = self._checker.runs[run_id].is_settled
                (self._settled.add if settled else self._settled.discard)(run_id)


def wait_until(load: Load, timeout_s: float, tend: Any) -> bool:
    """Whether every acknowledged run has settled within the time; ``tend`` is called meanwhile."""
    end_s = time.monotonic() + timeout_s
    while load.open:
        if time.monotonic() > end_s:
            return False
        tend()
        time.sleep(READ_S)
    return True
