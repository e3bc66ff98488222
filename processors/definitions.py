"""Agent definitions: the book of all that were published, read from agent-definitions, and how one is
published.

A definition is known by the SHA-256 of its canonical JSON (RFC 8785) and never overwritten: runs are pinned
to it.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from typing import Final, Protocol

import msgspec

from perdure.processors.clock import Clock
from perdure.processors.ports import DefinitionSource
from perdure.schemas.canonical import canonical_json
from perdure.schemas.codec import Undecodable, decode, encode
from perdure.schemas.definition import AgentDefinition, decode_definition
from perdure.schemas.errors import PerdureError
from perdure.schemas.outputs import DefinitionRecord
from perdure.topics.errors import OffsetOutOfRange, Unavailable
from perdure.topics.log import (
    Consumer,
    ConsumerSpec,
    Eof,
    Isolation,
    Log,
    Outgoing,
    Position,
    Producer,
    Record,
    TopicPartition,
)
from perdure.topics.table import AGENT_DEFINITIONS, Namespace

PARTITION: Final = 0  # the topic has one (topics.table)
READ_RECORDS_MAX: Final = 500
LOOK_WAIT_S: Final = 0.05
PUBLISH_TIMEOUT_S: Final = 10.0

_log = logging.getLogger(__name__)


class Definitions(DefinitionSource, Protocol):
    """A source that can be brought up to date."""

    def refresh(self) -> None:
        """Take in what has arrived, without waiting."""
        ...

    def catch_up(self, timeout_s: float) -> None:
        """Read to the end as it is now. Raises :class:`Unavailable` if that was not reached in time."""
        ...


class FixedDefinitions:
    """Definitions that are all known from the start; for tests and tools."""

    def __init__(self, *definitions: AgentDefinition) -> None:
        self._known: dict[str, AgentDefinition] = {}
        for definition in definitions:
            self.add(definition)

    def add(self, definition: AgentDefinition) -> str:
        """Make it the newest; returns its content hash."""
        digest = digest_of(body_of(definition))
        self._known.pop(digest, None)
        self._known[digest] = definition
        return digest

    def by_digest(self, digest: str) -> AgentDefinition | None:
        return self._known.get(digest)

    def newest(self, agent: str, version: str | None) -> tuple[str, AgentDefinition] | None:
        for digest, definition in reversed(self._known.items()):
            if definition.agent == agent and version in {None, definition.version}:
                return digest, definition
        return None

    def refresh(self) -> None:
        return

    def catch_up(self, timeout_s: float) -> None:  # noqa: ARG002 - the port's name
        return


class DefinitionBook:
    """Every published definition, read incrementally by a consumer without a group. One thread only."""

    def __init__(self, log: Log, namespace: Namespace, clock: Clock, client_id: str) -> None:
        self._log = log
        self._clock = clock
        self._client_id = client_id
        self._at = TopicPartition(namespace.topic(AGENT_DEFINITIONS), PARTITION)
        self._known = FixedDefinitions()
        self._read_to = 0
        self._consumer = self._open()
        self.counts: Counter[str] = Counter()

    def by_digest(self, digest: str) -> AgentDefinition | None:
        return self._known.by_digest(digest)

    def newest(self, agent: str, version: str | None) -> tuple[str, AgentDefinition] | None:
        return self._known.newest(agent, version)

    def refresh(self) -> None:
        while self._read(0.0):
            pass

    def catch_up(self, timeout_s: float) -> None:
        give_up_s = self._clock.boot_s() + timeout_s
        looks = max(1, int(timeout_s / LOOK_WAIT_S))  # a virtual clock may stand still while we look
        end: int | None = None
        while end is None or self._read_to < end:
            if looks <= 0 or self._clock.boot_s() > give_up_s:
                raise Unavailable(f"{self._at.topic} was read to {self._read_to} of {end}.")
            if end is None:
                end = self._ask_end(timeout_s)
            if (end is None or self._read_to < end) and not self._read(LOOK_WAIT_S):
                looks -= 1

    def _ask_end(self, timeout_s: float) -> int | None:
        """The topic's end as of now; None: it has no leader at the moment."""
        try:
            return self._log.watermarks(self._at, Isolation.COMMITTED, timeout_s).end
        except Unavailable as error:
            _log.info("%s", error, extra={"action": "asked_again"})
            return None

    def close(self) -> None:
        self._consumer.close()

    def _open(self) -> Consumer:
        consumer = self._log.consumer(ConsumerSpec(self._client_id, eof=True))
        consumer.assign([Position(self._at, self._read_to)])
        return consumer

    def _read(self, wait_s: float) -> bool:
        """Whether there was anything."""
        try:
            items = self._consumer.poll(READ_RECORDS_MAX, wait_s)
        except OffsetOutOfRange as error:
            # Created anew, or its start has moved: what is known stays known, the rest is read again.
            _log.warning(
                "reading %s again: %s", self._at.topic, error, extra={"action": "definitions_reread"}
            )
            self._consumer.close()
            self._read_to = self._log.watermarks(self._at, Isolation.COMMITTED, PUBLISH_TIMEOUT_S).low
            self._consumer = self._open()
            return True
        for item in items:
            match item:
                case Record():
                    self._take(item)
                    self._read_to = item.offset + 1
                case Eof():
                    self._read_to = max(self._read_to, item.offset)
        return bool(items)

    def _take(self, record: Record) -> None:
        try:
            published, definition = _parse(record.value)
        except (Undecodable, msgspec.MsgspecError) as error:
            # Others write here; a run that needs this one waits, visibly, until it is published well.
            self.counts["undecodable"] += 1
            _log.warning(
                "%s/%d/%d is no agent definition: %s",
                record.topic,
                record.partition,
                record.offset,
                error,
                extra={"action": "definition_ignored", "offset": record.offset},
            )
            return
        if self._known.by_digest(published.digest) is None:
            self._known.add(definition)


