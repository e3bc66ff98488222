"""The Log port in memory: one process's view of a :class:`~perdure.topics.model_cluster.ModelCluster`.

Everything that carries the orchestrator and the executors runs over this just as over Kafka, with exact
transactional semantics and, where a test asks for it, Kafka's laxness (``ModelCluster.faults``). Several
processes are several ``ModelLog`` objects over one cluster, used in turn from one thread::

    cluster = ModelCluster()
    cluster.create_topic("run-commands", 8, {"cleanup.policy": "compact"})
    worker, client = ModelLog(cluster), ModelLog(cluster)
    worker.kill_all()          # kill -9: no leave, no abort
    cluster.advance(10_000)    # sessions and transactions time out
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from perdure.topics.errors import LogMisuse, OffsetOutOfRange
from perdure.topics.log import (
    Consumer,
    ConsumerSpec,
    GroupProtocol,
    Isolation,
    Position,
    Producer,
    TopicInfo,
    TopicPartition,
    TransactionalProducer,
    Watermarks,
)
from perdure.topics.model_cluster import ModelCluster
from perdure.topics.model_consumer import ModelConsumer
from perdure.topics.model_producer import ModelProducer
from perdure.topics.model_transactional import ModelTransactionalProducer

ModelClient: TypeAlias = ModelConsumer | ModelProducer | ModelTransactionalProducer


class ModelLog:
    """One process: a factory of clients that live and die together."""

    def __init__(self, cluster: ModelCluster, *, protocol: GroupProtocol = GroupProtocol.CONSUMER) -> None:
        self.cluster = cluster
        self._protocol = protocol
        self._clients: list[ModelClient] = []

    def consumer(self, spec: ConsumerSpec) -> ModelConsumer:
        consumer = ModelConsumer(self.cluster, spec)
        self._clients.append(consumer)
        return consumer

    def producer(self, client_id: str) -> ModelProducer:
        producer = ModelProducer(self.cluster, client_id)
        self._clients.append(producer)
        return producer

    def transactional(self, transactional_id: str, transaction_timeout_ms: int) -> ModelTransactionalProducer:
        producer = ModelTransactionalProducer(self.cluster, transactional_id, transaction_timeout_ms)
        self._clients.append(producer)
        return producer

    def watermarks(self, at: TopicPartition, isolation: Isolation, timeout_s: float) -> Watermarks:  # noqa: ARG002
        partition = self.cluster.partition(at)
        return Watermarks(partition.start, partition.end_for(isolation))

    def describe(self, topics: Sequence[str], timeout_s: float) -> Mapping[str, TopicInfo]:  # noqa: ARG002
        found = {name: self.cluster.topic_info(name) for name in topics}
        return {name: info for name, info in found.items() if info is not None}

    def delete_records(self, before: Sequence[Position], timeout_s: float) -> None:  # noqa: ARG002
        for position in before:
            partition = self.cluster.partition(position.at)
            if not 0 <= position.offset <= partition.end:
                raise OffsetOutOfRange(f"{position.at} at {position.offset}.")
            partition.trim(position.offset)

    def consumer_protocol(self) -> GroupProtocol:
        return self._protocol

    # ---- the process ---------------------------------------------------------------------------------------

    def kill(self, client: Consumer | Producer | TransactionalProducer) -> None:
        """End one client as a killed process would: no leave, no abort, nothing flushed."""
        for known in self._clients:
            if known is client:
                known.kill()
                return
        raise LogMisuse("Not a client of this process.")

    def kill_all(self) -> None:
        """Kill -9."""
        for client in self._clients:
            client.kill()

    def stop(self) -> None:
        """SIGSTOP: nothing heartbeats until :meth:`go_on`. The caller leaves the clients alone meanwhile."""
        for client in self._clients:
            if isinstance(client, ModelConsumer):
                client.stop()

    def go_on(self) -> None:
        """SIGCONT."""
        for client in self._clients:
            if isinstance(client, ModelConsumer):
                client.go_on()
