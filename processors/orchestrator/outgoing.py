"""The records a batch writes: topics, keys, headers and bytes. State goes to the partition of its input."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from perdure.processors.dead_letter import dead_letter_key
from perdure.processors.headers import request_headers
from perdure.processors.machine.project import Projected, project, status_of
from perdure.processors.machine.state import Run
from perdure.processors.store_fold import Folded
from perdure.processors.store_rows import QuarantineRow
from perdure.schemas.codec import encode
from perdure.schemas.keys import EventKey
from perdure.schemas.outputs import DeadLetter
from perdure.schemas.requests import ModelRequest, ToolRequest
from perdure.schemas.values import LogPosition, Struct
from perdure.topics.errors import RecordTooLarge
from perdure.topics.log import Headers, Outgoing
from perdure.topics.table import DEAD_LETTERS, PRODUCED_BYTES_MAX, RUN_EVENTS, RUN_STATUS, Namespace

DEAD_LETTERS_PARTITION: Final = 0  # the topic has one (topics.table)


class Writer:
    """Makes records of one namespace. Raises ``Unencodable`` or :class:`RecordTooLarge`."""

    def __init__(self, names: Namespace) -> None:
        self._names = names

    def event(self, partition: int, folded: Folded) -> Outgoing:
        event = folded.event
        return self._out(partition, RUN_EVENTS, str(EventKey(event.run_id, event.seq)), event)

    def told(self, partition: int, folded: Folded) -> list[Outgoing]:
        """What other topics are told of an event."""
        projections = project(folded.before, folded.event, folded.after)
        records = [self.projected(partition, projected) for projected in projections]
        if folded.publish:
            records.append(self.status(partition, folded.after))
        return records

    def projected(self, partition: int, projected: Projected) -> Outgoing:
        record = projected.record
        headers = request_headers(record) if isinstance(record, (ModelRequest, ToolRequest)) else ()
        return self._out(partition, projected.topic, projected.key, record, headers)

    def status(self, partition: int, run: Run) -> Outgoing:
        return self._out(partition, RUN_STATUS, run.run_id, status_of(run))

    def dead_letter(self, letter: DeadLetter) -> Outgoing:
        topic = self._names.topic(DEAD_LETTERS)
        return Outgoing(topic, DEAD_LETTERS_PARTITION, dead_letter_key(letter), encode(letter))

    def quarantine(
        self, partition: int, run_id: str, row: QuarantineRow, run: Run | None, now_ms: int
    ) -> list[Outgoing]:
        """What operators are told of a damaged history: a dead letter, and the run's status if it has any."""
        source = LogPosition(self._names.topic(RUN_EVENTS), partition, row.offset)
        key = run_id.encode()
        letter = DeadLetter(source, "history_damaged", row.reason, key, b"", b"", 0, now_ms)
        records = [self.dead_letter(letter)]
        if run is not None:
            told = replace(status_of(run), code="quarantined", waiting_for=row.reason)
            records.append(self._out(partition, RUN_STATUS, run_id, told))
        return records

    def _out(
        self, partition: int, topic: str, key: str, record: Struct | None, headers: Headers = ()
    ) -> Outgoing:
        value = None if record is None else encode(record)
        encoded = key.encode()
        size = len(encoded) + len(value or b"")
        if size > PRODUCED_BYTES_MAX:
            raise RecordTooLarge(f"{topic}: {size} of at most {PRODUCED_BYTES_MAX} bytes.")
        return Outgoing(self._names.topic(topic), partition, encoded, value, headers)
