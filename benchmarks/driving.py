"""The outside of the benchmark: it submits runs and reads their outcomes, as any program beside Kafka would.

A plain producer and a plain consumer (``read_committed``, no group) of confluent-kafka; of perdure only the
records' format and the partition of a run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import confluent_kafka as ck
import msgspec

from benchmarks.workload import AGENT, TURNS, input_of
from perdure.connectors.client import Client
from perdure.connectors.settings import Settings
from perdure.schemas.codec import decode, encode
from perdure.schemas.commands import Command, Submit
from perdure.schemas.outputs import Outcome
from perdure.schemas.values import RunState
from perdure.topics.partitioner import partition_of
from perdure.topics.table import RUN_COMMANDS, RUN_OUTCOMES, Namespace

LOOK_S: Final = 0.1
OUTCOMES_MAX: Final = 500
STALL_S: Final = 60.0
SHOWN_MAX: Final = 5
FLUSH_S: Final = 10.0


class RunsStalled(Exception):
    """No run has ended for STALL_S seconds, although some are open."""


class RunsWrong(Exception):
    """An outcome is not what the workload leads to."""


@dataclass(slots=True)
class Measured:
    """Runs that ended. ``seconds``: from the first submit to the last outcome; ``latencies_s``: by run.

    ``instants``: by run id, the milliseconds since the epoch of submit and reading.
    """

    seconds: float = 0.0
    latencies_s: list[float] = field(default_factory=list[float])
    instants: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])

    @property
    def runs(self) -> int:
        return len(self.latencies_s)


class Driver:
    """Submits runs and awaits their outcomes. ``look``: called now and then; raises what must end it all."""

    def __init__(self, settings: Settings, look: Callable[[], None]) -> None:
        names = Namespace(settings.namespace)
        self._look = look
        self._settings = settings
        self._partitions = settings.partitions
        self._commands = names.topic(RUN_COMMANDS)
        shared: Mapping[str, Any] = {**settings.kafka, "bootstrap.servers": settings.bootstrap}
        self._producer = ck.Producer(
            {**shared, "client.id": "benchmark", "enable.idempotence": True, "linger.ms": 0}
        )
        self._consumer = ck.Consumer(
            {
                **shared,
                "client.id": "benchmark",
                "group.id": "benchmark",  # the client wants one; it is never joined
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )
        topic = names.topic(RUN_OUTCOMES)
        self._consumer.assign([ck.TopicPartition(topic, number, 0) for number in range(settings.partitions)])

    def close(self) -> None:
        self._producer.flush(FLUSH_S)
        del self._producer  # else it complains when the broker goes
        self._consumer.close()

    def one_by_one(self, prefix: str, runs: int) -> Measured:
        """Each run has the system to itself."""
        return self.in_flight(prefix, runs, 1, math.inf)

    def in_flight(self, prefix: str, runs: int, inflight: int, seconds_max: float) -> Measured:
        """Keep ``inflight`` runs open until ``runs`` were submitted or ``seconds_max`` are over; then let
        those that are open end.
        """
        values = {f"{prefix}-{number}": b"" for number in range(runs)}
        for run_id in values:  # what takes the driver's time is done before
            body = Submit(agent=AGENT, input=msgspec.json.encode(input_of(run_id)))
            values[run_id] = encode(Command(body, command_id=run_id))
        waiting = iter(values.items())
        opened: dict[str, float] = {}
        measured = Measured()
        begun_s = heard_s = time.perf_counter()
        for _ in range(min(inflight, runs)):
            self._submit(*next(waiting), opened, measured)
        while opened:
            ended = self._ended()
            now_s = time.perf_counter()
            for run_id in ended:
                self._close(run_id, now_s, opened, measured)
                if now_s - begun_s < seconds_max and (following := next(waiting, None)) is not None:
                    self._submit(*following, opened, measured)
            if ended:
                heard_s = now_s
                measured.seconds = now_s - begun_s
                continue
            self._look()
            if now_s - heard_s > STALL_S:
                raise RunsStalled(f"{measured.runs} ended, open: {self._stand_of(opened)}")
        return measured

    def _stand_of(self, opened: Collection[str]) -> str:
        """Where the first few of them stand, as run-status says."""
        with Client(self._settings) as client:
            stands = {status.run_id: status for status in client.runs() if status.run_id in opened}
        shown = [
            f"{run_id} {stand.state.value} turn {stand.turn} {stand.waiting_for or ''}".strip()
            if (stand := stands.get(run_id)) is not None
            else f"{run_id} unknown"
            for run_id in sorted(opened)[:SHOWN_MAX]
        ]
        return f"{len(opened)}, {', '.join(shown)}"

    def _submit(self, run_id: str, value: bytes, opened: dict[str, float], measured: Measured) -> None:
        opened[run_id] = time.perf_counter()
        measured.instants[run_id] = (_epoch_ms(), 0)
        partition = partition_of(run_id, self._partitions)
        self._producer.produce(self._commands, key=run_id.encode(), value=value, partition=partition)
        self._producer.poll(0)

    def _close(self, run_id: str, now_s: float, opened: dict[str, float], measured: Measured) -> None:
        submitted_s = opened.pop(run_id, None)
        if submitted_s is None:
            raise RunsWrong(f"{run_id} has an outcome that nobody waits for.")
        measured.latencies_s.append(now_s - submitted_s)
        measured.instants[run_id] = (measured.instants[run_id][0], _epoch_ms())

    def _ended(self) -> Sequence[str]:
        """The runs of which outcomes have come: at once, or within LOOK_S."""
        first = self._consumer.poll(LOOK_S)
        if first is None:
            return ()
        return [self._checked(each) for each in (first, *self._consumer.consume(OUTCOMES_MAX, 0))]

    def _checked(self, message: ck.Message) -> str:
        error = message.error()
        if error is not None:
            raise ck.KafkaException(error)
        outcome = decode(Outcome, message.value())
        if outcome.state is not RunState.COMPLETED or outcome.turns != TURNS:
            raise RunsWrong(
                f"{outcome.run_id}: {outcome.state.value} after {outcome.turns} turns: {outcome.message}"
            )
        return outcome.run_id


def _epoch_ms() -> int:
    return time.time_ns() // 1_000_000
