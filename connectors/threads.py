"""A bounded pool of daemon threads for tools that are plain functions.

Unlike ``concurrent.futures.ThreadPoolExecutor`` it does not wait for its threads at interpreter exit: a tool
that ignores its abort must not keep a drained worker from ending. Such a thread keeps its place in the pool.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

THREADS_MAX_DEFAULT: Final = 64


class _Work(Generic[T]):
    __slots__ = ("call", "future")

    def __init__(self, call: Callable[[], T]) -> None:
        self.call = call
        self.future: Future[T] = Future()

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            value = self.call()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to whoever waits
            self.future.set_exception(error)
        else:
            self.future.set_result(value)


class Threads:
    """At most ``threads_max`` threads, started when needed, kept for the next call."""

    def __init__(self, threads_max: int = THREADS_MAX_DEFAULT, name: str = "tool") -> None:
        assert threads_max > 0
        self._threads_max = threads_max
        self._name = name
        self._waiting: deque[_Work[Any]] = deque()
        self._changed = threading.Condition()
        self._started = 0
        self._idle = 0
        self._closed = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run ``call`` in a thread; ``cancel()`` of the future is true only if it will never begin."""
        work = _Work(call)
        with self._changed:
            assert not self._closed, "the pool was closed"
            self._waiting.append(work)
            if self._idle >= len(self._waiting) or self._started == self._threads_max:
                self._changed.notify()
            else:
                self._started += 1
                threading.Thread(
                    target=self._serve, name=f"{self._name}-{self._started}", daemon=True
                ).start()
        return work.future

    def close(self) -> None:
        """Let idle threads end; what runs or waits is still done."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while not self._waiting and not self._closed:
                    self._changed.wait()
                self._idle -= 1
                if not self._waiting:
                    return
                work = self._waiting.popleft()
            work.run()
            del work  # a result must not live until the next call
