"""A worker with all roles, its scripted model and its topics, started by the real command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).absolute().parents[2]
PARTITIONS = 2
COMMAND_S_MAX = 60.0
LOOK_S = 0.1


class WorkerStage:
    """Make it, :meth:`start` a worker, :meth:`close` in any case.

    ``script``: what the model says, a step an assistant message (``examples/outside/scripted_messages.py``).
    """

    def __init__(self, bootstrap: str, namespace: str, folder: Path, script: list[dict[str, Any]]) -> None:
        self.folder = folder
        self.worker: subprocess.Popen[bytes] | None = None
        self._model, port = self._start_model(script)
        self.environment: Mapping[str, str] = {
            **os.environ,
            "PERDURE_BOOTSTRAP": bootstrap,
            "PERDURE_NAMESPACE": namespace,
            "PERDURE_PARTITIONS": str(PARTITIONS),
            "PERDURE_STATE_DIR": str(folder / "state"),
            "ANTHROPIC_API_KEY": "none",
            "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}",
            "NO_PROXY": "127.0.0.1",
            "NO_COLOR": "1",
            "COLUMNS": "200",
            "PYTHONUNBUFFERED": "1",
        }

    def perdure(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "perdure.console.main", *arguments)

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, in the repository's folder."""
        return subprocess.run(
            [sys.executable, *arguments],
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX,
            check=False,
        )

    def answered(self, *arguments: str) -> str:
        """The standard output of a command that must succeed."""
        done = self.perdure(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr + self.log()
        return done.stdout

    def start(self, app: str, *options: str) -> None:
        command = [sys.executable, "-m", "perdure.console.main", "worker", "--app", app, *options]
        with (self.folder / "worker.log").open("ab") as output:
            self.worker = subprocess.Popen(
                command, env=self.environment, cwd=ROOT, stdout=output, stderr=output
            )

    def stop(self) -> int:
        """SIGTERM; the exit code of the drained worker."""
        assert self.worker is not None
        self.worker.send_signal(signal.SIGTERM)
        return self.worker.wait(COMMAND_S_MAX)

    def log(self) -> str:
        path = self.folder / "worker.log"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def close(self) -> None:
        for process in (self.worker, self._model):
            if process is not None:
                process.kill()
                process.wait(10)

    def _start_model(self, script: list[dict[str, Any]]) -> tuple[subprocess.Popen[bytes], int]:
        script_file, port_file = self.folder / "script.json", self.folder / "model.port"
        script_file.write_text(json.dumps(script), encoding="utf-8")
        command = [sys.executable, str(ROOT / "examples/outside/scripted_anthropic.py")]
        options = ["--port", "0", "--port-file", str(port_file), "--script", str(script_file)]
        with (self.folder / "model.log").open("ab") as output:
            process = subprocess.Popen(
                [*command, *options, "--log", str(self.folder / "model.jsonl")], stdout=output, stderr=output
            )
        until(port_file.exists, 20, "the scripted model listens")
        return process, int(port_file.read_text(encoding="utf-8"))


def until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Look at a condition again and again, for a bounded time."""
    pause = threading.Event()
    for _ in range(round(timeout_s / LOOK_S)):
        if condition():
            return
        pause.wait(LOOK_S)
    raise AssertionError(f"{what}: not within {timeout_s} s")
