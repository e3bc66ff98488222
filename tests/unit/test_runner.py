"""Runners: bodies beside the engine, in a thread with a loop of its own or inline."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from perdure.processors.runner import AsyncRunner, Finished, InlineRunner, Runner
from perdure.schemas.results import Completed, ResultBody

WAIT_S = 10.0
DONE = Completed(b'""')


@pytest.fixture(params=[lambda: AsyncRunner(2), InlineRunner], ids=["async", "inline"])
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    runner: Runner = request.param()
    yield runner
    runner.close()


def _collect(runner: Runner, count: int) -> list[Finished]:
    found: list[Finished] = []
    for _ in range(1_000):
        found += runner.finished()
        if len(found) >= count:
            break
        runner.wait(WAIT_S)
    return found


def test_each_body_ends_once_with_its_result_or_its_error(runner: Runner) -> None:
    """What ended is told exactly once, by the number it was started with."""
    error = ValueError("a defect")

    async def answer() -> ResultBody:
        return DONE

    async def fail() -> ResultBody:
        await asyncio.sleep(0)
        raise error

    runner.start(1, answer)
    runner.start(2, fail)
    assert sorted(_collect(runner, 2), key=lambda each: each.number) == [
        Finished(1, DONE, None),
        Finished(2, None, error),
    ]
    assert runner.finished() == []


def test_a_cancelled_body_ends_without_result_and_without_error(runner: Runner) -> None:
    """Cancelling reaches a body that waits; an unknown number is nobody's."""

    async def wait() -> ResultBody:
        await asyncio.Event().wait()
        return DONE

    runner.start(1, wait)
    assert runner.finished() == []
    runner.cancel(7)
    runner.cancel(1)
    assert _collect(runner, 1) == [Finished(1, None, None)]
    runner.cancel(1)


def test_closing_leaves_bodies_that_do_not_listen(runner: Runner) -> None:
    """A body that ignores its cancellation does not keep the worker from ending."""
    deaf = 0

    async def never() -> ResultBody:
        nonlocal deaf
        while deaf < 1_000_000:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                deaf += 1
        return DONE

    runner.start(1, never)
    runner.finished()
    runner.close()


def test_a_blocking_body_does_not_block_who_collects() -> None:
    """The engine's thread goes on while the loop stands still, and waits no longer than it says."""
    runner, release = AsyncRunner(1), threading.Event()

    async def block() -> ResultBody:
        release.wait(WAIT_S)
        return DONE

    runner.start(1, block)
    runner.wait(0.01)
    assert runner.finished() == []
    release.set()
    assert _collect(runner, 1) == [Finished(1, DONE, None)]
    runner.close()
