"""The fetching half of a model consumer: positions, pause flags, and what was prefetched.

A client reads ahead. What it has in its queue is delivered although the log may have changed since; a pause,
a seek or an assignment throws the queue away. The fetch position passes markers and aborted records, so an
:class:`~perdure.topics.log.Eof` names the last stable offset although no record stands just before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from perdure.topics.errors import LogMisuse, OffsetOutOfRange
from perdure.topics.log import Eof, Isolation, Polled, Position, TopicPartition
from perdure.topics.model_cluster import ModelCluster, record_of


@dataclass(slots=True)
class Reading:
    """One assigned partition.

    ``delivered``: the next offset the application has not got; ``failed``: out of range, and ``told`` so.
    """

    delivered: int
    fetched: int
    queue: deque[Polled] = field(default_factory=deque[Polled])
    eof_at: int | None = None
    failed: bool = False
    told: bool = False

    def restart(self, offset: int) -> None:
        self.delivered = self.fetched = offset
        self.queue.clear()
        self.eof_at = None
        self.failed = self.told = False


class Fetcher:
    """What a consumer is assigned and how far it has read."""

    def __init__(self, cluster: ModelCluster, queued_records: int, *, eof: bool) -> None:
        self._cluster = cluster
        self._queued_records = queued_records
        self._eof = eof
        self._readings: dict[TopicPartition, Reading] = {}
        self._paused: set[TopicPartition] = set()
        self._turn = 0

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        return frozenset(self._readings)

    def assign(self, positions: Iterable[Position]) -> None:
        self._readings = {each.at: Reading(each.offset, each.offset) for each in positions}
        self._paused.clear()

    def add(self, positions: Sequence[Position]) -> None:
        twice = [each.at for each in positions if each.at in self._readings]
        if twice:
            raise LogMisuse(f"Assigned already: {twice}.")
        for each in positions:
            self._readings[each.at] = Reading(each.offset, each.offset)
            self._paused.discard(each.at)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        for at in partitions:
            self._readings.pop(at, None)
            self._paused.discard(at)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        for at in partitions:
            reading = self._reading(at)
            if at not in self._paused:
                if not reading.failed:
                    reading.restart(reading.delivered)
                self._paused.add(at)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        for at in partitions:
            self._reading(at)
            self._paused.discard(at)

    def seek(self, position: Position) -> None:
        reading = self._reading(position.at)
        if reading.failed:
            raise LogMisuse(f"{position.at} was out of range: only an assignment mends that.")
        reading.restart(position.offset)

    def take(self, records_max: int) -> list[Polled]:
        """Fetch what is there and hand out up to ``records_max`` items, each partition in its turn.

        Raises OffsetOutOfRange once for a partition whose position is not in the log; it then stands still
        until an assignment. Items come before the error.
        """
        partitions = sorted(self._readings)
        if self._cluster.random is not None:
            self._cluster.random.shuffle(partitions)
        elif partitions:
            self._turn = (self._turn + 1) % len(partitions)
            partitions = partitions[self._turn :] + partitions[: self._turn]
        taken: list[Polled] = []
        for at in partitions:
            if at not in self._paused:
                self._fill(at, self._readings[at])
                self._hand_out(self._readings[at], taken, records_max)
        if not taken:
            self._raise_failure(partitions)
        return taken

    def _fill(self, at: TopicPartition, reading: Reading) -> None:
        partition = self._cluster.find(at)
        if partition is None or reading.failed or len(reading.queue) >= self._queued_records:
            return
        if not partition.in_range(reading.fetched):
            reading.failed = True
            return
        if reading.fetched == partition.stable_end and reading.eof_at == reading.fetched:
            return  # at the end, which was told already
        fetched = partition.fetch(
            reading.fetched, Isolation.COMMITTED, self._queued_records - len(reading.queue)
        )
        reading.queue.extend(record_of(at, entry) for entry in fetched.entries)
        reading.fetched = fetched.next_offset
        at_end = reading.fetched >= partition.stable_end
        if at_end and reading.eof_at != reading.fetched:
            reading.eof_at = reading.fetched
            if self._eof:
                reading.queue.append(Eof(at.topic, at.partition, reading.fetched))

    def _hand_out(self, reading: Reading, taken: list[Polled], records_max: int) -> None:
        while reading.queue and len(taken) < records_max:
            item = reading.queue.popleft()
            taken.append(item)
            if not isinstance(item, Eof):
                reading.delivered = item.offset + 1

    def _raise_failure(self, partitions: Sequence[TopicPartition]) -> None:
        for at in partitions:
            reading = self._readings[at]
            if reading.failed and not reading.told and not reading.queue:
                reading.told = True
                raise OffsetOutOfRange(f"{at.topic}[{at.partition}] at {reading.fetched}.")

    def _reading(self, at: TopicPartition) -> Reading:
        found = self._readings.get(at)
        if found is None:
            raise LogMisuse(f"Not assigned: {at}.")
        return found
