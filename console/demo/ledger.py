"""What was really done, counted where it was done: in the outside services' own files, not in perdure."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from perdure.schemas.events import Event, ToolCompleted
from perdure.schemas.values import ResultSource


@dataclass(frozen=True, slots=True)
class Counted:
    """``model_calls``: requests that the scripted model was sent; None: the real one does not tell."""

    deliveries: int
    lookups: int
    model_calls: int | None


def count(database: Path, model_log: Path | None) -> Counted:
    """Deliveries and look-ups from the message service's file, model calls from the scripted model's log."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        (deliveries,) = db.execute("SELECT count(*) FROM messages").fetchone()
        (lookups,) = db.execute("SELECT count(*) FROM lookups").fetchone()
    return Counted(
        deliveries, lookups, None if model_log is None else len(model_log.read_text().splitlines())
    )


def stored_messages(database: Path) -> list[str]:
    """Ids of the messages, as the service shows them to its customers."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        return [f"msg-{number}" for (number,) in db.execute("SELECT number FROM messages ORDER BY number")]


def was_reconciled(events: list[Event]) -> bool:
    """Whether a call's result is what the reconciliation tool found."""
    return any(
        isinstance(event.body, ToolCompleted) and event.body.source is ResultSource.RECONCILED
        for event in events
    )
