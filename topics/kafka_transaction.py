"""The TransactionalProducer of the Log port over confluent-kafka.

Its one hard question is what an error of a commit means. The client calls an error "abortable" also when its
own EndTxn request may have committed (a lost answer, then a refused re-send), so its word is believed only as
long as no EndTxn can have been sent. Therefore :meth:`KafkaTransaction.commit` first flushes by itself: a
record that was not accepted shows there, before any EndTxn, and is definite; an error after that is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Final

import confluent_kafka as ck
from confluent_kafka import KafkaError, KafkaException

from perdure.schemas.errors import PerdureError, Restore
from perdure.topics import kafka_errors
from perdure.topics.errors import LogMisuse, OutcomeUnknown, RecordTooLarge, TransactionAbortable
from perdure.topics.kafka_consumer import write_metadata
from perdure.topics.kafka_settings import Settings, client_log, logger
from perdure.topics.log import GroupMetadata, Outgoing, Position, TopicPartition

# A full local queue drains as fast as the broker takes it; no room after all these waits, and it is hopeless.
QUEUE_WAIT_S: Final = 0.1
QUEUE_WAITS_MAX: Final = 50


class _State(Enum):
    NEW = "new"
    READY = "ready"
    OPEN = "in transaction"
    BROKEN = "broken"
    CLOSED = "closed"


class KafkaTransaction:
    """See :class:`perdure.topics.log.TransactionalProducer`."""

    def __init__(self, settings: Settings) -> None:
        self._id = str(settings["transactional.id"])
        self._state = _State.NEW
        self._tracked: dict[TopicPartition, int] = {}
        self._undelivered: KafkaError | None = None
        configured = {**settings, "error_cb": self._on_error}
        self._client: ck.Producer | None = ck.Producer(configured, logger=client_log)

    def init(self, timeout_s: float) -> None:
        client = self._in(_State.NEW)
        try:
            client.init_transactions(timeout_s)
        except kafka_errors.RAISED as raised:
            raise self._failed(raised, definite=False) from raised
        self._state = _State.READY

    def begin(self) -> None:
        client = self._in(_State.READY)
        self._tracked, self._undelivered = {}, None
        try:
            client.begin_transaction()
        except kafka_errors.RAISED as raised:
            raise self._failed(raised, definite=False) from raised
        self._state = _State.OPEN

    def produce(self, out: Outgoing, *, track: bool = False) -> None:
        client = self._in(_State.OPEN)
        report = self._on_tracked if track else self._on_delivery
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
                self._serve(client)
            except kafka_errors.RAISED as raised:
                error = kafka_errors.error_of(raised)
                if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                    raise RecordTooLarge(f"For {out.topic}/{out.partition}.") from raised
                if error.code() in kafka_errors.FENCED or kafka_errors.is_fatal(error):
                    raise self._failed(raised, definite=True) from raised
                # The client takes no more records after an error it wants aborted; abort() tells if it is
                # worse.
                raise TransactionAbortable(kafka_errors.told(error)) from raised
            else:
                return
        raise TransactionAbortable("The send queue stayed full.")

    def send_offsets(self, offsets: Sequence[Position], group: GroupMetadata, timeout_s: float) -> None:
        """See the port. May block past ``timeout_s``, for ever at worst: the caller keeps a watchdog."""
        client = self._in(_State.OPEN)
        native = [ck.TopicPartition(each.at.topic, each.at.partition, each.offset) for each in offsets]
        try:
            client.send_offsets_to_transaction(native, write_metadata(group), timeout_s)
        except kafka_errors.RAISED as raised:
            raise self._failed(raised, definite=True) from raised

    def commit(self, timeout_s: float) -> Mapping[TopicPartition, int]:
        """See the port. Waits up to ``timeout_s`` for the records and again for the commit."""
        client = self._in(_State.OPEN)
        try:
            left = client.flush(timeout_s)
        except kafka_errors.RAISED as raised:
            raise self._failed(raised, definite=True) from raised
        if self._undelivered is not None:
            raise self._not_delivered(self._undelivered)
        if left > 0:
            self._state = _State.BROKEN
            raise OutcomeUnknown(f"{left} records of {self._id} were not answered for.")
        try:
            client.commit_transaction(timeout_s)
        except kafka_errors.RAISED as raised:
            raise self._failed(raised, definite=False) from raised
        self._state = _State.READY
        return self._tracked

    def abort(self, timeout_s: float) -> None:
        """See the port. Waits up to ``timeout_s`` for the records and again for the abort."""
        client = self._in(_State.OPEN)
        try:
            # An abort throws away what is not sent yet, but not the numbers it was given, and the gap makes
            # the next transaction fail as well. So what can be sent is sent first.
            client.flush(timeout_s)
            client.abort_transaction(timeout_s)
        except kafka_errors.RAISED as raised:
            raise self._failed(raised, definite=False) from raised
        self._state = _State.READY

    def close(self) -> None:
        """See the port. Takes effect when no call of another thread is under way any more."""
        self._state = _State.CLOSED
        if self._client is not None:
            # The client's own close() aborts the transaction and waits for that without end. Giving up the
            # last reference frees it at once and says nothing to the coordinator.
            with suppress(*kafka_errors.RAISED):
                self._client.purge(blocking=False)
            self._client = None

    # ---- inside

    def _in(self, state: _State) -> ck.Producer:
        if self._state is not state or self._client is None:
            raise LogMisuse(f"The producer {self._id} is {self._state.value}, not {state.value}.")
        return self._client

    def _serve(self, client: ck.Producer) -> None:
        try:
            client.poll(QUEUE_WAIT_S)
        except kafka_errors.RAISED as raised:
            raise self._failed(raised, definite=True) from raised

    def _failed(self, raised: KafkaException | SystemError, *, definite: bool) -> PerdureError:
        error = kafka_errors.error_of(raised)
        if kafka_errors.is_nameless(error):
            error = self._named(error)
        failure = kafka_errors.of_transaction(error, definite=definite)
        if not isinstance(failure, TransactionAbortable):
            self._state = _State.BROKEN
        return failure

    def _named(self, error: KafkaError) -> KafkaError:
        """The fatal error the client is in: it answers every call with it, also one that is out of turn."""
        try:
            self._in(self._state).begin_transaction()
        except kafka_errors.RAISED as raised:
            answered = kafka_errors.error_of(raised)
            return answered if answered.fatal() else error
        return error

    def _not_delivered(self, error: KafkaError) -> PerdureError:
        failure = kafka_errors.of_transaction(error, definite=True)
        if isinstance(failure, Restore) and (error.fatal() or error.code() in kafka_errors.FENCED):
            self._state = _State.BROKEN
            return failure
        # Whatever became of the record, no EndTxn was sent: the transaction is not committed.
        return TransactionAbortable(kafka_errors.told(error))

    def _on_delivery(self, error: KafkaError | None, _: ck.Message) -> None:
        if error is not None:
            self._undelivered = self._undelivered or error

    def _on_tracked(self, error: KafkaError | None, message: ck.Message) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if error is not None or topic is None or partition is None or offset is None:
            return self._on_delivery(error, message)
        at = TopicPartition(topic, partition)
        self._tracked[at] = max(offset, self._tracked.get(at, -1))
        return None

    def _on_error(self, error: KafkaError) -> None:
        logger.info("transactional producer %s: %s", self._id, error)
