"""Named points at which a process kills itself with SIGKILL: anybody can try a crash in the worst place.

``PERDURE_CRASH=<name>`` arms one point; reaching it is a real ``kill -9``: no handler, no flush, no farewell.
``PERDURE_CRASH_MARKER=<file>``: created just before the kill; once it exists the point stays quiet, so that
the process can be started again with the same environment.
"""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

CRASH_ENV: Final = "PERDURE_CRASH"
CRASH_MARKER_ENV: Final = "PERDURE_CRASH_MARKER"

CrashPoint: TypeAlias = Literal[
    "orchestrator.before_commit",
    "orchestrator.after_commit",
    "executor.before_claim",
    "executor.after_claim",
    "executor.after_call",
    "executor.after_result",
    "model.mid_stream",
]
CRASH_POINTS: Final[tuple[str, ...]] = get_args(CrashPoint)

_log = logging.getLogger(__name__)


def crash_point(name: CrashPoint) -> None:
    """Die here if ``name`` is armed and has not fired yet; otherwise nothing."""
    if os.environ.get(CRASH_ENV) != name:
        return
    marker = os.environ.get(CRASH_MARKER_ENV)
    if marker is not None and not _claim(Path(marker), name):
        return
    _log.warning(
        "crash point %s reached, killing this process", name, extra={"action": "crash_point_reached"}
    )
    os.kill(os.getpid(), signal.SIGKILL)


def _claim(marker: Path, name: str) -> bool:
    """Whether this is the first time; the marker is on disk before the kill."""
    try:
        descriptor = os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    try:
        os.write(descriptor, name.encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True
