"""Worker processes for the acceptance tests: started by the real command line, killed without mercy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.acceptance.mail_app import SCRIPT

ROOT = Path(__file__).absolute().parents[2]
ROLES = ("orchestrator", "model-caller", "tool-executor")
STOP_S_MAX = 30.0


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str, interval_s: float = 0.1) -> None:
    """Look at a condition again and again, for a bounded time."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end_s:
            raise AssertionError(f"{what}: not within {timeout_s} s")
        time.sleep(interval_s)


class Fleet:
    """A scripted model and worker processes over one broker and namespace."""

    def __init__(self, bootstrap: str, namespace: str, folder: Path) -> None:
        self.bootstrap = bootstrap
        self.namespace = namespace
        self.folder = folder
        self.truth = folder / "truth.log"
        self.truth.touch()
        self.state = folder / "state"
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.kills = 0
        self._model, port = self._start_model()
        self.environment: Mapping[str, str] = {
            **os.environ,
            "PERDURE_BOOTSTRAP": bootstrap,
            "PERDURE_NAMESPACE": namespace,
            "PERDURE_PARTITIONS": "4",
            "PERDURE_STATE_DIR": str(self.state),
            "ANTHROPIC_API_KEY": "none",
            "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}",
            "NO_PROXY": "127.0.0.1",
            "MAIL_TRUTH": str(self.truth),
            "PYTHONPATH": str(ROOT),
        }

    def topic(self, name: str) -> str:
        return f"{self.namespace}.{name}"

    def perdure(self, *arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run one command of the command line to its end."""
        return subprocess.run(
            [sys.executable, "-m", "perdure.console.main", *arguments],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def start(self, role: str) -> None:
        with (self.folder / f"{role}.log").open("ab") as output:
            self.workers[role] = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "perdure.console.main",
                    "worker",
                    "--role",
                    role,
                    "--app",
                    "tests.acceptance.mail_app:app",
                ],
                env=self.environment,
                cwd=ROOT,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def start_all(self) -> None:
        for role in ROLES:
            self.start(role)

    def kill(self, role: str) -> None:
        """Kill -9, with everything the process started."""
        worker = self.workers.pop(role)
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(10)
        self.kills += 1

    def stop_all(self) -> None:
        """Ask every worker to drain and leave; none may need more than STOP_S_MAX."""
        for worker in self.workers.values():
            worker.terminate()
        for role, worker in list(self.workers.items()):
            try:
                worker.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self.kill(role)
                raise AssertionError(f"the {role} did not leave within {STOP_S_MAX} s") from None
        self.workers.clear()

    def close(self) -> None:
        """End everything, whatever state it is in."""
        for role in list(self.workers):
            self.kill(role)
        self._model.kill()
        self._model.wait(10)

    def executions(self) -> list[tuple[str, str]]:
        """(run id, call id) of each execution of the non_idempotent tool, in order."""
        lines = self.truth.read_text(encoding="utf-8").splitlines()
        return [(line.split()[0], line.split()[1]) for line in lines]

    def _start_model(self) -> tuple[subprocess.Popen[bytes], int]:
        script, port_file = self.folder / "script.json", self.folder / "model.port"
        script.write_text(json.dumps(SCRIPT), encoding="utf-8")
        with (self.folder / "model.log").open("ab") as output:
            process = subprocess.Popen(
                [
                    sys.executable,
                    str(ROOT / "examples/outside/scripted_anthropic.py"),
                    "--port",
                    "0",
                    "--port-file",
                    str(port_file),
                    "--script",
                    str(script),
                    "--log",
                    str(self.folder / "model.jsonl"),
                ],
                stdout=output,
                stderr=output,
            )
        wait_until(port_file.exists, 20, "the scripted model listens")
        return process, int(port_file.read_text(encoding="utf-8"))
