"""The Admin port of provisioning over confluent-kafka's AdminClient."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Final, TypeVar, cast

import confluent_kafka as ck
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConsumerGroupDescription,
    NewTopic,
    ResourceType,
    TopicDescription,
)

from perdure.schemas.errors import PerdureError
from perdure.topics import kafka_errors
from perdure.topics.admin import GroupInUse, TopicState
from perdure.topics.errors import Unavailable
from perdure.topics.kafka_admin import ANSWER_MARGIN_S, KafkaAdmin, answer, unless
from perdure.topics.kafka_settings import client_log, logger
from perdure.topics.log import CommittedOffset, Isolation, TopicPartition, Watermarks

# What a broker can not answer yet is asked again: a topic that was created is known to the controller at once
# and to the brokers a little later; a new cluster makes its topic of offsets when it is first asked for one.
PATIENCE_S: Final = 0.1
PATIENCE_MAX: Final = 150

T = TypeVar("T")

_GROUP_UNKNOWN: Final = frozenset({KafkaError.GROUP_ID_NOT_FOUND, KafkaError.RESOURCE_NOT_FOUND})
_GROUP_IN_USE: Final = frozenset(
    {
        KafkaError.NON_EMPTY_GROUP,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.ILLEGAL_GENERATION,
    }
)


class KafkaProvision:
    """See :class:`perdure.topics.admin.Admin`."""

    def __init__(self, admin: KafkaAdmin) -> None:
        self._admin = admin

    def topics(self, names: Collection[str], timeout_s: float) -> Mapping[str, TopicState]:
        described: dict[str, TopicDescription] = {}
        if names:
            asked = cast(
                "Mapping[str, Future[TopicDescription]]",
                self._admin.client.describe_topics(TopicCollection(list(names)), request_timeout=timeout_s),
            )
            for name, future in asked.items():
                found = unless(future, {KafkaError.UNKNOWN_TOPIC_OR_PART}, timeout_s)
                if found is not None:
                    described[name] = found
        settings = self._settings(list(described), timeout_s)
        return {
            name: TopicState(
                len(found.partitions),
                min(len(partition.replicas) for partition in found.partitions),
                str(found.topic_id),
                settings[name],
            )
            for name, found in described.items()
        }

    def _settings(self, names: Sequence[str], timeout_s: float) -> Mapping[str, Mapping[str, str]]:
        if not names:
            return {}
        asked = cast(
            "Mapping[ConfigResource, Future[Mapping[str, ConfigEntry]]]",
            self._admin.client.describe_configs(
                [ConfigResource(ResourceType.TOPIC, name) for name in names], request_timeout=timeout_s
            ),
        )
        return {
            str(resource.name): {
                entry.name: entry.value
                for entry in answer(future, timeout_s).values()
                if entry.value is not None
            }
            for resource, future in asked.items()
        }

    def create_topic(
        self, name: str, partitions: int, replication: int, settings: Mapping[str, str], timeout_s: float
    ) -> None:
        topic = NewTopic(name, partitions, replication, config=dict(settings))
        asked = cast(
            "Mapping[str, Future[None]]",
            self._admin.client.create_topics([topic], request_timeout=timeout_s, operation_timeout=timeout_s),
        )
        unless(asked[name], {KafkaError.TOPIC_ALREADY_EXISTS}, timeout_s)
        _patiently(lambda: self._see(name, timeout_s))

    def _see(self, name: str, timeout_s: float) -> None:
        if name not in self._admin.describe([name], timeout_s):
            raise kafka_errors.NotYet(f"{name} was created, but the brokers do not know it yet.")

    def alter_topic(self, name: str, settings: Mapping[str, str], timeout_s: float) -> None:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in sorted(settings.items())
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        asked = cast(
            "Mapping[ConfigResource, Future[None]]",
            self._admin.client.incremental_alter_configs([resource], request_timeout=timeout_s),
        )
        answer(asked[resource], timeout_s)

    def members(self, group: str, timeout_s: float) -> int:
        return _patiently(lambda: self._members(group, timeout_s))

    def _members(self, group: str, timeout_s: float) -> int:
        asked = cast(
            "Mapping[str, Future[ConsumerGroupDescription]]",
            self._admin.client.describe_consumer_groups([group], request_timeout=timeout_s),
        )
        found = unless(asked[group], _GROUP_UNKNOWN, timeout_s)
        return 0 if found is None else len(found.members)

    def offsets(
        self, group: str, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> Sequence[CommittedOffset]:
        return _patiently(lambda: self._offsets(group, partitions, timeout_s))

    def _offsets(
        self, group: str, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> Sequence[CommittedOffset]:
        """Asked by a consumer that never joins.

        It waits for a coordinator that a new cluster has yet to make. The AdminClient does not: its request
        times out, and the late answer can end the process on an assertion (librdkafka #4605).
        """
        settings = {
            **self._admin.settings,
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
        native = [ck.TopicPartition(at.topic, at.partition) for at in partitions]
        reader = ck.Consumer(settings, logger=client_log)
        try:
            found = reader.committed(native, timeout=timeout_s)
        except KafkaException as raised:
            raise kafka_errors.of_question(kafka_errors.error_of(raised)) from raised
        finally:
            reader.close()
        committed: list[CommittedOffset] = []
        for each in found:
            if each.error is not None:
                raise kafka_errors.of_question(each.error)
            at = TopicPartition(each.topic, each.partition)
            committed.append(
                CommittedOffset(at, each.offset if each.offset >= 0 else None, each.metadata or "")
            )
        return committed

    def set_offsets(self, group: str, offsets: Sequence[CommittedOffset], timeout_s: float) -> None:
        _patiently(lambda: self._set_offsets(group, offsets, timeout_s))

    def _set_offsets(self, group: str, offsets: Sequence[CommittedOffset], timeout_s: float) -> None:
        native: list[ck.TopicPartition] = []
        for each in offsets:
            assert each.offset is not None, "an offset to be set is known"
            at = each.at
            native.append(ck.TopicPartition(at.topic, at.partition, each.offset, metadata=each.metadata))
        asked = cast(
            "Mapping[str, Future[ConsumerGroupTopicPartitions]]",
            self._admin.client.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, native)], request_timeout=timeout_s
            ),
        )
        try:
            answered = asked[group].result(timeout_s + ANSWER_MARGIN_S)
        except FutureTimeout as raised:
            raise Unavailable(f"No answer about {group} within {timeout_s} s.") from raised
        except KafkaException as raised:
            raise _not_set(group, kafka_errors.error_of(raised)) from raised
        for answered_for in answered.topic_partitions or ():
            if answered_for.error is not None:
                raise _not_set(group, answered_for.error)

    def watermarks(self, at: TopicPartition, isolation: Isolation, timeout_s: float) -> Watermarks:
        return self._admin.watermarks(at, isolation, timeout_s)


def _patiently(ask: Callable[[], T]) -> T:
    pause = threading.Event()
    for _ in range(PATIENCE_MAX):
        try:
            return ask()
        except kafka_errors.NotYet as raised:
            logger.debug("asked again: %s", raised.detail)
            pause.wait(PATIENCE_S)
    return ask()


def _not_set(group: str, error: KafkaError) -> PerdureError:
    if error.code() in _GROUP_IN_USE:
        return GroupInUse(f"{group}: {kafka_errors.told(error)}")
    return kafka_errors.of_question(error)
