"""How much history a run leaves: its events, and the commit markers between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from perdure.topics.log import ConsumerSpec, Eof, Isolation, Log, Position, TopicPartition

ASK_S: Final = 10.0
LOOK_S: Final = 0.25
LOOKS_MAX: Final = 240
RECORDS_MAX: Final = 1_000


def ends(log: Log, topic: str, partitions: int) -> Sequence[Position]:
    """Where each partition's committed records end now."""
    every = [TopicPartition(topic, number) for number in range(partitions)]
    return [Position(at, log.watermarks(at, Isolation.COMMITTED, ASK_S).end) for at in every]


def added(log: Log, before: Sequence[Position], after: Sequence[Position]) -> tuple[int, int]:
    """(records, markers) between the two. What holds an offset and is no record marks a transaction's end
    in its partition.
    """
    wanted = {position.at: position.offset for position in after}
    open_ones = {start.at for start in before if start.offset < wanted[start.at]}
    consumer = log.consumer(ConsumerSpec("benchmark.history", eof=True))
    records = 0
    try:
        consumer.assign([start for start in before if start.at in open_ones])
        for _ in range(LOOKS_MAX):
            if not open_ones:
                break
            for item in consumer.poll(RECORDS_MAX, LOOK_S):
                at = TopicPartition(item.topic, item.partition)
                if isinstance(item, Eof):
                    open_ones.discard(at)
                elif item.offset < wanted[at]:
                    records += 1
    finally:
        consumer.close()
    assert not open_ones, "the topic's end was not reached"
    offsets = sum(wanted.values()) - sum(start.offset for start in before)
    return records, offsets - records


def per_run(records: int, markers: int, runs: int) -> Mapping[str, Any]:
    return {
        "events_per_run": round(records / runs, 2),
        "markers_per_run": round(markers / runs, 2),
        "events_per_marker": round(records / markers, 2) if markers else None,
    }
