"""Purge: a run that has ended long ago is forgotten, unless something may still come of it."""

from __future__ import annotations

from perdure.processors.machine.draft import Draft
from perdure.processors.machine.schedule import purgeable_ms
from perdure.schemas import events as ev


def decide_purge(draft: Draft) -> None:
    """Forget the run, if its time has come. Whether others need it is for the host to know."""
    ended_ms = purgeable_ms(draft.run)
    kept_ms = draft.context.settings.finished_runs_retention_ms
    if ended_ms is not None and ended_ms + kept_ms <= draft.now_ms:
        draft.emit(ev.RunPurged())
