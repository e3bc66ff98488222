"""The Log port over confluent-kafka: a real cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from confluent_kafka import KafkaException

from perdure.topics import kafka_errors, kafka_settings
from perdure.topics.errors import ClientFatal, Unavailable
from perdure.topics.kafka_admin import KafkaAdmin
from perdure.topics.kafka_consumer import KafkaConsumer
from perdure.topics.kafka_producer import KafkaProducer
from perdure.topics.kafka_provision import KafkaProvision
from perdure.topics.kafka_settings import Setting, SettingRefused, logger
from perdure.topics.kafka_transaction import KafkaTransaction
from perdure.topics.log import (
    ConsumerSpec,
    GroupProtocol,
    Isolation,
    Position,
    TopicInfo,
    TopicPartition,
    Watermarks,
)

PROBE_POLL_S: Final = 0.1
PROBE_POLLS_MAX: Final = 100

T = TypeVar("T")


class KafkaLog:
    """See :class:`perdure.topics.log.Log`.

    ``bootstrap``: host:port, several with commas between. ``extra``: settings for every client, without the
    ``kafka.`` in front; :class:`SettingRefused` names the first that may not be set. ``probe``: name of a
    group and of a topic that need not exist, both used once by :meth:`consumer_protocol`.
    """

    def __init__(
        self, bootstrap: str, extra: Mapping[str, Setting] | None = None, *, probe: str = "perdure.probe"
    ) -> None:
        self._bootstrap = bootstrap
        self._extra = kafka_settings.checked(extra or {})
        self._probe = probe
        self._protocol: GroupProtocol | None = None
        self._protocol_lock = threading.Lock()
        self.admin = KafkaAdmin(lambda: kafka_settings.admin(self._bootstrap, self._extra))
        self.provision = KafkaProvision(self.admin)

    def consumer(self, spec: ConsumerSpec) -> KafkaConsumer:
        settings = kafka_settings.consumer(self._bootstrap, self._extra, spec)
        return _made(lambda: KafkaConsumer(spec, settings))

    def producer(self, client_id: str) -> KafkaProducer:
        settings = kafka_settings.producer(self._bootstrap, self._extra, client_id)
        return _made(lambda: KafkaProducer(settings))

    def transactional(self, transactional_id: str, transaction_timeout_ms: int) -> KafkaTransaction:
        settings = kafka_settings.transactional(
            self._bootstrap, self._extra, transactional_id, transaction_timeout_ms
        )
        return _made(lambda: KafkaTransaction(settings))

    def watermarks(self, at: TopicPartition, isolation: Isolation, timeout_s: float) -> Watermarks:
        return _made(lambda: self.admin.watermarks(at, isolation, timeout_s))

    def describe(self, topics: Sequence[str], timeout_s: float) -> Mapping[str, TopicInfo]:
        return _made(lambda: self.admin.describe(topics, timeout_s))

    def delete_records(self, before: Sequence[Position], timeout_s: float) -> None:
        _made(lambda: self.admin.delete_records(before, timeout_s))

    def consumer_protocol(self) -> GroupProtocol:
        """Found by joining a group of one, once for this object.

        Brokers name the API also where it is switched off, the feature level that decides (``group.version``)
        can not be asked for with this client, and reading broker settings takes rights that members need not
        have. A member that is given an epoch proves it, UNSUPPORTED_VERSION disproves it. Raises Unavailable.
        """
        with self._protocol_lock:
            if self._protocol is None:
                self._protocol = self._probed()
                logger.info("group protocol of %s: %s", self._bootstrap, self._protocol.value)
            return self._protocol

    def _probed(self) -> GroupProtocol:
        probe = ConsumerSpec(self._probe, group=self._probe, protocol=GroupProtocol.CONSUMER)
        consumer = self.consumer(probe)
        try:
            consumer.subscribe([self._probe], _Bystander())
            for _ in range(PROBE_POLLS_MAX):
                try:
                    consumer.poll(1, PROBE_POLL_S)
                except ClientFatal as raised:
                    if consumer.unsupported:
                        return GroupProtocol.COOPERATIVE
                    raise ClientFatal(f"While looking for the group protocol: {raised.detail}") from raised
                if consumer.group_metadata().generation > 0:
                    return GroupProtocol.CONSUMER
        finally:
            consumer.close()
        raise Unavailable(f"No broker of {self._bootstrap} answered the probe of its group protocol.")


class _Bystander:
    """Listens to the probe, which owns nothing."""

    def on_assign(self, consumer: object, partitions: tuple[TopicPartition, ...]) -> None: ...

    def on_revoke(self, consumer: object, partitions: tuple[TopicPartition, ...]) -> None: ...

    def on_lost(self, consumer: object, partitions: tuple[TopicPartition, ...]) -> None: ...


def _made(make: Callable[[], T]) -> T:
    """``make()``; what the client says against a setting becomes :class:`SettingRefused`."""
    try:
        return make()
    except KafkaException as raised:
        error = kafka_errors.error_of(raised)
        if error.code() in kafka_errors.BAD_SETTING:
            raise SettingRefused(error.str()) from raised
        raise ClientFatal(kafka_errors.told(error)) from raised
