"""The guardian: nothing of a process tree outlives its call or its worker, however it behaves."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from perdure.connectors import guardian
from perdure.connectors.guardian import Guarded, GuardianLost, NotStarted, head_of, tail_of
from perdure.connectors.guardian_process import read_stat
from perdure.processors.abort import AbortSignal

GRACE_S = 0.3
DEAD_S = GRACE_S + 0.5
START_S = 30.0  # Python itself, on a machine that does other things too
PATH = {"PATH": os.environ["PATH"]}
# Each writes process ids, one a line, to $PIDS, and goes on for ever unless it is stopped.
STUBBORN = 'trap "" TERM; sleep 1000 & echo $! >> "$PIDS"; echo $$ >> "$PIDS"; wait; wait'
LEFT_ITS_GROUP = 'setsid sh -c \'trap "" TERM; echo $$ >> "$PIDS"; exec sleep 1000\' & wait'
DAEMON = 'setsid sh -c \'trap "" TERM; sleep 1000 & echo $! >> "$PIDS"\'; sleep 1000'
LEADER_DEAD = (
    'sh -c \'trap "" TERM; echo $$ >> "$PIDS"; exec sleep 1000\' &'
    ' while ! [ -s "$PIDS" ]; do sleep 0.01; done; exit 7'
)
OBEDIENT = 'trap "exit 3" TERM; echo $$ >> "$PIDS"; while :; do sleep 0.02; done'


def lives(process: int) -> bool:
    stat = read_stat(process)
    return stat is not None and stat[0] not in {"Z", "X"}


def wait_until(happened: object, limit_s: float, what: str) -> float:
    assert callable(happened)
    begun_s = time.monotonic()
    while not happened():
        assert time.monotonic() - begun_s < limit_s, what
        time.sleep(0.005)  # a poll of other processes, bounded above
    return time.monotonic() - begun_s


class Tree:
    """The process ids that a script told."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "pids"
        self.env = {**PATH, "PIDS": str(self.file)}

    def pids(self) -> list[int]:
        return [int(line) for line in self.file.read_text().split()] if self.file.exists() else []

    def all_dead(self) -> bool:
        return not any(lives(each) for each in self.pids())

    async def grown(self, count: int) -> None:
        async with asyncio.timeout(START_S):
            while len(self.pids()) < count:  # noqa: ASYNC110 - it is another process that is waited for
                await asyncio.sleep(0.005)
        assert all(lives(each) for each in self.pids())


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.parametrize(
    ("script", "count"), [(STUBBORN, 2), (LEFT_ITS_GROUP, 1), (DAEMON, 1), (OBEDIENT, 1)],
    ids=["ignores SIGTERM", "left the group", "daemon", "obedient"],
)  # fmt: skip
def test_a_stopped_tree_is_dead_after_the_grace_period(tree: Tree, script: str, count: int) -> None:
    """Descendants that ignore SIGTERM, left the group or lost their parents die with the rest."""

    async def scenario() -> float:
        process = await Guarded.start(["sh", "-c", script], env=tree.env, grace_s=GRACE_S)
        try:
            await tree.grown(count)
            begun_s = time.monotonic()
            process.stop()
            await process.ended()
            assert await process.gone()
            took_s = time.monotonic() - begun_s
            assert tree.all_dead()
            assert await process.stdout.read() == b""
            return took_s
        finally:
            process.close()

    took_s = asyncio.run(scenario())
    assert took_s < DEAD_S
    if script == OBEDIENT:
        assert took_s < GRACE_S, "who listens to SIGTERM is not waited for"


def test_what_obeys_sigterm_ends_by_itself(tree: Tree) -> None:
    """The exit code of a command that ends within the grace period is its own."""

    async def scenario() -> int:
        process = await Guarded.start(["sh", "-c", OBEDIENT], env=tree.env, grace_s=START_S)
        try:
            await tree.grown(1)
            process.stop()
            return await process.ended()
        finally:
            process.close()

    assert asyncio.run(scenario()) == 3


