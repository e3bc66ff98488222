"""The stage of the orchestrator's scenarios: a model cluster under virtual time, clients, executors played
by hand.

A scenario says what is given, what happens, and what then stands in the log. Nothing sleeps; time moves
only when :meth:`Stage.pass_ms` is called or a client call waits.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from perdure.processors.clock import Clock, Entropy
from perdure.processors.definitions import FixedDefinitions, body_of, digest_of
from perdure.processors.machine.apply import fold
from perdure.processors.orchestrator.host import Orchestrator
from perdure.processors.orchestrator.settings import OrchestratorSettings
from perdure.processors.store_memory import MemoryStores
from perdure.processors.store_rows import META
from perdure.schemas.codec import Undecodable, decode, encode
from perdure.schemas.commands import Command, CommandBody, Submit
from perdure.schemas.definition import AgentDefinition, ToolDefinition
from perdure.schemas.errors import PerdureError
from perdure.schemas.events import Event
from perdure.schemas.outputs import DeadLetter, Outcome, Status
from perdure.schemas.requests import ModelRequest, ToolRequest
from perdure.schemas.results import Completed, ModelReplied, Result, ResultBody
from perdure.schemas.values import Effect, Struct, Usage
from perdure.topics.log import Outgoing, Record, TopicPartition
from perdure.topics.model_cluster import ModelCluster
from perdure.topics.model_log import ModelLog
from perdure.topics.partitioner import partition_of
from perdure.topics.table import (
    DEAD_LETTERS,
    MODEL_REQUESTS,
    RUN_COMMANDS,
    RUN_EVENTS,
    RUN_OUTCOMES,
    RUN_RESULTS,
    RUN_STATUS,
    TOOL_REQUESTS,
    TOPICS,
    Namespace,
)

PARTITIONS = 4
STEPS_MAX = 5_000
NAMES = Namespace("stage")

T = TypeVar("T")
R = TypeVar("R", bound=Struct)

AGENT = AgentDefinition(
    agent="support",
    version="1",
    model="scripted",
    tools=(
        ToolDefinition("look_up", "Looks a customer up.", {"type": "object"}, Effect.READ_ONLY),
        ToolDefinition("send", "Sends a message.", {"type": "object"}, Effect.NON_IDEMPOTENT),
    ),
)


class VirtualClock:
    """The cluster's clock."""

    def __init__(self, cluster: ModelCluster) -> None:
        self._cluster = cluster

    def wall_ms(self) -> int:
        return self._cluster.now_ms

    def boot_s(self) -> float:
        return self._cluster.now_ms / 1_000


class CountedEntropy:
    """Bytes that differ on every call and are the same in every test run."""

    def __init__(self) -> None:
        self._count = itertools.count()

    def take(self, count: int) -> bytes:
        return hashlib.sha256(str(next(self._count)).encode()).digest()[:count]


class Worker:
    """One orchestrator process: its own connection, its own disk."""

    def __init__(self, stage: Stage, slot: str, stores: MemoryStores, settings: OrchestratorSettings) -> None:
        self.stage = stage
        self.slot = slot
        self.stores = stores
        self.settings = settings
        self.log = ModelLog(stage.cluster)
        self.host = Orchestrator(self.log, stores, stage.clock, stage.entropy, stage.definitions, settings)

    def kill(self) -> None:
        """End it as kill -9 does."""
        self.log.kill_all()
        self.stage.workers.remove(self)

    def stop(self) -> None:
        self.host.close()
        self.stage.workers.remove(self)


