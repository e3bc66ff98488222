"""The commit path.

1. begin                5. crash point ``before_commit``
2. every record         6. commit: now, and only now, it happened
3. the group's offsets  7. crash point ``after_commit``
4. (flush, inside 6)    8. the caller brings its stores to where the log is, crash point ``after_store``

Crash point ``before_offsets`` lies between 2 and 3.

What is raised says what is known: ``TransactionAbortable`` (not committed, the producer lives),
``OutcomeUnknown`` (nobody can tell; the producer is not used again) or ``Fenced`` (somebody else is the
owner).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perdure.processors.crash_points import crash_point
from perdure.processors.orchestrator.settings import OrchestratorSettings
from perdure.processors.watchdog import Watchdog
from perdure.topics.errors import OutcomeUnknown, TransactionAbortable
from perdure.topics.log import GroupMetadata, Outgoing, Position, TopicPartition, TransactionalProducer


def commit_transaction(
    producer: TransactionalProducer,
    group: GroupMetadata,
    offsets: Sequence[Position],
    outgoing: Sequence[tuple[Outgoing, bool]],
    settings: OrchestratorSettings,
    watchdog: Watchdog,
) -> Mapping[TopicPartition, int]:
    """One transaction. Returns the highest offset of an event written, per partition of run-events."""
    assert offsets, "a transaction without offsets fences nobody"
    assert all(position.offset >= 0 for position in offsets)
    assert group.is_member, "without membership there is no transaction"
    timeout_s = settings.call_timeout_ms / 1_000
    hang_s = settings.hang_ms_max / 1_000
    producer.begin()
    for out, is_event in outgoing:
        producer.produce(out, track=is_event)
    crash_point("orchestrator.before_offsets")
    with watchdog.guard("send_offsets", hang_s):
        producer.send_offsets(offsets, group, timeout_s)
    crash_point("orchestrator.before_commit")
    with watchdog.guard("commit", hang_s):
        tracked = producer.commit(timeout_s)
    crash_point("orchestrator.after_commit")
    return tracked


def abort_transaction(
    producer: TransactionalProducer, settings: OrchestratorSettings, watchdog: Watchdog
) -> None:
    """Abort. Raises ``OutcomeUnknown`` or ``Fenced``; then the producer is not used again."""
    try:
        with watchdog.guard("abort", settings.hang_ms_max / 1_000):
            producer.abort(settings.call_timeout_ms / 1_000)
    except TransactionAbortable as error:
        raise OutcomeUnknown(str(error)) from error
