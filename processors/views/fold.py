"""The fold of run-status, one record at a time: old row and new record give the change. Pure.

A record replaces the row of its run unless its ``seq`` is lower; a tombstone removes it. Records that can
not be read are rows as well (:class:`~perdure.processors.views.row.Unread`): what a view holds then follows
from the newest record of each key alone, so that it is the same after any amount of compaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from perdure.processors.views.row import Read, Row, row_of, run_id_of


class Why(Enum):
    """Why a record changes nothing."""

    STALE = "stale"  # its seq is lower than the row's
    NO_RUN_ID = "no_run_id"  # its key names no run
    ABSENT = "absent"  # a tombstone of a run that is not there


@dataclass(frozen=True, slots=True)
class Put:
    """The run's row is ``after`` now. ``before`` is None for a run that was not there."""

    before: Row | None
    after: Row

    @property
    def run_id(self) -> str:
        return self.after.run_id


@dataclass(frozen=True, slots=True)
class Removed:
    """The run is no longer kept."""

    before: Row

    @property
    def run_id(self) -> str:
        return self.before.run_id


@dataclass(frozen=True, slots=True)
class Unchanged:
    why: Why


Change: TypeAlias = Put | Removed | Unchanged


def change_of(key: bytes | None, held: bytes | None, value: bytes | None) -> Change:
    """What the record (``key``, ``value``) does to a view that holds ``held`` for this key. Never raises."""
    run_id = run_id_of(key)
    if run_id is None:
        return Unchanged(Why.NO_RUN_ID)
    before = None if held is None else row_of(run_id, held)
    if value is None:
        return Unchanged(Why.ABSENT) if before is None else Removed(before)
    after = row_of(run_id, value)
    if isinstance(before, Read) and isinstance(after, Read) and after.status.seq < before.status.seq:
        return Unchanged(Why.STALE)
    return Put(before, after)
