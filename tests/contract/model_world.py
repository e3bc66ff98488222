"""The contract's stage over the model log: time is virtual, other processes are other ModelLog objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from perdure.topics.log import ConsumerSpec, Log, Producer, TopicPartition, TransactionalProducer
from perdure.topics.model_cluster import ModelCluster
from perdure.topics.model_consumer import ModelConsumer
from perdure.topics.model_faults import Api, Fate
from perdure.topics.model_log import ModelLog
from tests.contract.world import Owner, Remote, World

T = TypeVar("T")

STEP_MS = 50


class ModelRemote(Remote):
    """Lives as long as it is not killed; :meth:`ModelWorld.until` gives it its turns."""

    def __init__(self, cluster: ModelCluster, spec: ConsumerSpec, topics: Sequence[str]) -> None:
        self._log = ModelLog(cluster)
        self._owner = Owner(spec.protocol)
        self._consumer: ModelConsumer | None = self._log.consumer(spec)
        self._consumer.subscribe(topics, self._owner)

    def turn(self) -> None:
        if self._consumer is not None:
            self._consumer.poll(100, 0)

    def owned(self) -> set[TopicPartition]:
        return self._owner.owned

    def kill(self) -> None:
        self._log.kill_all()
        self._consumer = None


class ModelWorld(World):
    """See :class:`tests.contract.world.World`."""

    def __init__(self, namespace: str) -> None:
        super().__init__(namespace)
        self.cluster = ModelCluster()
        self._process = ModelLog(self.cluster)
        self.log = self._process
        self._remotes: list[ModelRemote] = []

    def until(self, condition: Callable[[], T], timeout_s: float = 30.0) -> T:
        deadline_ms = self.cluster.now_ms + round(timeout_s * 1000)
        while not (answer := condition()):
            assert self.cluster.now_ms < deadline_ms, f"still {answer!r} after {timeout_s} virtual seconds"
            self.cluster.advance(STEP_MS)
            for remote in self._remotes:
                remote.turn()
        return answer

    def create_topic(self, topic: str, partitions: int, config: dict[str, str]) -> None:
        self.cluster.create_topic(topic, partitions, config)

    def recreate(self, topic: str) -> None:
        self.cluster.recreate_topic(topic)

    def remote(self, spec: ConsumerSpec, topics: Sequence[str]) -> Remote:
        remote = ModelRemote(self.cluster, spec, topics)
        self._remotes.append(remote)
        return remote

    def evict(self, group: str, member_id: str) -> None:
        self.cluster.groups.evict(group, member_id)

    def kill(self, client: Producer | TransactionalProducer) -> None:
        self._process.kill(client)

    def inject(self, api: Api, who: str, fate: Fate) -> None:
        self.cluster.faults.inject(api, who, fate)

    def release(self) -> int:
        return self.cluster.faults.release()

    @property
    def faulty(self) -> Log:
        return self.log
