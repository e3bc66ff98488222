"""When run-status is told: always at creation, on entering or leaving a wait for people, and at an end;
otherwise at most once per run and second, the last state included.

What was held back is a row with a due time, so that it gets out although nothing more happens to the run
and whoever owns the partition then. The rows follow from the events alone; what a timer published is not
known to a store that was rebuilt, so it publishes that state once more, which readers ignore by its seq.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from perdure.processors.machine.project import must_publish
from perdure.processors.machine.state import Run
from perdure.processors.store_overlay import Overlay
from perdure.processors.store_rows import (
    STATUS,
    STATUS_TIMER,
    StatusRow,
    named_key,
    pack,
    status_from,
    timed_key,
)

STATUS_INTERVAL_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Conflated:
    """``publish``: tell it now. ``row``: what to remember; None: nothing is held back."""

    publish: bool
    row: StatusRow | None


def conflate(row: StatusRow | None, at_ms: int, *, must: bool, is_last: bool = False) -> Conflated:
    """Whether a change at ``at_ms`` is published at once. ``is_last``: the run has ended, nothing need be
    kept.
    """
    if must:
        return Conflated(publish=True, row=None if is_last else StatusRow(at_ms))
    if row is None or at_ms >= row.published_ms + STATUS_INTERVAL_MS:
        return Conflated(publish=True, row=None if is_last else StatusRow(at_ms))
    return Conflated(publish=False, row=StatusRow(row.published_ms, row.published_ms + STATUS_INTERVAL_MS))


def note_change(overlay: Overlay, before: Run | None, after: Run) -> bool:
    """Note an event's change of a run; True: its status is to be published with it."""
    row = _row(overlay, after.run_id)
    ended = after.state.is_terminal
    conflated = conflate(row, after.updated_ms, must=must_publish(before, after), is_last=ended)
    _replace(overlay, after.run_id, row, conflated.row)
    return conflated.publish


def note_published(overlay: Overlay, run: Run, now_ms: int) -> None:
    """Note that the timer of a status that was held back has published it."""
    row = _row(overlay, run.run_id)
    _replace(overlay, run.run_id, row, None if run.state.is_terminal else StatusRow(now_ms))


def forget(overlay: Overlay, run_id: str) -> None:
    """Publish nothing more of a run."""
    _replace(overlay, run_id, _row(overlay, run_id), None)


def _row(overlay: Overlay, run_id: str) -> StatusRow | None:
    value = overlay.get(named_key(STATUS, run_id))
    return None if value is None else status_from(value)


def _replace(overlay: Overlay, run_id: str, before: StatusRow | None, after: StatusRow | None) -> None:
    if before == after:
        return
    if before is not None and before.due_ms is not None:
        overlay.delete(timed_key(STATUS_TIMER, before.due_ms, run_id))
    if after is None:
        overlay.delete(named_key(STATUS, run_id))
        return
    overlay.put(named_key(STATUS, run_id), pack(after))
    if after.due_ms is not None:
        overlay.put(timed_key(STATUS_TIMER, after.due_ms, run_id), b"")
