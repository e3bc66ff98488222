"""Sending commands: durable when :meth:`CommandSender.send` returns, on the partition where the run lives."""

from __future__ import annotations

from typing import Final

from ulid import ULID

from perdure.connectors.topic_reader import describe_topic
from perdure.processors.clock import Clock, Entropy
from perdure.schemas.codec import encode
from perdure.schemas.commands import Command
from perdure.schemas.errors import PerdureError
from perdure.topics.errors import OutcomeUnknown, RecordTooLarge
from perdure.topics.log import Log, Outgoing, Producer
from perdure.topics.partitioner import partition_of
from perdure.topics.table import INBOX_BYTES_MAX, RUN_COMMANDS, Namespace

SEND_TIMEOUT_S: Final = 30.0
_ULID_TIME_BYTES: Final = 6
_ULID_RANDOM_BYTES: Final = 10


def new_run_id(clock: Clock, entropy: Entropy) -> str:
    """A ULID: 26 characters that sort by the millisecond they were made in."""
    instant = clock.wall_ms().to_bytes(_ULID_TIME_BYTES, "big")
    return str(ULID.from_bytes(instant + entropy.take(_ULID_RANDOM_BYTES)))


class CommandSender:
    """Writes to run-commands through one idempotent producer, opened when it is first needed."""

    def __init__(self, log: Log, namespace: Namespace, client_id: str) -> None:
        self._log = log
        self._topic = namespace.topic(RUN_COMMANDS)
        self._client_id = client_id
        self._producer: Producer | None = None
        self._partitions = 0

    def send(self, run_id: str, command: Command) -> None:
        """Write the command and wait until every in-sync replica has it.

        Raises:
            RecordTooLarge: over 1 MiB.
            OutcomeUnknown: nobody answered in time. Sending it again with the same command id is safe.
        """
        value = encode(command)
        if len(value) > INBOX_BYTES_MAX:
            raise RecordTooLarge(f"The command takes {len(value)} of at most {INBOX_BYTES_MAX} bytes.")
        producer = self._open()
        reports: list[PerdureError | None] = []
        partition = partition_of(run_id, self._partitions)
        producer.produce(
            Outgoing(self._topic, partition, run_id.encode(), value),
            lambda error, _: reports.append(error),
        )
        producer.flush(SEND_TIMEOUT_S)
        if not reports:
            raise OutcomeUnknown(
                f"The command for {run_id} was not acknowledged within {SEND_TIMEOUT_S:.0f} s."
            )
        if reports[0] is not None:
            raise reports[0]

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def _open(self) -> Producer:
        if self._producer is None:
            self._partitions = describe_topic(self._log, self._topic).partitions
            self._producer = self._log.producer(self._client_id)
        return self._producer
