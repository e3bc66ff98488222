"""Claims and commits: the only place that commits offsets, and that judges what became of a commit.

A commit is acknowledged in time, or refused in time, or its outcome is unknown. Unknown *taints* the
membership: the frame may be stored later over a newer map, so that this member must not claim or commit
ever again. An acknowledgement that comes after the lease is as bad, for the client may have sent the frame
twice.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Final

from perdure.processors.clock import Clock
from perdure.processors.crash_points import crash_point
from perdure.processors.executor.actions import Action, extra
from perdure.processors.executor.partition import Partition
from perdure.processors.executor.results import Results
from perdure.processors.executor.running import Call
from perdure.processors.executor.settings import ExecutorSettings
from perdure.processors.executor.work import Claim
from perdure.schemas.errors import PerdureError
from perdure.schemas.results import Started
from perdure.topics.log import CommitOutcome, CommitStatus, Consumer

logger: Final = logging.getLogger(__name__)

TOLD_POLLS_MAX: Final = 8
TOLD_POLL_S: Final = 0.002
"""After a commit the Started records are usually acknowledged already; a short wait spares a whole step."""


class Verdict(Enum):
    """What a commit came to."""

    HELD = "held"
    REFUSED = "refused"
    TAINTED = "tainted"


class Claims:
    """Claims of one membership. ``pending``: held, their Started record is not acknowledged yet."""

    def __init__(
        self, consumer: Consumer, results: Results, clock: Clock, settings: ExecutorSettings
    ) -> None:
        self._consumer = consumer
        self._results = results
        self._clock = clock
        self._settings = settings
        self._retry_at_s = -math.inf
        self._retry_s = settings.claim_retry_s_min
        self.pending: list[Call] = []
        self.is_tainted = False
        self.committed_s = -math.inf

    @property
    def may_try(self) -> bool:
        """Refused claims wait a little; each try writes its Started records again."""
        return not self.is_tainted and self._clock.boot_s() >= self._retry_at_s

    def claim(self, calls: Sequence[Call], partitions: Iterable[Partition]) -> Verdict:
        """One synchronous commit with the started bits of all ``calls``. HELD: leased ones are pending
        now.
        """
        leased = [call for call in calls if call.request.claim is Claim.LEASED]
        if leased:
            crash_point("executor.before_claim")
        for call in calls:
            call.partition.start(call.request.offsets)
        for call in leased:
            self._tell_started(call)
        self._results.poll()
        claimed_s = self._clock.boot_s()
        verdict = self.commit(partitions)
        if verdict is Verdict.HELD:
            self._retry_s = self._settings.claim_retry_s_min
            for call in leased:
                call.claimed_s = claimed_s
            self.pending += leased
            return verdict
        for call in calls:
            call.partition.unstart(call.request.offsets)
        self._retry_at_s = self._clock.boot_s() + self._retry_s
        self._retry_s = min(2 * self._retry_s, self._settings.claim_retry_s_max)
        return verdict

    def ripe(self) -> tuple[list[Call], list[Call]]:
        """Pending claims that may be executed now, and those whose lease has run out."""
        if not self.pending:
            return [], []
        for _ in range(TOLD_POLLS_MAX):
            if all(call.is_told for call in self.pending):
                break
            self._results.poll(TOLD_POLL_S)
        now_s = self._clock.boot_s()
        late = [call for call in self.pending if now_s - _claimed_s(call) > self._settings.lease_s]
        ready = [call for call in self.pending if call.is_told and call not in late]
        self.pending = [call for call in self.pending if call not in late and call not in ready]
        return ready, late

    def withdraw(self, is_concerned: Callable[[Call], bool]) -> list[Call]:
        """Pending claims that will not be used: they have to be declined."""
        withdrawn = [call for call in self.pending if is_concerned(call)]
        self.pending = [call for call in self.pending if not is_concerned(call)]
        return withdrawn

    def commit(self, partitions: Iterable[Partition]) -> Verdict:
        """One synchronous commit of all that changed."""
        chosen = [each for each in partitions if each.is_owned and each.is_dirty and not each.is_blocked]
        if not chosen:
            return Verdict.HELD
        assert not self.is_tainted, "a tainted member never commits"
        offsets = [each.snapshot() for each in chosen]
        crash_point("executor.before_offsets")
        before_s = self._clock.boot_s()
        try:
            outcome = self._consumer.commit(offsets)
        except PerdureError as error:
            outcome = CommitOutcome(CommitStatus.UNKNOWN, str(error))
        now_s = self.committed_s = self._clock.boot_s()
        crash_point("executor.after_offsets")
        verdict = self._judge(outcome, now_s - before_s)
        for each, offset in zip(chosen, offsets, strict=True):
            each.is_dirty = verdict is not Verdict.HELD
            if verdict is Verdict.HELD:
                each.committed_s = now_s
                each.committed_base = offset.offset or 0
        return verdict

    def _judge(self, outcome: CommitOutcome, took_s: float) -> Verdict:
        in_time = took_s <= self._settings.lease_s
        if in_time and outcome.status is CommitStatus.ACKNOWLEDGED:
            return Verdict.HELD
        if in_time and outcome.status is CommitStatus.REFUSED:
            logger.info("commit refused: %s", outcome.reason, extra=extra(Action.CLAIM_REFUSED))
            return Verdict.REFUSED
        logger.error(
            "commit %s after %.3f s (%s): this membership is not used any more",
            outcome.status.value, took_s, outcome.reason,
            extra=extra(Action.TAINTED),
        )  # fmt: skip
        self.is_tainted = True
        return Verdict.TAINTED

    def _tell_started(self, call: Call) -> None:
        settings, request = self._settings, call.request
        longest_s = (
            settings.lease_s + settings.deadline_slack_s + settings.abort_grace_s + settings.cancel_wait_s
        )
        deadline_ms = self._clock.wall_ms() + request.timeout_ms + math.ceil(longest_s * 1000)

        def told() -> None:
            call.is_told = True

        self._results.tell(call.partition.at.partition, request.identity, Started(deadline_ms), told)


def _claimed_s(call: Call) -> float:
    assert call.claimed_s is not None, "only held claims are pending"
    return call.claimed_s