class Stage:
    """Everything around the orchestrator."""

    def __init__(self, *, partitions: int = PARTITIONS) -> None:
        self.partitions = partitions
        self.cluster = ModelCluster()
        self.clock: Clock = VirtualClock(self.cluster)
        self.entropy: Entropy = CountedEntropy()
        self.definitions = FixedDefinitions(AGENT)
        self.workers: list[Worker] = []
        for spec in TOPICS:
            self.cluster.create_topic(NAMES.topic(spec.name), spec.partitions(partitions), spec.settings(1))
        self.client = ModelLog(self.cluster)
        self._producer = self.client.producer("client")
        self._result_ids = itertools.count(1)
        self._answered: set[str] = set()
        self._submitted: set[str] = set()
        self.settings = OrchestratorSettings(
            namespace=NAMES, slot="0", partitions=partitions, token_key=b"k" * 32
        )

    # ---- given

    def worker(self, slot: str = "0", stores: MemoryStores | None = None, **limits: int) -> Worker:
        """Start an orchestrator process."""
        settings = replace(self.settings, slot=slot, **limits)  # type: ignore[arg-type]
        worker = Worker(self, slot, stores if stores is not None else MemoryStores(), settings)
        self.workers.append(worker)
        return worker

    def topic(self, name: str) -> str:
        return NAMES.topic(name)

    def partition(self, run_id: str) -> int:
        return partition_of(run_id, self.partitions)

    # ---- when

    def write(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> None:
        errors: list[PerdureError | None] = []
        out = Outgoing(self.topic(topic), partition, key, value)
        self._producer.produce(out, lambda error, _: errors.append(error))
        self._producer.flush(1.0)
        assert errors == [None]

    def command(
        self,
        run_id: str,
        body: CommandBody,
        command_id: str | None = None,
        partition: int | None = None,
    ) -> None:
        at = self.partition(run_id) if partition is None else partition
        self.write(RUN_COMMANDS, at, run_id.encode(), encode(Command(body, command_id=command_id)))

    def submit(self, run_id: str, text: str = "hello", command_id: str | None = None) -> None:
        self._submitted.add(run_id)
        self.command(run_id, Submit("support", json.dumps(text).encode()), command_id)

    def result(
        self, request: ModelRequest | ToolRequest, body: ResultBody, result_id: str | None = None
    ) -> None:
        """Answer a request as an executor does."""
        key, result = answered(request, body, result_id or f"result-{next(self._result_ids)}")
        self.write(RUN_RESULTS, self.partition(request.run_id), key, encode(result))

    def reply(self, request: ModelRequest, *calls: str, text: str = "done") -> None:
        """The model answers: with calls of the tools named, or with its final text."""
        self.result(request, replied(request, *calls, text=text))

    def answer(self, request: ToolRequest, text: str = "ok") -> None:
        self.result(request, Completed(json.dumps(text).encode()))

    def play(self) -> bool:
        """Play both executors once: every request not answered yet is (:func:`played`)."""
        did = False
        requests: list[ModelRequest | ToolRequest] = [*self.model_requests(), *self.tool_requests()]
        for request in requests:
            if request.request_id not in self._answered:
                self._answered.add(request.request_id)
                did = True
                self.result(request, played(request))
        return did

    def play_to_the_end(self, ms_max: int = 120_000) -> None:
        """Let workers and executors go on until no run that was submitted is open."""

        def ended() -> bool:
            self.play()
            known = {event.run_id for event in self.events()}
            return self._submitted <= known <= {each.run_id for each in self.outcomes()}

        self.until(ended, ms_max)

    def pass_ms(self, ms: int) -> None:
        self.cluster.advance(ms)

    def settle(self) -> None:
        """Let every worker do what there is to do, without time passing."""
        idle = 0
        for _ in range(STEPS_MAX):
            idle = 0 if self.step() else idle + 1
            if idle > 3:
                return
        raise AssertionError("the workers do not come to rest")

    def step(self) -> bool:
        return sum(worker.host.step() for worker in list(self.workers)) > 0

    def until(self, condition: Callable[[], T], ms_max: int = 120_000) -> T:
        """Let time pass until ``condition`` holds; its value."""
        end_ms = self.cluster.now_ms + ms_max
        while True:
            found = condition()
            if found:
                return found
            if self.cluster.now_ms >= end_ms:
                raise AssertionError("it did not come about")
            if not self.step():
                self.pass_ms(10)

    # ---- then

    def records(self, topic: str) -> list[Record]:
        """Everything committed on a topic, as an independent reader sees it."""
        name = self.topic(topic)
        partitions = range(self.cluster.partition_count(name))
        return [record for partition in partitions for record in self.cluster.visible(name, partition)]

    def decoded(self, topic: str, kind: type[R], run_id: str | None = None) -> list[R]:
        values: list[R] = []
        for record in self.records(topic):
            try:
                values.append(decoded_once(kind, record.value))
            except Undecodable:
                # Tombstones, and what a scenario wrote to run-events on purpose.
                assert record.value is None or topic == RUN_EVENTS
        return [value for value in values if run_id is None or getattr(value, "run_id", None) == run_id]

    def events(self, run_id: str | None = None) -> list[Event]:
        return self.decoded(RUN_EVENTS, Event, run_id)

    def kinds(self, run_id: str) -> list[str]:
        return [type(event.body).__name__ for event in self.events(run_id)]

    def outcomes(self, run_id: str | None = None) -> list[Outcome]:
        return self.decoded(RUN_OUTCOMES, Outcome, run_id)

    def statuses(self, run_id: str | None = None) -> list[Status]:
        return self.decoded(RUN_STATUS, Status, run_id)

    def model_requests(self, run_id: str | None = None) -> list[ModelRequest]:
        return self.decoded(MODEL_REQUESTS, ModelRequest, run_id)

    def tool_requests(self, run_id: str | None = None) -> list[ToolRequest]:
        return self.decoded(TOOL_REQUESTS, ToolRequest, run_id)

    def dead_letters(self) -> list[DeadLetter]:
        return self.decoded(DEAD_LETTERS, DeadLetter)

    def committed(self, topic: str, partition: int) -> int | None:
        """The orchestrators' committed offset."""
        at = TopicPartition(self.topic(topic), partition)
        found = self.cluster.groups.fetch(self.settings.group, [at])
        assert found is not None
        return found[0].offset

    def check_histories(self) -> None:
        """What holds whatever happened: no gap, one outcome per execution, no input answered twice."""
        by_run: dict[str, list[Event]] = {}
        for event in self.events():
            by_run.setdefault(event.run_id, []).append(event)
        for run_id, events in by_run.items():
            assert [event.seq for event in events] == list(range(1, len(events) + 1)), run_id
            causes = [(event.cause, event.answers_command) for event in events if event.cause is not None]
            assert len(causes) == len(set(causes)), run_id
            fold(events)
        ends = [(each.run_id, each.execution) for each in self.outcomes()]
        assert len(ends) == len(set(ends))

    def rows_of(self, worker: Worker, partition: int) -> dict[bytes, bytes]:
        """All rows of a store but its place in the log."""
        rows = worker.stores.open(partition).scan(b"", b"\xff", 1_000_000)
        return {key: value for key, value in rows if key != META}

    def seqs(self, run_id: str) -> list[int]:
        return [event.seq for event in self.events(run_id)]


AGENT_DIGEST = digest_of(body_of(AGENT))


@lru_cache(maxsize=100_000)
def decoded_once(kind: type[R], value: bytes | None) -> R:
    """Scenarios look at the whole log again and again; records never change."""
    return decode(kind, value)


def answered(request: ModelRequest | ToolRequest, body: ResultBody, result_id: str) -> tuple[bytes, Result]:
    """Key and value of the result that answers ``request`` with ``body``."""
    call_id = request.call_id if isinstance(request, ToolRequest) else ""
    result = Result(
        result_id,
        request.run_id,
        request.turn,
        call_id,
        request.attempt,
        request.request_id,
        "worker",
        body,
    )
    return f"{request.run_id}/{request.turn}/{call_id}/{request.attempt}".encode(), result


def replied(request: ModelRequest, *calls: str, text: str = "done") -> ModelReplied:
    """A model's answer: calls of the tools named, or its final text."""
    blocks = [
        {"type": "tool_use", "id": f"{request.run_id}-{request.turn}-{n}", "name": name, "input": {}}
        for n, name in enumerate(calls)
    ]
    return ModelReplied(
        invocation_id=f"invocation-{request.request_id}",
        digest=request.digest,
        content=json.dumps(blocks or [{"type": "text", "text": text}]).encode(),
        stop_reason="tool_use" if calls else "end_turn",
        usage=Usage(input_tokens=10, output_tokens=5),
    )


def played(request: ModelRequest | ToolRequest) -> ResultBody:
    """The script every run follows unless a scenario says otherwise: a look-up, then the end."""
    match request:
        case ModelRequest(turn=1):
            return replied(request, "look_up")
        case ModelRequest():
            return replied(request)
        case ToolRequest():
            return Completed(b'"ok"')
