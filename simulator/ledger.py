"""What the log says, read by somebody who is no part of perdure, and checked as it is read."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Final

from perdure.processors.machine.apply import appended, apply
from perdure.processors.machine.children import held_for_children
from perdure.processors.machine.lifecycle import IllegalEvent, IllegalMove
from perdure.processors.machine.state import Pending
from perdure.schemas import events as ev
from perdure.schemas.codec import Undecodable, decode
from perdure.schemas.keys import EventKey
from perdure.schemas.outputs import Approval, DeadLetter, Outcome, RunSignal, Status
from perdure.schemas.requests import ModelRequest, ToolRequest
from perdure.schemas.results import Result
from perdure.schemas.values import Verdict
from perdure.testing.history import ENDINGS, KINDS, History
from perdure.testing.transcript import InvalidTranscript, check_transcript
from perdure.topics import table
from perdure.topics.log import Isolation, Record, TopicPartition
from perdure.topics.model_cluster import record_of
from perdure.topics.model_log import ModelLog
from perdure.topics.model_partition import ModelPartition
from perdure.topics.table import INPUTS, TOPICS, Namespace, Role
from simulator.marks import Marks
from simulator.violation import Fault, Violated

AFTER_END: Final = (ev.CommandRejected, ev.SurplusRecorded, ev.RunResumed, ev.RunPurged, ev.ChildEnded)
DIGEST_BYTES: Final = 8
RECORDS_MAX: Final = 1_000_000


def digest_of(record: Record) -> bytes:
    """What stands at an offset, in short."""
    material = repr((record.key, record.value, record.headers)).encode()
    return hashlib.sha256(material).digest()[:DIGEST_BYTES]


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed event, or the tombstone of one, and where it stands."""

    partition: int
    offset: int
    run_id: str
    seq: int
    event: ev.Event | None


@dataclass(slots=True)
class Place:
    """A partition, and how far it was read. ``end``: its end at the last look."""

    name: str
    at: TopicPartition
    partition: ModelPartition
    end: int = 0
    read_to: int = 0


