"""Dead letters: what could not be handled, as its head, its digest and where it stands."""

from __future__ import annotations

import hashlib
from typing import Final

from perdure.schemas.limits import DEAD_LETTER_HEAD_BYTES_MAX, KEY_BYTES_MAX
from perdure.schemas.outputs import DeadLetter
from perdure.schemas.values import LogPosition
from perdure.topics.log import Record

REASON_CHARS_MAX: Final = 2_000


def position_of(record: Record) -> LogPosition:
    return LogPosition(record.topic, record.partition, record.offset)


def dead_letter(record: Record, code: str, reason: str, at_ms: int) -> DeadLetter:
    """The dead letter of ``record``. ``code`` is stable; ``reason`` is for people, cut where it is long."""
    value = record.value or b""
    return DeadLetter(
        source=position_of(record),
        code=code,
        reason=_text(reason[:REASON_CHARS_MAX]),
        key=None if record.key is None else record.key[:KEY_BYTES_MAX],
        head=value[:DEAD_LETTER_HEAD_BYTES_MAX],
        sha256=hashlib.sha256(value).digest(),
        size=len(value),
        at_ms=at_ms,
    )


def dead_letter_key(letter: DeadLetter) -> bytes:
    """Key on dead-letters; the same input set aside twice is one dead letter to whoever reads by key."""
    return str(letter.source).encode()


def _text(reason: str) -> str:
    """``reason`` without lone surrogates, which no record can hold; a reason may quote the input."""
    return reason.encode("utf-8", "replace").decode()
