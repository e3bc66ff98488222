"""The rows of a partition: what their keys and values mean. Every row is derived from run-events.

::

    m                                     :class:`Meta`: where in the log these rows belong
    r run id                              the run
    t run id, 0, message index (u32)      a message of its transcript, until it is purged
    u run id, 0, turn (u32)               messages it had when the turn's answer was in it (u64)
    f run id, 0, run id                   the second is a child or fork of the first, not purged
    o run id, 0, turn (u32), call id      :class:`ResultRow`: the call's effective result
    c run id, 0, "c" or "r", cause        command or result id: seq of the event that answered it (u64)
    d due time (u64, ms), run id          timer: the run wants a TimerInput then
    q time (u64, ms), run id              queue: the run waits for nothing but a slot, since then
    h run id                              the run holds a slot
    s run id                              :class:`StatusRow`: when its status was last published
    w due time (u64, ms), run id          timer: its status has a change that was not published
    x run id                              :class:`QuarantineRow`: its history is damaged
    e time (u64, ms), run id              the run has ended, and since then nothing more can come of it
    p run id                              the run was purged at that time (u64, ms); its id stays used
    g run id                              its purge goes on: the newest event that is not deleted yet (u64)
    a time (u64, ms)                      age mark: offset of run-results at that time (u64)

Numbers are big-endian, so that keys sort as numbers do. Run ids hold no zero byte.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from functools import cache
from typing import Final, TypeVar

import msgspec

from perdure.processors.machine.state import Run
from perdure.processors.store import StoreBroken
from perdure.schemas.values import ResultSource, Struct

LAYOUT: Final = 2
"""Raised whenever rows are derived differently although their shapes are the same."""
LAYOUT_DIGEST_CHARS: Final = 16

META: Final = b"m"
RUN: Final = b"r"
MESSAGE: Final = b"t"
RESULT: Final = b"o"
CAUSE: Final = b"c"
TIMER: Final = b"d"
QUEUE: Final = b"q"
HOLDER: Final = b"h"
STATUS: Final = b"s"
STATUS_TIMER: Final = b"w"
QUARANTINE: Final = b"x"
AGE: Final = b"a"
PURGED: Final = b"p"
PURGING: Final = b"g"
ENDED: Final = b"e"
TURN: Final = b"u"
FAMILY: Final = b"f"

OF_RUN: Final = (MESSAGE, RESULT, CAUSE, TURN)
"""Prefixes under which a run has rows ``run id, 0, ...``."""

_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
U64_MAX: Final = (1 << 64) - 1


class Anchor(Struct, frozen=True):
    """The newest event in the rows; found again there, the rows belong to this log."""

    offset: int
    key: bytes
    digest: bytes


class Meta(Struct, frozen=True):
    """Where the rows stand. ``topic_id``: of run-events. ``offset``: the next one to be folded.

    ``last_event_ms``: time of the partition's newest event. ``caught_up_ms``: wall clock when the rows were
    last known to be all there is.
    """

    topic_id: str
    offset: int = 0
    anchor: Anchor | None = None
    last_event_ms: int = 0
    caught_up_ms: int = 0
    layout: str = ""


class ResultRow(Struct, frozen=True):
    """The one effective result of a call; its content stands in run-events, this is its SHA-256."""

    attempt: int
    is_error: bool
    source: ResultSource
    content_sha256: bytes


class StatusRow(Struct, frozen=True):
    """``published_ms``: when the run's status last went out. ``due_ms``: when the newest one must, if it
    did not.
    """

    published_ms: int
    due_ms: int | None = None


class QuarantineRow(Struct, frozen=True):
    """Why and where (offset in run-events) the run's history ends. ``is_announced``: operators were told."""

    reason: str
    offset: int
    is_announced: bool = False


Row = TypeVar("Row", bound=Struct)

_encoder: Final = msgspec.msgpack.Encoder()


def pack(row: Struct) -> bytes:
    return _encoder.encode(row)


def _unpacker(kind: type[Row]) -> Callable[[bytes], Row]:
    decoder = msgspec.msgpack.Decoder(kind)

    def unpack(value: bytes) -> Row:
        try:
            return decoder.decode(value)
        except msgspec.MsgspecError as error:
            raise StoreBroken(f"A row is no {kind.__name__}: {error}.") from error

    return unpack


run_from: Final = _unpacker(Run)
meta_from: Final = _unpacker(Meta)
result_from: Final = _unpacker(ResultRow)
status_from: Final = _unpacker(StatusRow)
quarantine_from: Final = _unpacker(QuarantineRow)


@cache
def layout() -> str:
    """Tells how rows are made; a store of another layout is wiped.

    The shapes of the rows are in it by themselves: a field added to the run is not read out of old rows.
    """
    kinds = (Run, Meta, ResultRow, StatusRow, QuarantineRow)
    _, shapes = msgspec.json.schema_components(kinds)
    text = json.dumps(shapes, sort_keys=True, default=str)
    return f"{LAYOUT}-{hashlib.sha256(text.encode()).hexdigest()[:LAYOUT_DIGEST_CHARS]}"


def pack_u64(number: int) -> bytes:
    return _U64.pack(number)


def u64_from(value: bytes) -> int:
    number: int = _U64.unpack(value)[0]
    return number


def run_key(run_id: str) -> bytes:
    return RUN + run_id.encode()


def rows_prefix(prefix: bytes, run_id: str) -> bytes:
    """Where all rows of a run under a prefix of ``OF_RUN`` begin."""
    return prefix + run_id.encode() + b"\0"


def message_key(run_id: str, index: int) -> bytes:
    return rows_prefix(MESSAGE, run_id) + _U32.pack(index)


def result_key(run_id: str, turn: int, call_id: str) -> bytes:
    return rows_prefix(RESULT, run_id) + _U32.pack(turn) + call_id.encode()


def turn_key(run_id: str, turn: int) -> bytes:
    return rows_prefix(TURN, run_id) + _U32.pack(turn)


def family_key(source: str, run_id: str) -> bytes:
    return rows_prefix(FAMILY, source) + run_id.encode()


def cause_key(run_id: str, cause: str, *, is_command: bool) -> bytes:
    return rows_prefix(CAUSE, run_id) + (b"c" if is_command else b"r") + cause.encode()


def timed_key(prefix: bytes, at_ms: int, run_id: str = "") -> bytes:
    return prefix + _U64.pack(at_ms) + run_id.encode()


def timed_from(key: bytes) -> tuple[int, str]:
    """(time, run id) of a key made by :func:`timed_key`."""
    at_ms: int = _U64.unpack(key[1:9])[0]
    return at_ms, key[9:].decode()


def named_key(prefix: bytes, run_id: str) -> bytes:
    """Key of the one row a run has under a prefix without time, such as ``HOLDER`` or ``STATUS``."""
    return prefix + run_id.encode()


def name_from(key: bytes) -> str:
    return key[1:].decode()


def end_of(prefix: bytes) -> bytes:
    """The first key behind all that begin with ``prefix``."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))
