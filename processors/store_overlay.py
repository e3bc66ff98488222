"""An overlay: the changes of a batch over the rows they change, read back before they are written.

Reading through it gives the rows as they will be. Dropped, it never was; its changes go to the store in one
batch after the log took the events they stand for. Overlays nest, so that one input of a batch can fail
alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from perdure.processors.machine.forks import wanted_turn
from perdure.processors.machine.inputs import Source
from perdure.processors.machine.state import Run
from perdure.processors.store import Reader
from perdure.processors.store_rows import (
    AGE,
    CAUSE,
    ENDED,
    FAMILY,
    HOLDER,
    MESSAGE,
    META,
    OF_RUN,
    PURGED,
    PURGING,
    QUARANTINE,
    QUEUE,
    RESULT,
    RUN,
    STATUS,
    STATUS_TIMER,
    TIMER,
    TURN,
    U64_MAX,
    Meta,
    QuarantineRow,
    cause_key,
    end_of,
    family_key,
    message_key,
    meta_from,
    name_from,
    named_key,
    pack,
    pack_u64,
    quarantine_from,
    rows_prefix,
    run_from,
    run_key,
    timed_from,
    timed_key,
    turn_key,
    u64_from,
)
from perdure.schemas.commands import Fork
from perdure.schemas.keys import source_of

PREFIXES: Final = (
    META,
    RUN,
    MESSAGE,
    RESULT,
    CAUSE,
    TIMER,
    QUEUE,
    HOLDER,
    STATUS,
    STATUS_TIMER,
    QUARANTINE,
    AGE,
    PURGED,
    PURGING,
    ENDED,
    TURN,
    FAMILY,
)
SCAN_ROWS: Final = 1_000
"""Rows taken at a time where all rows of a kind are wanted."""


class Overlay:
    """Changes over ``base``. ``held_change``: by how much they change the number of runs that hold a slot."""

    def __init__(self, base: Reader) -> None:
        self._base = base
        self._changes: dict[bytes, dict[bytes, bytes | None]] = {prefix: {} for prefix in PREFIXES}
        self._runs: dict[str, Run] = {}
        self.held_change = 0
        self.last_event_ms: int = base.last_event_ms if isinstance(base, Overlay) else 0

    # ---- raw rows

    def get(self, key: bytes) -> bytes | None:
        changes = self._changes[key[:1]]
        return changes[key] if key in changes else self._base.get(key)

    def scan(self, start: bytes, end: bytes, limit: int) -> Sequence[tuple[bytes, bytes]]:
        changed = {key: value for key, value in self._changes[start[:1]].items() if start <= key < end}
        if not changed:
            return self._base.scan(start, end, limit)
        gone = sum(1 for value in changed.values() if value is None)
        rows: dict[bytes, bytes | None] = dict(self._base.scan(start, end, limit + gone))
        rows.update(changed)
        kept = [(key, value) for key, value in rows.items() if value is not None]
        return sorted(kept)[:limit]

    def put(self, key: bytes, value: bytes) -> None:
        self._changes[key[:1]][key] = value

    def delete(self, key: bytes) -> None:
        self._changes[key[:1]][key] = None

    # ---- ends

    def nested(self) -> Overlay:
        return Overlay(self)

    def absorb(self, nested: Overlay) -> None:
        """Take over the changes of an overlay that lies over this one."""
        assert nested._base is self
        for prefix, changes in nested._changes.items():
            if changes:
                self._changes[prefix].update(changes)
        for key in nested._changes[RUN]:
            self._runs.pop(name_from(key), None)
        self._runs.update(nested._runs)
        self.held_change += nested.held_change
        self.last_event_ms = max(self.last_event_ms, nested.last_event_ms)

    @property
    def is_empty(self) -> bool:
        return not self._runs and not any(self._changes.values())

    def changes(self) -> dict[bytes, bytes | None]:
        """All changes, to be written in one batch."""
        for run_id, run in self._runs.items():
            self._changes[RUN][run_key(run_id)] = pack(run)
        self._runs.clear()
        return {key: value for changes in self._changes.values() for key, value in changes.items()}

    # ---- typed rows

    def run(self, run_id: str) -> Run | None:
        run = self._runs.get(run_id)
        if run is not None:
            return run
        if isinstance(self._base, Overlay) and run_key(run_id) not in self._changes[RUN]:
            return self._base.run(run_id)
        value = self.get(run_key(run_id))
        return None if value is None else run_from(value)

    def put_run(self, run: Run) -> None:
        self._runs[run.run_id] = run

    def messages(self, run: Run) -> tuple[bytes, ...]:
        """The run's whole transcript so far; a fork begins with its source's messages."""
        return tuple(self._messages(run, run.message_count))

    def _messages(self, run: Run, count: int) -> Iterator[bytes]:
        first = 0
        if run.shared is not None:
            first = min(count, run.shared.message_count)
            yield from self._messages(self._source_of(run), first)
        for index in range(first, count):
            message = self.get(message_key(run.run_id, index))
            assert message is not None, "messages leave only with their run"
            yield message

    def _source_of(self, run: Run) -> Run:
        source = None if run.shared is None else self.run(run.shared.source)
        assert source is not None, "a run leaves only after its forks"
        return source

    def source(self, run_id: str, fork: Fork) -> Source | None:
        """What a fork is to be made of: the run ``run_id`` at the end of the turn asked for."""
        run = self.run(run_id)
        if run is None:
            return None
        count = self._message_count(run, wanted_turn(run.turns_completed, fork))
        if count is None:
            return Source(run, None, None)
        messages = tuple(self._messages(run, min(count + 1, run.message_count)))
        return Source(run, messages[:count], messages[count] if len(messages) > count else None)

    def _message_count(self, run: Run, turn: int) -> int | None:
        """Messages up to the end of a turn; None if there was no such turn."""
        if run.shared is not None and turn <= run.shared.turn:
            return self._message_count(self._source_of(run), turn)
        value = self.get(turn_key(run.run_id, turn)) if 0 < turn <= run.turns_completed else None
        return None if value is None else u64_from(value)

    def put_turn(self, run_id: str, turn: int, message_count: int) -> None:
        self.put(turn_key(run_id, turn), pack_u64(message_count))

    def put_family(self, source: str, run_id: str) -> None:
        self.put(family_key(source, run_id), b"")

    def has_family(self, run_id: str) -> bool:
        """Whether a child or fork of the run is still there."""
        prefix = rows_prefix(FAMILY, run_id)
        return bool(self.scan(prefix, end_of(prefix), 1))

    def was_answered(self, run_id: str, cause: str, *, is_command: bool) -> bool:
        return self.get(cause_key(run_id, cause, is_command=is_command)) is not None

    def put_cause(self, run_id: str, cause: str, seq: int, *, is_command: bool) -> None:
        self.put(cause_key(run_id, cause, is_command=is_command), pack_u64(seq))

    def purged_ms(self, run_id: str) -> int | None:
        """When the run was purged; None: it was not."""
        value = self.get(named_key(PURGED, run_id))
        return None if value is None else u64_from(value)

    def purging(self, limit: int) -> list[tuple[str, int]]:
        """(run id, seq of the newest event that is not deleted yet) of purges that go on."""
        rows = self.scan(PURGING, end_of(PURGING), limit)
        return [(name_from(key), u64_from(value)) for key, value in rows]

    def due(self, prefix: bytes, now_ms: int, limit: int) -> list[tuple[int, str]]:
        """(time, run id) of the rows under TIMER, STATUS_TIMER or QUEUE with time <= now, oldest first."""
        end = timed_key(prefix, now_ms + 1) if now_ms < U64_MAX else end_of(prefix)
        return [timed_from(key) for key, _ in self.scan(prefix, end, limit)]

    def next_time(self, prefix: bytes) -> int | None:
        rows = self.scan(prefix, end_of(prefix), 1)
        return timed_from(rows[0][0])[0] if rows else None

    def quarantined(self) -> dict[str, QuarantineRow]:
        return {name_from(key): quarantine_from(value) for key, value in self.all_rows(QUARANTINE)}

    def meta(self) -> Meta | None:
        value = self.get(META)
        return None if value is None else meta_from(value)

    def put_meta(self, meta: Meta) -> None:
        self.put(META, pack(meta))

    def newest_age_mark(self, before_ms: int) -> tuple[int, int] | None:
        """(time, offset) of the newest age mark that is not younger than ``before_ms``."""
        newest: tuple[int, int] | None = None
        for key, value in self.scan(AGE, timed_key(AGE, before_ms + 1), SCAN_ROWS):
            newest = (timed_from(key)[0], u64_from(value))
        return newest

    def all_rows(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All rows whose key begins with ``prefix``; nothing may change while they are taken."""
        start, end = prefix, end_of(prefix)
        while rows := self.scan(start, end, SCAN_ROWS):
            yield from rows
            start = rows[-1][0] + b"\0"

    def count(self, prefix: bytes) -> int:
        return sum(1 for _ in self.all_rows(prefix))

    def forget_run(self, run_id: str) -> None:
        """Delete every row of a run except those that ``store_fold`` takes out of the indexes."""
        self._runs.pop(run_id, None)
        self.delete(run_key(run_id))
        self.delete(named_key(QUARANTINE, run_id))
        for prefix in OF_RUN:
            for key, _ in list(self.all_rows(rows_prefix(prefix, run_id))):
                self.delete(key)
        source = source_of(run_id)
        if source is not None:
            self.delete(family_key(source, run_id))
