"""Where a reader of committed records is done: behind the last record that it can see.

Neither the high watermark nor the last stable offset says that: both count the markers that end
transactions, and records of aborted ones, which no reader is ever given. Whoever waits for one of those
offsets waits for ever once the topic is quiet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from perdure.processors.clock import Clock
from perdure.topics.errors import OffsetOutOfRange, Unavailable
from perdure.topics.log import Consumer, ConsumerSpec, Eof, Isolation, Log, Position, Record, TopicPartition

ASK_TIMEOUT_S: Final = 10.0
LOOK_TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.2
RECORDS_MAX: Final = 1_000
# How far before the end the search begins, and by how much farther it goes back when it found nothing.
SPAN_OFFSETS: Final = 64
SPAN_GROWTH: Final = 16


def visible_ends(
    log: Log, clock: Clock, partitions: Sequence[TopicPartition], client_id: str
) -> Mapping[TopicPartition, int]:
    """For each partition the offset after its last visible record; the log's first offset if there is none.

    Records that become visible while it looks may be counted or not. Raises :class:`Unavailable`.
    """
    marks = {at: log.watermarks(at, Isolation.COMMITTED, ASK_TIMEOUT_S) for at in partitions}
    ends = {at: mark.low for at, mark in marks.items()}
    span = SPAN_OFFSETS
    starts = {at: max(mark.low, mark.end - span) for at, mark in marks.items() if mark.end > mark.low}
    consumer = log.consumer(ConsumerSpec(client_id, eof=True))
    try:
        while starts:
            found = _last_seen(consumer, clock, starts)
            ends.update(found)
            span *= SPAN_GROWTH
            starts = {
                at: max(marks[at].low, marks[at].end - span)
                for at, start in starts.items()
                if at not in found and start > marks[at].low
            }
    finally:
        consumer.close()
    return ends


def _last_seen(
    consumer: Consumer, clock: Clock, starts: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The offset after the last record from each start on; partitions without any are left out."""
    consumer.assign([Position(at, offset) for at, offset in starts.items()])
    found: dict[TopicPartition, int] = {}
    waiting = set(starts)
    give_up_s = clock.boot_s() + LOOK_TIMEOUT_S
    while waiting:
        if clock.boot_s() > give_up_s:
            raise Unavailable(f"The end of {min(waiting)} was not reached in {LOOK_TIMEOUT_S} s.")
        try:
            items = consumer.poll(RECORDS_MAX, POLL_S)
        except OffsetOutOfRange as raised:
            raise Unavailable("The log's start moved under the search for its end.") from raised
        for item in items:
            match item:
                case Record():
                    found[item.at] = item.offset + 1
                case Eof():
                    waiting.discard(TopicPartition(item.topic, item.partition))
    return found