def test_a_descendant_that_holds_the_output_is_killed_when_the_command_has_ended(tree: Tree) -> None:
    """The leader is dead, its grandchild ignores SIGTERM and holds stdout: the call still returns."""

    async def scenario() -> tuple[int, bytes]:
        process = await Guarded.start(["sh", "-c", LEADER_DEAD], env=tree.env, grace_s=GRACE_S)
        try:
            async with asyncio.timeout(START_S):
                code = await process.ended()
                assert await process.gone()
                return code, await process.stdout.read()
        finally:
            process.close()

    assert asyncio.run(scenario()) == (7, b"")
    assert len(tree.pids()) == 1
    assert tree.all_dead()


def test_closing_without_waiting_stops_the_tree_too(tree: Tree) -> None:
    """A call that is given up leaves nothing behind, although nobody waits."""

    async def scenario() -> None:
        process = await Guarded.start(["sh", "-c", STUBBORN], env=tree.env, grace_s=GRACE_S)
        await tree.grown(2)
        process.close()
        await asyncio.sleep(0)

    asyncio.run(scenario())
    wait_until(tree.all_dead, DEAD_S, "something outlived the call")


WORKER = """
import asyncio, os, sys
from perdure.connectors.guardian import Guarded

async def main():
    kept = await Guarded.start(["sh", "-c", sys.argv[1]], env=dict(os.environ), grace_s=float(sys.argv[2]))
    await asyncio.Event().wait()

# A child that holds everything its parent had, the channel to the guardian included.
if len(sys.argv) > 3:
    import threading, time
    def fork_late():
        while not os.path.exists(os.environ["PIDS"]):
            time.sleep(0.01)
        child = os.fork()
        if child == 0:
            open(os.environ["PIDS"] + ".forked", "w").write(str(os.getpid()))
            time.sleep(1000)
            os._exit(0)
    threading.Thread(target=fork_late, daemon=True).start()
asyncio.run(main())
"""


@pytest.mark.parametrize("script", [STUBBORN, LEFT_ITS_GROUP, DAEMON], ids=["stubborn", "left", "daemon"])
def test_nothing_outlives_a_killed_worker(tree: Tree, script: str) -> None:
    """After kill -9 of the worker no descendant lives after the grace period and half a second."""
    worker = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WORKER), script, str(GRACE_S)], env={**os.environ, **tree.env}
    )
    try:
        wait_until(lambda: len(tree.pids()) >= (2 if script == STUBBORN else 1), START_S, "it did not start")
        assert all(lives(each) for each in tree.pids())
    finally:
        worker.kill()
        worker.wait()
    wait_until(tree.all_dead, DEAD_S, "something outlived the worker")


def test_a_forked_child_of_the_worker_keeps_nothing_alive(tree: Tree) -> None:
    """A child that inherited the worker's end of the channel does not hide the worker's death."""
    worker = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(WORKER), STUBBORN, str(GRACE_S), "fork"],
        env={**os.environ, **tree.env},
    )
    forked = Path(f"{tree.file}.forked")
    try:
        wait_until(lambda: len(tree.pids()) >= 2, START_S, "it did not start")
        wait_until(lambda: forked.exists() and forked.read_text(), START_S, "it did not fork")
    finally:
        worker.kill()
        worker.wait()
    try:
        wait_until(tree.all_dead, DEAD_S, "something outlived the worker")
        assert lives(int(forked.read_text()))
    finally:
        os.kill(int(forked.read_text()), signal.SIGKILL)


def test_signals_to_the_worker_s_group_do_not_reach_the_tree(tree: Tree) -> None:
    """Ctrl-C in the worker's terminal is the worker's to answer: it drains, its tools go on."""

    async def scenario() -> None:
        process = await Guarded.start(["sh", "-c", OBEDIENT], env=tree.env, grace_s=GRACE_S)
        try:
            await tree.grown(1)
            (command,) = tree.pids()
            assert os.getpgid(command) == command
            assert os.getsid(command) == command
            assert os.getpgid(command) != os.getpgid(0)
        finally:
            process.close()

    asyncio.run(scenario())
    wait_until(tree.all_dead, DEAD_S, "it went on")


