"""The guardian of one process tree: the program that ``perdure.connectors.guardian`` starts.

Run as ``python -I -S guardian_process.py CHANNEL PARENT GRACE_MS LC_CTYPE COMMAND...``; it needs nothing but
Python itself. CHANNEL is an inherited socket to the worker, PARENT the worker's process id; LC_CTYPE is
``given`` or ``unset``: Python sets that variable by itself (PEP 538), and the command is to have exactly the
environment that was meant for it.

It starts the command in a session and process group of its own and makes itself the reaper of everything that
descends from it: a process that leaves the group or loses its parents becomes the guardian's child, so it can
be found. The tree is stopped when the worker shuts its end of the channel, when the worker dies, or when the
command has ended and left something behind: SIGTERM to the group and to whoever left it, SIGKILL to what is
still there when the grace period is over.

It tells the worker, a line each: ``starting`` (from here on the command may have run), ``refused ERRNO``
(it did not), ``exited CODE`` or ``killed SIGNAL`` (of the command itself), ``gone`` (nothing lives any more).
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# While what will not die is being killed: how soon it is looked at again.
RESCAN_MS = 10
UNSUPPORTED_ERRNO = 38  # ENOSYS


def main(arguments: list[str]) -> int:
    channel = socket.socket(fileno=int(arguments[0]))
    channel.set_inheritable(False)
    parent, grace_ms, command = int(arguments[1]), int(arguments[2]), arguments[4:]
    if arguments[3] == "unset":
        os.environ.pop("LC_CTYPE", None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the worker's word and its death count
    try:
        worker = os.pidfd_open(parent)
        become_reaper()
    except OSError as error:
        tell(channel, f"refused {error.errno}")
        return 1
    if os.getppid() != parent:  # the worker died before it could be watched
        return 0
    wakened, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, wake)
    tell(channel, "starting")
    leader = start(command, channel)
    if leader is None:
        return 1
    Guardian(channel, worker, wakened, leader, grace_ms / 1000).watch()
    return 0


def wake(number: int, frame: object) -> None:
    """Nothing; a signal that has a handler of its own wakes the poll."""


def become_reaper() -> None:
    """Raises OSError where the kernel cannot do it or /proc does not show processes."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    if read_stat(os.getpid()) is None:
        raise OSError(UNSUPPORTED_ERRNO, "there is no /proc")


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def tell(channel: socket.socket, line: str) -> None:
    with suppress(OSError):  # there may be no worker any more
        channel.sendall(f"{line}\n".encode(), socket.MSG_NOSIGNAL)


def start(command: list[str], channel: socket.socket) -> int | None:
    """Process id of the command, the leader of a new group; None, and told, if it could not be executed."""
    failed, failing = os.pipe2(os.O_CLOEXEC)
    guardian = os.getpid()
    leader = os.fork()
    if leader == 0:
        try:
            _become(command, guardian)
        except OSError as error:
            os.write(failing, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(failing)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):  # else the guardian would hold the output open
        os.dup2(nothing, number)
    os.close(nothing)
    fault = os.read(failed, 16)  # ends when the command is executed
    os.close(failed)
    if fault:
        os.waitpid(leader, 0)
        tell(channel, f"refused {fault.decode()}")
        return None
    return leader


def _become(command: list[str], guardian: int) -> None:
    os.setsid()
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # should anybody kill the guardian itself
    if os.getppid() != guardian:
        os._exit(127)
    for number in (
        signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM,
        signal.SIGPIPE, signal.SIGXFSZ,
    ):  # fmt: skip
        signal.signal(number, signal.SIG_DFL)
    os.execvp(command[0], command)  # noqa: S606 - no shell is wanted


class Guardian:
    """Watches a leader, its descendants and the worker until nothing of the tree lives."""

    def __init__(
        self, channel: socket.socket, worker: int, wakened: int, leader: int, grace_s: float
    ) -> None:
        self.channel = channel
        self.worker = worker
        self.wakened = wakened
        self.leader = leader
        self.grace_s = grace_s
        self.is_told = False
        self.is_stopping = False
        self.is_killing = False

    def watch(self) -> None:
        poll = select.poll()
        for number in (self.channel.fileno(), self.worker, self.wakened):
            poll.register(number, select.POLLIN)
        while True:
            for number, _ in poll.poll(RESCAN_MS if self.is_killing else None):
                if number == self.wakened:
                    if signal.SIGALRM in os.read(self.wakened, 4096):
                        self.is_killing = True
                    continue
                poll.unregister(number)  # the worker sends nothing: it is its end, or its death
                self.stop()
            if self.look():
                tell(self.channel, "gone")
                return

    def look(self) -> bool:
        """Reap, report, kill; whether nothing is left."""
        living, dead = descendants(os.getpid())
        for process in dead:
            # The leader stays a zombie to the end: so its number, which is the group's, is not used again.
            if process != self.leader:
                with suppress(ChildProcessError):
                    os.waitpid(process, os.WNOHANG)
        if not self.is_told:
            self.report()
        if not self.is_told:
            return False
        if not living:
            return True
        self.stop()
        if self.is_killing:
            self.send(signal.SIGKILL, living)
        return False

    def report(self) -> None:
        ended = os.waitid(os.P_PID, self.leader, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None:
            self.is_told = True
            how = "exited" if ended.si_code == os.CLD_EXITED else "killed"
            tell(self.channel, f"{how} {ended.si_status}")
        elif self.is_killing:
            self.send(signal.SIGKILL, descendants(os.getpid())[0])

    def stop(self) -> None:
        if self.is_stopping:
            return
        self.is_stopping = True
        self.send(signal.SIGTERM, descendants(os.getpid())[0])
        if self.grace_s > 0:
            signal.setitimer(signal.ITIMER_REAL, self.grace_s)
        else:
            self.is_killing = True

    def send(self, number: signal.Signals, living: list[int]) -> None:
        """To the whole group at once, so that nobody in it can fork away; then to those who left it."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.leader, number)
        for process in living:
            group = -1
            with suppress(OSError):
                group = os.getpgid(process)
            if group != self.leader:
                send_safely(process, number)


def send_safely(process: int, number: signal.Signals) -> None:
    """Send it unless the process ended and its number was given to a stranger meanwhile."""
    with suppress(OSError):
        handle = os.pidfd_open(process)
        try:
            living, _ = descendants(os.getpid())
            if process in living:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def descendants(root: int) -> tuple[list[int], list[int]]:
    """(living descendants of a process, its direct children that are dead and not reaped)."""
    children: dict[int, list[int]] = {}
    dead: list[int] = []
    zombies: set[int] = set()
    for process, state, parent in processes():
        children.setdefault(parent, []).append(process)
        if state in {"Z", "X"}:
            zombies.add(process)
            if parent == root:
                dead.append(process)
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        waiting.extend(below)
        found.extend(process for process in below if process not in zombies)
    return found, dead


def processes() -> Iterator[tuple[int, str, int]]:
    """(id, state, parent) of each process that can be seen."""
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib would double the time to start
        if name.isdigit():
            stat = read_stat(int(name))
            if stat is not None:
                yield (int(name), *stat)


def read_stat(process: int) -> tuple[str, int] | None:
    """(state, parent); the name before them may hold any characters, also parentheses (proc(5))."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:  # noqa: PTH123 - as above
            state, parent = file.read().rpartition(b")")[2].split()[:2]
    except (OSError, ValueError):
        return None
    return state.decode(), int(parent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
