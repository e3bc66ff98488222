"""Processes of the demo: each in a session of its own, none survives the demo, whatever ends that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

LOG_TAIL_CHARS: Final = 1_500
KILL_TIMEOUT_S: Final = 5.0

# Runs between fork and the program, in a fresh interpreter: the kernel is told to kill what follows when the
# demo ends. A Ctrl-C in the terminal does not reach it (its session is another one); ending it is the demo's
# part.
_LAUNCHER: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):
    sys.exit("the demo is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


def pause(seconds: float) -> None:
    """Let time pass; a Ctrl-C ends it."""
    threading.Event().wait(seconds)


class Child:
    """One process. It has to be started by the demo's main thread, whose end the kernel watches."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start it. ``command``: absolute path of the program and its arguments; ``log``: gets its output."""
        assert threading.current_thread() is threading.main_thread()
        self.name = name
        self.log = log
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*launcher, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=REPOSITORY,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal's number if it was killed."""
        return self._process.poll()

    @property
    def was_killed(self) -> bool:
        return self.exit_code == -signal.SIGKILL

    def kill(self) -> None:
        """Kill -9, its children included; returns when it is gone."""
        self._signal(signal.SIGKILL)
        self._process.wait(KILL_TIMEOUT_S)

    def ask_to_end(self) -> None:
        if self.exit_code is None:
            self._process.send_signal(signal.SIGTERM)

    def end(self, timeout_s: float) -> None:
        """Wait until it has ended as asked; by force, if that takes longer."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        self.kill()

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-LOG_TAIL_CHARS:].strip() or "(it said nothing)"

    def _signal(self, number: signal.Signals) -> None:
        # The group may outlive its leader, so it is not asked whether that one still runs.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


REPOSITORY: Final = Path(__file__).absolute().parents[2]
