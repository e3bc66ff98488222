"""Questions to the cluster, and the few changes perdure makes to it, over confluent-kafka's AdminClient."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final, TypeVar, cast

import confluent_kafka as ck
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec, TopicDescription

from perdure.topics import kafka_errors
from perdure.topics.errors import OffsetOutOfRange, Unavailable
from perdure.topics.kafka_settings import Settings, client_log, logger
from perdure.topics.log import Isolation, Position, TopicInfo, TopicPartition, Watermarks

# The client keeps its own time; ours is only a net under it.
ANSWER_MARGIN_S: Final = 2.0

T = TypeVar("T")

_EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_ISOLATION: Final[Mapping[Isolation, IsolationLevel]] = {
    Isolation.COMMITTED: IsolationLevel.READ_COMMITTED,
    Isolation.UNCOMMITTED: IsolationLevel.READ_UNCOMMITTED,
}


def answer(future: Future[T], timeout_s: float) -> T:
    """The answer, or :class:`Unavailable` (ClientFatal where rights or settings are missing)."""
    try:
        return future.result(timeout_s + ANSWER_MARGIN_S)
    except FutureTimeout as raised:
        raise Unavailable(f"No answer within {timeout_s} s.") from raised
    except KafkaException as raised:
        raise kafka_errors.of_question(kafka_errors.error_of(raised)) from raised


def unless(future: Future[T], codes: Collection[int], timeout_s: float) -> T | None:
    """The answer as of :func:`answer`, or None if it is an error with one of ``codes``."""
    try:
        return future.result(timeout_s + ANSWER_MARGIN_S)
    except FutureTimeout as raised:
        raise Unavailable(f"No answer within {timeout_s} s.") from raised
    except KafkaException as raised:
        error = kafka_errors.error_of(raised)
        if error.code() in codes:
            return None
        raise kafka_errors.of_question(error) from raised


class KafkaAdmin:
    """One AdminClient, made when it is first needed; may be used from any thread."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings
        self._made: AdminClient | None = None

    @property
    def settings(self) -> Settings:
        """How any other client is connected to the same cluster."""
        return self._settings()

    @property
    def client(self) -> AdminClient:
        if self._made is None:
            configured: dict[str, Any] = {**self._settings(), "error_cb": _on_error}
            self._made = AdminClient(configured, logger=client_log)
        return self._made

    def watermarks(self, at: TopicPartition, isolation: Isolation, timeout_s: float) -> Watermarks:
        partition = ck.TopicPartition(at.topic, at.partition)
        futures = [
            cast(
                "Future[ListOffsetsResultInfo]",
                self.client.list_offsets(
                    {partition: spec}, isolation_level=_ISOLATION[isolation], request_timeout=timeout_s
                )[partition],
            )
            for spec in (_EARLIEST, _LATEST)
        ]
        low, end = (answer(each, timeout_s).offset for each in futures)
        if low < 0 or end < 0:  # the client calls a question that timed out answered, with no offset
            raise Unavailable(f"No answer about {at} within {timeout_s} s.")
        return Watermarks(low, end)

    def describe(self, topics: Sequence[str], timeout_s: float) -> Mapping[str, TopicInfo]:
        found: dict[str, TopicInfo] = {}
        if not topics:
            return found
        collection = TopicCollection(list(topics))
        asked = cast(
            "Mapping[str, Future[TopicDescription]]",
            self.client.describe_topics(collection, request_timeout=timeout_s),
        )
        for topic, future in asked.items():
            described = unless(future, {KafkaError.UNKNOWN_TOPIC_OR_PART}, timeout_s)
            if described is not None:
                found[topic] = TopicInfo(len(described.partitions), str(described.topic_id))
        return found

    def delete_records(self, before: Sequence[Position], timeout_s: float) -> None:
        if not before:
            return
        native = [ck.TopicPartition(each.at.topic, each.at.partition, each.offset) for each in before]
        asked = cast(
            "Mapping[ck.TopicPartition, Future[object]]",
            self.client.delete_records(native, request_timeout=timeout_s, operation_timeout=timeout_s),
        )
        for partition, future in asked.items():
            try:
                future.result(timeout_s + ANSWER_MARGIN_S)
            except FutureTimeout as raised:
                raise Unavailable(f"No answer about {partition} within {timeout_s} s.") from raised
            except KafkaException as raised:
                error = kafka_errors.error_of(raised)
                if error.code() == KafkaError.OFFSET_OUT_OF_RANGE:
                    raise OffsetOutOfRange(f"{partition}: beyond the end.") from raised
                raise kafka_errors.of_question(error) from raised


def _on_error(error: KafkaError) -> None:
    logger.info("admin: %s", error)
