"""Processes that do not outlive their call: each runs under a guardian (``guardian_process``).

The guardian stops the whole tree of processes when it is told to, and when this process dies in any way.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, cast

from perdure.connectors.tool import NotExecuted
from perdure.connectors.tool_failures import ToolFailure

# Named in full, so that it is plain what is started: perdure.connectors.guardian_process.
PROGRAM: Final = Path(__file__).with_name("guardian_process.py")
MODULE: Final = "perdure.connectors.guardian_process"
GRACE_S_DEFAULT: Final = 2.0
# The engine waits 4 s for an aborted call (function_tools.ABORT_GRACE_S); killing and reaping fit in as well.
GRACE_S_MAX: Final = 3.0
# After SIGKILL: how long it is waited for what cannot die at once (a disk that does not answer).
KILL_WAIT_S: Final = 0.5
READ_BYTES: Final = 64 << 10


class NotStarted(NotExecuted):
    """The command could not be executed."""

    code = "command_not_started"
    remedy = "Check that the command exists, may be executed, and is found on the PATH the tool is given."


class GuardianLost(ToolFailure):
    """The guardian of a process ended without telling how the process ended."""

    code = "guardian_lost"
    remedy = "Find out who killed it; the processes it watched may still run."


class Guarded:
    """A process under a guardian, used in one event loop.

    ``stdin``, ``stdout``, ``stderr`` are pipes of the process. :meth:`close` must be called; it also stops
    what still runs, without waiting.
    """

    def __init__(self, channel: tuple[asyncio.StreamReader, asyncio.StreamWriter], grace_s: float) -> None:
        self._told, self._channel = channel
        self._grace_s = grace_s
        self._transports: list[asyncio.BaseTransport] = []
        self.stdin: asyncio.StreamWriter
        self.stdout: asyncio.StreamReader
        self.stderr: asyncio.StreamReader

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | os.PathLike[str] | None = None,
        grace_s: float = GRACE_S_DEFAULT,
    ) -> Guarded:
        """Execute ``command`` (no shell), with exactly the environment ``env``.

        ``grace_s``: between SIGTERM and SIGKILL.

        Raises:
            NotStarted: it was definitely not executed.
            GuardianLost: it may have been executed.
        """
        ours, theirs = socket.socketpair()
        try:
            process = _spawn(command, env, cwd, grace_s, theirs)
        except (OSError, ValueError) as error:
            ours.close()
            raise NotStarted(f"{command[0]!r}: {error}") from error
        finally:
            theirs.close()
        # A thread of its own, so that the guardian is reaped whatever becomes of the loop.
        threading.Thread(target=process.wait, name="guardian-reaper", daemon=True).start()
        self = cls(await asyncio.open_connection(sock=ours), grace_s)
        try:
            await self._connect(process)
            await self._begin(command)
        except BaseException:
            self.close()
            raise
        return self

    async def _connect(self, process: subprocess.Popen[bytes]) -> None:
        loop = asyncio.get_running_loop()
        protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
        transport, _ = await loop.connect_write_pipe(lambda: protocol, cast("IO[bytes]", process.stdin))
        self._transports.append(transport)
        self.stdin = asyncio.StreamWriter(transport, protocol, None, loop)
        self.stdout = await self._reader(cast("IO[bytes]", process.stdout))
        self.stderr = await self._reader(cast("IO[bytes]", process.stderr))

    async def _reader(self, pipe: IO[bytes]) -> asyncio.StreamReader:
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        self._transports.append(transport)
        return reader

    async def _begin(self, command: Sequence[str]) -> None:
        if (line := await self._line()) == "starting":
            return
        if line.startswith("refused"):
            raise NotStarted(f"{command[0]!r}: {_words(line)}")
        raise NotStarted(f"{command[0]!r}: the guardian did not come up.")  # it had not begun

    async def ended(self) -> int:
        """Wait for the command itself to end: its exit code, or minus the signal that killed it.

        What it left behind is being stopped then.

        Raises:
            NotStarted: it was definitely not executed.
            GuardianLost.
        """
        line = await self._line()
        match line.split():
            case ["exited", code]:
                return int(code)
            case ["killed", number]:
                return -int(number)
            case ["refused", *_]:
                raise NotStarted(_words(line))
            case _:
                raise GuardianLost(None)

    async def gone(self) -> bool:
        """Wait until nothing of the tree lives, at most the grace period and ``KILL_WAIT_S``."""
        with suppress(TimeoutError, GuardianLost, NotStarted):
            async with asyncio.timeout(self._grace_s + KILL_WAIT_S):
                while (line := await self._line()) != "gone":
                    if not line:
                        return False
                return True
        return False

    def stop(self) -> None:
        """Stop the tree: SIGTERM, after the grace period SIGKILL; returns at once."""
        with suppress(OSError):  # the guardian may be gone
            self._channel.write_eof()

    def close(self) -> None:
        """Let go of it; the guardian stops what still runs."""
        self._channel.close()
        for each in self._transports:
            if isinstance(each, asyncio.WriteTransport):
                if not each.is_closing():
                    each.abort()
            else:
                each.close()

    async def _line(self) -> str:
        try:
            return (await self._told.readline()).decode().strip()
        except OSError:
            return ""


def _spawn(
    command: Sequence[str],
    env: Mapping[str, str],
    cwd: str | os.PathLike[str] | None,
    grace_s: float,
    channel: socket.socket,
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            sys.executable, "-I", "-S", str(PROGRAM),
            str(channel.fileno()), str(os.getpid()), str(round(grace_s * 1000)),
            "given" if "LC_CTYPE" in env else "unset", *command,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(env),
        cwd=cwd,
        pass_fds=(channel.fileno(),),
        start_new_session=True,  # what a terminal or a supervisor sends to the worker's group is not for it
    )  # fmt: skip


def _words(line: str) -> str:
    return os.strerror(int(line.split()[1]))


async def head_of(reader: asyncio.StreamReader, bytes_max: int) -> tuple[bytes, int]:
    """Read to the end: (the first ``bytes_max`` bytes, how many there were)."""
    kept = bytearray()
    count = 0
    while chunk := await reader.read(READ_BYTES):
        count += len(chunk)
        kept += chunk[: bytes_max - len(kept)]
    return bytes(kept), count


async def tail_of(reader: asyncio.StreamReader, bytes_max: int) -> bytes:
    """Read to the end: the last ``bytes_max`` bytes."""
    kept = b""
    while chunk := await reader.read(READ_BYTES):
        kept = (kept + chunk)[-bytes_max:]
    return kept
