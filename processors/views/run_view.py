"""The view of all runs: rows, aggregates kept right by diffing, and whoever wants to hear of changes.

Whoever feeds it does three things for each record, without a pause between them::

    change = view.change(key, value)   # against the row that is held
    ...                                # store the row, or remove it
    view.note(change)                  # aggregates and listeners

One thread only. Nothing here waits, asks or writes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

from perdure.processors.views.fold import Change, Put, Removed, Unchanged, Why, change_of
from perdure.processors.views.index import Counts, Filter, Place, RunIndex
from perdure.processors.views.row import Read, Row, row_of, run_id_of
from perdure.processors.views.rows import MemoryRows, Rows
from perdure.schemas.errors import Reject
from perdure.schemas.outputs import Status

Heard: TypeAlias = Put | Removed | None
"""A change; None: everything may have changed, read again."""
Listener: TypeAlias = Callable[[Heard], None]

_CURSOR: Final = re.compile(r"(\d{1,19})/([!-~]+)", re.ASCII)


class CursorRefused(Reject):
    """The place to go on from is none that a page named."""

    code = "cursor_refused"
    remedy = "Pass `next` of the page before as `after`, unchanged."


@dataclass(frozen=True, slots=True)
class Page:
    """``next``: what to pass as ``after`` for the page that follows; None: this is the last."""

    rows: tuple[Row, ...]
    next: str | None


class RunView:
    """``rows``: where the records are held. Ready once :meth:`rebuild` was called."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._index = RunIndex()
        self._listeners: list[Listener] = []
        self._is_built = False
        self.records = 0
        """Records seen since it began."""
        self.unnamed = 0
        """Records whose key is no run id; they are left out."""

    @property
    def is_built(self) -> bool:
        return self._is_built

    def rebuild(self) -> None:
        """Count everything anew from the rows."""
        self._index.build(row_of(run_id, value) for run_id, value in self._rows.items())
        self._is_built = True
        self._tell(None)

    def change(self, key: bytes | None, value: bytes | None) -> Change:
        run_id = run_id_of(key)
        return change_of(key, None if run_id is None else self._rows.get(run_id), value)

    def note(self, change: Change) -> None:
        self.records += 1
        match change:
            case Unchanged(why):
                self.unnamed += why is Why.NO_RUN_ID
                return
            case Put(before, after):
                if self._is_built:
                    if before is not None:
                        self._index.remove(before)
                    self._index.add(after)
            case Removed(before):
                if self._is_built:
                    self._index.remove(before)
            case _:
                assert_never(change)
        if self._is_built:
            self._tell(change)

    def get(self, run_id: str) -> Row | None:
        value = self._rows.get(run_id)
        return None if value is None else row_of(run_id, value)

    def page(self, wanted: Filter, limit: int, after: str | None = None) -> Page:
        """Runs from the newest on. Raises :class:`CursorRefused`."""
        places = self._index.page(wanted, limit + 1, None if after is None else _parsed(after))
        shown = places[:limit]
        rows = tuple(row for _, run_id in shown if (row := self.get(run_id)) is not None)
        more = len(places) > limit
        return Page(rows, f"{shown[-1][0]}/{shown[-1][1]}" if more and shown else None)

    def counts(self) -> Counts:
        return self._index.counts()

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` with each change from now on, until what is returned is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _tell(self, heard: Heard) -> None:
        for listener in tuple(self._listeners):
            listener(heard)


class MemoryRunView(RunView):
    """A view that keeps its rows itself; feed it records in the order of each partition."""

    def __init__(self) -> None:
        self._held = MemoryRows()
        super().__init__(self._held)
        self.rebuild()

    def statuses(self) -> list[Status]:
        """Every run that can be read, newest first."""
        rows = self.page(Filter(), sys.maxsize - 1).rows
        return [row.status for row in rows if isinstance(row, Read)]

    def feed(self, key: bytes | None, value: bytes | None) -> Change:
        change = self.change(key, value)
        match change:
            case Put():
                assert value is not None
                self._held.put(change.run_id, value)
            case Removed():
                self._held.remove(change.run_id)
            case Unchanged():
                pass
            case _:
                assert_never(change)
        self.note(change)
        return change


def _parsed(after: str) -> Place:
    found = _CURSOR.fullmatch(after)
    if found is None or run_id_of(found[2].encode()) is None:
        raise CursorRefused(f"{after!r:.200}.")
    return (int(found[1]), found[2])
