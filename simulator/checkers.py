"""What has to hold: after each step, and when everything has come to rest.

The ledger checks records one by one as they are committed; here is what takes more than one of them.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections import Counter, defaultdict
from typing import Final

from perdure.processors import offset_map
from perdure.processors.machine.requests import NOT_STARTED
from perdure.processors.machine.state import Run
from perdure.processors.store_fold import fold_event, purge_event
from perdure.processors.store_memory import MemoryRows, MemoryStore
from perdure.processors.store_overlay import Overlay
from perdure.processors.store_rows import (
    CAUSE,
    ENDED,
    FAMILY,
    HOLDER,
    MESSAGE,
    PURGED,
    PURGING,
    QUEUE,
    RESULT,
    RUN,
    TIMER,
    TURN,
)
from perdure.schemas import events as ev
from perdure.schemas.codec import decode
from perdure.schemas.requests import ModelRequest, ToolRequest
from perdure.schemas.results import ModelFailed, ModelReplied, Started
from perdure.schemas.values import ResultSource, Usage
from perdure.testing.history import ENDINGS, KINDS
from perdure.topics.log import Record, TopicPartition
from perdure.topics.table import INPUTS, MODEL_REQUESTS, RUN_COMMANDS, RUN_EVENTS, TOOL_REQUESTS, Role
from simulator.violation import Fault, Violated
from simulator.wire import SimStores
from simulator.world import NAMES, Seen, World

NON_IDEMPOTENT: Final = frozenset({"send", "pay", "sign", "ship"})
DERIVED: Final = (RUN, TURN, FAMILY, MESSAGE, RESULT, CAUSE, TIMER, QUEUE, HOLDER, ENDED, PURGED, PURGING)
"""Rows that follow from the events alone."""
EXPECTED_LETTERS: Final = frozenset(
    {
        "unknown_run", "deadline_passed", "requests_lost", "run_purged",
        "unknown_source", "no_such_turn", "turn_not_finished", "message_needed", "too_many_generations",
        "invalid_run_id", "unknown_agent",
    }
)  # fmt: skip
"""Why a command or result that is none of the poison may be set aside."""


SLOW_READING: Final = frozenset({"lag", "brake", "pause", "fate", "hold_sync"})
"""Disturbances under which a running orchestrator may read a command late."""
IN_TIME_MS: Final = 5_000


class Checkers:
    def __init__(self, world: World) -> None:
        self._world = world
        self._ledger = world.ledger

    # ---- at any moment -------------------------------------------------------------------------------------

    def rows_do_not_lead(self) -> None:
        """What a store says is its newest event stands in the log, and was not aborted."""
        for disk in self._world.disks:
            for number in disk.partitions:
                meta = _rows(disk, number).meta()
                if meta is None or meta.anchor is None:
                    continue
                at = TopicPartition(NAMES.topic(RUN_EVENTS), number)
                partition = self._world.cluster.partition(at)
                place = bisect_left(partition.entries, meta.anchor.offset, key=lambda each: each.offset)
                found = partition.entries[place] if place < len(partition.entries) else None
                is_there = found is not None and (found.offset, found.key) == (
                    meta.anchor.offset, meta.anchor.key
                )  # fmt: skip
                if not is_there or meta.anchor.offset in partition.aborted:
                    raise Violated(Fault.STATE_NOT_FOLD, f"rows of {number} lead the log: {meta}")

    def effects(self) -> None:
        """A non_idempotent attempt is made once, and another one only if the first did not happen."""
        service = self._world.service
        for key, begun in service.begun.items():
            first = begun[0]
            wanted = hashlib.sha256((first.run_id + first.call_id).encode()).hexdigest()
            if key != wanted:
                raise Violated(Fault.EFFECT_TWICE, f"{first} has another key than {wanted}")
            if first.tool not in NON_IDEMPOTENT:
                continue
            attempts = Counter(each.attempt for each in begun)
            if max(attempts.values()) > 1:
                raise Violated(Fault.EFFECT_TWICE, f"an attempt was made twice: {begun}")
            landed = sorted({each.begun.attempt for each in service.landed.get(key, ())})
            for attempt in landed[:-1]:
                if (first.run_id, first.call_id, attempt) not in self._ledger.licences:
                    raise Violated(
                        Fault.EFFECT_TWICE, f"{first.run_id} {first.call_id}: attempts {landed} took effect"
                    )

    # ---- at rest -------------------------------------------------------------------------------------------

    def at_rest(self) -> None:
        """Nothing more happens by itself; runs may wait for people."""
        self.effects()
        self.rows_do_not_lead()
        self._status()
        self._questions()

    def _kept(self) -> list[tuple[str, Run]]:
        return [(run_id, run) for run_id, run in self._ledger.runs.items() if not run.is_purged]

    def _status(self) -> None:
        for run_id, run in self._kept():
            status = self._ledger.statuses.get(run_id)
            if status is None or status.seq != run.seq or status.state is not run.state:
                raise Violated(Fault.STATUS_STALE, f"{run_id} is {run.state} at {run.seq}, told was {status}")

    def _questions(self) -> None:
        wanted = {
            f"{run_id}/{pending.call_id}": pending.token
            for run_id, run in self._ledger.runs.items()
            for pending in run.pending
        }
        told = {key: each.token for key, each in self._ledger.questions.items()}
        if wanted != told:
            raise Violated(Fault.QUESTION_STALE, f"asked is {sorted(wanted)}, told was {sorted(told)}")

    # ---- in the end ----------------------------------------------------------------------------------------

    def in_the_end(self) -> None:
        """Every run has ended, and time enough has passed."""
        self.at_rest()
        self._outcomes()
        self._answers()
        self._letters()
        self._forged()
        self._in_time()
        self._done()
        self._untrue()
        self._dispatches()
        self._usage()
        self._bills()
        self._reading()
        for disk in self._world.disks:
            for number in disk.partitions:
                self.rows_are_the_fold(disk, number)

    def _outcomes(self) -> None:
        ends = self._ledger.endings()
        told = Counter(
            (run_id, each.execution) for run_id, found in self._ledger.outcomes.items() for each in found
        )
        if ends != told:
            raise Violated(Fault.OUTCOME_WRONG, f"ended: {ends - told}, told only: {told - ends}")
        for run_id, found in self._ledger.outcomes.items():
            for outcome in found:
                event = self._ledger.events[run_id][outcome.seq - 1]
                if not isinstance(event.body, ENDINGS):
                    raise Violated(Fault.OUTCOME_WRONG, f"{outcome} names {event}")

    def _answers(self) -> None:
        """Every acknowledged command is answered, by an event or by a dead letter."""
        letters = {
            (each.source.topic, each.source.partition, each.source.offset) for each in self._ledger.letters
        }
        for command_id, sent in self._world.commands.items():
            run = self._ledger.runs.get(sent.run_id)
            is_purged = run is not None and run.is_purged
            if not sent.places or is_purged or command_id in self._ledger.answered[sent.run_id]:
                continue
            forwarded = self._forwarded(command_id)
            if not letters.intersection([*sent.places, *forwarded]):
                raise Violated(Fault.LOST_WRITE, f"nobody answered {sent}")

    def _forged(self) -> None:
        """A decision that was not asked for so changes nothing."""
        for run_id, events in self._ledger.events.items():
            for event in events:
                sent = self._world.commands.get(event.cause or "")
                if isinstance(event.body, ev.DecisionRecorded) and sent is not None and sent.is_forged:
                    raise Violated(Fault.DECISION_FORGED, f"{run_id}: {event}")

    def _in_time(self) -> None:
        """A decision that stood in the log in time does not lose to a timer that nobody was there to fire."""
        if SLOW_READING.intersection(self._world.plan.weights):
            return  # there who runs may read late
        for run_id, pending in self._ledger.timed_out:
            for asked in pending:
                decided_ms = self._world.decided_ms.get(asked.token)
                deadline_ms = asked.deadline_ms
                if decided_ms is None or deadline_ms is None:
                    continue
                if decided_ms + IN_TIME_MS < deadline_ms:
                    raise Violated(Fault.TIMER_FIRST, f"{run_id}: {asked}, decided at {decided_ms}")

    def _done(self) -> None:
        """What a group's committed map calls done was answered, durably."""
        answered = {
            result.request_id
            for result in self._ledger.results.values()
            if not isinstance(result.body, Started)
        }
        for role, topic in ((Role.MODEL_CALLER, MODEL_REQUESTS), (Role.TOOL_EXECUTOR, TOOL_REQUESTS)):
            name = NAMES.topic(topic)
            info = self._world.cluster.topic_info(name)
            assert info is not None
            for number in range(info.partitions):
                at = TopicPartition(name, number)
                committed = self._world.cluster.groups.fetch(NAMES.group(role), [at])
                if not committed or committed[0].offset is None:
                    continue
                base = committed[0].offset
                known = offset_map.decode(base, committed[0].metadata, info.topic_id)
                done = known.done if isinstance(known, offset_map.OffsetMap) else frozenset[int]()
                for record in self._world.cluster.visible(name, number):
                    is_poison = (name, number, record.offset) in self._world.poison or record.value is None
                    if is_poison or not (record.offset < base or record.offset in done):
                        continue
                    if _request_id(topic, record) not in answered:
                        raise Violated(Fault.LOST_WRITE, f"{record} is done, and nobody answered it")

    def _forwarded(self, command_id: str) -> list[tuple[str, int, int]]:
        """Where copies of a command stand that were written by perdure, onto the right partition."""
        needle = command_id.encode()
        name = NAMES.topic(RUN_COMMANDS)
        return [
            (name, number, entry.offset)
            for number in range(self._world.plan.partitions)
            for entry in self._world.cluster.visible(name, number)
            if entry.value is not None and needle in entry.value
        ]

    def _letters(self) -> None:
        world = self._world
        letters = {
            (each.source.topic, each.source.partition, each.source.offset): each
            for each in self._ledger.letters
        }
        for place, letter in letters.items():
            if place not in world.poison and letter.code not in EXPECTED_LETTERS:
                raise Violated(Fault.DEAD_LETTER_WRONG, f"nothing was wrong with {letter}")
        for topic, partition, offset in sorted(world.poison):
            at = TopicPartition(topic, partition)
            is_kept = world.cluster.partition(at).start <= offset
            if is_kept and (topic, partition, offset) not in letters:
                raise Violated(Fault.DEAD_LETTER_WRONG, f"{topic}/{partition}/{offset} was not set aside")

    def _untrue(self) -> None:
        """Who is told that a call was not started is told the truth."""
        landed = self._world.service.landed
        licensed = {(run_id, call_id) for run_id, call_id, _ in self._ledger.licences}
        for run_id, events in self._ledger.events.items():
            for event in events:
                body = event.body
                if (
                    not isinstance(body, ev.ToolCompleted)
                    or body.source is not ResultSource.SYNTHETIC
                    or (run_id, body.call_id) in licensed
                ):
                    continue
                key = hashlib.sha256((run_id + body.call_id).encode()).hexdigest()
                if json.loads(body.content) == NOT_STARTED and landed.get(key):
                    raise Violated(Fault.UNTRUE_RESULT, f"{run_id} {body}: {landed[key]}")

    def _dispatches(self) -> None:
        """What was begun stands in the history."""
        dispatched = {
            (run_id, event.body.call_id, event.body.attempt)
            for run_id, events in self._ledger.events.items()
            for event in events
            if isinstance(event.body, ev.ToolDispatched)
        }
        for begun in self._world.service.begun.values():
            for each in begun:
                if (each.run_id, each.call_id, each.attempt) not in dispatched:
                    raise Violated(Fault.ABORTED_READ, f"{each} was never asked for")

    def _usage(self) -> None:
        """Each invocation's usage counts once; where nothing is estimated the sum is exact."""
        told: defaultdict[str, dict[str, Usage]] = defaultdict(dict)
        for result in self._ledger.results.values():
            body = result.body
            if isinstance(body, (ModelReplied, ModelFailed)) and body.usage is not None:
                told[result.run_id][body.invocation_id] = body.usage
        for run_id, run in self._kept():
            bodies = [event.body for event in self._ledger.events[run_id]]
            wanted = sum(told[run_id].values(), Usage())
            wanted = sum((body.usage for body in bodies if isinstance(body, ev.ChildEnded)), wanted)
            estimated = sum((each.usage for each in run.estimates), Usage())
            has_budget = any(
                isinstance(body, (ev.RunCreated, ev.RunResumed)) and body.budget is not None
                for body in bodies
            )
            for kind in KINDS:
                known = getattr(run.usage, kind) - getattr(estimated, kind)
                if known < getattr(wanted, kind) or (not has_budget and known != getattr(wanted, kind)):
                    raise Violated(Fault.USAGE_WRONG, f"{run_id}: {run.usage}, {estimated}, told {wanted}")

    def _bills(self) -> None:
        """What the provider bills is no more than what was recorded, where a budget asks for it."""
        billed: defaultdict[str, Usage] = defaultdict(Usage)
        for bill in self._world.model.bills.values():
            billed[bill.run_id] += bill.usage
        for run_id, run in self._kept():
            created = self._ledger.events[run_id][0].body
            if isinstance(created, ev.RunCreated) and created.budget is not None:
                for kind in KINDS:
                    if getattr(billed[run_id], kind) > getattr(run.usage, kind):
                        raise Violated(
                            Fault.BUDGET_EXCEEDED, f"{run_id}: billed {billed[run_id]}, known {run.usage}"
                        )

    # ---- reading -------------------------------------------------------------------------------------------

    def _reading(self) -> None:
        sessions: defaultdict[tuple[str, int, TopicPartition], list[Seen]] = defaultdict(list)
        delivered: defaultdict[TopicPartition, set[int]] = defaultdict(set)
        for each in self._world.seen:
            stands = self._ledger.visible[each.at].get(each.offset)
            if stands is None:
                raise Violated(Fault.ABORTED_READ, f"{each}")
            if stands != each.digest:
                raise Violated(Fault.INCONSISTENT_OFFSETS, f"{each}")
            sessions[each.process, each.session, each.at].append(each)
            delivered[each.at].add(each.offset)
        inputs = {NAMES.topic(name) for role in Role for name in INPUTS[role]}
        ordered = {at: sorted(found) for at, found in self._ledger.visible.items() if at.topic in inputs}
        for (_, _, at), found in sessions.items():
            offsets = [each.offset for each in found]
            if offsets != sorted(set(offsets)):
                raise Violated(Fault.NONMONOTONIC, f"{found[0].process} read {at} as {offsets}")
            if at in ordered:
                first, last = bisect_left(ordered[at], offsets[0]), bisect_left(ordered[at], offsets[-1])
                if ordered[at][first : last + 1] != offsets and not self._ledger.may_read_again:
                    raise Violated(Fault.POLL_SKIP, f"{found[0].process} read of {at} only {offsets}")
        for at, offsets in ordered.items():
            start = self._world.cluster.partition(at).start
            missing = [each for each in offsets if each >= start and each not in delivered[at]]
            if missing:
                raise Violated(Fault.UNSEEN, f"{at}: nobody read {missing}")

    # ---- rows ----------------------------------------------------------------------------------------------

    def rows_are_the_fold(self, disk: SimStores, number: int) -> None:
        """Every derived row is what the events below the store's offset make it."""
        rows = _rows(disk, number)
        meta = rows.meta()
        if meta is None:
            return
        store = MemoryStore(MemoryRows())
        overlay = Overlay(store)
        for each in self._ledger.committed:
            if each.partition != number or each.offset >= meta.offset:
                continue
            if each.event is None:
                purge_event(overlay, each.run_id, each.seq)
            else:
                fold_event(overlay, each.event)
        store.write(overlay.changes())
        for prefix in DERIVED:
            wanted = dict(Overlay(store).all_rows(prefix))
            found = dict(rows.all_rows(prefix))
            if wanted != found:
                differing = {key for key in {*wanted, *found} if wanted.get(key) != found.get(key)}
                raise Violated(Fault.STATE_NOT_FOLD, f"partition {number}: {sorted(differing)}")


def _request_id(topic: str, record: Record) -> str:
    if topic == MODEL_REQUESTS:
        return decode(ModelRequest, record.value).request_id
    return decode(ToolRequest, record.value).request_id


def _rows(disk: SimStores, number: int) -> Overlay:
    return Overlay(MemoryStore(disk.rows_of(number)))
