"""Reading topics from their start without a group: what is in them now, and what comes after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Self

from perdure.processors.clock import Clock
from perdure.schemas.errors import Stop
from perdure.topics.errors import OffsetOutOfRange, Unavailable
from perdure.topics.log import (
    Consumer,
    ConsumerSpec,
    Eof,
    Isolation,
    Log,
    Position,
    Record,
    TopicInfo,
    TopicPartition,
)

RECORDS_MAX: Final = 1_000
WAIT_S: Final = 0.25
ASK_TIMEOUT_S: Final = 10.0
END_TIMEOUT_S: Final = 30.0


class TopicMissing(Stop):
    """A topic of perdure is not there."""

    code = "topic_missing"
    remedy = "Make the topics with `perdure topics apply`, or check bootstrap and namespace."


def describe_topic(log: Log, topic: str) -> TopicInfo:
    """Its partition count and id. Raises :class:`TopicMissing` or :class:`Unavailable`."""
    info = log.describe([topic], ASK_TIMEOUT_S).get(topic)
    if info is None:
        raise TopicMissing(f"It is {topic}.")
    return info


class TopicReader:
    """Reads ``partitions`` of ``topic`` (all of them if None), committed records only. One thread only.

    Opens a consumer; close it, or use it as a context manager.
    """

    def __init__(
        self,
        log: Log,
        clock: Clock,
        topic: str,
        partitions: Sequence[int] | None = None,
        client_id: str = "perdure.reader",
    ) -> None:
        self._log = log
        self._clock = clock
        chosen = range(describe_topic(log, topic).partitions) if partitions is None else partitions
        self._partitions = [TopicPartition(topic, number) for number in chosen]
        self._behind = set(self._partitions)
        self._consumer: Consumer = log.consumer(ConsumerSpec(client_id, eof=True))
        self._start()

    @property
    def at_end(self) -> bool:
        """Whether every partition was read to its end once."""
        return not self._behind

    def to_end(self, timeout_s: float = END_TIMEOUT_S) -> Iterator[Record]:
        """Every record up to the end, which is the last stable offset at the time it is reached.

        Raises :class:`Unavailable` when nothing comes for ``timeout_s`` although the end was not reached.
        """
        give_up_s = self._clock.boot_s() + timeout_s
        while not self.at_end:
            records = self.more(WAIT_S)
            if records or self.at_end:
                give_up_s = self._clock.boot_s() + timeout_s
            elif self._clock.boot_s() > give_up_s:
                raise Unavailable(f"The end of {self._partitions[0].topic} was not reached in {timeout_s} s.")
            yield from records

    def more(self, wait_s: float) -> list[Record]:
        """What has come since, waiting up to ``wait_s`` for the first."""
        try:
            items = self._consumer.poll(RECORDS_MAX, wait_s)
        except OffsetOutOfRange:
            # Deleted under the reader, or the topic was re-created: what there is now counts.
            self._start()
            return []
        records: list[Record] = []
        for item in items:
            match item:
                case Record():
                    records.append(item)
                case Eof():
                    self._behind.discard(TopicPartition(item.topic, item.partition))
        return records

    def close(self) -> None:
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        self._consumer.assign(
            [
                Position(at, self._log.watermarks(at, Isolation.COMMITTED, ASK_TIMEOUT_S).low)
                for at in self._partitions
            ]
        )
