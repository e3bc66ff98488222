"""Planted bugs of the executors: claims, leases, suspects, maps, transcripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from unittest import mock

from perdure.processors.executor.assignment import TakeOver
from perdure.processors.executor.claims import Claims
from perdure.processors.executor.intake import Intake
from perdure.processors.executor.partition import Partition
from perdure.processors.executor.results import Results, Then
from perdure.processors.executor.running import Call
from perdure.processors.executor.work import Claim
from perdure.processors.headers import RequestIdentity
from perdure.processors.model_caller import ModelCaller
from perdure.processors.offset_map import OffsetMap
from perdure.processors.tool_executor import ToolExecutor
from perdure.schemas.requests import ModelRequest
from perdure.schemas.results import Declined, ResultBody
from perdure.schemas.values import DeclineReason
from perdure.topics.log import (
    CommittedOffset,
    Isolation,
    Record,
    TopicPartition,
    Watermarks,
)
from perdure.topics.model_fetch import Fetcher, Reading
from perdure.topics.model_partition import Fetched, ModelPartition
from simulator.patching import Patches, always


def done_before_durable() -> Patches:
    """A request is done as soon as its result is produced."""

    def tell(
        self: Results,
        partition: int,
        identity: RequestIdentity | None,
        body: ResultBody,
        then: Then | None = None,
    ) -> None:
        original(self, partition, identity, body)
        if then is not None:
            then()

    original = Results.tell
    return [(Results, "tell", tell)]


def execute_suspects() -> Patches:
    """What an earlier owner may have begun is simply executed."""
    return [(Partition, "is_suspect", always(value=False))]


def execute_without_claim() -> Patches:
    """A non_idempotent call needs no claim."""

    def read(self: ToolExecutor, record: Record) -> Any:
        found = original(self, record)
        for each in found:
            if hasattr(each, "claim"):
                object.__setattr__(each, "claim", Claim.NONE)
        return found

    original = ToolExecutor.read
    return [(ToolExecutor, "read", read)]


def no_started_record() -> Patches:
    """A claim is committed, and no Started record says so."""

    def tell_started(self: Claims, call: Call) -> None:  # noqa: ARG001
        call.is_told = True

    return [(Claims, "_tell_started", tell_started)]


def map_ignored() -> Patches:
    """Who takes over believes the base and not the map beside it."""

    def start(
        self: TakeOver, committed: CommittedOffset, topic_id: str, marks: Watermarks
    ) -> tuple[int, OffsetMap]:
        base, _ = original(self, committed, topic_id, marks)
        return base, OffsetMap()

    original = TakeOver._start
    return [(TakeOver, "_start", start)]


def no_doubt() -> Patches:
    """Without a usable map nothing is in doubt."""
    return [(TakeOver, "_in_doubt", always(OffsetMap()))]


def start_at_the_end() -> Patches:
    """Without a committed offset reading begins at the end."""

    def start(
        self: TakeOver, committed: CommittedOffset, topic_id: str, marks: Watermarks
    ) -> tuple[int, OffsetMap]:
        if committed.offset is None:
            return marks.end, OffsetMap()
        return original(self, committed, topic_id, marks)

    original = TakeOver._start
    return [(TakeOver, "_start", start)]


def read_uncommitted() -> Patches:
    """Requests are read as they are written, committed or not."""

    def fill(self: Fetcher, at: TopicPartition, reading: Reading) -> None:
        if not at.topic.endswith("-requests"):
            original(self, at, reading)
            return
        partition = self._cluster.find(at)
        if partition is None:
            return
        fetch = ModelPartition.fetch

        def fetched(self: ModelPartition, offset: int, _: Isolation, records_max: int) -> Fetched:
            return fetch(self, offset, Isolation.UNCOMMITTED, records_max)

        ends = mock.patch.object(ModelPartition, "stable_end", property(lambda one: one.end))
        with mock.patch.object(ModelPartition, "fetch", fetched), ends:
            original(self, at, reading)

    original = Fetcher._fill
    return [(Fetcher, "_fill", fill)]


def any_transcript() -> Patches:
    """A transcript that is not in the cache is taken for empty."""

    def transcript(self: ModelCaller, asked: ModelRequest) -> tuple[bytes, ...]:
        return original(self, asked) or asked.messages

    original = ModelCaller._transcript
    return [(ModelCaller, "_transcript", transcript)]


def suspect_is_declined() -> Patches:
    """What an earlier owner may have begun is handed back as if it had not."""

    def tell_suspects(self: Intake) -> int:
        for held in self._held:
            self._tell(held.partition, held.identity, held.offsets, Declined(DeclineReason.EXPIRED))
        count = len(self._held)
        self._held = []
        return count

    return [(Intake, "tell_suspects", tell_suspects)]


PLANTS: Final[Mapping[str, Callable[[], Patches]]] = {
    "done-before-durable": done_before_durable,
    "execute-suspects": execute_suspects,
    "execute-without-claim": execute_without_claim,
    "no-started-record": no_started_record,
    "map-ignored": map_ignored,
    "no-doubt": no_doubt,
    "start-at-the-end": start_at_the_end,
    "read-uncommitted": read_uncommitted,
    "any-transcript": any_transcript,
    "suspect-is-declined": suspect_is_declined,
}
