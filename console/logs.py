"""Log lines of a worker: time, level, what, and the fields that came with it (``action`` first)."""

from __future__ import annotations

import json
import logging
from typing import Final

# What a LogRecord always has; everything else was given with ``extra=``.
_ALWAYS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class FieldFormatter(logging.Formatter):
    """``2026-01-31 12:00:00,000 INFO perdure.kafka message action=... key=value``."""

    def __init__(self, name: str) -> None:
        super().__init__(f"%(asctime)s %(levelname)-7s {name} %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        fields = fields_of(record)
        line = super().format(record)
        if not fields:
            return line
        first, newline, trace = line.partition("\n")
        told = " ".join(f"{key}={json.dumps(value, default=str)}" for key, value in fields.items())
        return f"{first}  {told}{newline}{trace}"


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """The ``extra`` fields of a record, ``action`` first."""
    found = {key: value for key, value in vars(record).items() if key not in _ALWAYS}
    return {**({"action": found.pop("action")} if "action" in found else {}), **found}


def start_logging(level: str, name: str) -> None:
    """Send what perdure says to standard error; other libraries only warnings. ``name`` tells processes
    apart.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(FieldFormatter(name))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("perdure").setLevel(level.upper())
