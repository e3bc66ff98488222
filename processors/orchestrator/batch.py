"""A batch: inputs and due timers become events, records for other topics and changed rows. Nothing is
written here.

For each input: read the run through an overlay, ``decide``, fold the events into the overlay, project. An
input that fails, fails alone: its overlay is dropped and it is set aside.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, assert_never

from msgspec.structs import replace

from perdure.processors import status
from perdure.processors.clock import Entropy
from perdure.processors.dead_letter import dead_letter
from perdure.processors.definitions import Definitions
from perdure.processors.machine.decide import decide
from perdure.processors.machine.inputs import (
    ENTROPY_BYTES,
    CommandInput,
    Context,
    Input,
    Output,
    PurgeInput,
    RefuseInput,
    SendTranscript,
    StartInput,
    Tell,
    TimerInput,
)
from perdure.processors.machine.project import Projected
from perdure.processors.machine.state import Run
from perdure.processors.machine.transcript import whole_requests
from perdure.processors.orchestrator.forgetting import Forgetter
from perdure.processors.orchestrator.intake import Forward, Given, SetAside, Skip, take
from perdure.processors.orchestrator.lookup import Lookup
from perdure.processors.orchestrator.outgoing import Writer
from perdure.processors.orchestrator.owned import Owned, anchor_digest
from perdure.processors.orchestrator.purges import tombstones
from perdure.processors.orchestrator.settings import OrchestratorSettings
from perdure.processors.ports import Prices
from perdure.processors.store_fold import fold_event, timer_key
from perdure.processors.store_overlay import Overlay
from perdure.processors.store_rows import (
    AGE,
    QUARANTINE,
    QUEUE,
    STATUS_TIMER,
    TIMER,
    Anchor,
    named_key,
    pack,
    pack_u64,
    timed_key,
)
from perdure.schemas.commands import Fork
from perdure.schemas.errors import Restore, Retry
from perdure.schemas.keys import source_of
from perdure.topics.log import Outgoing, Record, TopicPartition
from perdure.topics.table import (
    MODEL_REQUESTS,
    RUN_EVENTS,
    RUN_RESULTS,
)

READ_LATE_MS_MAX: Final = 3_600_000
"""A command that stood in the log for longer than that when its run was purged was read before: a purge waits
until what lay unread at take-over was read."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Means:
    """What a batch needs beside its inputs."""

    settings: OrchestratorSettings
    definitions: Definitions
    entropy: Entropy
    prices: Prices
    forgetter: Forgetter


@dataclass(slots=True)
class Part:
    """A partition's share of a batch. ``key`` and ``value``: of its newest event, as written."""

    owned: Owned
    overlay: Overlay
    now_ms: int
    key: bytes | None = None
    value: bytes = b""
    announced: bool = False

    def anchor(self, offset: int) -> Anchor | None:
        return None if self.key is None else Anchor(offset, self.key, anchor_digest(self.value))


