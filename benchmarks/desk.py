"""The outside of the benchmarks beside the main one: sends commands, reads what committed readers see.

A plain producer and a plain ``read_committed`` consumer without a group; of perdure only the records' format
and the partition of a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import confluent_kafka as ck

from perdure.connectors.settings import Settings
from perdure.schemas.codec import decode, encode
from perdure.schemas.commands import Command, CommandBody
from perdure.schemas.keys import ApprovalKey
from perdure.schemas.outputs import Approval, Outcome
from perdure.topics.partitioner import partition_of
from perdure.topics.table import RUN_APPROVALS, RUN_COMMANDS, RUN_OUTCOMES, Namespace

RECORDS_MAX: Final = 1_000
FLUSH_S: Final = 10.0


class Stalled(Exception):
    """What was waited for did not come."""


class Desk:
    """What it has read, by run: ``asked`` (the newest question), ``answered_s`` and ``ended_s`` (when its
    question was withdrawn and its outcome came, by time.perf_counter), ``outcomes``.
    """

    def __init__(self, settings: Settings, look: Callable[[], None]) -> None:
        self._names = Namespace(settings.namespace)
        self._partitions = settings.partitions
        self._look = look
        shared: dict[str, Any] = {**settings.kafka, "bootstrap.servers": settings.bootstrap}
        self._producer = ck.Producer(
            {**shared, "client.id": "desk", "enable.idempotence": True, "linger.ms": 0}
        )
        self._consumer = ck.Consumer(
            {
                **shared,
                "client.id": "desk",
                "group.id": "desk",  # the client wants one; it is never joined
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )
        topics = [self._names.topic(each) for each in (RUN_APPROVALS, RUN_OUTCOMES)]
        self._approvals = topics[0]
        self._consumer.assign(
            [ck.TopicPartition(topic, n, 0) for topic in topics for n in range(self._partitions)]
        )
        self.asked: dict[str, Approval] = {}
        self.answered_s: dict[str, float] = {}
        self.ended_s: dict[str, float] = {}
        self.outcomes: dict[str, Outcome] = {}

    def close(self) -> None:
        self._producer.flush(FLUSH_S)
        del self._producer  # else it complains when the broker goes
        self._consumer.close()

    def partition(self, run_id: str) -> int:
        return partition_of(run_id, self._partitions)

    def send(self, run_id: str, body: CommandBody, command_id: str) -> float:
        """Hand a command to the producer; when that was."""
        value = encode(Command(body, command_id))
        now_s = time.perf_counter()
        self._producer.produce(
            self._names.topic(RUN_COMMANDS),
            key=run_id.encode(),
            value=value,
            partition=self.partition(run_id),
        )
        self._producer.poll(0)
        return now_s

    def read(self, wait_s: float) -> int:
        """Read what there is, or what comes within ``wait_s``; how many records."""
        first = self._consumer.poll(wait_s)
        if first is None:
            self._look()
            return 0
        messages = [first, *self._consumer.consume(RECORDS_MAX, 0)]
        now_s = time.perf_counter()
        for each in messages:
            self._learn(each, now_s)
        return len(messages)

    def until(self, reached: Callable[[], bool], limit_s: float, what: str, look_s: float = 0.05) -> None:
        """Read until something holds. Raises :class:`Stalled`."""
        end_s = time.perf_counter() + limit_s
        while not reached():
            self.read(look_s)
            if time.perf_counter() > end_s:
                raise Stalled(f"{what}: not within {limit_s:.0f} s")

    def _learn(self, message: ck.Message, now_s: float) -> None:
        error = message.error()
        if error is not None:
            raise ck.KafkaException(error)
        value: Any = message.value()
        key: Any = message.key()
        if message.topic() != self._approvals:
            if value is not None:
                outcome = decode(Outcome, value)
                self.outcomes[outcome.run_id], self.ended_s[outcome.run_id] = outcome, now_s
        elif value is None:
            run_id = ApprovalKey.parse(key).run_id
            self.asked.pop(run_id, None)
            self.answered_s[run_id] = now_s
        else:
            approval = decode(Approval, value)
            self.asked[approval.run_id] = approval
