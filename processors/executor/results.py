"""Writing results. Only a delivery report makes anything done: until then a record is *open*."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import Final

from perdure.processors.clock import Clock, Entropy, new_id
from perdure.processors.executor.actions import Action, extra
from perdure.processors.headers import RequestIdentity
from perdure.schemas.codec import Unencodable, encode
from perdure.schemas.errors import PerdureError
from perdure.schemas.limits import DEAD_LETTER_HEAD_BYTES_MAX, PAYLOAD_BYTES_MAX
from perdure.schemas.outputs import DeadLetter
from perdure.schemas.results import (
    Completed,
    Declined,
    Failed,
    Lost,
    ModelFailed,
    ModelReplied,
    NeedTranscript,
    Reconciled,
    Result,
    ResultBody,
    Started,
    Suspect,
    Undecodable,
)
from perdure.schemas.values import FailureKind, LogPosition
from perdure.topics.errors import RecordTooLarge
from perdure.topics.log import Outgoing, Producer, Record

logger: Final = logging.getLogger(__name__)

MESSAGE_CHARS_MAX: Final = 2_000
OUTPUT_UNUSABLE: Final = "output_unusable"
DEAD_LETTERS_PARTITION: Final = 0  # the topic is not keyed by run and has one partition

Then = Callable[[], None]


def clipped(text: str) -> str:
    """A message fit for a record: bounded, and without lone surrogates, which UTF-8 can not carry."""
    head = text if len(text) <= MESSAGE_CHARS_MAX else f"{text[:MESSAGE_CHARS_MAX]}…"
    return head.encode("utf-8", "replace").decode()


def replaced(body: ResultBody, reason: str) -> ResultBody:
    """What to tell instead of an answer that can not be written. The call was executed all the same."""
    message = clipped(f"the answer can not be recorded: {reason}")
    match body:
        case ModelReplied():
            return ModelFailed(
                body.invocation_id, OUTPUT_UNUSABLE, is_retryable=False, message=message, usage=body.usage
            )
        case ModelFailed():
            return ModelFailed(
                body.invocation_id,
                OUTPUT_UNUSABLE,
                body.is_retryable,
                message,
                body.retry_after_ms,
                body.usage,
            )
        case Declined():
            return Declined(body.reason, message)
        case Undecodable():
            return Undecodable(message)
        case Failed():
            return Failed(body.kind, message)
        case Completed() | Reconciled() | Started() | Suspect() | Lost() | NeedTranscript():
            return Failed(FailureKind.OUTPUT, message)


class Results:
    """The one producer of results. ``failure``: the first record that could not be written; the worker has
    to end.

    Records go to the partition their request came from, in order: a Started stands before whatever follows
    it.
    """

    def __init__(
        self, producer: Producer, topic: str, dead_letters: str, worker: str, clock: Clock, entropy: Entropy
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._dead_letters = dead_letters
        self._worker = worker
        self._clock = clock
        self._entropy = entropy
        self.open = 0
        self.failure: PerdureError | None = None

    def tell(
        self, partition: int, identity: RequestIdentity | None, body: ResultBody, then: Then | None = None
    ) -> None:
        """Write a result; ``then`` runs when it is durable. ``identity`` None: it speaks of no single
        request.
        """
        value = self._encoded(identity, body)
        key = identity.key if identity is not None else b""
        self._write(Outgoing(self._topic, partition, key, value), then)

    def set_aside(self, record: Record, code: str, reason: str, then: Then) -> None:
        """Dead-letter a record that names nobody who could be answered."""
        value = record.value or b""
        source = LogPosition(record.topic, record.partition, record.offset)
        letter = DeadLetter(
            source=source,
            code=code,
            reason=clipped(reason),
            key=record.key,
            head=value[:DEAD_LETTER_HEAD_BYTES_MAX],
            sha256=hashlib.sha256(value).digest(),
            size=len(value),
            at_ms=self._clock.wall_ms(),
        )
        out = Outgoing(self._dead_letters, DEAD_LETTERS_PARTITION, str(source).encode(), encode(letter))
        self._write(out, then)

    def poll(self, timeout_s: float = 0.0) -> None:
        """Run delivery reports."""
        self._producer.poll(timeout_s)

    def close(self, flush_s: float) -> None:
        left = self._producer.flush(flush_s)
        if left:
            logger.error("%d results were not acknowledged", left, extra=extra(Action.RESULT_FAILED))
        self._producer.close()

    def _encoded(self, identity: RequestIdentity | None, body: ResultBody) -> bytes:
        try:
            value = encode(self._result(identity, body))
            if len(value) <= PAYLOAD_BYTES_MAX:
                return value
            reason = f"it takes {len(value)} of at most {PAYLOAD_BYTES_MAX} bytes"
        except Unencodable as error:
            reason = str(error)
        logger.warning("a result is replaced: %s", reason, extra=extra(Action.RESULT_REPLACED))
        return encode(self._result(identity, replaced(body, reason)))

    def _result(self, identity: RequestIdentity | None, body: ResultBody) -> Result:
        return Result(
            result_id=new_id(self._entropy),
            run_id=identity.run_id if identity else "",
            turn=identity.turn if identity else 0,
            call_id=identity.call_id if identity else "",
            attempt=identity.attempt if identity else 0,
            request_id=identity.request_id if identity else "",
            worker=self._worker,
            body=body,
        )

    def _write(self, out: Outgoing, then: Then | None) -> None:
        def report(error: PerdureError | None, _offset: int) -> None:
            self.open -= 1
            if error is not None:
                self._fail(error)
            elif then is not None:
                then()

        self.open += 1
        try:
            self._producer.produce(out, report)
        except PerdureError as error:
            self.open -= 1
            self._fail(error)

    def _fail(self, error: PerdureError) -> None:
        level = logging.CRITICAL if isinstance(error, RecordTooLarge) else logging.ERROR
        logger.log(level, "a result was not written: %s", error, extra=extra(Action.RESULT_FAILED))
        if self.failure is None:
            self.failure = error
