"""Phases of an executor, and why one stopped."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"


class Exit(Enum):
    """Why the executor stopped; the value is the process's exit code. All but ASKED want a new process."""

    ASKED = 0
    TAINTED = 5  # the outcome of a commit is unknown
    UNWRITABLE = 6  # results can not be written
    ABANDONED = 7  # too many calls ignored their abort
    UNREADY = 8  # the log did not answer at take-over
    BROKEN = 9  # the consumer is broken for good
    OUT_OF_RANGE = 10  # records were deleted before they were read: the next owner tells which
