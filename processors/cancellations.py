"""Cancelled executions, as run-signals tells: the fast hint that stops calls which nobody waits for any more.

Read by every executor process to its end before the first call, then as it grows; no group, no offsets. A
hint, for the orchestrator has decided already and a call that misses it only does work in vain.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from perdure.schemas.codec import Undecodable, decode
from perdure.schemas.outputs import RunSignal
from perdure.topics.errors import OffsetOutOfRange
from perdure.topics.log import ConsumerSpec, Eof, Isolation, Log, Position, Record, TopicPartition

logger: Final = logging.getLogger(__name__)

RECORDS_MAX: Final = 500
ASK_TIMEOUT_S: Final = 5.0


class Cancellations:
    """``topic``: full name of run-signals. Used from one thread. The constructor asks the log and may raise
    :class:`~perdure.topics.errors.Unavailable`.
    """

    def __init__(self, log: Log, topic: str, client_id: str) -> None:
        self._log = log
        self._cancelled: dict[str, int] = {}
        info = log.describe([topic], ASK_TIMEOUT_S).get(topic)
        count = info.partitions if info is not None else 0
        self._partitions = [TopicPartition(topic, number) for number in range(count)]
        self._behind = set(self._partitions)
        self._consumer = log.consumer(ConsumerSpec(client_id, eof=True))
        self._consumer.assign(self._starts())

    @property
    def is_ready(self) -> bool:
        """Whether every partition was read to its end once."""
        return not self._behind

    def is_cancelled(self, run_id: str, execution: int) -> bool:
        """A signal speaks of the execution it names and of no other."""
        return self._cancelled.get(run_id) == execution

    def poll(self) -> Sequence[tuple[str, int]]:
        """Read what is there, without waiting; returns the (run_id, execution) pairs cancelled by it."""
        fresh: list[tuple[str, int]] = []
        try:
            items = self._consumer.poll(RECORDS_MAX, 0.0)
        except OffsetOutOfRange:
            # Nothing is ever deleted from this topic by age, so it was re-created: read the new one from
            # its start.
            self._consumer.assign(self._starts())
            return fresh
        for item in items:
            match item:
                case Eof():
                    self._behind.discard(TopicPartition(item.topic, item.partition))
                case Record():
                    self._learn(item, fresh)
        return fresh

    def close(self) -> None:
        self._consumer.close()

    def _learn(self, record: Record, fresh: list[tuple[str, int]]) -> None:
        try:
            run_id = (record.key or b"").decode()
            if record.value is None:
                self._cancelled.pop(run_id, None)
                return
            signal = decode(RunSignal, record.value)
        except (UnicodeDecodeError, Undecodable) as error:
            logger.warning(
                "unreadable signal at %s %d: %s", record.at, record.offset, error,
                extra={"action": "signal_unreadable"},
            )  # fmt: skip
            return
        self._cancelled[run_id] = signal.execution
        fresh.append((run_id, signal.execution))

    def _starts(self) -> list[Position]:
        return [
            Position(at, self._log.watermarks(at, Isolation.COMMITTED, ASK_TIMEOUT_S).low)
            for at in self._partitions
        ]
