"""Worker processes, started by the real command line and put through signals. None survives this process."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from perdure.connectors.java import JavaProcess
from perdure.topics.table import Role

ROOT: Final = Path(__file__).absolute().parents[1]
APP: Final = "chaos.app:app"
GONE_S_MAX: Final = 10.0
PYCACHE: Final = ROOT / ".perdure" / "pycache"
ENV: Final = "/usr/bin/env"


class Worker:
    """One place for a process of a role. ``slot`` names it; a next process there takes the slot over."""

    def __init__(self, role: Role, slot: str, environment: Mapping[str, str], state: Path, log: Path) -> None:
        self.role = role
        self.slot = slot
        self.environment = dict(environment)
        self.is_stopped = False
        self.restarts = 0
        self._state = state
        self._log = log
        self._process: JavaProcess | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running_pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    def start(self) -> None:
        """Start a process here; the last one must be gone."""
        assert not self.running
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        command = [
            ENV, "-u", "PYTHONDONTWRITEBYTECODE", *variables,
            sys.executable, "-m", "perdure.console.main", "worker",
            "--role", self.role.value, "--slot", self.slot, "--app", APP,
        ]  # fmt: skip
        with self._log.open("a") as output:
            self._process = JavaProcess(command, output=output)
        self.is_stopped = False
        self.restarts += 1

    def kill(self) -> None:
        """Kill -9, with everything the process started."""
        assert self._process is not None
        if self._process.running:
            os.killpg(self._process.pid, signal.SIGKILL)
        self.wait_until_gone(GONE_S_MAX)

    def end_at_once(self) -> None:
        if self.running:
            self.kill()

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.signal(number)
        self.is_stopped = number is signal.SIGSTOP or (self.is_stopped and number is not signal.SIGCONT)

    def wait_until_gone(self, timeout_s: float) -> bool:
        assert self._process is not None
        return self._process.wait(timeout_s)

    def forget(self) -> None:
        """Delete what the slot keeps on disk: all of it, or, while a process lives there, its stores."""
        folder = self._state / self.role.value / self.slot
        shutil.rmtree(folder / "store" if self.running else folder, ignore_errors=True)

    def told(self) -> str:
        return self._log.read_text(errors="replace")[-3_000:] if self._log.exists() else "(nothing)"


def environment_of(
    bootstrap: str, namespace: str, state: Path, model_port: int, truth: Path, partitions: int
) -> dict[str, str]:
    """What every worker is started with, beside what this process has."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return {
        "PERDURE_BOOTSTRAP": bootstrap,
        "PERDURE_NAMESPACE": namespace,
        "PERDURE_PARTITIONS": str(partitions),
        "PERDURE_STATE_DIR": str(state),
        "PERDURE_APPROVAL_TOKEN_KEY": "chaos",
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{model_port}",
        "NO_PROXY": "127.0.0.1",
        "CHAOS_TRUTH": str(truth),
        "PYTHONPATH": path,
        # A restart should not compile every module again, whatever the environment says.
        "PYTHONPYCACHEPREFIX": os.environ.get("PYTHONPYCACHEPREFIX", str(PYCACHE)),
    }
