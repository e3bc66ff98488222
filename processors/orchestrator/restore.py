"""Restore: fold run-events, read committed, from where the local rows stand up to the bound.

The *bound* is the end of run-events read uncommitted, asked only once no predecessor can write any more. A
partition is done at an end-of-partition at or above its bound: positions never pass a trailing transaction
marker, and a record below the bound may still belong to an open transaction. An end below the bound is
waited out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from perdure.processors.clock import Clock
from perdure.processors.orchestrator.partition_restore import PartitionRestore
from perdure.processors.orchestrator.settings import OrchestratorSettings
from perdure.topics.errors import OffsetOutOfRange
from perdure.topics.log import Consumer, ConsumerSpec, Isolation, Log, Position, TopicPartition
from perdure.topics.table import RUN_EVENTS

SEQ_DIGITS_MAX: Final = 18

_log = logging.getLogger(__name__)


class Restore:
    """All partitions that are being restored, on a consumer of their own."""

    def __init__(
        self, log: Log, partitions: Iterable[PartitionRestore], clock: Clock, settings: OrchestratorSettings
    ) -> None:
        self._log = log
        self._clock = clock
        self._settings = settings
        self._topic = settings.namespace.topic(RUN_EVENTS)
        self._waiting = {each.owned.partition: each for each in partitions}
        self._consumer: Consumer | None = None
        self._reading: set[int] = set()
        self.is_idle = False
        """Nothing was there to be read in the last step."""

    @property
    def is_done(self) -> bool:
        return not self._waiting

    def step(self) -> list[PartitionRestore]:
        """Fold a slice; the partitions that reached their bound with it. Never waits."""
        for each in self._waiting.values():
            each.finish_if_empty()
        is_fresh = self._read()
        done = [each for each in self._waiting.values() if each.is_done]
        for each in done:
            del self._waiting[each.owned.partition]
        if self._consumer is not None and is_fresh:
            self._pause([each.owned.partition for each in done if each.owned.partition in self._reading])
            for each in self._waiting.values():
                each.flush()
                self._alarm(each)
        if self.is_done:
            self.close()
        return done

    def _pause(self, partitions: list[int]) -> None:
        """Read no more of what is done: its own events would only come round again."""
        if self._consumer is not None and partitions and self._waiting:
            self._consumer.pause([TopicPartition(self._topic, partition) for partition in partitions])

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _read(self) -> bool:
        if all(each.is_done for each in self._waiting.values()):
            return True
        if self._consumer is None:
            self._consumer = self._open()
        try:
            items = self._consumer.poll(self._settings.restore_slice_records, 0.0)
            self.is_idle = not items
        except OffsetOutOfRange as error:
            self._start_again(str(error))
            return False
        for item in items:
            each = self._waiting.get(item.partition)
            if each is not None and not each.take(item):
                self.close()  # a fresh consumer starts where the partitions stand now
                return False
        return True

    def _open(self) -> Consumer:
        consumer = self._log.consumer(ConsumerSpec(self._settings.client_id("restore"), eof=True))
        starts = {p: each.next_offset for p, each in self._waiting.items() if not each.is_done}
        self._reading = set(starts)
        consumer.assign([Position(TopicPartition(self._topic, p), offset) for p, offset in starts.items()])
        return consumer

    def _start_again(self, reason: str) -> None:
        """The log's start moved over a partition's position."""
        self.close()
        for partition, each in self._waiting.items():
            at = TopicPartition(self._topic, partition)
            low = self._log.watermarks(
                at, Isolation.COMMITTED, self._settings.question_timeout_ms / 1_000
            ).low
            if each.next_offset < low:
                each.low = low
                each.start_again(reason)

    def _alarm(self, each: PartitionRestore) -> None:
        """Say when an open transaction below the bound outlasts the largest transaction time-out."""
        now_ms = self._clock.wall_ms()
        if each.waits_since_ms is None:
            each.waits_since_ms = now_ms
            return
        waited_ms = now_ms - each.waits_since_ms
        if waited_ms < self._settings.transaction_timeout_ms_max or each.alarmed:
            return
        each.alarmed = True
        _log.error(
            "partition %d: run-events ends at %d for committed readers, below %d, for %d ms: a transaction"
            " hangs (perdure doctor finds it)",
            each.owned.partition,
            each.next_offset,
            each.bound,
            waited_ms,
            extra={"action": "restore_hanging", "partition": each.owned.partition, "waited_ms": waited_ms},
        )
