"""Named points at which a process kills itself with SIGKILL: anybody can try a crash in the worst place.

``PERDURE_CRASH=<name>`` arms one point; reaching it is a real ``kill -9``: no handler, no flush, no farewell.
``PERDURE_CRASH_MARKER=<file>``: created just before the kill; once it exists the point stays quiet, so that
the process can be started again with the same environment.

``PERDURE_CRASH_ORDER=<file>`` takes orders while the process runs. The file holds ``<name> <signal> <nth>``,
for example ``executor.after_claim SIGSTOP 1``; the process that reaches the point for the nth time since it
saw the order removes the file, writes its pid to ``<file>.taken`` and sends itself the signal.
"""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

CRASH_ENV: Final = "PERDURE_CRASH"
CRASH_MARKER_ENV: Final = "PERDURE_CRASH_MARKER"
CRASH_ORDER_ENV: Final = "PERDURE_CRASH_ORDER"

CrashPoint: TypeAlias = Literal[
    "orchestrator.after_init",
    "orchestrator.before_offsets",
    "orchestrator.before_commit",
    "orchestrator.after_commit",
    "orchestrator.after_store",
    "executor.before_claim",
    "executor.after_claim",
    "executor.before_start",
    "executor.before_tell",
    "executor.after_tell",
    "executor.before_offsets",
    "executor.after_offsets",
    "executor.after_call",
    "executor.after_result",
    "model.mid_stream",
]
CRASH_POINTS: Final[tuple[str, ...]] = get_args(CrashPoint)

_log = logging.getLogger(__name__)
_reached: dict[tuple[int, str], int] = {}
"""How often the point of an order was reached, by the order's inode and text."""


def crash_point(name: CrashPoint) -> None:
    """Die here if ``name`` is armed and has not fired yet; otherwise nothing."""
    order = os.environ.get(CRASH_ORDER_ENV)
    if order is not None:
        _obey(Path(order), name)
    if os.environ.get(CRASH_ENV) != name:
        return
    marker = os.environ.get(CRASH_MARKER_ENV)
    if marker is not None and not _claim(Path(marker), name):
        return
    _log.warning(
        "crash point %s reached, killing this process", name, extra={"action": "crash_point_reached"}
    )
    os.kill(os.getpid(), signal.SIGKILL)


def _obey(order: Path, name: str) -> None:
    """Follow the order, if there is one, it is about this point, and no other process was faster."""
    try:
        inode, text = order.stat().st_ino, order.read_text(encoding="ascii")
    except FileNotFoundError:
        return
    point, signal_name, nth = text.split()
    if point != name:
        return
    count = _reached[inode, text] = _reached.get((inode, text), 0) + 1
    if count < int(nth):
        return
    try:
        order.rename(order.with_name(f"{order.name}.{os.getpid()}"))
    except FileNotFoundError:
        return
    taken = order.with_name(f"{order.name}.{os.getpid()}")
    taken.write_text(f"{os.getpid()}\n", encoding="ascii")
    taken.rename(order.with_name(f"{order.name}.taken"))
    _log.warning("%s at crash point %s", signal_name, name, extra={"action": "crash_point_reached"})
    os.kill(os.getpid(), signal.Signals[signal_name])


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
