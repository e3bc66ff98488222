"""Back-pressure: which partitions are read on. A pause throws prefetched records away, hence the wide
bands.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from perdure.processors.executor.intake import Load
from perdure.processors.executor.partition import Partition
from perdure.processors.executor.settings import ExecutorSettings
from perdure.topics.log import Consumer, Position, TopicPartition

BACKLOG_LOW_PART: Final = 2  # reading resumes at this part of the largest backlog


class Flow:
    """Pauses and resumes partitions of one consumer."""

    def __init__(self, consumer: Consumer, settings: ExecutorSettings) -> None:
        self._consumer = consumer
        self._settings = settings
        self._paused: set[TopicPartition] = set()
        self._is_full = False

    def update(self, partitions: Iterable[Partition], load: Load, *, is_leaving: bool) -> None:
        """Pause what must not be read on now, resume what may."""
        part = BACKLOG_LOW_PART if self._is_full else 1
        is_many = load.requests > self._settings.backlog_max // part
        self._is_full = is_many or load.size > self._settings.backlog_bytes_max // part
        for partition in partitions:
            wanted = is_leaving or self._is_full or self._is_wide(partition)
            if wanted and partition.at not in self._paused:
                self._consumer.pause([partition.at])
                self._paused.add(partition.at)
            elif not wanted and (partition.at in self._paused or partition.refused is not None):
                self._resume(partition)

    def forget(self, at: TopicPartition) -> None:
        """The partition is gone, or assigned anew: it is not paused."""
        self._paused.discard(at)

    def _is_wide(self, partition: Partition) -> bool:
        """Whether what was read fills the map's window, with hysteresis."""
        settings = self._settings
        if partition.refused is not None:
            return not partition.fits(partition.refused, settings.window_low_offsets)
        if partition.at in self._paused:
            return partition.span >= settings.window_low_offsets
        return partition.span >= settings.window_offsets - settings.poll_records_max

    def _resume(self, partition: Partition) -> None:
        if partition.refused is not None:
            self._consumer.seek(Position(partition.at, partition.next))
            partition.refused = None
        self._consumer.resume([partition.at])
        self._paused.discard(partition.at)
