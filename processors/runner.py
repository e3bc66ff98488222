"""Where calls run: beside the engine, which only ever collects what has ended.

:class:`AsyncRunner` is an asyncio loop in a thread of its own. :class:`InlineRunner` runs the same
coroutines on the caller's thread, a few loop passes at a time, so that tests and the simulator are
deterministic.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from perdure.schemas.results import ResultBody

JOIN_S: Final = 2.0
INLINE_PASSES: Final = 4
"""Loop passes per look; enough for a body that waits for nothing to begin and to end."""

Body: TypeAlias = Callable[[], Coroutine[Any, Any, ResultBody]]


@dataclass(frozen=True, slots=True)
class Finished:
    """A body that ended: with a result, with an error, or (both None) cancelled."""

    number: int
    body: ResultBody | None
    error: BaseException | None


class Runner(Protocol):
    """Runs bodies concurrently. Used from one thread."""

    def start(self, number: int, body: Body) -> None: ...

    def cancel(self, number: int) -> None:
        """Cancel the body's task; one that does not listen goes on. Unknown numbers are ignored."""
        ...

    def finished(self) -> list[Finished]:
        """What has ended since the last look, each once."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Let bodies run until one has ended, at most ``timeout_s``."""
        ...

    def close(self) -> None:
        """Cancel everything and go, without waiting for threads that do not listen."""
        ...


def _outcome(number: int, task: asyncio.Task[ResultBody]) -> Finished:
    if task.cancelled():
        return Finished(number, None, None)
    error = task.exception()
    return Finished(number, None if error is not None else task.result(), error)


class AsyncRunner:
    """An asyncio loop in its own thread. ``threads_max``: how many blocking tools may run at once.

    A thread that never returns keeps the interpreter from ending by itself: a process that abandoned calls
    has to end with ``os._exit``.
    """

    def __init__(self, threads_max: int, name: str = "perdure-calls") -> None:
        self._ended: list[Finished] = []
        self._changed = threading.Condition()
        self._tasks: dict[int, asyncio.Task[ResultBody]] = {}
        self._loop = asyncio.new_event_loop()
        self._pool = ThreadPoolExecutor(threads_max, thread_name_prefix=f"{name}-tool")
        self._loop.set_default_executor(self._pool)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, number: int, body: Body) -> None:
        self._loop.call_soon_threadsafe(self._begin, number, body)

    def cancel(self, number: int) -> None:
        self._loop.call_soon_threadsafe(self._cancel, number)

    def finished(self) -> list[Finished]:
        with self._changed:
            ended, self._ended = self._ended, []
        return ended

    def wait(self, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._ended), timeout_s)

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop)
            self._thread.join(JOIN_S)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _begin(self, number: int, body: Body) -> None:
        task = self._loop.create_task(body())
        self._tasks[number] = task
        task.add_done_callback(lambda done: self._post(number, done))

    def _post(self, number: int, task: asyncio.Task[ResultBody]) -> None:
        del self._tasks[number]
        with self._changed:
            self._ended.append(_outcome(number, task))
            self._changed.notify_all()

    def _cancel(self, number: int) -> None:
        if (task := self._tasks.get(number)) is not None:
            task.cancel()

    def _stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        # One pass lets the tasks see it; what still runs then is left where it stands.
        self._loop.call_soon(lambda: self._loop.call_soon(self._loop.stop))


class InlineRunner:
    """The same on the caller's thread. ``on_wait``: moves a virtual clock by the seconds waited for."""

    def __init__(self, on_wait: Callable[[float], None] | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._tasks: dict[int, asyncio.Task[ResultBody]] = {}
        self._on_wait = on_wait

    def start(self, number: int, body: Body) -> None:
        self._tasks[number] = self._loop.create_task(body())

    def cancel(self, number: int) -> None:
        if (task := self._tasks.get(number)) is not None:
            task.cancel()

    def finished(self) -> list[Finished]:
        if not self._tasks:
            return []
        for _ in range(INLINE_PASSES):
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()
        ended = [_outcome(number, task) for number, task in self._tasks.items() if task.done()]
        for each in ended:
            del self._tasks[each.number]
        return ended

    def wait(self, timeout_s: float) -> None:
        if self._on_wait is not None:
            self._on_wait(timeout_s)

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self.finished()  # lets them see it; what does not listen is left where it stands
        self._tasks.clear()
        self._loop.close()
