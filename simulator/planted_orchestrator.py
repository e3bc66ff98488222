"""Planted bugs of the orchestrator: its transactions, its offsets, its rows, its restore."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, cast
from unittest import mock

from perdure.processors.orchestrator import batch as batches
from perdure.processors.orchestrator import processing, transaction
from perdure.processors.orchestrator.assignment import Assignment
from perdure.processors.orchestrator.batch import Batch
from perdure.processors.orchestrator.host import Orchestrator
from perdure.processors.orchestrator.offsets import NextUnprocessed
from perdure.processors.orchestrator.processing import Processing
from perdure.processors.orchestrator.purges import tombstones
from perdure.processors.store_overlay import Overlay
from perdure.topics.errors import OutcomeUnknown
from perdure.topics.log import (
    GroupMetadata,
    Isolation,
    Outgoing,
    Position,
    Record,
    TopicPartition,
    Watermarks,
)
from perdure.topics.model_transactional import ModelTransactionalProducer, ProducerState
from perdure.topics.table import DEAD_LETTERS, RUN_EVENTS
from simulator.patching import Patches

commit_transaction: Final[Callable[..., Mapping[TopicPartition, int]]] = transaction.commit_transaction


class WithoutOffsets:
    """A producer that sends no offsets. Everything else is the producer's."""

    def __init__(self, producer: ModelTransactionalProducer) -> None:
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def send_offsets(self, _: Sequence[Position], group: GroupMetadata, timeout_s: float) -> None:
        self._producer.send_offsets((), group, timeout_s)


def rows_before_commit() -> Patches:
    """The rows are written before the transaction commits."""

    def commit(self: Processing, batch: Batch, records: list[Record]) -> None:
        ends: Counter[TopicPartition] = Counter()
        topic = self._settings.namespace.topic(RUN_EVENTS)
        for out, is_event in batch.outgoing:
            if is_event:
                ends[TopicPartition(topic, out.partition)] += 1
        log = self.assignment._log
        tracked = {
            at: log.watermarks(at, Isolation.UNCOMMITTED, 1.0).end + count - 1 for at, count in ends.items()
        }
        batch.write(tracked)
        with mock.patch.object(batch, "write"):
            original(self, batch, records)

    original = Processing._commit
    return [(Processing, "_commit", commit)]


def reuse_producer() -> Patches:
    """A producer whose request timed out is used again, and its batch tried again."""

    def give_up(self: ModelTransactionalProducer, timeout_s: float) -> None:
        if self._state is ProducerState.NEW:
            self._state = ProducerState.BROKEN
        else:
            self._state = ProducerState.READY
        self._cluster.time_out(timeout_s)
        raise OutcomeUnknown(f"{self.client_id} got no answer in time.")

    def start_over(self: Orchestrator, error: Exception) -> None:
        assignment = self._assignment
        if isinstance(error, OutcomeUnknown) and assignment is not None and assignment.is_settled:
            self._rest("reused", error)
        else:
            original(self, cast("Any", error))

    original = Orchestrator._start_over
    return [(ModelTransactionalProducer, "_give_up", give_up), (Orchestrator, "_start_over", start_over)]


def no_offsets_on_timers() -> Patches:
    """A transaction of timers alone sends no offsets, so nothing fences it."""

    def commit(self: Processing, batch: Batch, records: list[Record]) -> None:
        producer = self.assignment._producer
        if not records and producer is not None:
            self.assignment._producer = cast("Any", WithoutOffsets(cast("Any", producer)))
        try:
            original(self, batch, records)
        finally:
            if self.assignment._producer is not None:
                self.assignment._producer = producer

    original = Processing._commit
    return [(Processing, "_commit", commit)]


def empty_offsets() -> Patches:
    """Every transaction sends an empty list of offsets: a success that fences nobody."""

    def commit(producer: ModelTransactionalProducer, *rest: Any) -> Mapping[TopicPartition, int]:
        return commit_transaction(WithoutOffsets(producer), *rest)

    return [(processing, "commit_transaction", commit)]


class Stranger(GroupMetadata):
    """Somebody who never joined, and says that it is a member."""

    @property
    def is_member(self) -> bool:
        return True


def fresh_group_metadata() -> Patches:
    """The membership is asked for at commit: that of somebody who is no member, and is not fenced."""

    def commit(producer: Any, group: GroupMetadata, *rest: Any) -> Mapping[TopicPartition, int]:
        return commit_transaction(producer, Stranger(group.group, -1, ""), *rest)

    return [(processing, "commit_transaction", commit)]


