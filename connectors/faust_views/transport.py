"""Faust's Kafka transport, reading committed records, and done with recovery at the last one it can see.

Faust itself reads uncommitted and recovers up to the high watermark. That would show records of transactions
that were aborted later, and on a transactional topic it waits for the offset of a marker, for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from faust.transport.drivers import aiokafka as driver
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Transport
from faust.types import TP

from perdure.connectors.faust_views.table import FAUST_LOG

FETCH_WAIT_MS: Final = 500
SESSION_TIMEOUT_MS: Final = 10_000
HEARTBEAT_MS: Final = 3_000
POLL_INTERVAL_MS: Final = 300_000
REQUEST_TIMEOUT_MS: Final = 30_000
FETCH_BYTES_MAX: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Reading:
    """How to reach the cluster. ``security``: arguments of AIOKafkaConsumer. ``ends``: blocking; for each
    partition the offset after the last record that a reader can see.
    """

    bootstrap: str
    group: str
    security: Mapping[str, Any]
    ends: Callable[[Sequence[TP]], Mapping[TP, int]]


class CommittedThread(AIOKafkaConsumerThread):
    """Faust's consumer thread with a client that reads committed records."""

    logger = FAUST_LOG
    reading: Reading

    def _create_worker_consumer(self, transport: Any) -> Any:  # noqa: ARG002 - Faust passes it by name
        self._assignor = self.app.assignor
        client: Any = cast("Any", driver).aiokafka.AIOKafkaConsumer  # the client that Faust brings
        return client(
            client_id=self.reading.group,
            group_id=self.reading.group,
            # Static: after kill -9 it is the same member again, without waiting for its session to end.
            group_instance_id=self.reading.group,
            bootstrap_servers=self.reading.bootstrap.split(","),
            isolation_level="read_committed",
            partition_assignment_strategy=[self._assignor],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_poll_interval_ms=POLL_INTERVAL_MS,
            max_partition_fetch_bytes=FETCH_BYTES_MAX,
            fetch_max_wait_ms=FETCH_WAIT_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            **self.reading.security,
        )

    async def _highwaters(self, partitions: list[TP]) -> Mapping[TP, int]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, self.reading.ends, list(partitions))


def committed_transport(app: Any, reading: Reading) -> Transport:
    """A transport for ``app`` that reads as ``reading`` says."""

    class BoundThread(CommittedThread):
        pass

    class BoundConsumer(Consumer):
        logger = FAUST_LOG

        def _new_consumer_thread(self) -> AIOKafkaConsumerThread:
            return BoundThread(self, loop=self.loop, beacon=self.beacon)

    class BoundTransport(Transport):
        pass

    BoundThread.reading = reading
    BoundTransport.Consumer = BoundConsumer
    return BoundTransport(app.conf.broker_consumer, app)
