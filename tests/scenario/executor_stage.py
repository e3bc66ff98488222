"""A stage for executor scenarios: one model cluster, workers that can be killed, and a ground truth.

The ground truth is a list outside of every worker: each tool appends to it as it begins and as it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeVar

from perdure.processors.abort import AbortSignal
from perdure.processors.executor.engine import Executor
from perdure.processors.executor.settings import ExecutorSettings
from perdure.processors.executor.work import Work
from perdure.processors.headers import request_headers
from perdure.processors.offset_map import OffsetMap, decode, empty_map
from perdure.processors.ports import ToolAnswer, ToolInvocation
from perdure.processors.runner import InlineRunner
from perdure.processors.tool_executor import Concurrency, ToolExecutor
from perdure.schemas.codec import decode as decode_record
from perdure.schemas.codec import encode
from perdure.schemas.outputs import RunSignal
from perdure.schemas.requests import ModelRequest, ToolRequest
from perdure.schemas.results import Completed, Result, ResultBody
from perdure.schemas.values import Effect, Purpose
from perdure.topics.log import (
    CommittedOffset,
    ConsumerSpec,
    GroupProtocol,
    Headers,
    Outgoing,
    TopicPartition,
)
from perdure.topics.model_cluster import ModelCluster
from perdure.topics.model_log import ModelLog
from perdure.topics.table import (
    DEAD_LETTERS,
    MODEL_REQUESTS,
    RUN_DELTAS,
    RUN_RESULTS,
    RUN_SIGNALS,
    TOOL_REQUESTS,
    Namespace,
    Role,
)

NAMES = Namespace("t")
STEP_MS = 5
SHORT_MS = 1_000
LONG_STEP_MS = 25
READ, WRITE, ONCE = Effect.READ_ONLY, Effect.IDEMPOTENT_WRITE, Effect.NON_IDEMPOTENT

T = TypeVar("T", bound=ResultBody)


class VirtualClock:
    def __init__(self, cluster: ModelCluster) -> None:
        self._cluster = cluster

    def wall_ms(self) -> int:
        return self._cluster.now_ms

    def boot_s(self) -> float:
        return self._cluster.now_ms / 1000


class SeededEntropy:
    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def take(self, count: int) -> bytes:
        return self._random.randbytes(count)


class StageTools:
    """A ToolPort. Names say what a tool does: ``sleep:ms``, ``gone`` (unknown here), else it echoes the
    call id.
    """

    def __init__(self, stage: Stage, worker: str) -> None:
        self._stage = stage
        self._worker = worker

    def knows(self, definition: str, tool: str) -> bool:
        return tool != "gone"

    def concurrency(self, definition: str, tool: str) -> Concurrency | None:
        limit = self._stage.limits.get(tool)
        return None if limit is None else Concurrency(tool, limit, 0)

    async def call(self, call: ToolInvocation, abort: AbortSignal) -> ToolAnswer:
        self._stage.truth.append(("begin", call.call_id, call.attempt, self._worker))
        behave = self._stage.behaviours.get(call.tool)
        name, _, number = call.tool.partition(":")
        if behave is not None:
            answer = await behave(call, abort)
        else:
            if name == "sleep":
                await self.sleep(int(number), abort)
            answer = Completed(b'"' + call.call_id.encode() + b'"')
        self._stage.truth.append(("end", call.call_id, call.attempt, self._worker))
        return answer

    async def sleep(self, ms: int, abort: AbortSignal) -> None:
        until_ms = self._stage.cluster.now_ms + ms
        while self._stage.cluster.now_ms < until_ms:
            abort.raise_if_aborted()
            await asyncio.sleep(0)


@dataclass
class Worker:
    """One process of a role."""

    name: str
    log: ModelLog
    executor: Executor
    runner: InlineRunner
    is_alive: bool = True

    @property
    def client_id(self) -> str:
        """Of its consumer of tool-requests, for faults."""
        return NAMES.client_id(Role.TOOL_EXECUTOR, self.name, "requests")

    @property
    def results_id(self) -> str:
        """Of its producer of results, for faults."""
        return NAMES.client_id(Role.TOOL_EXECUTOR, self.name, "results")

    def kill(self) -> None:
        """Kill -9: nothing is flushed, nobody is told."""
        self.log.kill_all()
        self.runner.close()
        self.is_alive = False


Behaviour = Callable[[ToolInvocation, AbortSignal], Awaitable[ToolAnswer]]


@dataclass
class Stage:
    """``truth``: (begin|end, call id, attempt, worker). ``behaviours``: tools by name, beside those
    built in. ``limits``: how many calls of a tool a worker makes at once.
    """

    partitions: int = 1
    protocol: GroupProtocol = GroupProtocol.CONSUMER
    settings: ExecutorSettings = field(default_factory=ExecutorSettings)
    cluster: ModelCluster = field(init=False)
    truth: list[tuple[str, str, int, str]] = field(default_factory=list)
    behaviours: dict[str, Behaviour] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    workers: list[Worker] = field(default_factory=list)
    _results: dict[tuple[int, int], Result] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cluster = ModelCluster(random=Random(1), on_wait=None)
        for name in (TOOL_REQUESTS, MODEL_REQUESTS, RUN_RESULTS, RUN_SIGNALS, RUN_DELTAS):
            config = {"max.message.bytes": str(4 << 20)}
            self.cluster.create_topic(NAMES.topic(name), self.partitions, config)
        self.cluster.create_topic(NAMES.topic(DEAD_LETTERS), 1, {"max.message.bytes": str(4 << 20)})
        self.client = ModelLog(self.cluster)
        self.producer = self.client.producer("client")
        self.clock = VirtualClock(self.cluster)

    # ---- workers -------------------------------------------------------------------------------------------

    def worker(self, name: str = "w1", work: Callable[[ModelLog], Work] | None = None) -> Worker:
        log = ModelLog(self.cluster, protocol=self.protocol)
        runner = InlineRunner(on_wait=lambda seconds: self.cluster.advance(round(seconds * 1000)))
        role = work(log) if work is not None else ToolExecutor(StageTools(self, name))
        executor = Executor(
            log, role, runner, self.clock, SeededEntropy(len(self.workers)),
            worker=name, namespace=NAMES, settings=self.settings,
        )  # fmt: skip
        worker = Worker(name, log, executor, runner)
        self.workers.append(worker)
        return worker

    def run(self, ms: int, *workers: Worker) -> None:
        """Let time pass while the workers (all that live, by default) take turns."""
        until_ms = self.cluster.now_ms + ms
        step_ms = STEP_MS if ms <= SHORT_MS else LONG_STEP_MS
        while self.cluster.now_ms < until_ms:
            for worker in workers or self.workers:
                if worker.is_alive:
                    worker.executor.step()
            self.cluster.advance(step_ms)

    def until(self, reached: Callable[[], bool], *workers: Worker, limit_ms: int = 60_000) -> None:
        """Run until something holds; a limit of virtual time says that it never will."""
        until_ms = self.cluster.now_ms + limit_ms
        while not reached():
            assert self.cluster.now_ms < until_ms, "it did not come to that"
            left_ms = until_ms - self.cluster.now_ms
            self.run(STEP_MS if limit_ms - left_ms < SHORT_MS else LONG_STEP_MS, *workers)

    def settle(self, *workers: Worker) -> None:
        """Run until nothing is left to do and everything is committed."""
        self.run(100, *workers)
        self.until(
            lambda: all(
                w.executor.busy == w.executor.backlog == 0 for w in workers or self.workers if w.is_alive
            ),
            *workers,
        )
        self.run(1_000, *workers)

    def close(self) -> None:
        for worker in self.workers:
            if worker.is_alive:
                worker.executor.close()

    # ---- requests ------------------------------------------------------------------------------------------

    def provision(self, role: Role = Role.TOOL_EXECUTOR, topic: str = TOOL_REQUESTS) -> None:
        """Offset 0 and the empty map for every partition, as provisioning writes them."""
        name = NAMES.topic(topic)
        info = self.client.describe([name], 1)[name]
        self.commit(
            [(TopicPartition(name, p), 0, empty_map(info.topic_id)) for p in range(info.partitions)], role
        )

    def commit(self, offsets: list[tuple[TopicPartition, int, str]], role: Role = Role.TOOL_EXECUTOR) -> None:
        """Set a group's offsets from outside, as an administrator's tool does while no member lives."""
        consumer = self.client.consumer(ConsumerSpec("admin", group=NAMES.group(role)))
        outcome = consumer.commit([CommittedOffset(at, offset, text) for at, offset, text in offsets])
        assert outcome.reason == ""
        self.client.kill(consumer)

    def request(
        self,
        call_id: str,
        effect: Effect = ONCE,
        tool: str = "echo",
        *,
        timeout_ms: int = 60_000,
        start_in_ms: int = 3_600_000,
        execution: int = 0,
        attempt: int = 1,
        purpose: Purpose = Purpose.CALL,
        arguments: bytes = b"{}",
    ) -> ToolRequest:
        """A tool request, not written yet."""
        return ToolRequest(
            run_id=f"run-{call_id}",
            turn=1,
            call_id=call_id,
            attempt=attempt,
            request_id=f"{call_id}/{attempt}",
            execution=execution,
            definition="d",
            tool=tool,
            arguments=arguments,
            effect=effect,
            idempotency_key="k",
            start_by_ms=self.cluster.now_ms + start_in_ms,
            timeout_ms=timeout_ms,
            purpose=purpose,
        )

    def ask(
        self, call_id: str, effect: Effect = ONCE, tool: str = "echo", *, partition: int = 0, **more: Any
    ) -> ToolRequest:
        """Write a tool request. ``more``: as for :meth:`request`."""
        request = self.request(call_id, effect, tool, **more)
        self.put(TOOL_REQUESTS, partition, request.run_id, encode(request), request_headers(request))
        return request

    def ask_model(self, request: ModelRequest, partition: int = 0) -> None:
        self.put(MODEL_REQUESTS, partition, request.run_id, encode(request), request_headers(request))

    def put(self, topic: str, partition: int, key: str, value: bytes | None, headers: Headers = ()) -> None:
        self.producer.produce(Outgoing(NAMES.topic(topic), partition, key.encode(), value, headers))
        self.producer.poll(0)

    def signal(self, run_id: str, execution: int, partition: int = 0) -> None:
        self.put(RUN_SIGNALS, partition, run_id, encode(RunSignal(execution, "cancelled")))

    # ---- looking -------------------------------------------------------------------------------------------

    def results(self, partition: int | None = None) -> list[Result]:
        numbers = range(self.partitions) if partition is None else (partition,)
        topic = NAMES.topic(RUN_RESULTS)
        return [
            self._decoded(number, record.offset, record.value)
            for number in numbers
            for record in self.cluster.visible(topic, number)
        ]

    def _decoded(self, partition: int, offset: int, value: bytes | None) -> Result:
        """Scenarios look at the same results again and again."""
        known = self._results.get((partition, offset))
        if known is None:
            known = self._results[partition, offset] = decode_record(Result, value)
        return known

    def told(self, call_id: str) -> list[str]:
        """Kinds of the results of a call, in log order."""
        return [type(each.body).__name__ for each in self.results() if each.call_id == call_id]

    def body(self, call_id: str, kind: type[T]) -> T:
        """The only result of this kind of a call."""
        [found] = [
            each.body for each in self.results() if each.call_id == call_id and isinstance(each.body, kind)
        ]
        return found

    def begun(self, call_id: str) -> int:
        return sum(1 for what, call, _, _ in self.truth if what == "begin" and call == call_id)

    def committed(
        self, partition: int = 0, role: Role = Role.TOOL_EXECUTOR, topic: str = TOOL_REQUESTS
    ) -> tuple[int | None, OffsetMap]:
        """Base and map as the group has them."""
        name = NAMES.topic(topic)
        consumer = self.client.consumer(ConsumerSpec("look", group=NAMES.group(role)))
        [found] = consumer.committed([TopicPartition(name, partition)], 1)
        self.client.kill(consumer)
        topic_id = self.client.describe([name], 1)[name].topic_id
        known = decode(found.offset or 0, found.metadata, topic_id)
        assert isinstance(known, OffsetMap), known
        return found.offset, replace(known, ages=())


async def hang(call: ToolInvocation, abort: AbortSignal) -> ToolAnswer:
    """A tool that begins and never ends by itself; it listens to nobody but its task."""
    while True:  # noqa: ASYNC110 - virtual time has no events
        await asyncio.sleep(0)


def counts(results: list[Result]) -> Mapping[str, int]:
    """How many results there are of each kind."""
    found: dict[str, int] = {}
    for each in results:
        found[type(each.body).__name__] = found.get(type(each.body).__name__, 0) + 1
    return found
