"""The Consumer of the Log port over confluent-kafka.

Words: the *client* is confluent-kafka's consumer; the *listener* is the caller's. Callbacks run inside the
client's ``poll``, ``consume`` or ``close``. An exception of the listener breaks the consumer for good, since
the client would otherwise go on from committed offsets as if nothing had been said.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Final

import confluent_kafka as ck
from confluent_kafka import KafkaError, KafkaException

from perdure.schemas.errors import PerdureError
from perdure.topics import kafka_errors
from perdure.topics.errors import ClientFatal, Fenced, LogMisuse, OffsetOutOfRange
from perdure.topics.kafka_settings import Settings, logger
from perdure.topics.log import (
    CommitOutcome,
    CommitStatus,
    CommittedOffset,
    ConsumerSpec,
    Eof,
    GroupMetadata,
    Headers,
    Polled,
    Position,
    RebalanceListener,
    Record,
    TopicPartition,
)

OFFSET_METADATA_CHARS_MAX: Final = 4_095  # the broker's offset.metadata.max.bytes is 4,096

REFUSED: Final = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.FENCED_MEMBER_EPOCH,
    }
)

_METADATA_MAGIC: Final = b"CGMDv2:"


def read_metadata(native: bytes) -> GroupMetadata:
    """Read the client's serialised membership.

    Its layout (the client's rd_kafka_consumer_group_metadata_write): magic, generation as a 32-bit integer of
    this machine, then NUL-terminated group and member id. The client has no accessor for the generation, the
    only sign of having been evicted; another magic is refused rather than guessed at.
    """
    start = len(_METADATA_MAGIC)
    if not native.startswith(_METADATA_MAGIC):
        raise ClientFatal(f"Unknown layout of group metadata: {native[:start]!r}.")
    generation = int.from_bytes(native[start : start + 4], sys.byteorder, signed=True)
    group, member_id, _ = native[start + 4 :].split(b"\0", 2)
    return GroupMetadata(group.decode(), generation, member_id.decode(), native)


def write_metadata(group: GroupMetadata) -> bytes:
    """The client's form of ``group``; of one that was built by hand, without instance id."""
    if isinstance(group.native, bytes):
        return group.native
    generation = group.generation.to_bytes(4, sys.byteorder, signed=True)
    names = group.group.encode(), group.member_id.encode()
    return b"%b%b%b\0%b\0\1" % (_METADATA_MAGIC, generation, *names)


def _native(positions: Sequence[Position]) -> list[ck.TopicPartition]:
    for position in positions:
        if position.offset < 0:
            raise LogMisuse(f"Offset {position.offset} for {position.at}.")
    return [ck.TopicPartition(p.at.topic, p.at.partition, p.offset) for p in positions]


def _natives(partitions: Sequence[TopicPartition]) -> list[ck.TopicPartition]:
    return [ck.TopicPartition(at.topic, at.partition) for at in partitions]


def _ours(partitions: Sequence[ck.TopicPartition]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(each.topic, each.partition) for each in partitions)


def _headers(message: ck.Message) -> Headers:
    try:
        headers = message.headers()
    except UnicodeDecodeError:
        # Anybody can write a header whose name is not UTF-8; the record itself must still reach the caller.
        return ()
    pairs = headers.items() if isinstance(headers, dict) else headers or ()
    return tuple((name, _header_value(value)) for name, value in pairs)


def _header_value(value: str | bytes | None) -> bytes:
    return value if isinstance(value, bytes) else b"" if value is None else value.encode()


def _at(message: ck.Message) -> TopicPartition:
    topic, partition = message.topic(), message.partition()
    return TopicPartition(topic if topic is not None else "", partition if partition is not None else -1)


def _record(message: ck.Message) -> Record:
    at, offset = _at(message), message.offset()
    assert offset is not None, "a record has an offset"
    at_ms = message.timestamp()[1]
    return Record(at.topic, at.partition, offset, message.key(), message.value(), _headers(message), at_ms)


class KafkaConsumer:
    """See :class:`perdure.topics.log.Consumer`."""

    def __init__(self, spec: ConsumerSpec, settings: Settings) -> None:
        self._spec = spec
        self._fatal: KafkaError | None = None
        self._broken: BaseException | None = None
        self._failures: list[tuple[TopicPartition, PerdureError]] = []
        self._gone: set[TopicPartition] = set()  # given up during the running poll
        self._closed = False
        self._client = ck.Consumer({**settings, "error_cb": self._on_error}, logger=logger)

    @property
    def unsupported(self) -> bool:
        """The broker said that it does not know this group protocol."""
        return self._fatal is not None and self._fatal.code() in kafka_errors.UNSUPPORTED

    # ---- membership and assignment

    def subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        self._member()

        def on_assign(_: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
            if not self._heard(listener.on_assign, _ours(partitions)):
                # An assignment of nothing, or the client would by itself go on from the committed offsets.
                incremental = self._spec.protocol.incremental
                (self._client.incremental_assign if incremental else self._client.assign)([])

        def on_revoke(_: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
            self._heard(listener.on_revoke, _ours(partitions))
            self._give_up(partitions)

        def on_lost(_: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
            self._heard(listener.on_lost, _ours(partitions))
            self._give_up(partitions)

        self._client.subscribe(list(topics), on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)

    def _heard(
        self,
        callback: Callable[[KafkaConsumer, tuple[TopicPartition, ...]], None],
        partitions: tuple[TopicPartition, ...],
    ) -> bool:
        try:
            callback(self, partitions)
        except BaseException as raised:  # noqa: BLE001 - poll raises it, once out of the client's C code
            self._broken = self._broken or raised
            return False
        return True

    def _give_up(self, partitions: Sequence[ck.TopicPartition]) -> None:
        """Note what is leaving, before the client gives it up (which it does when the callback returns)."""
        leaving = partitions if self._spec.protocol.incremental else self._client.assignment()
        self._gone.update(_ours(leaving))
        self._gone.update(_ours(partitions))
        self._failures = [(at, failure) for at, failure in self._failures if at not in self._gone]

    def assign(self, positions: Sequence[Position]) -> None:
        native = _native(positions)
        self._client.assign(native)
        self._client.resume(native)

    def incremental_assign(self, positions: Sequence[Position]) -> None:
        native = _native(positions)
        self._client.incremental_assign(native)
        self._client.resume(native)

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        self._client.incremental_unassign(_natives(partitions))

    def group_metadata(self) -> GroupMetadata:
        self._member()
        native: object = self._client.consumer_group_metadata()
        assert isinstance(native, bytes)
        return read_metadata(native)

    # ---- reading

    def poll(self, max_records: int, timeout_s: float) -> list[Polled]:
        self._raise_failures()
        self._gone.clear()
        first = self._client.poll(timeout_s)
        self._raise_broken()
        if first is None:
            self._raise_fatal()
            return []
        # ``consume(n, t)`` waits for all n or the whole of t; so one is waited for, and the rest is what is
        # there.
        self._gone.clear()
        rest = self._client.consume(max_records - 1, 0) if max_records > 1 else []
        self._raise_broken()
        # A callback may have run in between; of what it gave up, the client cleans only what comes after it.
        messages = rest if _at(first) in self._gone else [first, *rest]
        items: list[Polled] = []
        for message in messages:
            error = message.error()
            if error is None:
                items.append(_record(message))
            elif error.code() == kafka_errors.PARTITION_EOF:
                at, offset = _at(message), message.offset()
                assert offset is not None, "an end has an offset"
                items.append(Eof(at.topic, at.partition, offset))
            else:
                self._note(_at(message), error)
        if not items:
            self._raise_failures()
            self._raise_fatal()
        return items

    def _note(self, at: TopicPartition, error: KafkaError) -> None:
        code = error.code()
        if code in kafka_errors.NO_OFFSET:
            self._failures.append((at, OffsetOutOfRange(f"{at.topic}/{at.partition}: {error.str()}.")))
        elif kafka_errors.is_fatal(error):
            self._fatal = self._fatal or error
        elif code == KafkaError.GROUP_AUTHORIZATION_FAILED and self._spec.group is None:
            logger.debug("reader of no group: %s", error)  # the client looks for a coordinator all the same
        elif code in kafka_errors.PASSING or error.retriable():
            logger.info("consumer %s: %s", self._spec.client_id, error)
        else:
            self._failures.append((at, ClientFatal(f"{at.topic}/{at.partition}: {kafka_errors.told(error)}")))

    def _raise_failures(self) -> None:
        self._open()
        self._raise_broken()
        if self._failures:
            raise self._failures.pop(0)[1]

    def _raise_broken(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _raise_fatal(self) -> None:
        if self._fatal is None:
            return
        told = kafka_errors.told(self._fatal)
        raise Fenced(told) if self._fatal.code() in kafka_errors.FENCED else ClientFatal(told)

    def _on_error(self, error: KafkaError) -> None:
        """Trouble of no partition. A fatal one comes here with its cause, and without it as a message."""
        if error.fatal():
            self._fatal = error
        logger.info("consumer %s: %s", self._spec.client_id, error)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self._client.pause(_natives(partitions))

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        self._client.resume(_natives(partitions))

    def seek(self, position: Position) -> None:
        self._client.seek(_native([position])[0])
        self._failures = [(at, failure) for at, failure in self._failures if at != position.at]

    # ---- the group's offsets

    def committed(self, partitions: Sequence[TopicPartition], timeout_s: float) -> list[CommittedOffset]:
        self._member()
        try:
            found = self._client.committed(_natives(partitions), timeout=timeout_s)
        except KafkaException as raised:
            raise kafka_errors.of_question(kafka_errors.error_of(raised)) from raised
        for each in found:
            if each.error is not None:
                raise kafka_errors.of_question(each.error)
        return [
            CommittedOffset(
                TopicPartition(each.topic, each.partition),
                each.offset if each.offset >= 0 else None,
                each.metadata or "",
            )
            for each in found
        ]

    def commit(self, offsets: Sequence[CommittedOffset]) -> CommitOutcome:
        self._member()
        native: list[ck.TopicPartition] = []
        for each in offsets:
            if each.offset is None or each.offset < 0:
                raise LogMisuse(f"Commit of offset {each.offset} for {each.at}.")
            if len(each.metadata) > OFFSET_METADATA_CHARS_MAX:
                raise LogMisuse(f"Commit of {len(each.metadata)} characters of metadata for {each.at}.")
            at = each.at
            native.append(ck.TopicPartition(at.topic, at.partition, each.offset, metadata=each.metadata))
        if not native:
            raise LogMisuse("Commit of no offsets.")
        try:
            answers = [each.error for each in self._client.commit(offsets=native, asynchronous=False)]
        except KafkaException as raised:
            answers = [kafka_errors.error_of(raised)]
        errors = [error for error in answers if error is not None]
        if not errors:
            return CommitOutcome(CommitStatus.ACKNOWLEDGED)
        # A coordinator refuses a whole request; a mixed answer is nothing to rest a definite word on.
        refused = len(errors) == len(answers) and all(error.code() in REFUSED for error in errors)
        reason = ", ".join(sorted({error.name() for error in errors}))
        return CommitOutcome(CommitStatus.REFUSED if refused else CommitStatus.UNKNOWN, reason)

    # ---- ends

    def close(self) -> None:
        if self._closed:
            return
        self._broken = None  # told by poll; only what the listener raises while leaving is new
        try:
            self._client.close()
        finally:
            self._closed = True
        self._raise_broken()

    def _open(self) -> None:
        if self._closed:
            raise LogMisuse("The consumer is closed.")

    def _member(self) -> None:
        self._open()
        if self._spec.group is None:
            raise LogMisuse("A reader without a group has no membership and no offsets.")
