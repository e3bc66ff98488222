"""``make demo`` on a real broker: what is delivered, and what is left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from perdure.connectors.local_kafka import BOOTSTRAP_VARIABLE
from perdure.console.demo.cli import main
from perdure.console.demo.points import POINTS, SCRIPTED_CALLS
from perdure.processors.crash_points import CRASH_POINTS

DEMO_S_MAX = 150.0
LOOKS_MAX = 400
LOOK_S = 0.05

pytestmark = [pytest.mark.timeout(200), pytest.mark.slow]


@dataclass(frozen=True)
class Demo:
    """Starts demos on the session's broker, with their files in ``home``."""

    bootstrap: str
    home: Path

    def start(self, *options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "perdure.console.demo", "--folder", str(self.home), *options],
            env={**os.environ, BOOTSTRAP_VARIABLE: self.bootstrap},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # A test run in the background hands an ignored SIGINT down; a terminal does not.
            preexec_fn=_take_sigint,  # noqa: PLW1509 - this process has one thread that forks
        )

    def play(self, *options: str) -> tuple[int, dict[str, Any], str]:
        """Exit code, the last line's JSON, and all that was said."""
        process = self.start(*options)
        try:
            said, _ = process.communicate(timeout=DEMO_S_MAX)
        finally:
            process.kill()
        assert said.strip(), "it said nothing"
        last = said.strip().splitlines()[-1]
        assert last.startswith("{"), said
        return process.returncode, json.loads(last), said

    def processes(self) -> dict[int, str]:
        """Command lines, by pid, of whatever knows this test's folder."""
        found: dict[int, str] = {}
        for each in Path("/proc").iterdir():
            if each.name.isdecimal() and int(each.name) != os.getpid():
                try:
                    known = (each / "cmdline").read_bytes() + (each / "environ").read_bytes()
                except OSError:  # it has just ended, or is somebody else's
                    continue
                if os.fsencode(self.home) in known:
                    found[int(each.name)] = known.split(b"\0\0", 1)[0].decode(errors="replace")
        return found

    def left_processes(self) -> dict[int, str]:
        """The same after a while, for those that are dying."""
        for _ in range(LOOKS_MAX):
            if not self.processes():
                return {}
            threading.Event().wait(LOOK_S)
        return self.processes()

    def left_topics(self, namespace: str) -> list[str]:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        found: list[str] = []
        for _ in range(LOOKS_MAX):
            found = [each for each in admin.list_topics(timeout=10).topics if each.startswith(namespace)]
            if not found:
                break
            threading.Event().wait(LOOK_S)
        return found


@pytest.fixture
def demo(kafka: str, tmp_path: Path) -> Iterator[Demo]:
    found = Demo(kafka, tmp_path / "demo")
    yield found
    for pid in found.processes():
        os.kill(pid, signal.SIGKILL)


def _take_sigint() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _said_until(process: subprocess.Popen[str], word: str) -> str:
    """What the demo says up to the line with the word; it goes on without being read."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if word in line:
            return said
    raise AssertionError(said)


def test_a_message_is_delivered_once_though_the_worker_dies_before_it_knows(demo: Demo) -> None:
    """Killed between the service's store and its answer, the run asks, finds the message and goes on."""
    code, told, said = demo.play()
    del told["seconds"]
    assert told == {
        "status": "completed",
        "deliveries": 1,
        "lookups": 1,
        "model_calls": SCRIPTED_CALLS,
        "kills": 1,
        "reconciled": True,
        "crash": "after-store",
    }, said
    assert code == 0
    assert demo.left_processes() == {}


def test_a_plain_retry_delivers_twice(demo: Demo) -> None:
    """The same crash with a tool that is declared repeatable and is not: two deliveries, and failure."""
    code, told, said = demo.play("--naive")
    assert (told["status"], told["deliveries"]) == ("completed", 2), said
    assert code == 1


def test_a_person_decides_where_nothing_can_tell(demo: Demo) -> None:
    """Without a reconciliation tool the run waits for a decision, and delivers once after it."""
    code, told, said = demo.play("--no-reconcile")
    assert (told["status"], told["deliveries"], told["reconciled"]) == ("completed", 1, False), said
    assert "a person" in said
    assert code == 0


@pytest.mark.parametrize("point", ["orchestrator-after-commit", "model-mid-stream"])
def test_a_crash_elsewhere_delivers_once(demo: Demo, point: str) -> None:
    """Wherever a process is killed, the message is delivered once and only unfinished work is done again."""
    code, told, said = demo.play("--crash", point)
    assert (told["status"], told["deliveries"], told["lookups"], told["kills"]) == ("completed", 1, 1, 1), (
        said
    )
    assert code == 0, said


def test_ctrl_c_leaves_nothing_behind(demo: Demo) -> None:
    """Interrupted in the middle, the demo ends its processes and removes its topics."""
    process = demo.start()
    said = _said_until(process, "workers")
    (namespace,) = re.findall(r"demo-[0-9a-f]{12}", said.splitlines()[1])
    assert len(demo.processes()) >= 6  # the demo, two servers, three workers
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=DEMO_S_MAX)
    assert process.returncode == 130, rest
    assert demo.left_processes() == {}
    assert demo.left_topics(f"{namespace}.") == []


def test_a_killed_demo_leaves_no_process_and_the_next_one_starts(demo: Demo) -> None:
    """Kill -9 of the demo ends all it started; the next one removes the folder it left and plays."""
    process = demo.start()
    _said_until(process, "workers")
    (old,) = demo.home.iterdir()
    process.kill()
    process.communicate(timeout=DEMO_S_MAX)
    assert demo.left_processes() == {}
    code, told, said = demo.play("--crash", "before-claim")
    assert (code, told["deliveries"]) == (0, 1), said
    assert not old.exists()


def test_naive_is_refused_where_it_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """A naive tool is never claimed, so the points around the claim would never be reached."""
    with pytest.raises(SystemExit) as raised:
        main(["--naive", "--crash", "after-claim"])
    assert raised.value.code == 2
    assert "--naive" in capsys.readouterr().err


def test_live_without_a_key_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Asking the real model needs a key, and nothing is started without one."""
    assert main(["--live", "--folder", str(tmp_path)]) == 2
    assert "ANTHROPIC_API_KEY" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_demo_offers_crash_points_of_the_product() -> None:
    """What the demo arms is a named point of the product, each offered once."""
    armed = [point.crash_point for point in POINTS if point.crash_point]
    assert len(set(armed)) == len(armed) > 0
    assert set(armed) <= set(CRASH_POINTS)