class Ledger(History):
    """Every committed record, in order. Raises Violated the moment something is wrong.

    ``visible``: per partition, what stands at each offset that a reader may see. ``licences``: (run, call,
    attempt) that a person said did not run.
    """

    def __init__(self, log: ModelLog, names: Namespace, marks: Marks) -> None:
        super().__init__(log, names)
        self._marks = marks
        self._places: list[Place] = []
        self.may_read_again = False
        """Offsets were lost or went back: what names no run is set aside once more."""
        self.visible: defaultdict[TopicPartition, dict[int, bytes]] = defaultdict(dict)
        self.committed: list[Committed] = []
        self.results: dict[str, Result] = {}
        self.model_requests: list[ModelRequest] = []
        self.tool_requests: list[ToolRequest] = []
        self.statuses: dict[str, Status] = {}
        self.questions: dict[str, Approval] = {}
        self.signals: dict[str, RunSignal] = {}
        self.letters: list[DeadLetter] = []
        self.licences: set[tuple[str, str, int]] = set()
        self.timed_out: list[tuple[str, tuple[Pending, ...]]] = []
        self.answered: defaultdict[str, set[str]] = defaultdict(set)
        self._causes: set[tuple[str, str | None, bool]] = set()
        self._completed: set[tuple[str, int, str]] = set()
        self._asked: set[tuple[str, bool, int]] = set()
        self._newest_ms: dict[int, int] = {}
        self._left: dict[str, int] = {}

    def read(self) -> bool:
        count = self.count
        for place in self._places or self._look():
            partition = place.partition
            if partition.end == place.end:
                continue  # whatever becomes visible, a marker takes an offset
            place.end = partition.end
            start = max(place.read_to, partition.start)
            if partition.stable_end <= start:
                continue
            found = partition.fetch(start, Isolation.COMMITTED, RECORDS_MAX)
            place.read_to = found.next_offset
            for entry in found.entries:
                record = record_of(place.at, entry)
                self.visible[place.at][record.offset] = digest_of(record)
                self._record(place.name, record)
        return self.count > count

    def _look(self) -> list[Place]:
        cluster = self._log.cluster
        for spec in TOPICS:
            topic = self._names.topic(spec.name)
            for number in range(cluster.partition_count(topic)):
                at = TopicPartition(topic, number)
                self._places.append(Place(spec.name, at, cluster.partition(at)))
        return self._places

    def _record(self, name: str, record: Record) -> None:
        match name:
            case table.RUN_EVENTS:
                self._event(record)
            case table.RUN_OUTCOMES | table.RUN_STATUS if record.value is None:
                self._purged(record)
            case table.RUN_OUTCOMES:
                self._outcome(decode(Outcome, record.value))
            case table.RUN_RESULTS:
                self._result(record)
            case table.MODEL_REQUESTS | table.TOOL_REQUESTS:
                self._request(name, record)
            case table.RUN_STATUS:
                self._status(decode(Status, record.value))
            case table.RUN_APPROVALS:
                key = (record.key or b"").decode()
                self.questions.pop(key, None)
                if record.value is not None:
                    self.questions[key] = decode(Approval, record.value)
            case table.RUN_SIGNALS:
                key = (record.key or b"").decode()
                self.signals.pop(key, None)
                if record.value is not None:
                    self.signals[key] = decode(RunSignal, record.value)
            case table.DEAD_LETTERS:
                self._letter(decode(DeadLetter, record.value))
            case _:
                pass

    # ---- run-events ----------------------------------------------------------------------------------------

    def _tombstone(self, record: Record) -> None:
        """What is left of a purged history is always a beginning of it."""
        key = EventKey.parse(record.key)
        run = self.runs.get(key.run_id)
        left = self._left.get(key.run_id, 0 if run is None else run.seq)
        if run is None or not run.is_purged or key.seq != left - 1:
            raise Violated(Fault.HISTORY_ILLEGAL, f"{key} was deleted, {left} being the last one left")
        self._left[key.run_id] = key.seq
        self.committed.append(Committed(record.partition, record.offset, key.run_id, key.seq, None))
        self._marks.add("event_purged")

    def _event(self, record: Record) -> None:
        if record.value is None:
            self._tombstone(record)
            return
        event = decode(ev.Event, record.value)
        run_id, body = event.run_id, event.body
        before = self.runs.get(run_id)
        if before is not None and event.seq <= before.seq:
            raise Violated(Fault.DUPLICATE, f"{run_id} seq {event.seq} stands twice")
        if before is not None and before.state.is_terminal and not isinstance(body, AFTER_END):
            raise Violated(Fault.CHANGED_AFTER_END, f"{run_id}: {body} in {before.state}")
        if event.at_ms < self._newest_ms.get(record.partition, 0):
            raise Violated(Fault.NONMONOTONIC, f"{run_id} seq {event.seq}: time goes back")
        self._newest_ms[record.partition] = event.at_ms
        cause = (run_id, event.cause, event.answers_command)
        if event.cause is not None:
            if cause in self._causes:
                raise Violated(Fault.DUPLICATE, f"{run_id} answered the input {event.cause} twice")
            self._causes.add(cause)
            if event.answers_command:
                self.answered[run_id].add(event.cause)
        if isinstance(body, ev.ToolCompleted):
            call = (run_id, body.turn, body.call_id)
            if call in self._completed:
                raise Violated(Fault.TWO_RESULTS, f"{call}")
            self._completed.add(call)
        if (
            isinstance(body, ev.DecisionRecorded)
            and body.verdict is Verdict.DID_NOT_RUN
            and before is not None
        ):
            asked = before.call(body.call_id)
            if asked is not None and asked.attempt is not None:
                self.licences.add((run_id, body.call_id, asked.attempt.number))
        if isinstance(body, ev.RunTimedOut) and body.reason == "approval" and before is not None:
            self.timed_out.append((run_id, before.pending))
        self._fold(event)
        self.committed.append(Committed(record.partition, record.offset, run_id, event.seq, event))
        self.count += 1
        self._mark(body)

    def _fold(self, event: ev.Event) -> None:
        run_id = event.run_id
        before = self.runs.get(run_id)
        try:
            added = appended(before, event)
            run = self.runs[run_id] = apply(before, event)
        except (IllegalEvent, IllegalMove) as error:
            raise Violated(Fault.HISTORY_ILLEGAL, f"{run_id}: {error}") from error
        self.events[run_id].append(event)
        if isinstance(event.body, ev.RunCreated) and event.body.fork is not None:
            point = event.body.fork
            self.messages[run_id] += self.messages[point.source][: point.message_count]
        if added:
            self.messages[run_id] += added
            try:
                check_transcript(self.messages[run_id], is_request=False)
            except InvalidTranscript as error:
                raise Violated(Fault.INVALID_TRANSCRIPT, f"{run_id}: {error}") from error
        if run.budget is None:
            return
        reserved = run.model.reserved if run.model is not None and run.model.retry_at_ms is None else None
        for kind in KINDS:
            limit: int | None = getattr(run.budget, kind)
            used: int = getattr(run.usage, kind) + (0 if reserved is None else getattr(reserved, kind))
            used += held_for_children(run, kind)
            if limit is not None and used > limit:
                raise Violated(Fault.BUDGET_EXCEEDED, f"{run_id}: {used} {kind}, the budget is {limit}")

    def _mark(self, body: ev.EventBody) -> None:
        name = type(body).__name__
        match body:
            case ev.ToolAmbiguous() | ev.ToolAttemptEnded() | ev.CommandRejected() | ev.SurplusRecorded():
                name += f"_{body.reason}"
            case ev.RunCancelled() | ev.RunTimedOut() if body.reason in {"deadline", "approval"}:
                name += f"_{body.reason}"
            case ev.ModelAttemptEnded() | ev.RunFailed():
                name += f"_{body.code}"
            case ev.ToolCompleted():
                name += f"_{body.source.value}"
            case ev.DecisionRecorded():
                name += f"_{body.verdict.value}"
            case ev.ReconciliationAnswered():
                name += f"_{body.answer.value}" + ("" if body.retry_at_ms is None else "_again")
            case _:
                pass
        self._marks.add(name)

    def _purged(self, record: Record) -> None:
        run_id = (record.key or b"").decode()
        if not self.runs[run_id].is_purged:
            raise Violated(Fault.LOST_WRITE, f"{record.topic} of {run_id} was deleted")

    # ---- the other topics ----------------------------------------------------------------------------------

    def _outcome(self, outcome: Outcome) -> None:
        found = self.outcomes[outcome.run_id]
        if any(each.execution == outcome.execution for each in found):
            raise Violated(Fault.OUTCOME_WRONG, f"{outcome.run_id}/{outcome.execution} has two outcomes")
        found.append(outcome)

    def _result(self, record: Record) -> None:
        try:
            result = decode(Result, record.value)
        except Undecodable:
            return  # poison
        self.results.setdefault(result.result_id, result)

    def _request(self, name: str, record: Record) -> None:
        try:
            if name == table.MODEL_REQUESTS:
                request: ModelRequest | ToolRequest = decode(ModelRequest, record.value)
            else:
                request = decode(ToolRequest, record.value)
        except Undecodable:
            return  # poison
        if isinstance(request, ModelRequest):
            mark = (request.request_id, request.is_whole, request.chunk)
            self.model_requests.append(request)
        else:
            mark = (request.request_id, False, 0)
            self.tool_requests.append(request)
        if mark in self._asked:
            raise Violated(Fault.DUPLICATE, f"{request.run_id}: the request {mark} stands twice")
        self._asked.add(mark)

    def _status(self, status: Status) -> None:
        before = self.statuses.get(status.run_id)
        if before is not None and status.seq < before.seq:
            raise Violated(Fault.NONMONOTONIC, f"{status.run_id}: status {status.seq} after {before.seq}")
        self.statuses[status.run_id] = status

    def _letter(self, letter: DeadLetter) -> None:
        if not letter.code or not letter.reason:
            raise Violated(Fault.DEAD_LETTER_WRONG, f"{letter.source} was set aside without a reason")
        is_input = self._names.name(letter.source.topic) in INPUTS[Role.ORCHESTRATOR]
        is_again = any(each.source == letter.source for each in self.letters)
        if is_input and is_again and not self.may_read_again:
            raise Violated(Fault.DUPLICATE, f"{letter.source} was set aside twice")
        self.letters.append(letter)
        self._marks.add(f"letter_{letter.code}")

    # ---- looking -------------------------------------------------------------------------------------------

    def endings(self) -> Counter[tuple[str, int]]:
        """(run, execution) of every terminal event."""
        found: Counter[tuple[str, int]] = Counter()
        for run_id, events in self.events.items():
            execution = 0
            for event in events:
                if isinstance(event.body, ev.RunResumed):
                    execution = event.body.execution
                if isinstance(event.body, ENDINGS):
                    found[run_id, execution] += 1
        return found
