"""``perdure dev``: one process tree that begins as a whole and ends as a whole."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from perdure.connectors.broker_settings import free_ports
from tests.integration.worker_stage import ROOT, until

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

READY_S_MAX = 120.0
END_S_MAX = 60.0
BEGAN = 'action="role_began"'


class Dev:
    """A running ``perdure dev`` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.output = folder / f"dev-{len(list(folder.glob('dev-*')))}.log"
        self.port = free_ports()[0]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
        environment |= {
            "ANTHROPIC_API_KEY": "none",
            "ANTHROPIC_BASE_URL": "http://127.0.0.1:9",
            "PYTHONPATH": str(ROOT),
            "PERDURE_STATE_DIR": str(folder / "state"),
            "PERDURE_PARTITIONS": "2",
        }
        command = [sys.executable, "-m", "perdure.console.main", "dev", "--app", "examples.first_agent:agent"]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port), "--folder", str(folder / "kafka")],
                env=environment,
                cwd=folder,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def said(self) -> str:
        return self.output.read_text(encoding="utf-8")

    def is_up(self) -> bool:
        assert self.process.poll() is None, self.said()
        return self.said().count(BEGAN) >= 3

    def descendants(self) -> set[int]:
        """Every process below it, whatever session it made for itself."""
        parents: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    stat = (entry / "stat").read_text()
                except OSError:
                    continue
                parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
        found = {self.process.pid}
        while True:
            more = {pid for pid, parent in parents.items() if parent in found} - found
            if not more:
                return found - {self.process.pid}
            found |= more


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    dev = Dev(tmp_path)
    try:
        until(dev.is_up, READY_S_MAX, "broker, topics and three roles")
        yield dev
    finally:
        children = dev.descendants()
        dev.process.kill()
        dev.process.wait(10)
        for pid in children:
            _kill(pid)


def test_ctrl_c_ends_the_whole_tree_and_a_second_start_finds_everything_in_order(
    dev: Dev, tmp_path: Path
) -> None:
    """Workers drain, the broker stops, no process stays; the same folders serve again."""
    children = dev.descendants()
    assert len(children) >= 4
    os.killpg(dev.process.pid, signal.SIGINT)
    assert dev.process.wait(END_S_MAX) == 0, dev.said()
    until(lambda: not _alive(children), 10, "every child is gone")
    assert len(re.findall("draining", dev.said())) >= 3
    again = Dev(tmp_path)
    try:
        until(again.is_up, READY_S_MAX, "the second start")
        again.process.send_signal(signal.SIGTERM)
        assert again.process.wait(END_S_MAX) == 0, again.said()
    finally:
        again.process.kill()
        again.process.wait(10)


def test_a_worker_that_dies_is_started_again_and_a_killed_tree_leaves_nothing(dev: Dev) -> None:
    """Kill -9 of a worker: another comes; kill -9 of dev itself: the kernel takes everything with it."""
    worker = next(pid for pid in dev.descendants() if "tool-executor" in _command(pid))
    began = dev.said().count("tool-executor begins")
    os.kill(worker, signal.SIGKILL)
    until(lambda: dev.said().count("tool-executor begins") > began, READY_S_MAX, "another tool-executor")
    children = dev.descendants()
    dev.process.kill()
    dev.process.wait(10)
    until(lambda: not _alive(children), 20, "every child is gone")


@pytest.mark.parametrize("app", ["examples.first_agent:nothing", "examples.nowhere:agent", "first_agent"])
def test_agents_that_cannot_be_found_end_it_at_once_with_what_to_do(tmp_path: Path, app: str) -> None:
    """Nothing is started: the workers would end of it again and again, and bury the reason."""
    folder = tmp_path / "kafka"
    ended = subprocess.run(
        [sys.executable, "-m", "perdure.console.main", "dev", "--app", app, "--folder", str(folder)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=READY_S_MAX,
        check=False,
    )
    assert ended.returncode == 3, ended.stderr
    assert "[app_not_found]" in ended.stderr
    assert "module:object" in ended.stderr
    assert ended.stdout == ""
    assert not folder.exists()


def _alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if _command(pid)}


def _command(pid: int) -> str:
    """Its command line; empty if it is gone, a zombie included."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
