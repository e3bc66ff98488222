"""A worker process: it becomes a new one in place, and a role that ends takes the others with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perdure.connectors.settings import Secret, Settings
from perdure.console import serving
from perdure.console.roles import AppMissing, ModelKeyMissing, Stopping, check_role
from perdure.console.slots import take_slot
from perdure.processors.executor.exits import Exit
from perdure.processors.orchestrator.host import SlotTaken
from perdure.topics.errors import ClientFatal, LogMisuse, Unavailable
from perdure.topics.table import Role

AGAIN = """
import os, socket, sys, threading
from perdure.console.serving import restart
marker = sys.argv[1]
print(os.getpid(), sorted(int(n) for n in os.listdir("/proc/self/fd")), flush=True)
if not os.path.exists(marker):
    open(marker, "w").close()
    kept = socket.socket()
    kept.set_inheritable(True)
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    restart("for the test")
"""


def test_a_restart_is_a_new_process_in_place_with_nothing_kept(tmp_path: Path) -> None:
    """Same process id and arguments; sockets and threads are gone, also those that would be inherited."""
    script = tmp_path / "again.py"
    script.write_text(AGAIN)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "marker")],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    first, second = done.stdout.splitlines()
    assert first == second


def test_a_process_that_hangs_when_it_was_asked_to_end_ends() -> None:
    """A new one in its place would not know that it was asked."""
    program = (
        "from perdure.console import serving\nfrom perdure.console.roles import Stopping\n"
        "stopping = Stopping()\nstopping.asked.set()\nserving._hung(stopping, 'close', 1.0)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert ended.returncode == serving.EXIT_CRASHED


def served(
    behaviour: dict[Role, Callable[[Stopping], int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> int:
    stopping = Stopping()
    means: Any = SimpleNamespace(stopping=stopping)

    def run_role(role: Role, _: object, __: object) -> int:
        return behaviour[role](stopping)

    monkeypatch.setattr(serving, "run_role", run_role)
    slots = {role: take_slot(tmp_path, "n", role) for role in behaviour}
    return serving._serve(means, slots)  # pyright: ignore[reportPrivateUsage]


def drained(stopping: Stopping) -> int:
    assert stopping.drain.wait(10), "nobody told it to drain"
    return 0


def raising(error: Exception) -> Callable[[Stopping], int]:
    def run(_: Stopping) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("ends", "wanted"),
    [
        (lambda _: Exit.TAINTED.value, Exit.TAINTED.value),
        (raising(ClientFatal()), Exit.BROKEN.value),
        (raising(Unavailable()), Exit.BROKEN.value),
        (raising(SlotTaken()), Exit.BROKEN.value),
        (raising(LogMisuse()), 3),
        (raising(KeyError("x")), serving.EXIT_CRASHED),
    ],
)
def test_when_a_role_ends_by_itself_the_others_drain_and_its_code_counts(
    ends: Callable[[Stopping], int], wanted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tainted, broken, stopped or crashed: one role of a process never goes on without another."""
    behaviour = {Role.ORCHESTRATOR: drained, Role.MODEL_CALLER: drained, Role.TOOL_EXECUTOR: ends}
    assert served(behaviour, tmp_path, monkeypatch) == wanted
    with take_slot(tmp_path, "n", Role.TOOL_EXECUTOR) as slot:
        assert slot.folder.name == "0", "slots are released at the end"


def test_tainted_and_broken_start_anew_and_a_stop_does_not() -> None:
    """What a new process mends is started anew; what a person has to mend is not."""
    assert Exit.TAINTED.value in serving.RESTARTS
    assert Exit.BROKEN.value in serving.RESTARTS
    assert not serving.RESTARTS & {0, 1, 2, 3, 4}


def test_the_first_signal_drains_and_the_second_leaves_at_once() -> None:
    """SIGTERM and SIGINT alike; roles see both wishes apart."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    stopping = Stopping()
    try:
        serving._listen(stopping)  # pyright: ignore[reportPrivateUsage]
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopping.drain.wait(5)
        assert stopping.asked.is_set()
        assert not stopping.now.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        assert stopping.now.wait(5)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert threading.current_thread() is threading.main_thread()


def test_a_signal_that_reaches_another_thread_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may give SIGTERM to any thread, as it does to a process that was just continued: it
    drains.
    """
    stopping = Stopping()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def told(_: object) -> int:
        ident = threading.get_ident()
        threading.Timer(0.2, signal.pthread_kill, (ident, signal.SIGTERM)).start()  # main waits by then
        return drained(stopping)

    try:
        serving._listen(stopping)  # pyright: ignore[reportPrivateUsage]
        assert served({Role.ORCHESTRATOR: told}, tmp_path, monkeypatch) == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_role_that_could_not_work_is_refused_before_it_joins() -> None:
    """No key, no model-caller; no app, no tool-executor; the orchestrator needs neither."""
    with pytest.raises(ModelKeyMissing):
        check_role(Role.MODEL_CALLER, Settings(), None)
    with pytest.raises(AppMissing):
        check_role(Role.TOOL_EXECUTOR, Settings(anthropic_api_key=Secret("k")), None)
    check_role(Role.MODEL_CALLER, Settings(anthropic_api_key=Secret("k")), None)
    check_role(Role.ORCHESTRATOR, Settings(), None)
