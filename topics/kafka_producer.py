"""The idempotent Producer of the Log port over confluent-kafka."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import confluent_kafka as ck
from confluent_kafka import KafkaError

from perdure.schemas.errors import PerdureError
from perdure.topics import kafka_errors
from perdure.topics.errors import ClientFatal, LogMisuse, OutcomeUnknown, RecordTooLarge, Unavailable
from perdure.topics.kafka_settings import Settings, client_log, logger
from perdure.topics.log import DeliveryReport, Outgoing

QUEUE_WAIT_S: Final = 0.1
QUEUE_WAITS_MAX: Final = 50


def _failure(error: KafkaError) -> PerdureError:
    """What is known of a record whose delivery failed: that it is too large, or nothing."""
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return RecordTooLarge(kafka_errors.told(error))
    if error.code() in kafka_errors.HOPELESS or error.fatal():
        return ClientFatal(kafka_errors.told(error))
    return OutcomeUnknown(kafka_errors.told(error))


class KafkaProducer:
    """See :class:`perdure.topics.log.Producer`."""

    def __init__(self, settings: Settings) -> None:
        self._id = str(settings["client.id"])
        configured = {**settings, "error_cb": self._on_error}
        self._client: ck.Producer | None = ck.Producer(configured, logger=client_log)

    def produce(self, out: Outgoing, on_delivery: DeliveryReport | None = None) -> None:
        """See the port. Raises :class:`Unavailable` if the send queue stays full, else as the reports say."""
        client = self._open()

        def report(error: KafkaError | None, message: ck.Message) -> None:
            if on_delivery is None:
                return
            offset = message.offset()
            if error is not None or offset is None:
                on_delivery(OutcomeUnknown() if error is None else _failure(error), -1)
            else:
                on_delivery(None, offset)

        for _ in range(QUEUE_WAITS_MAX):
            try:
                client.produce(
                    out.topic,
                    value=out.value,
                    key=out.key,
                    partition=out.partition,
                    headers=list(out.headers),
                    on_delivery=report,
                )
            except BufferError:
                self.poll(QUEUE_WAIT_S)
            except kafka_errors.RAISED as raised:
                raise _failure(kafka_errors.error_of(raised)) from raised
            else:
                return
        raise Unavailable("The send queue stayed full.")

    def poll(self, timeout_s: float) -> None:
        """See the port. Raises ClientFatal."""
        try:
            self._open().poll(timeout_s)
        except kafka_errors.RAISED as raised:
            raise _failure(kafka_errors.error_of(raised)) from raised

    def flush(self, timeout_s: float) -> int:
        """See the port. Raises ClientFatal."""
        try:
            return self._open().flush(timeout_s)
        except kafka_errors.RAISED as raised:
            raise _failure(kafka_errors.error_of(raised)) from raised

    def close(self) -> None:
        """Free the client at once. Records not yet answered for are reported as :class:`OutcomeUnknown`."""
        if self._client is not None:
            with suppress(*kafka_errors.RAISED):
                self._client.purge(blocking=False)
                self._client.poll(0)
            # The client's own close() would wait without end; giving up the last reference frees it at once.
            self._client = None

    def _open(self) -> ck.Producer:
        if self._client is None:
            raise LogMisuse(f"The producer {self._id} is closed.")
        return self._client

    def _on_error(self, error: KafkaError) -> None:
        logger.info("producer %s: %s", self._id, error)