def _parse(value: bytes | None) -> tuple[DefinitionRecord, AgentDefinition]:
    published = decode(DefinitionRecord, value)
    if digest_of(published.body) != published.digest:
        raise Undecodable("The body is not what its content hash says.")
    return published, decode_definition(published.body)


def body_of(definition: AgentDefinition) -> bytes:
    """The canonical JSON (RFC 8785) that a definition is known by."""
    return canonical_json(msgspec.to_builtins(definition))


def digest_of(body: bytes) -> str:
    """Content hash: 64 lower-case hex digits of SHA-256."""
    return hashlib.sha256(body).hexdigest()


def publish(
    definition: AgentDefinition, book: DefinitionBook, producer: Producer, namespace: Namespace, clock: Clock
) -> str:
    """Make ``definition`` known and return its content hash; one that is known is not written again.

    Returns once it is durable. Raises what the delivery reports, or :class:`Unavailable`.
    """
    body = body_of(definition)
    digest = digest_of(body)
    book.catch_up(PUBLISH_TIMEOUT_S)
    if book.by_digest(digest) is not None:
        return digest
    failures: list[PerdureError] = []

    def report(error: PerdureError | None, _: int) -> None:
        if error is not None:
            failures.append(error)

    record = DefinitionRecord(definition.agent, definition.version, digest, body, clock.wall_ms())
    key = f"{definition.agent}/{definition.version}/{digest}".encode()
    producer.produce(Outgoing(namespace.topic(AGENT_DEFINITIONS), PARTITION, key, encode(record)), report)
    if producer.flush(PUBLISH_TIMEOUT_S) > 0:
        raise Unavailable(f"Agent {definition.agent} {definition.version} was not acknowledged.")
    if failures:
        raise failures[0]
    _log.info(
        "published agent %s %s as %s",
        definition.agent,
        definition.version,
        digest,
        extra={"action": "definition_published", "agent": definition.agent, "digest": digest},
    )
    return digest