def test_a_guardian_that_is_killed_takes_the_command_with_it(tree: Tree) -> None:
    """Who kills the guardian learns nothing, the call fails, and the command does not go on unwatched."""

    async def scenario() -> None:
        process = await Guarded.start(["sh", "-c", OBEDIENT], env=tree.env, grace_s=GRACE_S)
        try:
            await tree.grown(1)
            stat = read_stat(tree.pids()[0])
            assert stat is not None
            os.kill(stat[1], signal.SIGKILL)
            with pytest.raises(GuardianLost):
                await process.ended()
        finally:
            process.close()

    asyncio.run(scenario())
    wait_until(tree.all_dead, DEAD_S, "it went on")


@pytest.mark.parametrize(
    "command", [["/no/such/command"], ["no-such-command"], [__file__], ["nul\0byte"]],
    ids=["absent", "not on the path", "not executable", "nul"],
)  # fmt: skip
def test_a_command_that_cannot_be_executed_was_not(command: list[str]) -> None:
    """Nothing happened, and the error says so and what to do."""

    async def scenario() -> None:
        process = await Guarded.start(command, env=PATH)
        try:
            await process.ended()
        finally:
            process.close()

    with pytest.raises(NotStarted, match=r"\[command_not_started\].*PATH"):
        asyncio.run(scenario())


def test_a_guardian_that_does_not_come_up_started_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the word that it is starting, nothing was executed."""
    monkeypatch.setattr(guardian, "PROGRAM", Path(os.devnull))
    with pytest.raises(NotStarted, match="did not come up"):
        asyncio.run(Guarded.start(["true"], env=PATH))


def test_pipes_carry_what_is_written_and_the_environment_is_exactly_what_was_given() -> None:
    """The command reads stdin, writes stdout and stderr, and sees no variable of the worker."""

    async def scenario() -> tuple[bytes, int, bytes, int]:
        script = "cat; tr '\\0' ' ' < /proc/$$/environ; printf 0123456789 >&2; kill -9 $$"
        process = await Guarded.start(["/bin/sh", "-c", script], env={**PATH, "ONE": "1"})
        try:
            process.stdin.write(b"in ")
            process.stdin.close()
            (head, count), tail, code = await asyncio.gather(
                head_of(process.stdout, 1000), tail_of(process.stderr, 4), process.ended()
            )
            return head, count, tail, code
        finally:
            process.close()

    seen = f"in PATH={PATH['PATH']} ONE=1 ".encode()
    assert asyncio.run(scenario()) == (seen, len(seen), b"6789", -signal.SIGKILL)


def test_output_is_cut_while_it_is_read() -> None:
    """The head of an output keeps its first bytes, a tail its last; both are read to their end."""

    async def scenario() -> tuple[tuple[bytes, int], bytes]:
        one, other = asyncio.StreamReader(), asyncio.StreamReader()
        for reader in (one, other):
            reader.feed_data(b"0123456789")
            reader.feed_eof()
        return await head_of(one, 4), await tail_of(other, 4)

    assert asyncio.run(scenario()) == ((b"0123", 10), b"6789")


ORDINARY_SIGNALS = (1 << 31) - 1  # above lie those that the C library keeps for its threads


def test_default_signals_are_restored_for_the_command() -> None:
    """What the guardian ignores for itself is not ignored by the command."""

    async def scenario() -> bytes:
        process = await Guarded.start(["grep", "SigIgn", "/proc/self/status"], env=PATH)
        try:
            output, _ = await asyncio.gather(process.stdout.read(), process.ended())
            return output
        finally:
            process.close()

    ignored = int(asyncio.run(scenario()).split()[1], 16)
    assert ignored & ORDINARY_SIGNALS == 0


def test_an_abort_reaches_a_waiting_call(tree: Tree) -> None:
    """From the abort to a dead tree it takes at most the grace period and half a second."""

    async def scenario() -> float:
        abort = AbortSignal()
        process = await Guarded.start(["sh", "-c", STUBBORN], env=tree.env, grace_s=GRACE_S)
        try:
            await tree.grown(2)
            asyncio.get_running_loop().call_soon(abort.abort, "cancelled")
            await abort.wait()
            begun_s = time.monotonic()
            process.stop()
            assert await process.ended() == -signal.SIGKILL
            assert await process.gone()
            return time.monotonic() - begun_s
        finally:
            process.close()

    assert GRACE_S * 0.9 < asyncio.run(scenario()) < DEAD_S
