"""The Consumer of the Log port over confluent-kafka.

Words: the *client* is confluent-kafka's consumer; the *listener* is the caller's. Callbacks run inside the
client's ``poll``, ``consume`` or ``close``. An exception of the listener breaks the consumer for good, since
the client would otherwise go on from committed offsets as if nothing had been said.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import confluent_kafka as ck
from confluent_kafka import KafkaError, KafkaException

from perdure.schemas.errors import PerdureError
from perdure.topics import kafka_errors
from perdure.topics.errors import ClientFatal, Fenced, LogMisuse, OffsetOutOfRange
from perdure.topics.kafka_settings import Settings, client_log, logger
from perdure.topics.log import (
    CommitOutcome,
    CommitStatus,
    CommittedOffset,
    ConsumerSpec,
    Eof,
    GroupMetadata,
    GroupProtocol,
    Headers,
    Polled,
    Position,
    RebalanceListener,
    Record,
    TopicPartition,
)

OFFSET_METADATA_CHARS_MAX: Final = 4_095  # the broker's offset.metadata.max.bytes is 4,096
LEAVE_POLL_S: Final = 0.05
LEAVE_POLLS_MAX: Final = 200  # ten seconds

T = TypeVar("T")

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
        self._client = ck.Consumer({**settings, "error_cb": self._on_error}, logger=client_log)

    @property
    def unsupported(self) -> bool:
        """The broker said that it does not know this group protocol."""
        return self._fatal is not None and kafka_errors.is_unsupported(self._fatal)

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
        self._failures.clear()
        self._asked(lambda: self._client.assign(native))
        self._asked(lambda: self._client.resume(native))
        self._wake(native)

    def incremental_assign(self, positions: Sequence[Position]) -> None:
        native = _native(positions)
        self._asked(lambda: self._client.incremental_assign(native))
        self._asked(lambda: self._client.resume(native))
        self._wake(native)

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        native = _natives(partitions)
        self._asked(lambda: self._client.incremental_unassign(native))

    def group_metadata(self) -> GroupMetadata:
        self._member()
        native: object = self._client.consumer_group_metadata()
        assert isinstance(native, bytes)
        return read_metadata(native)

    # ---- reading

    def poll(self, max_records: int, timeout_s: float) -> list[Polled]:
        self._raise_failures()
        first = self._served(lambda: self._client.poll(timeout_s))
        if first is None:
            self._raise_fatal()
            return []
        # ``consume(n, t)`` waits for all n or the whole of t: so one is waited for, then what is there taken.
        self._gone.clear()
        more = max_records - 1
        rest = self._served(lambda: self._client.consume(more, 0)) if more > 0 else None
        # A callback may have run in between; of what it gave up, the client cleans only what comes after it.
        messages = [*([] if _at(first) in self._gone else [first]), *(rest or [])]
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
        return items

    def _served(self, call: Callable[[], T]) -> T | None:
        """``call()``, which runs callbacks; None where it ended in a fatal error, to be told in its turn."""
        try:
            result = call()
        except kafka_errors.RAISED as raised:
            self._fatal = self._fatal or kafka_errors.error_of(raised)
            result = None
        self._raise_broken()
        return result

    def _asked(self, call: Callable[[], object]) -> None:
        """``call()``, which changes what is read; errors are the caller's (a partition it does not hold)."""
        self._open()
        try:
            call()
        except kafka_errors.RAISED as raised:
            error = kafka_errors.error_of(raised)
            if error.fatal():
                self._fatal = self._fatal or error
                self._raise_fatal()
            raise LogMisuse(kafka_errors.told(error)) from raised

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
        self._raise_fatal()

    def _raise_broken(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _raise_fatal(self) -> None:
        if self._fatal is None:
            return
        told = kafka_errors.told(self._fatal)
        raise Fenced(told) if kafka_errors.is_fenced(self._fatal) else ClientFatal(told)

    def _on_error(self, error: KafkaError) -> None:
        """Trouble of no partition, and not fatal: fatal ones are raised by the client's call itself."""
        logger.info("consumer %s: %s", self._spec.client_id, error)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        native = _natives(partitions)
        self._asked(lambda: self._client.pause(native))

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        native = _natives(partitions)
        self._asked(lambda: self._client.resume(native))
        self._wake(native)

    def _wake(self, partitions: Sequence[ck.TopicPartition]) -> None:
        """Make the client look at once for what to fetch.

        Its thread for a broker with nothing to fetch sleeps up to a second and is not told of a resume, but
        any request to that broker wakes it; the answer is not waited for. Measured: 0.7-1.0 s becomes 5 ms.
        """
        for each in partitions:
            with suppress(KafkaException):
                self._client.get_watermark_offsets(each, timeout=0)

    def seek(self, position: Position) -> None:
        native = _native([position])[0]
        self._asked(lambda: self._client.seek(native))
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
        """See the port. Blocks as long as the coordinator is away; tells the answer to the last request sent.

        So REFUSED is a definite word only if it came sooner than ``commit_retry_backoff_ms``, before which no
        request is sent again: the caller keeps the time.
        """
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
            self._unsubscribe()
            self._client.close()
        finally:
            self._closed = True
        self._raise_broken()

    def _unsubscribe(self) -> None:
        """Give the partitions up before closing, where the client's own close may never return.

        The close of a cooperative member can wait for ever for a revoke whose callback has committed;
        outside of close the same callback is harmless. Bounded: what is not given up in time is left to
        close.
        """
        spec = self._spec
        if spec.group is None or spec.protocol is not GroupProtocol.COOPERATIVE:
            return
        if spec.instance_id is not None:
            return  # a static member keeps its partitions beyond its end
        self._client.unsubscribe()
        for _ in range(LEAVE_POLLS_MAX):
            if not self._client.assignment():
                return
            self._client.poll(LEAVE_POLL_S)

    def _open(self) -> None:
        if self._closed:
            raise LogMisuse("The consumer is closed.")

    def _member(self) -> None:
        self._open()
        if self._spec.group is None:
            raise LogMisuse("A reader without a group has no membership and no offsets.")
