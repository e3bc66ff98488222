"""A tool-executor as a process of its own, for tests that kill it: run with one JSON argument.

Its tools write to a ground-truth file, one line as they begin and one as they end: ``B|E call attempt pid``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys

from perdure.processors.abort import AbortSignal
from perdure.processors.clock import SystemClock, SystemEntropy
from perdure.processors.executor.engine import Executor, Phase
from perdure.processors.executor.settings import ExecutorSettings
from perdure.processors.ports import ToolAnswer, ToolInvocation
from perdure.processors.runner import AsyncRunner
from perdure.processors.tool_executor import ToolExecutor
from perdure.schemas.results import Completed
from perdure.topics.kafka_log import KafkaLog
from perdure.topics.log import GroupProtocol
from perdure.topics.table import Namespace


class FixedProtocol(KafkaLog):
    """A cluster whose executors form groups of one protocol, whatever it offers."""

    def __init__(self, bootstrap: str, protocol: GroupProtocol) -> None:
        super().__init__(bootstrap)
        self._fixed = protocol

    def consumer_protocol(self) -> GroupProtocol:
        return self._fixed


class TruthfulTools:
    """Every tool sleeps for ``arguments["ms"]`` milliseconds, between two lines in the file."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def knows(self, definition: str, tool: str) -> bool:
        return True

    async def call(self, call: ToolInvocation, abort: AbortSignal) -> ToolAnswer:
        self._note("B", call)
        await asyncio.sleep(call.arguments["ms"] / 1000)
        self._note("E", call)
        return Completed(b'"done"')

    def _note(self, what: str, call: ToolInvocation) -> None:
        os.write(self._file, f"{what} {call.call_id} {call.attempt} {os.getpid()}\n".encode())


def main(bootstrap: str, namespace: str, worker: str, truth: str, protocol: str) -> None:
    """Run until SIGTERM; the exit code is the executor's."""
    logging.basicConfig(
        level=logging.INFO, filename=f"{truth}.{worker}.log", format="%(asctime)s %(name)s %(message)s"
    )
    settings = ExecutorSettings(slots=32)
    executor = Executor(
        FixedProtocol(bootstrap, GroupProtocol(protocol)),
        ToolExecutor(TruthfulTools(truth)),
        AsyncRunner(1),
        SystemClock(),
        SystemEntropy(),
        worker=worker,
        namespace=Namespace(namespace),
        settings=settings,
    )
    signal.signal(signal.SIGTERM, lambda *_: executor.drain())
    print("ready", flush=True)  # noqa: T201
    while executor.step() is not Phase.STOPPED:
        pass
    sys.exit(executor.exit.value)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
