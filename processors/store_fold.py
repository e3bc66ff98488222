"""How an event changes the rows: the one fold that the live path, recovery and verification share."""

from __future__ import annotations

import hashlib
from typing import Final

from perdure.processors import status
from perdure.processors.machine.apply import apply
from perdure.processors.machine.schedule import holds_slot, next_due_ms, purgeable_ms, wants_slot
from perdure.processors.machine.state import Run
from perdure.processors.store_overlay import Overlay
from perdure.processors.store_rows import (
    ENDED,
    HOLDER,
    PURGED,
    PURGING,
    QUARANTINE,
    QUEUE,
    TIMER,
    U64_MAX,
    QuarantineRow,
    ResultRow,
    message_key,
    named_key,
    pack,
    pack_u64,
    result_key,
    timed_key,
    u64_from,
)
from perdure.schemas.events import Event, ModelResponded, RunPurged, SurplusRecorded, ToolCompleted
from perdure.schemas.keys import source_of
from perdure.schemas.values import ResultSource, Struct

SOMETIME_MS: Final = (1 << 63) - 1


class Folded(Struct, frozen=True):
    """One event's change of a run. ``publish``: its status is to be published with it."""

    before: Run | None
    event: Event
    after: Run
    publish: bool


def fold_event(overlay: Overlay, event: Event, applied: Run | None = None) -> Folded:
    """Apply ``event`` and derive every row from it. ``applied``: what ``apply`` made of it, if that is known.

    Raises ``IllegalEvent`` or ``IllegalMove`` where it does not follow, and leaves the overlay as it was.
    """
    run_id = event.run_id
    before = overlay.run(run_id)
    after = apply(before, event) if applied is None else applied
    assert after.seq == event.seq == (before.seq if before is not None else 0) + 1
    if isinstance(event.body, RunPurged):
        purge_run(overlay, event)
        return Folded(before, event, after, publish=False)
    first = before.message_count if before is not None else after.message_count  # a fork's are its source's
    count = after.message_count - first
    assert 0 <= count <= len(after.tail), "every message has a row"
    for index, message in enumerate(after.tail[len(after.tail) - count :], first):
        overlay.put(message_key(run_id, index), message)
    if event.cause is not None:
        overlay.put_cause(run_id, event.cause, event.seq, is_command=event.answers_command)
    if isinstance(event.body, ToolCompleted):
        _put_result(overlay, run_id, event.body)
    elif isinstance(event.body, SurplusRecorded) and event.body.content is not None:
        _put_late_result(overlay, after, event.body)
    if isinstance(event.body, ModelResponded):
        overlay.put_turn(run_id, event.body.turn, after.message_count)
    source = source_of(run_id) if before is None else None
    if source is not None:
        overlay.put_family(source, run_id)
    overlay.put_run(after)
    overlay.last_event_ms = max(overlay.last_event_ms, event.at_ms)
    _index(overlay, before, after)
    return Folded(before, event, after, status.note_change(overlay, before, after))


def forget_run(overlay: Overlay, run_id: str) -> None:
    """Take every row of a purged run away."""
    run = overlay.run(run_id)
    _index(overlay, run, None)
    status.forget(overlay, run_id)
    overlay.forget_run(run_id)


def purge_run(overlay: Overlay, event: Event) -> None:
    """A purge begins: the run's rows go, two say that it was there and what of its history is left.

    Also without the run, where the events before it are deleted already.
    """
    forget_run(overlay, event.run_id)
    overlay.put(named_key(PURGED, event.run_id), pack_u64(event.at_ms))
    overlay.put(named_key(PURGING, event.run_id), pack_u64(event.seq - 1))
    overlay.last_event_ms = max(overlay.last_event_ms, event.at_ms)


def purge_event(overlay: Overlay, run_id: str, seq: int) -> None:
    """An event of a purged run was deleted, and so were those after it. With the first the purge is done."""
    key = named_key(PURGING, run_id)
    left = overlay.get(key)
    if left is None or u64_from(left) < seq:
        return
    if seq > 1:
        overlay.put(key, pack_u64(seq - 1))
    else:
        overlay.delete(key)


def quarantine_run(overlay: Overlay, run_id: str, row: QuarantineRow) -> None:
    """Stop a run whose history is damaged: no timer, no slot, no queue; its last good state stays to be
    seen.
    """
    _index(overlay, overlay.run(run_id), None)
    status.forget(overlay, run_id)
    overlay.put(named_key(QUARANTINE, run_id), pack(row))


def timer_key(run: Run) -> bytes | None:
    due_ms = next_due_ms(run)
    return None if due_ms is None else timed_key(TIMER, max(0, due_ms), run.run_id)


def queue_key(run: Run) -> bytes | None:
    """Set for a run that waits for a slot, now or once its ``not_before_ms`` has passed: the oldest run
    first.
    """
    if not wants_slot(run, SOMETIME_MS):
        return None
    return timed_key(QUEUE, max(0, run.created_ms, run.not_before_ms or 0), run.run_id)


def ended_key(run: Run) -> bytes | None:
    """Set for an ended run of which nothing more can come: it may be purged some time after."""
    ended_ms = purgeable_ms(run)
    return None if ended_ms is None else timed_key(ENDED, max(0, ended_ms), run.run_id)


def _put_result(overlay: Overlay, run_id: str, body: ToolCompleted) -> None:
    digest = hashlib.sha256(body.content).digest()
    row = ResultRow(body.attempt, body.is_error, body.source, digest)
    overlay.put(result_key(run_id, body.turn, body.call_id), pack(row))


def _put_late_result(overlay: Overlay, run: Run, body: SurplusRecorded) -> None:
    """A late result that took the place of a synthetic one is the call's result."""
    call = run.call(body.call_id)
    if call is not None and call.is_done and call.content is not None:
        digest = hashlib.sha256(call.content).digest()
        row = ResultRow(body.attempt, call.is_error, ResultSource.EXECUTED, digest)
        overlay.put(result_key(run.run_id, body.turn, body.call_id), pack(row))


def _index(overlay: Overlay, before: Run | None, after: Run | None) -> None:
    for key_of in (timer_key, queue_key, ended_key):
        old = key_of(before) if before is not None else None
        new = key_of(after) if after is not None else None
        if old != new:
            if old is not None:
                overlay.delete(old)
            if new is not None:
                overlay.put(new, b"")
    held, holds = before is not None and holds_slot(before), after is not None and holds_slot(after)
    run = after if after is not None else before
    if run is not None and held != holds:
        overlay.held_change += int(holds) - int(held)
        if holds:
            overlay.put(named_key(HOLDER, run.run_id), b"")
        else:
            overlay.delete(named_key(HOLDER, run.run_id))


assert SOMETIME_MS < U64_MAX
