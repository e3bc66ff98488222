"""The scripted model of examples/outside as a process of its own, ended with this one."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from chaos.worker import ROOT
from perdure.connectors.java import JavaProcess

LISTENS_S_MAX: Final = 20.0
LOOK_S: Final = 0.05


@contextmanager
def scripted_model(folder: Path, script: Sequence[dict[str, Any]], think_time_ms: int = 0) -> Generator[int]:
    """The port it listens at."""
    script_file, port_file = folder / "script.json", folder / "model.port"
    script_file.write_text(json.dumps(script), encoding="utf-8")
    port_file.unlink(missing_ok=True)
    command = [
        sys.executable, str(ROOT / "examples/outside/scripted_anthropic.py"),
        "--port", "0", "--port-file", str(port_file), "--script", str(script_file),
        "--log", str(folder / "model.jsonl"), "--think-time-ms", str(think_time_ms),
    ]  # fmt: skip
    with (folder / "model.log").open("a") as output:
        process = JavaProcess(command, output=output)
    try:
        end_s = time.monotonic() + LISTENS_S_MAX
        while not port_file.exists() or not port_file.read_text():
            if time.monotonic() > end_s or not process.running:
                raise RuntimeError(
                    f"the scripted model does not listen: {(folder / 'model.log').read_text()}"
                )
            time.sleep(LOOK_S)
        yield int(port_file.read_text(encoding="utf-8"))
    finally:
        if process.running:
            process.signal(signal.SIGKILL)
            process.wait(LISTENS_S_MAX)
