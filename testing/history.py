"""What the log says, read as an independent reader would, and checked after every event."""

from __future__ import annotations

from collections import defaultdict
from typing import Final, TypeVar

from perdure.processors.machine.apply import appended, apply
from perdure.processors.machine.children import held_for_children
from perdure.processors.machine.state import Run
from perdure.schemas.codec import Undecodable, decode
from perdure.schemas.events import Event, RunCancelled, RunCompleted, RunCreated, RunFailed, RunTimedOut
from perdure.schemas.outputs import Outcome
from perdure.schemas.values import Struct
from perdure.testing.transcript import check_transcript
from perdure.topics.log import Isolation, Record, TopicPartition
from perdure.topics.model_log import ModelLog
from perdure.topics.table import RUN_EVENTS, RUN_OUTCOMES, Namespace

ENDINGS: Final = (RunCompleted, RunFailed, RunCancelled, RunTimedOut)
KINDS: Final = (
    "input_tokens",
    "output_tokens",
    "cache_creation_tokens",
    "cache_read_tokens",
    "cost_nano_usd",
)

R = TypeVar("R", bound=Struct)


class BrokenPromise(AssertionError):
    """Something that perdure guarantees does not hold."""


class History:
    """Runs, events and transcripts, folded from run-events as they are committed.

    Raises what is wrong the moment it is read: ``IllegalEvent``, :class:`BrokenPromise` or
    :class:`~perdure.testing.transcript.InvalidTranscript`.
    """

    def __init__(self, log: ModelLog, names: Namespace) -> None:
        self._log = log
        self._names = names
        self._read_to: dict[TopicPartition, int] = {}
        self.runs: dict[str, Run] = {}
        self.events: defaultdict[str, list[Event]] = defaultdict(list)
        self.messages: defaultdict[str, list[bytes]] = defaultdict(list)
        self.outcomes: defaultdict[str, list[Outcome]] = defaultdict(list)
        self.count: int = 0

    def read(self) -> bool:
        """Take in what was committed since; whether there was anything."""
        events = self._new(RUN_EVENTS)
        for record in events:
            if record.value is not None:  # else it was purged
                self._take(decode(Event, record.value))
        for record in self._new(RUN_OUTCOMES):
            if record.value is None:
                continue
            outcome = decode(Outcome, record.value)
            self.outcomes[outcome.run_id].append(outcome)
            if [each.execution for each in self.outcomes[outcome.run_id]].count(outcome.execution) > 1:
                raise BrokenPromise(f"{outcome.run_id}, execution {outcome.execution}, has two outcomes")
        self.count += len(events)
        return bool(events)

    def all_of(self, topic: str, kind: type[R]) -> list[R]:
        """Every committed record of a topic that can be decoded, by partition and offset."""
        found: list[R] = []
        for record in self.records(topic):
            try:
                found.append(decode(kind, record.value))
            except Undecodable:  # a tombstone, or what a test wrote on purpose
                continue
        return found

    def records(self, topic: str) -> list[Record]:
        """Every committed record of a topic, tombstones included, by partition and offset."""
        name = self._names.topic(topic)
        numbers = range(self._log.cluster.partition_count(name))
        return [record for number in numbers for record in self._log.cluster.visible(name, number)]

    def _new(self, topic: str) -> list[Record]:
        name = self._names.topic(topic)
        found: list[Record] = []
        for number in range(self._log.cluster.partition_count(name)):
            at = TopicPartition(name, number)
            end = self._log.watermarks(at, Isolation.COMMITTED, 0.0).end
            start = self._read_to.get(at, 0)
            if end > start:
                self._read_to[at] = end
                found += [each for each in self._log.cluster.visible(name, number) if each.offset >= start]
        return found

    def _take(self, event: Event) -> None:
        run_id = event.run_id
        before = self.runs.get(run_id)
        added = appended(before, event)
        run = self.runs[run_id] = apply(before, event)
        events = self.events[run_id]
        if event.cause is not None and any(
            (each.cause, each.answers_command) == (event.cause, event.answers_command) for each in events
        ):
            raise BrokenPromise(f"{run_id} answered the input {event.cause} twice")
        events.append(event)
        if isinstance(event.body, RunCreated) and event.body.fork is not None:
            point = event.body.fork
            self.messages[run_id] += self.messages[point.source][: point.message_count]
        if added:
            self.messages[run_id] += added
            check_transcript(self.messages[run_id], is_request=False)
        _check_budget(run)


def _check_budget(run: Run) -> None:
    if run.budget is None:
        return
    reserved = run.model.reserved if run.model is not None and run.model.retry_at_ms is None else None
    for kind in KINDS:
        limit: int | None = getattr(run.budget, kind)
        used: int = getattr(run.usage, kind) + (0 if reserved is None else getattr(reserved, kind))
        used += held_for_children(run, kind)
        if limit is not None and used > limit:
            raise BrokenPromise(f"{run.run_id}: {used} {kind} used or reserved, the budget is {limit}")
