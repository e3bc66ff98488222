"""Taking partitions over: where to start, what is done, and what an earlier owner may have begun."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from perdure.processors.clock import Clock
from perdure.processors.executor.actions import Action, extra
from perdure.processors.executor.partition import Partition
from perdure.processors.executor.settings import ExecutorSettings
from perdure.processors.offset_map import OffsetMap, Unusable, decode
from perdure.topics.errors import Unavailable
from perdure.topics.log import (
    CommittedOffset,
    Consumer,
    Isolation,
    Log,
    TopicInfo,
    TopicPartition,
    Watermarks,
)

logger: Final = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Gap:
    """Requests from ``base`` to below ``low`` were deleted before they were done."""

    base: int
    low: int


@dataclass(frozen=True, slots=True)
class TakenOver:
    partition: Partition
    gap: Gap | None


class TakeOver:
    """Asks the log what a new owner has to know, in the one order that is safe.

    First ``committed()``: from its answer on the coordinator refuses every claim of an earlier owner. Only
    then the end, so that no claimed request can lie beyond it; and only from then on the lease is counted
    that an earlier owner may still make use of.
    """

    def __init__(
        self, log: Log, topic: str, clock: Clock, settings: ExecutorSettings, wait: Callable[[float], None]
    ) -> None:
        """``wait``: lets some seconds pass usefully, between two attempts at a question."""
        self._wait = wait
        self._log = log
        self._topic = topic
        self._clock = clock
        self._settings = settings

    def take(self, consumer: Consumer, wanted: Sequence[TopicPartition]) -> list[TakenOver]:
        """Raises Unavailable if a question stays unanswered ``asks_max`` times."""
        if not wanted:
            return []
        timeout_s = self._settings.ask_timeout_s
        committed = self._ask(lambda: consumer.committed(wanted, timeout_s))
        now_s = self._clock.boot_s()
        tell_at_s = now_s + self._settings.lease_s + self._settings.margin_s
        topic_id = self._ask(self._describe).topic_id
        return [self._one(each, topic_id, tell_at_s, now_s) for each in committed]

    def _one(self, committed: CommittedOffset, topic_id: str, tell_at_s: float, now_s: float) -> TakenOver:
        at = committed.at
        timeout_s = self._settings.ask_timeout_s
        marks = self._ask(lambda: self._log.watermarks(at, Isolation.COMMITTED, timeout_s))
        base, known = self._start(committed, topic_id, marks)
        gap = Gap(base, marks.low) if base < marks.low else None
        partition = Partition(at, topic_id, max(base, marks.low), known, tell_at_s=tell_at_s, now_s=now_s)
        # A partition without a map gets one soon, so that the doubt is handed on instead of growing.
        partition.is_dirty = gap is not None or known.doubt_below > 0 or committed.offset is None
        logger.info(
            "assigned %s from %d to %d: %d done, %d started",
            at, partition.next, marks.end, len(known.done), len(known.started),
            extra=extra(Action.ASSIGNED),
        )  # fmt: skip
        return TakenOver(partition, gap)

    def _start(self, committed: CommittedOffset, topic_id: str, marks: Watermarks) -> tuple[int, OffsetMap]:
        """Where to start, and what is known from there on."""
        offset = committed.offset
        if offset is None:
            return marks.low, self._in_doubt(committed, marks, "no offset is committed")
        known = decode(offset, committed.metadata, topic_id)
        if offset > marks.end:
            return marks.low, self._in_doubt(committed, marks, f"offset {offset} lies beyond the end")
        if known is Unusable.TOPIC:
            return marks.low, self._in_doubt(committed, marks, "the offset is of another topic")
        if isinstance(known, Unusable):
            # Somebody set this offset with another tool: read from there, and believe nothing.
            return offset, self._in_doubt(committed, marks, known.value)
        return offset, known

    def _in_doubt(self, committed: CommittedOffset, marks: Watermarks, reason: str) -> OffsetMap:
        if marks.low < marks.end:
            logger.warning(
                "no usable map for %s (%s): every request below %d is suspect",
                committed.at, reason, marks.end,
                extra=extra(Action.NO_MAP),
            )  # fmt: skip
        return OffsetMap(doubt_below=marks.end)

    def _describe(self) -> TopicInfo:
        info = self._log.describe([self._topic], self._settings.ask_timeout_s).get(self._topic)
        if info is None:
            raise Unavailable(f"There is no topic {self._topic}.")
        return info

    def _ask(self, question: Callable[[], T]) -> T:
        for _ in range(self._settings.asks_max - 1):
            try:
                return question()
            except Unavailable as error:
                logger.warning("taking over: %s", error, extra=extra(Action.WAITING))
                self._wait(self._settings.ask_retry_s)
        return question()
