"""The offset map: what is started and done beyond a group's committed offset, as text beside that offset.

Words: the *base* is the committed offset, the first request not done. Each offset from there on has two
bits: untouched, started (claimed, not done) or done. Offsets that hold transaction markers or aborted records
stay untouched. Below the *doubt bound* an untouched offset is as suspect as a started one: an earlier owner
found no usable map, and has not told all of them yet. *Ages* say which offset was read first on a day: the
broker answers no such question cheaply, and records are deleted by it. The text is
``p1:<topic id>:<doubt bound>:<ages>:<base85 of the bits>``: four offsets a byte, lowest bits first; the doubt
bound in decimal, empty where it does not lie above the base; ages as ``day.offset`` in base 36, with commas.

A broker takes at most 4,095 characters of commit metadata (``offset.metadata.max.bytes`` is 4,096), which
bounds how far beyond the base an executor may read: ``WINDOW_OFFSETS``.
"""

from __future__ import annotations

import base64
import re
import string
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

TAG: Final = "p1"
SEPARATOR: Final = ":"  # not in the base85 alphabet, nor in a topic id
METADATA_CHARS_MAX: Final = 4_095
WINDOW_OFFSETS: Final = 12_000
"""Offsets a map may span, its base included: 3,750 characters, 345 are left for the rest."""

AGES_MAX: Final = 15
"""With the largest offsets 285 characters; the newest days are kept."""

_OFFSETS_A_BYTE: Final = 4
_DIGITS: Final = string.digits + string.ascii_lowercase
_DECIMAL: Final = re.compile(r"[0-9]{1,19}", re.ASCII)  # as many as a 64-bit offset has
_AGE: Final = re.compile(r"([0-9a-z]{1,6})\.([0-9a-z]{1,13})", re.ASCII)
_STARTED: Final = 1
_DONE: Final = 2


@dataclass(frozen=True, slots=True)
class OffsetMap:
    """Offsets from the base on: started and not done, or done. All below ``doubt_below`` are suspect.

    ``ages``: (day since the epoch, first offset read of that day), both ascending.
    """

    started: frozenset[int] = frozenset()
    done: frozenset[int] = frozenset()
    doubt_below: int = 0
    ages: tuple[tuple[int, int], ...] = ()


class Unusable(Enum):
    """Why a text beside a committed offset says nothing that may be relied on."""

    MISSING = "missing"  # no text: never provisioned, or set by another tool
    FOREIGN = "foreign"  # not written by perdure
    VERSION = "version"  # written by another version
    TOPIC = "topic"  # of another incarnation of the topic
    MALFORMED = "malformed"


Decoded: TypeAlias = OffsetMap | Unusable


def empty_map(topic_id: str) -> str:
    """The text to provision a partition with, beside offset 0."""
    return encode(0, OffsetMap(), topic_id)


def encode(base: int, offsets: OffsetMap, topic_id: str) -> str:
    """The text for ``offsets``; all started and done lie in ``base .. base + WINDOW_OFFSETS - 1``."""
    assert topic_id, "a topic has an id"
    assert SEPARATOR not in topic_id, topic_id
    top = max(_top(offsets.started, base), _top(offsets.done, base))
    assert top - base < WINDOW_OFFSETS, f"{top} lies outside of the window from {base}"
    bits = bytearray((top - base) // _OFFSETS_A_BYTE + 1 if top >= base else 0)
    for value, each in ((_STARTED, offsets.started), (_DONE, offsets.done)):
        for offset in each:
            assert offset >= base, f"{offset} lies below the base {base}"
            byte, place = divmod(offset - base, _OFFSETS_A_BYTE)
            bits[byte] |= value << (2 * place)
    doubt = str(offsets.doubt_below) if offsets.doubt_below > base else ""
    ages = ",".join(f"{_base36(day)}.{_base36(offset)}" for day, offset in offsets.ages[-AGES_MAX:])
    text = SEPARATOR.join((TAG, topic_id, doubt, ages, base64.b85encode(bytes(bits)).decode("ascii")))
    assert len(text) <= METADATA_CHARS_MAX, f"{len(text)} characters"
    return text


def decode(base: int, text: str, topic_id: str) -> Decoded:
    """What ``text`` beside the committed offset ``base`` says of the topic ``topic_id``. Never raises."""
    if not text:
        return Unusable.MISSING
    tag, separator, rest = text.partition(SEPARATOR)
    if not separator or not tag.startswith(TAG[0]) or not tag[1:].isdecimal():
        return Unusable.FOREIGN
    if tag != TAG:
        return Unusable.VERSION
    topic, separator, rest = rest.partition(SEPARATOR)
    if not separator or not topic:
        return Unusable.MALFORMED
    if topic != topic_id:
        return Unusable.TOPIC
    fields = rest.split(SEPARATOR)
    if len(fields) != len(("doubt", "ages", "bits")):
        return Unusable.MALFORMED
    doubt_below, ages = _doubt(fields[0]), _ages(fields[1])
    if doubt_below is None or ages is None:
        return Unusable.MALFORMED
    return _offsets(base, fields[2], doubt_below, ages)


def _offsets(base: int, body: str, doubt_below: int, ages: tuple[tuple[int, int], ...]) -> Decoded:
    try:
        bits = base64.b85decode(body.encode("ascii"))
    except ValueError:  # UnicodeEncodeError included
        return Unusable.MALFORMED
    if len(bits) * _OFFSETS_A_BYTE > WINDOW_OFFSETS:
        return Unusable.MALFORMED
    started: set[int] = set()
    done: set[int] = set()
    for index, byte in enumerate(bits):
        for place in range(_OFFSETS_A_BYTE):
            value = byte >> (2 * place) & 3
            if value == 0:
                continue
            if value not in {_STARTED, _DONE}:
                return Unusable.MALFORMED
            (started if value == _STARTED else done).add(base + index * _OFFSETS_A_BYTE + place)
    return OffsetMap(frozenset(started), frozenset(done), doubt_below, ages)


def _doubt(text: str) -> int | None:
    if not text:
        return 0
    return int(text) if _DECIMAL.fullmatch(text) else None


def _ages(text: str) -> tuple[tuple[int, int], ...] | None:
    if not text:
        return ()
    found: list[tuple[int, int]] = []
    for each in text.split(","):
        match = _AGE.fullmatch(each)
        if match is None:
            return None
        age = int(match[1], 36), int(match[2], 36)
        if found and not (found[-1][0] < age[0] and found[-1][1] <= age[1]):
            return None
        found.append(age)
    return tuple(found) if len(found) <= AGES_MAX else None


def _base36(number: int) -> str:
    digits = ""
    while True:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
        if number == 0:
            return digits


def _top(offsets: Collection[int], base: int) -> int:
    return max(offsets, default=base - 1)
