"""What a process holds of one partition it owns."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from math import ceil
from typing import Final

from msgspec.structs import replace

from perdure.processors.clock import Clock
from perdure.processors.orchestrator.catch_up import CatchUp
from perdure.processors.orchestrator.purges import Purges
from perdure.processors.orchestrator.settings import OrchestratorSettings
from perdure.processors.store import Store, StoreBroken, StoreFactory
from perdure.processors.store_overlay import Overlay
from perdure.processors.store_rows import (
    AGE,
    HOLDER,
    META,
    QUEUE,
    STATUS_TIMER,
    TIMER,
    Anchor,
    Meta,
    QuarantineRow,
    layout,
    meta_from,
    pack,
    timed_from,
)
from perdure.topics.log import TopicPartition

ANCHOR_DIGEST_BYTES: Final = 16

_log = logging.getLogger(__name__)


def anchor_digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()[:ANCHOR_DIGEST_BYTES]


class Owned:
    """One partition: its rows, where they stand in the log, and what is counted in memory.

    ``catch_up``: whether what lay unread at take-over was read. ``held``: runs that hold a slot.
    ``penalties``: runs whose timers failed, with the time until which they rest. ``purges``: ended runs that
    are to be forgotten.
    """

    def __init__(
        self,
        partition: int,
        topic_id: str,
        stores: StoreFactory,
        clock: Clock,
        settings: OrchestratorSettings,
        unread: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        self.partition = partition
        self._topic_id = topic_id
        self._stores = stores
        self._clock = clock
        self._settings = settings
        self.catch_up = CatchUp(unread or {}, clock, settings.catch_up_quiet_ms / 1_000)
        self.store: Store = stores.open(partition)
        self.meta = Meta(topic_id, layout=layout())
        self.is_ready = False
        self.held = 0
        self.quarantined: dict[str, QuarantineRow] = {}
        self.penalties: dict[str, int] = {}
        self.purges = Purges(settings.machine)
        self.age_mark_ms = 0
        self.next_due_ms: int | None = None
        self._load()

    # ---- the rows' place in the log

    def _load(self) -> None:
        """Take the rows as they were left, or wipe them where they can not be trusted."""
        try:
            value = self.store.get(META)
            meta = None if value is None else meta_from(value)
        except StoreBroken as error:
            self.wipe(f"unreadable: {error}")
            return
        if meta is None:
            return
        age_ms = abs(self._clock.wall_ms() - meta.caught_up_ms)
        if meta.layout != layout():
            self.wipe(f"layout {meta.layout}, not {layout()}")
        elif meta.topic_id != self._topic_id:
            self.wipe("run-events was created anew")
        elif age_ms > self._settings.delete_retention_ms // 2:
            self.wipe(f"last caught up {age_ms} ms ago: deletions may have been missed")
        else:
            self.meta = meta

    def wipe(self, reason: str) -> None:
        """Forget the rows; they come back from run-events."""
        _log.warning(
            "partition %d: wiping its rows (%s)",
            self.partition,
            reason,
            extra={"action": "store_wiped", "partition": self.partition, "reason": reason},
        )
        self.store.close()
        self._stores.wipe(self.partition)
        self.store = self._stores.open(self.partition)
        self.meta = Meta(self._topic_id, layout=layout())

    def write(self, overlay: Overlay, *, offset: int | None = None, anchor: Anchor | None = None) -> None:
        """One batch: the overlay's changes and the place in the log they bring the rows to."""
        now_ms = self._clock.wall_ms()
        meta = replace(
            self.meta,
            offset=self.meta.offset if offset is None else max(offset, self.meta.offset),
            anchor=self.meta.anchor if anchor is None else anchor,
            last_event_ms=max(self.meta.last_event_ms, overlay.last_event_ms),
            caught_up_ms=now_ms if self.is_ready else self.meta.caught_up_ms or now_ms,
        )
        self.store.write({**overlay.changes(), META: pack(meta)})
        self.meta = meta
        self.held += overlay.held_change

    def refresh_caught_up(self) -> None:
        """Say that the rows are still all there is; nobody else writes while the partition is ours."""
        if (
            self.is_ready
            and self._clock.wall_ms() - self.meta.caught_up_ms >= self._settings.caught_up_interval_ms
        ):
            self.write(Overlay(self.store))

    # ---- processing

    def become_ready(self) -> None:
        """The rows are all there is: count what is kept in memory."""
        self.is_ready = True
        rows = Overlay(self.store)
        self.held = rows.count(HOLDER)
        self.quarantined = rows.quarantined()
        marks = [timed_from(key)[0] for key, _ in rows.all_rows(AGE)]
        self.age_mark_ms = max(marks, default=0)
        self.write(Overlay(self.store))
        self.catch_up.begin()
        self.find_next_due()

    def now_ms(self) -> int:
        """max(wall clock, time of the partition's newest event): time never falls within a partition."""
        return max(self._clock.wall_ms(), self.meta.last_event_ms)

    def is_due(self, now_ms: int) -> bool:
        if self.next_due_ms is not None and self.purges.look_ms <= self.next_due_ms <= now_ms:
            self.find_next_due()  # there may be nothing to purge
        return self.next_due_ms is not None and self.next_due_ms <= now_ms

    def penalise(self, run_id: str, now_ms: int) -> None:
        """Let a run whose timer can not be handled rest, so that it does not stop the others."""
        self.penalties[run_id] = now_ms + self._settings.timer_penalty_ms

    def rests(self, run_id: str, now_ms: int) -> bool:
        until_ms = self.penalties.get(run_id)
        if until_ms is None:
            return False
        if until_ms > now_ms:
            return True
        del self.penalties[run_id]
        return False

    def find_next_due(self) -> None:
        """Look up when this partition next wants attention without any input."""
        rows = Overlay(self.store)
        self.purges.find(rows, self.now_ms())
        times = [
            self._caught_up(self._first_due(rows, TIMER)),
            rows.next_time(STATUS_TIMER),
            self._caught_up(self.purges.look_ms),
        ]
        if self.held < self._settings.running_runs_max:
            times.append(self._first_due(rows, QUEUE))
        if any(not row.is_announced for row in self.quarantined.values()):
            times.append(0)
        times.extend(self.penalties.values())
        self.next_due_ms = min((time_ms for time_ms in times if time_ms is not None), default=None)

    def _caught_up(self, due_ms: int | None) -> int | None:
        """When it is due, given that it waits for what lay unread at take-over."""
        left_s = self.catch_up.left_s
        return due_ms if due_ms is None or not left_s else max(due_ms, self.now_ms() + ceil(left_s * 1_000))

    def _first_due(self, rows: Overlay, prefix: bytes) -> int | None:
        for due_ms, run_id in rows.due(prefix, (1 << 63) - 1, 1 + len(self.penalties)):
            if run_id not in self.penalties:
                return due_ms
        return None

    def close(self) -> None:
        self.store.close()