class Batch:
    """One transaction's worth of work. ``outgoing``: (record, whether it goes to run-events).

    ``is_careful``: an input brings nothing with it (no start of a waiting run), so that a failure is its own.
    """

    def __init__(self, means: Means, owned: Mapping[int, Owned], *, is_careful: bool = False) -> None:
        self._means = means
        self._is_careful = is_careful
        self._owned = owned
        self._names = means.settings.namespace
        self._lookup = Lookup(means.definitions, means.settings.definitions_timeout_ms / 1_000)
        self._writer = Writer(self._names)
        self.parts: dict[int, Part] = {}
        self.outgoing: list[tuple[Outgoing, bool]] = []
        self.counts: Counter[str] = Counter()
        self.timers: list[tuple[int, str]] = []  # (partition, run id) of the timers and starts that were fed

    # ---- what goes in

    def add_record(self, record: Record) -> None:
        part = self.part(record.partition)
        part.owned.catch_up.note(record)
        self._mark_age(part, record)
        taken = take(record, self._means.settings)
        match taken:
            case Skip():
                self.counts[taken.why] += 1
            case SetAside():
                self.set_aside(record, taken.code, taken.reason)
            case Forward():
                self.counts["forwarded"] += 1
                self.outgoing.append((taken.out, False))
            case Given():
                self._given(part, record, taken)
            case _:
                assert_never(taken)

    def add_timers(self, limit: int) -> None:
        """Everything that is due without an input, in every partition that is ready."""
        for owned in self._owned.values():
            if not owned.is_ready:
                continue
            if owned.partition in self.parts or owned.is_due(owned.now_ms()):
                part = self.part(owned.partition)
                self._announce(part)
                if not owned.catch_up.left_s:
                    self._run_timers(part, limit - len(self.timers))
                self._status_timers(part)
                self._start_waiting(part)
                self._purge(part)

    def set_aside(self, record: Record, code: str, reason: str) -> None:
        """Dead-letter ``record``."""
        self.part(record.partition)
        letter = dead_letter(record, code, reason, self.parts[record.partition].now_ms)
        _log.warning(
            "%s/%d/%d set aside: %s: %s",
            record.topic,
            record.partition,
            record.offset,
            code,
            letter.reason,
            extra={"action": "input_set_aside", "code": code, "source": str(letter.source)},
        )
        self.counts["dead_letter"] += 1
        self.outgoing.append((self._writer.dead_letter(letter), False))

    def part(self, partition: int) -> Part:
        """The share of a partition; that there is one makes the transaction send its offsets."""
        part = self.parts.get(partition)
        if part is None:
            owned = self._owned[partition]
            assert owned.is_ready
            part = Part(owned, Overlay(owned.store), owned.now_ms())
            self.parts[partition] = part
        return part

    # ---- inputs

    def _given(self, part: Part, record: Record, given: Given) -> None:
        if given.run_id in part.owned.quarantined:
            self.set_aside(record, "run_quarantined", f"the history of run {given.run_id} is damaged")
            return
        if part.overlay.was_answered(given.run_id, given.cause, is_command=given.is_command):
            self.counts["duplicate"] += 1
            return
        purged_ms = part.overlay.purged_ms(given.run_id)
        if purged_ms is not None:
            self._too_late(record, given, purged_ms)
            return
        try:
            refused = self._feed(part, given.run_id, given.input)
        except (Retry, Restore):
            raise
        except Exception as error:  # noqa: BLE001 - one bad input must not stop the others of its partition
            _log.exception(
                "an input of run %s failed",
                given.run_id,
                extra={"action": "input_failed", "run_id": given.run_id},
            )
            self.set_aside(record, "input_failed", f"{type(error).__name__}: {error}")
            return
        if refused is not None:
            self.set_aside(record, refused.code, refused.reason)
        self._start_waiting(part)

    def _too_late(self, record: Record, given: Given, purged_ms: int) -> None:
        """For a purged run. Its results can change nothing; whoever sent a command is to learn of it, unless
        it is read once again and was answered when the run was there.
        """
        if given.is_command and record.timestamp_ms > purged_ms - READ_LATE_MS_MAX:
            self.set_aside(record, "run_purged", f"run {given.run_id} was purged, and its id stays used")
        else:
            self.counts["input_of_purged"] += 1

    def _feed(self, part: Part, run_id: str, given: Input) -> RefuseInput | None:
        """decide, fold, project, and so on for what runs of its family are told. All of it, or (raising)
        none.
        """
        overlay = part.overlay.nested()
        records: list[tuple[Outgoing, bool]] = []
        refused: RefuseInput | None = None
        told: deque[tuple[str, Input]] = deque([(run_id, given)])
        while told:
            for output in self._decide(part, overlay, *told.popleft(), records):
                match output:
                    case Tell():
                        if output.input.run_id not in part.owned.quarantined:
                            told.append((output.input.run_id, output.input))
                    case RefuseInput():
                        refused = output
                    case SendTranscript():
                        self._send_transcript(part, overlay, output.run_id, records)
                    case _:
                        assert_never(output)
        part.overlay.absorb(overlay)
        self.outgoing.extend(records)
        for out, is_event in records:
            if is_event:
                part.key, part.value = out.key, out.value or b""
        self.counts["events"] += sum(is_event for _, is_event in records)
        return refused

    def _decide(
        self,
        part: Part,
        overlay: Overlay,
        run_id: str,
        given: Input,
        records: list[tuple[Outgoing, bool]],
    ) -> tuple[Output, ...]:
        run = overlay.run(run_id)
        decided = decide(run, given, self._context(part, overlay, run, given))
        partition = part.owned.partition
        for event, applied in zip(decided.events, decided.runs, strict=True):
            folded = fold_event(overlay, event, applied)
            records.append((self._writer.event(partition, folded), True))
            records.extend((told, False) for told in self._writer.told(partition, folded))
        return decided.outputs

    def _send_transcript(
        self, part: Part, overlay: Overlay, run_id: str, records: list[tuple[Outgoing, bool]]
    ) -> None:
        run = overlay.run(run_id)
        assert run is not None
        for request in whole_requests(run, overlay.messages(run)):
            projected = Projected(MODEL_REQUESTS, run_id, request)
            records.append((self._writer.projected(part.owned.partition, projected), False))

    def _context(self, part: Part, overlay: Overlay, run: Run | None, given: Input) -> Context:
        source = None
        if run is None and isinstance(given, CommandInput) and isinstance(given.command.body, Fork):
            name = source_of(given.run_id)
            source = None if name is None else overlay.source(name, given.command.body)
        digest, definition = self._lookup.find(run, given, source)
        return Context(
            now_ms=part.now_ms,
            entropy=self._means.entropy.take(ENTROPY_BYTES),
            definition=definition,
            definition_digest=digest,
            may_start=self._has_slot(part),
            settings=self._means.settings.machine,
            token_keys=self._means.settings.token_keys,
            price=None if definition is None else self._means.prices.price(definition.model),
            source=source,
        )

    # ---- slots

    def _has_slot(self, part: Part) -> bool:
        return part.owned.held + part.overlay.held_change < self._means.settings.running_runs_max

    def _start_waiting(self, part: Part) -> None:
        """Give free slots to the runs that wait for one, oldest first."""
        while not self._is_careful and self._has_slot(part):
            waiting = part.overlay.due(QUEUE, part.now_ms, 1 + len(part.owned.penalties))
            run_id = next(
                (run_id for _, run_id in waiting if not part.owned.rests(run_id, part.now_ms)), None
            )
            if run_id is None:
                return
            self._timer(part, run_id, StartInput(run_id))
            if any(each == run_id for _, each in part.overlay.due(QUEUE, part.now_ms, len(waiting))):
                part.owned.penalise(run_id, part.now_ms)

    # ---- timers

    def _run_timers(self, part: Part, limit: int) -> None:
        if limit <= 0:
            return
        for due_ms, run_id in part.overlay.due(TIMER, part.now_ms, limit + len(part.owned.penalties)):
            if part.owned.rests(run_id, part.now_ms):
                continue
            self._timer(part, run_id, TimerInput(run_id))
            key = timed_key(TIMER, due_ms, run_id)
            if part.overlay.get(key) is None:
                continue
            run = part.overlay.run(run_id)
            right = None if run is None else timer_key(run)
            if right == key:
                part.owned.penalise(run_id, part.now_ms)
                continue
            part.overlay.delete(key)  # derived by an older version, or of a run that is gone
            if right is not None:
                part.overlay.put(right, b"")

    def _timer(self, part: Part, run_id: str, given: TimerInput | StartInput | PurgeInput) -> None:
        self.timers.append((part.owned.partition, run_id))
        try:
            self._feed(part, run_id, given)
        except (Retry, Restore):
            raise
        except Exception:  # noqa: BLE001 - one bad run must not stop the others of its partition
            _log.exception(
                "a timer of run %s failed", run_id, extra={"action": "timer_failed", "run_id": run_id}
            )
            part.owned.penalise(run_id, part.now_ms)

    def _status_timers(self, part: Part) -> None:
        """What was held back of run-status and is due."""
        limit = self._means.settings.batch_timers_max
        for due_ms, run_id in part.overlay.due(STATUS_TIMER, part.now_ms, limit):
            run = part.overlay.run(run_id)
            if run is None:
                part.overlay.delete(timed_key(STATUS_TIMER, due_ms, run_id))
                continue
            status.note_published(part.overlay, run, part.now_ms)
            self.outgoing.append((self._writer.status(part.owned.partition, run), False))

    def _purge(self, part: Part) -> None:
        """Go on with the purges that were begun, then begin others."""
        purges, limit = part.owned.purges, self._means.settings.batch_purged_max
        if purges.look_ms > part.now_ms or part.owned.catch_up.left_s:
            return
        forgetter = self._means.forgetter
        written = list(tombstones(part.overlay, self._names, part.owned.partition, limit, forgetter))
        if written:
            # Before the events of this batch, so that the newest record of run-events is an event if any is.
            self.outgoing[:0] = written
            return
        if part.overlay.purging(1):
            purges.wait(part.now_ms)
            return
        for run_id in purges.due(part.overlay, part.now_ms, limit):
            if not part.overlay.has_family(run_id):  # a fork reads its source's messages
                self._timer(part, run_id, PurgeInput(run_id))

    def _announce(self, part: Part) -> None:
        """Tell operators of runs whose history was found damaged."""
        for run_id, row in part.owned.quarantined.items():
            if row.is_announced:
                continue
            run = part.overlay.run(run_id)
            told = self._writer.quarantine(part.owned.partition, run_id, row, run, part.now_ms)
            self.outgoing.extend((out, False) for out in told)
            self.counts["dead_letter"] += 1
            part.overlay.put(named_key(QUARANTINE, run_id), pack(replace(row, is_announced=True)))
            part.announced = True

    # ---- rows beside the fold

    def _mark_age(self, part: Part, record: Record) -> None:
        """Remember where run-results stood at a time, so that it can be deleted by age later."""
        settings = self._means.settings
        if self._names.name(record.topic) != RUN_RESULTS:
            return
        if record.timestamp_ms < part.owned.age_mark_ms + settings.age_mark_interval_ms:
            return
        part.owned.age_mark_ms = record.timestamp_ms
        part.overlay.put(timed_key(AGE, record.timestamp_ms), pack_u64(record.offset))

    # ---- what comes out

    def write(self, tracked: Mapping[TopicPartition, int]) -> None:
        """Bring the stores to where the log is. Only after the transaction has committed."""
        topic = self._names.topic(RUN_EVENTS)
        for partition, part in self.parts.items():
            newest = tracked.get(TopicPartition(topic, partition))
            if newest is not None:
                part.owned.write(part.overlay, offset=newest + 1, anchor=part.anchor(newest))
            elif not part.overlay.is_empty:
                part.owned.write(part.overlay)
            if part.announced:
                part.owned.quarantined = Overlay(part.owned.store).quarantined()
            part.owned.find_next_due()
