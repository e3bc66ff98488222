"""Virtual time, seeded chance, and an event loop that lives by them: no threads, no sleeps."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor
from random import Random
from typing import Any, Final, TypeVar

from perdure.processors.runner import Body, Finished
from perdure.schemas.results import ResultBody
from perdure.topics.model_cluster import ModelCluster

PASSES: Final = 12
"""Loop passes per look: enough for a tool that waits for nothing to begin, to end and to be told of."""

T = TypeVar("T")


def seeded(seed: int) -> Random:
    """A generator of its own: chance in a test is one seed, one history."""
    return Random(seed)  # noqa: S311 - nothing is kept secret with it


class VirtualClock:
    """Both clocks of :class:`perdure.processors.clock.Clock` are the cluster's."""

    def __init__(self, cluster: ModelCluster) -> None:
        self._cluster = cluster

    def wall_ms(self) -> int:
        return self._cluster.now_ms

    def boot_s(self) -> float:
        return self._cluster.now_ms / 1000


class SeededEntropy:
    """Bytes that look random and are the same for the same seed."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def take(self, count: int) -> bytes:
        return self._random.randbytes(count)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers fall due in virtual time. What is sent to its threads runs at once, here."""

    def __init__(self, clock: VirtualClock) -> None:
        self._virtual = clock
        super().__init__()

    def time(self) -> float:
        return self._virtual.boot_s()

    def run_in_executor(  # type: ignore[override]
        self,
        executor: Executor | None,  # noqa: ARG002 - there are no threads
        func: Callable[..., T],
        *args: Any,
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(contextvars.copy_context().run(func, *args))
        except Exception as error:  # noqa: BLE001 - it belongs to whoever awaits
            future.set_exception(error)
        return future


class VirtualRunner:
    """See :class:`perdure.processors.runner.Runner`. ``on_wait``: moves the clock by so many seconds."""

    def __init__(self, clock: VirtualClock, on_wait: Callable[[float], None]) -> None:
        self._loop = VirtualLoop(clock)
        self._tasks: dict[int, asyncio.Task[ResultBody]] = {}
        self._on_wait = on_wait

    def start(self, number: int, body: Body) -> None:
        self._tasks[number] = self._loop.create_task(body())

    def cancel(self, number: int) -> None:
        if (task := self._tasks.get(number)) is not None:
            task.cancel()

    def finished(self) -> list[Finished]:
        if not self._tasks or self._loop.is_closed():
            return []
        self._pass()
        ended = [(number, task) for number, task in self._tasks.items() if task.done()]
        for number, _ in ended:
            del self._tasks[number]
        return [_outcome(number, task) for number, task in ended]

    def wait(self, timeout_s: float) -> None:
        self._on_wait(timeout_s)

    def close(self) -> None:
        """End what runs; a tool that does not listen to its cancellation is left where it stands.

        A killed worker's runner is closed only when the test ends: nothing of it runs until then.
        """
        if self._loop.is_closed():
            return
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.set_exception_handler(_ignore)
        self._pass()
        for task in self._tasks.values():
            if task.done() and not task.cancelled():
                task.exception()  # looked at, so that asyncio does not complain
        self._tasks.clear()
        self._loop.close()

    def _pass(self) -> None:
        for _ in range(PASSES):
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()


def _ignore(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What a left tool still says is of no interest."""


def _outcome(number: int, task: asyncio.Task[ResultBody]) -> Finished:
    if task.cancelled():
        return Finished(number, None, None)
    error = task.exception()
    return Finished(number, task.result() if error is None else None, error)
