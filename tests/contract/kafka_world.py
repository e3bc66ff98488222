"""The contract's stage over a real cluster."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from confluent_kafka.admin import AdminClient, NewTopic

from perdure.topics.kafka_log import KafkaLog
from perdure.topics.log import ConsumerSpec, Log, Producer, TopicPartition, TransactionalProducer
from perdure.topics.model_faults import Api, Fate
from tests.contract import wire
from tests.contract.world import Remote, World

T = TypeVar("T")

PAUSE_S = 0.02  # between two looks at a condition
ADMIN_TIMEOUT_S = 20.0
SENDS_MAX = 100  # of one request
SCRIPT = Path(__file__).with_name("remote_member.py")


class KafkaRemote(Remote):
    """A Python process running remote_member.py."""

    def __init__(self, bootstrap: str, spec: ConsumerSpec, topics: Sequence[str]) -> None:
        fields = {**asdict(spec), "protocol": spec.protocol.value}
        command = [sys.executable, str(SCRIPT), json.dumps([bootstrap, fields, list(topics)])]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._owned: set[TopicPartition] = set()
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._owned = {TopicPartition(topic, partition) for topic, partition in json.loads(line)}

    def owned(self) -> set[TopicPartition]:
        return self._owned

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(ADMIN_TIMEOUT_S)
        self._listening.join(ADMIN_TIMEOUT_S)
        if self._process.stdout is not None:
            self._process.stdout.close()


class KafkaWorld(World):
    """See :class:`tests.contract.world.World`."""

    def __init__(self, namespace: str, bootstrap: str) -> None:
        super().__init__(namespace)
        self._bootstrap = bootstrap
        host, port = bootstrap.split(",", maxsplit=1)[0].rsplit(":", 1)
        self._broker = (host, int(port))
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self.log = KafkaLog(bootstrap)
        self._topics: dict[str, tuple[int, dict[str, str]]] = {}
        self._remotes: list[KafkaRemote] = []
        self._proxy: wire.Proxy | None = None

    def until(self, condition: Callable[[], T], timeout_s: float = 30.0) -> T:
        deadline = time.monotonic() + timeout_s
        while not (answer := condition()):
            assert time.monotonic() < deadline, f"still {answer!r} after {timeout_s} s"
            time.sleep(PAUSE_S)
        return answer

    def create_topic(self, topic: str, partitions: int, config: dict[str, str]) -> None:
        self._topics[topic] = (partitions, config)
        created = self._admin.create_topics([NewTopic(topic, partitions, 1, config=config)])
        created[topic].result(ADMIN_TIMEOUT_S)
        self.until(lambda: topic in self.log.describe([topic], ADMIN_TIMEOUT_S))

    def recreate(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(ADMIN_TIMEOUT_S)
        self.until(lambda: topic not in self.log.describe([topic], ADMIN_TIMEOUT_S))
        self.create_topic(topic, *self._topics[topic])

    def remote(self, spec: ConsumerSpec, topics: Sequence[str]) -> Remote:
        remote = KafkaRemote(self._bootstrap, spec, topics)
        self._remotes.append(remote)
        return remote

    def evict(self, group: str, member_id: str) -> None:
        assert wire.leave_group(*self._broker, group, member_id) == 0

    def kill(self, client: Producer | TransactionalProducer) -> None:
        client.close()  # neither flushes, commits nor aborts

    def inject(self, api: Api, who: str, fate: Fate) -> None:
        """What is to fail in the client's eyes has to fail each time that the client library sends it."""
        self._between.inject(api, who, fate, 1 if fate is Fate.RESENT else SENDS_MAX)

    def release(self) -> int:
        return self._between.release()

    @property
    def faulty(self) -> Log:
        return KafkaLog(f"127.0.0.1:{self._between.port}")

    @property
    def _between(self) -> wire.Proxy:
        if self._proxy is None:
            self._proxy = wire.Proxy(*self._broker)
        return self._proxy

    def close(self) -> None:
        for remote in self._remotes:
            remote.kill()
        super().close()
        if self._proxy is not None:
            self._proxy.close()
