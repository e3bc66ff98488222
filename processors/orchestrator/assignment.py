"""What happens after every assignment, in an order of which another lost events when it was measured.

1. ``init`` of the slot's transactional id: older holders are fenced, their transactions ended;
2. ``committed`` with require-stable, asked until it answers, for every input partition: a predecessor that
   is in the middle of a commit is waited for here, so that what it commits stands below the bound;
3. only then the end of run-events, read uncommitted and uncached: the bound;
4. restore up to the bound;
5. process from the offsets of step 2.

Before all of it the partition counts are compared with the pinned one; with another count, partition p of
two topics would speak of different runs. Nothing here blocks for long: the main consumer is polled between
the steps, so that a long restore does not get the member evicted. Any new producer starts again at step 1.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import Enum
from typing import Final, assert_never

from perdure.processors.clock import Clock
from perdure.processors.crash_points import crash_point
from perdure.processors.orchestrator.offsets import NextUnprocessed
from perdure.processors.orchestrator.owned import Owned
from perdure.processors.orchestrator.partition_restore import PartitionRestore
from perdure.processors.orchestrator.restore import Restore
from perdure.processors.orchestrator.settings import OrchestratorSettings
from perdure.processors.store import StoreFactory
from perdure.processors.watchdog import Watchdog
from perdure.schemas.errors import Stop
from perdure.topics.log import (
    CommittedOffset,
    Consumer,
    GroupMetadata,
    Isolation,
    Log,
    Position,
    TopicPartition,
    TransactionalProducer,
    Watermarks,
)
from perdure.topics.table import INPUTS, RUN_EVENTS, TOPICS, Role

RUN_KEYED: Final = tuple(spec.name for spec in TOPICS if spec.run_keyed)

_log = logging.getLogger(__name__)


class PartitionCountsDiffer(Stop):
    """The topics do not have the partition counts this installation is pinned to."""

    code = "partition_counts_differ"
    remedy = "Compare them with `perdure topics plan`; a partition count is not changed without a migration."


class Phase(Enum):
    """Which step comes next."""

    CHECK = "check partition counts"
    INIT = "init the transactional id"
    COMMITTED = "ask for the committed offsets"
    BOUND = "ask for the bounds"
    RESTORE = "restore"
    PROCESS = "process"


class Assignment:
    """One assignment, from the callback to its end. ``group`` is used for every transaction of it."""

    def __init__(
        self,
        log: Log,
        consumer: Consumer,
        partitions: tuple[int, ...],
        group: GroupMetadata,
        stores: StoreFactory,
        clock: Clock,
        settings: OrchestratorSettings,
        watchdog: Watchdog,
    ) -> None:
        self.partitions = partitions
        self.group = group
        self.phase = Phase.CHECK
        self.owned: dict[int, Owned] = {}
        self.offsets = NextUnprocessed(())
        self._log = log
        self._consumer = consumer
        self._stores = stores
        self._clock = clock
        self._settings = settings
        self._watchdog = watchdog
        self._producer: TransactionalProducer | None = None
        self._topic_id = ""
        self._committed: tuple[CommittedOffset, ...] = ()
        self._restore: Restore | None = None
        topics = (settings.namespace.topic(name) for name in INPUTS[Role.ORCHESTRATOR])
        self._inputs = tuple(TopicPartition(topic, p) for topic in topics for p in partitions)

    @property
    def producer(self) -> TransactionalProducer:
        assert self._producer is not None
        return self._producer

    @property
    def is_settled(self) -> bool:
        """Nothing is left to be done but to process."""
        return self.phase is Phase.PROCESS or not self.partitions

    def advance(self) -> bool:
        """Take one step; whether it got anywhere.

        Raises ``Unavailable`` (take it again), ``OutcomeUnknown``, ``Fenced``, ``StoreBroken`` or
        ``PartitionCountsDiffer``.
        """
        match self.phase:
            case _ if not self.partitions:
                return False
            case Phase.CHECK:
                self._check()
            case Phase.INIT:
                self._init()
            case Phase.COMMITTED:
                timeout_s = self._settings.committed_timeout_ms / 1_000
                self._committed = tuple(self._consumer.committed(self._inputs, timeout_s))
                self.phase = Phase.BOUND
            case Phase.BOUND:
                self._bound()
            case Phase.RESTORE:
                return self._restore_slice()
            case Phase.PROCESS:
                return False
            case _:
                assert_never(self.phase)
        return True

    def start_over(self) -> None:
        """Forget everything but ownership: a new producer, and all of the steps again."""
        self.close()
        self.phase = Phase.CHECK
        self._consumer.assign(())

    def close(self) -> None:
        """Give up producer, stores and reader. Rows that are caught up are marked so."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()
        if self._restore is not None:
            self._restore.close()
            self._restore = None
        for owned in self.owned.values():
            owned.close()
        self.owned = {}
        self.offsets = NextUnprocessed(())

    # ---- the steps

    def _check(self) -> None:
        timeout_s = self._settings.question_timeout_ms / 1_000
        names = {name: self._settings.namespace.topic(name) for name in RUN_KEYED}
        found = self._log.describe(tuple(names.values()), timeout_s)
        pinned = self._settings.partitions
        faults = [
            f"{topic} has {found[topic].partitions}" if topic in found else f"{topic} is missing"
            for topic in names.values()
            if topic not in found or found[topic].partitions != pinned
        ]
        if faults:
            raise PartitionCountsDiffer(f"{pinned} partitions are wanted: {', '.join(faults)}.")
        self._topic_id = found[names[RUN_EVENTS]].topic_id
        self.phase = Phase.INIT

    def _init(self) -> None:
        settings = self._settings
        producer = self._log.transactional(settings.transactional_id, settings.transaction_timeout_ms)
        self._producer = producer
        with self._watchdog.guard("init_transactions", settings.hang_ms_max / 1_000):
            producer.init(settings.call_timeout_ms / 1_000)
        crash_point("orchestrator.after_init")
        self.phase = Phase.COMMITTED

    def _bound(self) -> None:
        topic = self._settings.namespace.topic(RUN_EVENTS)
        ends = {p: self._ask(TopicPartition(topic, p)) for p in self.partitions}
        input_ends = {each.at: self._ask(each.at) for each in self._committed}
        starts = [Position(each.at, self._start(each, input_ends[each.at])) for each in self._committed]
        for partition in self.partitions:
            unread = {
                each.at: input_ends[each.at].end
                for each in starts
                if each.at.partition == partition and each.offset < input_ends[each.at].end
            }
            self.owned[partition] = Owned(
                partition, self._topic_id, self._stores, self._clock, self._settings, unread
            )
        now_ms = self._clock.wall_ms()
        self._restore = Restore(
            self._log,
            [PartitionRestore(self.owned[p], mark.low, mark.end, now_ms) for p, mark in ends.items()],
            self._clock,
            self._settings,
        )
        self.offsets = NextUnprocessed(starts)
        self._consumer.assign(starts)
        self._consumer.pause(self._inputs)
        self.phase = Phase.RESTORE

    def _ask(self, at: TopicPartition) -> Watermarks:
        return self._log.watermarks(at, Isolation.UNCOMMITTED, self._settings.question_timeout_ms / 1_000)

    @staticmethod
    def _start(committed: CommittedOffset, marks: Watermarks) -> int:
        """Where to go on with an input. Inputs that come again are known by their ids."""
        if committed.offset is None:
            return marks.low
        if marks.low <= committed.offset <= marks.end:
            return committed.offset
        _log.error(
            "%s/%d: the group stands at %d, the log holds %d to %d; going on at %d",
            committed.at.topic,
            committed.at.partition,
            committed.offset,
            marks.low,
            marks.end,
            marks.low,
            extra={
                "action": "inputs_missing",
                "topic": committed.at.topic,
                "partition": committed.at.partition,
            },
        )
        return marks.low

    def _restore_slice(self) -> bool:
        restore = self._restore
        assert restore is not None
        for each in restore.step():
            owned = each.owned
            owned.become_ready()
            inputs = [at for at in self._inputs if at.partition == owned.partition]
            self._consumer.resume(inputs)
            _log.info(
                "partition %d restored: %d records of run-events up to %d",
                owned.partition,
                each.counts["records"],
                each.next_offset,
                extra={
                    "action": "restored",
                    "partition": owned.partition,
                    "offset": each.next_offset,
                    "duration_ms": self._clock.wall_ms() - each.started_ms,
                    **_sorted(each.counts),
                },
            )
        if restore.is_done:
            self._restore = None
            self.phase = Phase.PROCESS
        return restore.is_done or not restore.is_idle


def _sorted(counts: Mapping[str, int]) -> dict[str, int]:
    return {f"count_{name}": count for name, count in sorted(counts.items())}
