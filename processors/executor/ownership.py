"""Ownership of partitions: what is done when they come, go, or are found to be gone.

The callbacks run inside of the consumer's poll and close, on the engine's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from perdure.processors.executor.actions import Action, extra
from perdure.processors.executor.assignment import Gap, TakeOver
from perdure.processors.executor.claims import Claims
from perdure.processors.executor.dispatch import Dispatch
from perdure.processors.executor.flow import Flow
from perdure.processors.executor.intake import Intake
from perdure.processors.executor.partition import Partition
from perdure.processors.executor.results import Results
from perdure.schemas.results import Lost
from perdure.topics.errors import Unavailable
from perdure.topics.log import Consumer, Position, TopicPartition

logger: Final = logging.getLogger(__name__)


class Ownership:
    """The partitions of one member. A listener of rebalances (``topics.log.RebalanceListener``).

    ``on_unready``: called if a partition could not be taken over. ``drain``: waits until no call of the given
    partitions is active, within the bounds of a callback.
    """

    def __init__(
        self,
        take_over: TakeOver,
        dispatch: Dispatch,
        intake: Intake,
        claims: Claims,
        results: Results,
        flow: Flow,
        *,
        is_incremental: bool,
        on_unready: Callable[[], None],
        drain: Callable[[Sequence[Partition]], None],
    ) -> None:
        self._take_over = take_over
        self._dispatch = dispatch
        self._intake = intake
        self._claims = claims
        self._results = results
        self._flow = flow
        self._is_incremental = is_incremental
        self._on_unready = on_unready
        self._drain = drain
        self._partitions: dict[TopicPartition, Partition] = {}

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    def get(self, at: TopicPartition) -> Partition | None:
        return self._partitions.get(at)

    @property
    def count(self) -> int:
        return len(self._partitions)

    @property
    def assigned(self) -> tuple[TopicPartition, ...]:
        return tuple(sorted(self._partitions))

    def on_assign(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None:
        assign = consumer.incremental_assign if self._is_incremental else consumer.assign
        try:
            taken = self._take_over.take(consumer, partitions)
        except Unavailable as error:
            logger.error("not taken over: %s", error, extra=extra(Action.NOT_TAKEN))  # noqa: TRY400
            assign([])
            self._on_unready()
            return
        for each in taken:
            self._partitions[each.partition.at] = each.partition
            self._flow.forget(each.partition.at)
            if each.gap is not None:
                self._tell_lost(each.partition, each.gap)
        assign([Position(each.partition.at, each.partition.next) for each in taken])

    def on_revoke(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None:  # noqa: ARG002
        """Still the owner: what has not begun is dropped, running calls end, what is done is committed."""
        leaving = self._stop_starting(partitions)
        self._drain(leaving)
        if not self._claims.is_tainted:
            self._claims.commit(leaving)
        logger.info("revoked %s", partitions, extra=extra(Action.REVOKED))
        self._forget(leaving)

    def on_lost(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None:  # noqa: ARG002
        """The owner no more: forget, commit nothing. What runs ends as a suspect of the next owner."""
        self.lose(partitions)

    def lose(self, partitions: Sequence[TopicPartition]) -> None:
        leaving = self._stop_starting(partitions)
        logger.warning("lost %s", partitions, extra=extra(Action.PARTITIONS_LOST))
        self._forget(leaving)

    def _stop_starting(self, partitions: Iterable[TopicPartition]) -> list[Partition]:
        leaving = [self._partitions[at] for at in partitions if at in self._partitions]
        for each in leaving:
            self._intake.forget(each)
        self._dispatch.withdraw(lambda call: call.partition in leaving)
        return leaving

    def _forget(self, leaving: Sequence[Partition]) -> None:
        for each in leaving:
            each.is_owned = False
            del self._partitions[each.at]
            self._flow.forget(each.at)

    def _tell_lost(self, each: Partition, gap: Gap) -> None:
        logger.error(
            "requests of %s from %d to %d were deleted before they were done", each.at, gap.base, gap.low,
            extra=extra(Action.REQUESTS_LOST),
        )  # fmt: skip
        each.is_blocked = True

        def told() -> None:
            each.is_blocked = False

        self._results.tell(each.at.partition, None, Lost(gap.base, gap.low), told)
