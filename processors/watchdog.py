"""A watchdog for calls that may hang for ever.

librdkafka's ``send_offsets_to_transaction`` ignores its time-out and can hang after a broker restart
(librdkafka 5456, 5511); a thread that hangs in C can not be interrupted. Overdue, the process ends: the log
is the truth, and whoever takes over starts from it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, Protocol

from perdure.processors.clock import Clock

EXIT_OVERDUE: Final = 70
"""Exit status of a process that its watchdog ended (EX_SOFTWARE of sysexits.h)."""
LOOK_INTERVAL_S: Final = 0.5

_log = logging.getLogger(__name__)


class Watchdog(Protocol):
    """Bounds how long a call may take."""

    def guard(self, name: str, limit_s: float) -> AbstractContextManager[None]:
        """While inside, the call ``name`` is watched; after ``limit_s`` seconds the process ends."""
        ...


class NoWatchdog:
    """For tests and the simulator, where nothing hangs."""

    def guard(self, name: str, limit_s: float) -> AbstractContextManager[None]:  # noqa: ARG002 - the port's names
        return nullcontext()


def _exit(name: str, limit_s: float) -> None:
    message = "%s did not return within %.0f s; ending this process"
    _log.critical(message, name, limit_s, extra={"action": "watchdog_exit", "call": name})
    logging.shutdown()
    os._exit(EXIT_OVERDUE)


class ThreadWatchdog:
    """Watches from a thread of its own. One guarded call at a time (calls belong to one thread)."""

    def __init__(self, clock: Clock, overdue: Callable[[str, float], None] = _exit) -> None:
        self._clock = clock
        self._overdue = overdue
        self._watched: tuple[str, float, float] | None = None  # name, limit_s, due (boot clock)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watchdog", daemon=True)
        self._thread.start()

    @contextmanager
    def guard(self, name: str, limit_s: float) -> Generator[None, None, None]:
        self._watched = (name, limit_s, self._clock.boot_s() + limit_s)
        try:
            yield
        finally:
            self._watched = None

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._closed.wait(LOOK_INTERVAL_S):
            watched = self._watched
            if watched is not None and self._clock.boot_s() >= watched[2]:
                self._watched = None
                self._overdue(watched[0], watched[1])
