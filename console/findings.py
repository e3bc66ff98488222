"""What doctor finds: each a sentence, how bad it is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """``NOTE`` needs nothing; ``WARNING`` may need somebody; ``PROBLEM`` does, and makes doctor fail."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """``check``: a stable name. ``text``: what is the case. ``remedy``: what to do, empty if nothing."""

    check: str
    level: Level
    text: str
    remedy: str = ""


def ok(check: str, text: str) -> Finding:
    return Finding(check, Level.OK, text)


def note(check: str, text: str, remedy: str = "") -> Finding:
    return Finding(check, Level.NOTE, text, remedy)


def warning(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, Level.WARNING, text, remedy)


def problem(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, Level.PROBLEM, text, remedy)
