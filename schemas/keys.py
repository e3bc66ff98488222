"""Record keys: how they are put together and taken apart.

A run id holds no ``/``, so what follows the first one is never part of it; a tool call id may hold some, so
it is what is left when the parts around it are taken away. Numbers are decimal without leading zeros: a key
has one form, and ``bytes(Key.parse(data)) == data``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

from perdure.schemas.definition import AGENT_PATTERN
from perdure.schemas.errors import Reject
from perdure.schemas.limits import CALL_ID_CHARS_MAX, KEY_BYTES_MAX
from perdure.schemas.values import RUN_ID_PATTERN

PART_MARK: Final = "/"
FAMILY_MARK: Final = "~"
NUMBER_MAX: Final = (1 << 63) - 1

_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


class InvalidKey(Reject):
    """This is no key of this kind of record."""

    code = "invalid_key"
    remedy = "Key the record as docs/PROTOCOL.md says."


class Key:
    """What all keys have in common: their text is their parts, joined by ``/``."""

    __slots__ = ()

    @classmethod
    def parse(cls, data: bytes | None) -> Self:
        """The key that these bytes are. Raises :class:`InvalidKey`, and nothing else."""
        raise NotImplementedError

    def __bytes__(self) -> bytes:
        return str(self).encode()


@dataclass(frozen=True, slots=True)
class EventKey(Key):
    """run-events: run_id/seq."""

    run_id: str
    seq: int

    def __str__(self) -> str:
        return f"{self.run_id}/{self.seq}"

    @classmethod
    def parse(cls, data: bytes | None) -> Self:
        run_id, seq = _parts(data, 2)
        return cls(_run_id(run_id), _number(seq, 1))


@dataclass(frozen=True, slots=True)
class ResultKey(Key):
    """run-results: run_id/turn/call_id/attempt; ``call_id`` is empty for model calls."""

    run_id: str
    turn: int
    call_id: str
    attempt: int

    def __str__(self) -> str:
        return f"{self.run_id}/{self.turn}/{self.call_id}/{self.attempt}"

    @classmethod
    def parse(cls, data: bytes | None) -> Self:
        run_id, turn, rest = _parts(data, 3)
        call_id, mark, attempt = rest.rpartition(PART_MARK)
        if not mark:
            raise InvalidKey("It has too few parts.")
        return cls(_run_id(run_id), _number(turn), _call_id(call_id), _number(attempt))


@dataclass(frozen=True, slots=True)
class ApprovalKey(Key):
    """run-approvals: run_id/call_id."""

    run_id: str
    call_id: str

    def __str__(self) -> str:
        return f"{self.run_id}/{self.call_id}"

    @classmethod
    def parse(cls, data: bytes | None) -> Self:
        run_id, call_id = _parts(data, 2)
        if not call_id:
            raise InvalidKey("It names no call.")
        return cls(_run_id(run_id), _call_id(call_id))


@dataclass(frozen=True, slots=True)
class DefinitionKey(Key):
    """agent-definitions: agent/version/digest, the digest in 64 lower-case hex digits."""

    agent: str
    version: str
    digest: str

    def __str__(self) -> str:
        return f"{self.agent}/{self.version}/{self.digest}"

    @classmethod
    def parse(cls, data: bytes | None) -> Self:
        agent, version, digest = _parts(data, 3)
        return cls(
            _matching("agent", AGENT_PATTERN, agent),
            _matching("version", AGENT_PATTERN, version),
            _matching("digest", _DIGEST, digest),
        )


@dataclass(frozen=True, slots=True)
class DeadLetterKey(Key):
    """dead-letters: topic/partition/offset of the input that was set aside."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    @classmethod
    def parse(cls, data: bytes | None) -> Self:
        topic, partition, offset = _parts(data, 3)
        return cls(_matching("topic", _TOPIC, topic), _number(partition), _number(offset))


def parse_run_id(data: bytes | None) -> str:
    """The run id that is the whole key of a record. Raises :class:`InvalidKey`."""
    return _run_id(_text(data))


def root_of(key: str) -> str:
    """The root run id inside a run id or a key that begins with one: it decides about the partition."""
    return key.partition(PART_MARK)[0].partition(FAMILY_MARK)[0]


def source_of(run_id: str) -> str | None:
    """The run that a child or fork was made of; None for a run that a client submitted."""
    source, mark, _ = run_id.rpartition(FAMILY_MARK)
    return source if mark else None


def _text(data: bytes | None) -> str:
    if data is None:
        raise InvalidKey("There is none.")
    if len(data) > KEY_BYTES_MAX:
        raise InvalidKey(f"It takes {len(data)} of at most {KEY_BYTES_MAX} bytes.")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidKey("It is not UTF-8.") from error


def _parts(data: bytes | None, count: int) -> list[str]:
    parts = _text(data).split(PART_MARK, count - 1)
    if len(parts) != count:
        raise InvalidKey("It has too few parts.")
    return parts


def _matching(what: str, pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise InvalidKey(f"The {what} {text!r:.140} does not match {pattern.pattern}.")
    return text


def _run_id(text: str) -> str:
    return _matching("run id", RUN_ID_PATTERN, text)


def _call_id(text: str) -> str:
    if len(text) > CALL_ID_CHARS_MAX:
        raise InvalidKey(f"The call id has {len(text)} of at most {CALL_ID_CHARS_MAX} characters.")
    return text


def _number(text: str, least: int = 0) -> int:
    number = int(text) if _NUMBER.fullmatch(text) else -1
    if not least <= number <= NUMBER_MAX:
        raise InvalidKey(f"{text!r:.40} is no number from {least} to {NUMBER_MAX}.")
    return number
