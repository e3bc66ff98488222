"""The restore of one partition: fold what is read, up to the bound, and let no damage go by unseen.

The *anchor* is the newest event the rows hold. Reading starts with it, so that rows which do not belong to
this log are found out and wiped. What can not be folded damages its run alone: the run is quarantined,
visibly; its history is never skipped over. A gap is held until the bound, and is damage only if it remains.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import assert_never

from perdure.processors.orchestrator.owned import Owned, anchor_digest
from perdure.processors.store_fold import fold_event, forget_run, purge_event, purge_run, quarantine_run
from perdure.processors.store_overlay import Overlay
from perdure.processors.store_rows import Anchor, QuarantineRow
from perdure.schemas.codec import Undecodable, decode
from perdure.schemas.events import Event, RunPurged
from perdure.schemas.keys import EventKey, InvalidKey
from perdure.topics.log import Eof, Record

_log = logging.getLogger(__name__)


class PartitionRestore:
    """One partition on its way to its bound. ``next_offset``: where reading has come to."""

    def __init__(self, owned: Owned, low: int, bound: int, wall_ms: int) -> None:
        self.owned = owned
        self.bound = bound
        self.low = low
        self.started_ms = wall_ms
        self.waits_since_ms: int | None = None
        self.alarmed = False
        self.is_done = False
        self.counts: Counter[str] = Counter()
        self._begin()

    def _begin(self) -> None:
        anchor = self.owned.meta.anchor
        self._unconfirmed = anchor
        self._anchor = anchor
        self.next_offset = self.low if anchor is None else anchor.offset
        self._overlay = Overlay(self.owned.store)
        self._held: dict[str, dict[int, tuple[Event, Anchor]]] = {}
        self._removed: dict[str, int] = {}  # run -> offset of a tombstone that did not end it
        self._damaged = dict(self._overlay.quarantined())
        if anchor is not None and anchor.offset < self.low:
            self.start_again("its newest event is below the log's start")
        elif self.owned.meta.offset > self.bound:
            self.start_again(f"offset {self.owned.meta.offset} is beyond the log's end {self.bound}")

    def start_again(self, reason: str) -> None:
        """The rows do not belong to this log."""
        self.owned.wipe(reason)
        self._begin()

    # ---- what is read

    def take(self, item: Record | Eof) -> bool:
        """Fold an item. False: reading has to start again at ``next_offset``."""
        if self.is_done:
            return True
        unconfirmed, self._unconfirmed = self._unconfirmed, None
        if unconfirmed is not None:
            if _is_anchor(item, unconfirmed):
                self.next_offset = item.offset + 1
                return True
            self.start_again("its newest event is not in the log")
            return False
        match item:
            case Record():
                self.waits_since_ms = None
                self.next_offset = item.offset + 1
                self._record(item)
            case Eof():
                self.next_offset = max(self.next_offset, item.offset)
                if item.offset >= self.bound:
                    self._finish()
            case _:
                assert_never(item)
        return True

    def _record(self, record: Record) -> None:
        self.counts["records"] += 1
        named = _parse_key(record.key)
        if named is None:
            # It names no run, so no run's history misses it.
            self.counts["alien"] += 1
            _log.error(
                "%s/%d/%d has no key of an event; it is ignored",
                record.topic,
                record.partition,
                record.offset,
                extra={
                    "action": "alien_event_ignored",
                    "partition": record.partition,
                    "offset": record.offset,
                },
            )
            return
        run_id, seq = named
        if record.value is None:
            self._tombstone(run_id, seq, record.offset)
            return
        if run_id in self._damaged:
            self.counts["quarantined_records"] += 1
            return
        try:
            event = decode(Event, record.value)
        except Undecodable as error:
            self._damage(run_id, f"event {seq}: {error}", record.offset)
            return
        if (event.run_id, event.seq) != named:
            self._damage(run_id, f"event {seq} says it is {event.run_id}/{event.seq}", record.offset)
            return
        self._event(event, Anchor(record.offset, record.key or b"", anchor_digest(record.value)))

    def _event(self, event: Event, anchor: Anchor) -> None:
        if isinstance(event.body, RunPurged):
            self._purged(event, anchor)
            return
        run = self._overlay.run(event.run_id)
        if event.seq > (run.seq if run is not None else 0) + 1:
            self._held.setdefault(event.run_id, {})[event.seq] = (event, anchor)
            return
        try:
            fold_event(self._overlay, event)
        except Exception as error:  # noqa: BLE001 - a damaged history may make the machine meet anything
            self._damage(event.run_id, f"event {event.seq} does not follow: {error}", anchor.offset)
            return
        self._move_anchor(anchor)
        held = self._held.get(event.run_id)
        if held is not None:
            following = held.pop(event.seq + 1, None)
            if not held:
                del self._held[event.run_id]
            if following is not None:
                self._event(*following)

    def _move_anchor(self, anchor: Anchor) -> None:
        if self._anchor is None or anchor.offset > self._anchor.offset:
            self._anchor = anchor

    def _purged(self, event: Event, anchor: Anchor) -> None:
        """Whatever of the run's history is still there no longer matters; it is a beginning or nothing."""
        self._held.pop(event.run_id, None)
        self._removed.pop(event.run_id, None)
        self._damaged.pop(event.run_id, None)
        if self._overlay.purged_ms(event.run_id) is None:
            purge_run(self._overlay, event)
        self._move_anchor(anchor)

    def _tombstone(self, run_id: str, seq: int, offset: int) -> None:
        """A run's events are removed from the last to the first; with the first the run is gone."""
        if self._overlay.purged_ms(run_id) is not None:
            purge_event(self._overlay, run_id, seq)
            return
        if seq > 1:
            self._removed[run_id] = offset
            return
        self._removed.pop(run_id, None)
        self._held.pop(run_id, None)
        self._damaged.pop(run_id, None)
        forget_run(self._overlay, run_id)

    def _damage(self, run_id: str, reason: str, offset: int) -> None:
        """Quarantine a run."""
        self.counts["quarantined"] += 1
        self._held.pop(run_id, None)
        row = QuarantineRow(reason.encode("utf-8", "replace").decode(), offset)
        self._damaged[run_id] = row
        quarantine_run(self._overlay, run_id, row)
        _log.error(
            "run %s is quarantined: %s (run-events, partition %d, offset %d)",
            run_id,
            reason,
            self.owned.partition,
            offset,
            extra={"action": "run_quarantined", "run_id": run_id, "offset": offset},
        )

    # ---- ends

    def flush(self) -> None:
        """Write what was folded. Not while a gap is held: rows must not pass an event they do not hold."""
        is_new = self.next_offset > self.owned.meta.offset or not self._overlay.is_empty
        if is_new and not self._held and not self._removed and self._unconfirmed is None:
            self.owned.write(self._overlay, offset=self.next_offset, anchor=self._anchor)
            self._overlay = Overlay(self.owned.store)

    def _finish(self) -> None:
        for run_id, events in list(self._held.items()):
            seq, (_, anchor) = min(events.items())
            self._damage(run_id, f"the events before {seq} are missing", anchor.offset)
        for run_id, offset in self._removed.items():
            if self._overlay.run(run_id) is not None and run_id not in self._damaged:
                self._damage(run_id, "events were deleted from its end", offset)
        self._held.clear()
        self._removed.clear()
        self.is_done = True
        self.flush()

    def finish_if_empty(self) -> None:
        """Nothing was ever written: there is no end to wait for."""
        if self.bound <= self.low and self._unconfirmed is None:
            self._finish()


def _is_anchor(item: Record | Eof, anchor: Anchor) -> bool:
    return (
        isinstance(item, Record)
        and item.offset == anchor.offset
        and item.key == anchor.key
        and item.value is not None
        and anchor_digest(item.value) == anchor.digest
    )


def _parse_key(key: bytes | None) -> tuple[str, int] | None:
    """(run id, seq) of an event's key; None for anything else."""
    try:
        named = EventKey.parse(key)
    except InvalidKey:
        return None
    return named.run_id, named.seq
