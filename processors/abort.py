"""AbortSignal: how a cancel reaches a model stream or a tool."""

from __future__ import annotations

import asyncio
import threading

from perdure.schemas.errors import Reject


class Aborted(Reject):
    """The call was aborted."""

    code = "aborted"
    remedy = "Stop working and return; the run no longer waits for an answer."


class AbortSignal:
    """Set once, never cleared. Safe to read from any thread; ``wait`` belongs to the loop it is awaited
    in.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self.reason: str | None = None

    @property
    def aborted(self) -> bool:
        return self._event.is_set()

    def raise_if_aborted(self) -> None:
        """Raise :class:`Aborted` if the signal is set."""
        if self.aborted:
            raise Aborted(self.reason)

    def abort(self, reason: str) -> None:
        """Set the signal; the first reason stays."""
        with self._lock:
            if self._event.is_set():
                return
            self.reason = reason
            self._event.set()
            waiters, self._waiters = self._waiters, []
        for loop, event in waiters:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    async def wait(self) -> str:
        """Wait until the signal is set; returns the reason."""
        event = asyncio.Event()
        with self._lock:
            if not self._event.is_set():
                self._waiters.append((asyncio.get_running_loop(), event))
            else:
                event.set()
        await event.wait()
        return self.reason or ""

    def wait_blocking(self, timeout_s: float | None = None) -> bool:
        """For tools that run in a thread: wait, at most ``timeout_s``; returns whether the signal is set."""
        return self._event.wait(timeout_s)