def position_as_offset() -> Patches:
    """The client's position is committed: what was fetched, and nothing for what was never read."""

    def positions(
        self: NextUnprocessed, partitions: Collection[int], moved: Mapping[TopicPartition, int]
    ) -> tuple[Position, ...]:
        taken = ((at, offset) for at, offset in sorted(self._taken.items()) if at.partition in partitions)
        return tuple(Position(at, offset) for at, offset in taken if at in moved or offset != self._next[at])

    def commit(producer: Any, group: Any, offsets: Sequence[Position], *rest: Any) -> Any:
        if offsets:
            return commit_transaction(producer, group, offsets, *rest)
        stand_in = [Position(TopicPartition("none", 0), 0)]
        return commit_transaction(WithoutOffsets(producer), group, stand_in, *rest)

    return [(NextUnprocessed, "positions", positions), (processing, "commit_transaction", commit)]


def one_offset_too_far() -> Patches:
    """The offset after the next one is committed."""

    def positions(
        self: NextUnprocessed, partitions: Collection[int], moved: Mapping[TopicPartition, int]
    ) -> tuple[Position, ...]:
        found = original(self, partitions, moved)
        return tuple(Position(each.at, each.offset + (each.at in moved)) for each in found)

    original = NextUnprocessed.positions
    return [(NextUnprocessed, "positions", positions)]


def no_dedup() -> Patches:
    """An input that comes again is handled again."""

    def was_answered(self: Overlay, run_id: str, cause: str, *, is_command: bool) -> bool:  # noqa: ARG001
        return False

    return [(Overlay, "was_answered", was_answered)]


def restore_to_stable_end() -> Patches:
    """The rows are restored only up to what is visible when the restore begins."""

    def ask(self: Assignment, at: TopicPartition) -> Watermarks:
        found = self._log.watermarks(at, Isolation.COMMITTED, 1.0)
        is_events = at.topic == self._settings.namespace.topic(RUN_EVENTS)
        return found if is_events else original(self, at)

    original = Assignment._ask
    return [(Assignment, "_ask", ask)]


def no_trailing_status() -> Patches:
    """A status that was held back is never published."""

    def status_timers(self: Batch, part: Any) -> None:
        """Nothing."""

    return [(Batch, "_status_timers", status_timers)]


def letter_outside_transaction() -> Patches:
    """Dead letters are written by a producer of their own."""

    def commit(self: Processing, batch: Batch, records: list[Record]) -> None:
        topic = self._settings.namespace.topic(DEAD_LETTERS)
        letters = [out for out, _ in batch.outgoing if out.topic == topic]
        batch.outgoing = [each for each in batch.outgoing if each[0].topic != topic]
        producer = self.assignment._log.producer("letters")
        for out in letters:
            producer.produce(out)
        original(self, batch, records)

    original = Processing._commit
    return [(Processing, "_commit", commit)]


def tombstones_ascending() -> Patches:
    """A purge deletes a history from its beginning."""

    def ascending(overlay: Overlay, *rest: Any) -> Iterator[tuple[Outgoing, bool]]:
        return iter(list(tombstones(overlay, *rest))[::-1])

    return [(batches, "tombstones", ascending)]


def backlog_dropped() -> Patches:
    """After an unknown outcome what was taken before is not read again."""

    def start_over(self: Orchestrator, error: Exception) -> None:
        assignment = self._assignment
        taken = {} if assignment is None else dict(assignment.offsets._taken)
        original(self, cast("Any", error))
        if assignment is not None:
            cast("Any", assignment)._skipped = taken

    def bound(self: Assignment) -> None:
        original_bound(self)
        for at, offset in getattr(self, "_skipped", {}).items():
            if at in self.offsets._next and self.offsets._next[at] < offset:
                self.offsets._next[at] = self.offsets._taken[at] = offset

    original, original_bound = Orchestrator._start_over, Assignment._bound
    return [(Orchestrator, "_start_over", start_over), (Assignment, "_bound", bound)]


PLANTS: Final[Mapping[str, Callable[[], Patches]]] = {
    "rows-before-commit": rows_before_commit,
    "reuse-producer": reuse_producer,
    "no-offsets-on-timers": no_offsets_on_timers,
    "empty-offsets": empty_offsets,
    "fresh-group-metadata": fresh_group_metadata,
    "position-as-offset": position_as_offset,
    "one-offset-too-far": one_offset_too_far,
    "no-dedup": no_dedup,
    "restore-to-stable-end": restore_to_stable_end,
    "no-trailing-status": no_trailing_status,
    "letter-outside-transaction": letter_outside_transaction,
    "tombstones-ascending": tombstones_ascending,
    "backlog-dropped": backlog_dropped,
}
