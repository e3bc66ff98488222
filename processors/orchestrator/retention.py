"""Deletion of consumed results: run-results never expires by age alone, since an outage may last longer
than any age.

What is older than ``results_kept_ms`` *and* below the committed base is deleted. Age marks in the store say
which offset the topic had reached at a time (the Log port has no question for that).
"""

from __future__ import annotations

import logging

from perdure.processors.orchestrator.offsets import NextUnprocessed
from perdure.processors.orchestrator.owned import Owned
from perdure.processors.orchestrator.settings import OrchestratorSettings
from perdure.processors.store_overlay import Overlay
from perdure.processors.store_rows import AGE, timed_key
from perdure.topics.log import Log, Position, TopicPartition
from perdure.topics.table import RUN_RESULTS

_log = logging.getLogger(__name__)


def delete_consumed(
    log: Log, owned: Owned, offsets: NextUnprocessed, settings: OrchestratorSettings, now_ms: int
) -> None:
    """Delete what is old and consumed in one partition of run-results. Raises ``Unavailable``."""
    overlay = Overlay(owned.store)
    mark = overlay.newest_age_mark(now_ms - settings.results_kept_ms)
    at = TopicPartition(settings.namespace.topic(RUN_RESULTS), owned.partition)
    base = offsets.of(at)
    if mark is None or base is None:
        return
    marked_ms, offset = mark
    log.delete_records([Position(at, min(offset, base))], settings.question_timeout_ms / 1_000)
    for key, _ in list(overlay.all_rows(AGE)):
        if key <= timed_key(AGE, marked_ms):
            overlay.delete(key)
    owned.write(overlay)
    _log.info(
        "%s/%d: deleted below %d",
        at.topic,
        at.partition,
        min(offset, base),
        extra={"action": "results_deleted", "partition": at.partition, "offset": min(offset, base)},
    )
