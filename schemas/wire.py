"""Avro's binary form of the primitive types: written in pieces, read from an offset.

Readers are strict and take nothing on trust: every length is compared with the bytes that are there before
anything is sliced. They raise :class:`Misread`, or ``IndexError`` where the bytes end. Rules: Avro 1.11
specification, "Binary encoding".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypeAlias

from perdure.schemas.errors import Reject

Put: TypeAlias = Callable[[bytes], None]
Write: TypeAlias = Callable[[Put, Any], None]
"""Appends the encoding of a value, in pieces. Raises :class:`Unencodable`."""
Read: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
"""Reads a value from an offset; returns it with the offset behind it."""

VARINT_BYTES_MAX: Final = 10
LONG_MIN: Final = -(1 << 63)
LONG_MAX: Final = (1 << 63) - 1


class Misread(Exception):
    """The bytes are not an encoding of the type; ``schemas.codec`` turns it into its typed error."""


class BadValue(Exception):
    """Well encoded, but not a value of the type; ``schemas.codec`` turns it into its typed error."""


class Unencodable(Reject):
    """The record can not be encoded."""

    code = "unencodable"
    remedy = "Correct the value; repeating it cannot help."


@lru_cache(maxsize=4_096)  # instants come again: those of one batch, and those of its records
def long_bytes(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


SMALL_MAX: Final = 4_096
_SMALL: Final = tuple(long_bytes(value) for value in range(SMALL_MAX))
"""Lengths, counts, turns and attempts are nearly always among these."""


def write_long(put: Put, value: Any) -> None:
    if not isinstance(value, int):
        raise Unencodable(f"An integer is wanted, not {type(value).__name__}.")
    if 0 <= value < SMALL_MAX:
        put(_SMALL[value])
    elif LONG_MIN <= value <= LONG_MAX:
        put(long_bytes(value))
    else:
        raise Unencodable("An integer does not fit 64 bits.")


def read_long(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    value = byte & 0x7F
    shift = 7
    end = at + VARINT_BYTES_MAX - 1
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    raise Misread("an integer is longer than 64 bits")


def write_bytes(put: Put, value: Any) -> None:
    if not isinstance(value, bytes):
        raise Unencodable(f"Bytes are wanted, not {type(value).__name__}.")
    size = len(value)
    put(_SMALL[size] if size < SMALL_MAX else long_bytes(size))
    put(value)


def read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_long(data, at)
    end = at + size
    if size < 0 or end > len(data):
        raise Misread(f"a length of {size} bytes where {len(data) - at} are left")
    return data[at:end], end


def write_string(put: Put, value: Any) -> None:
    if not isinstance(value, str):
        raise Unencodable(f"A string is wanted, not {type(value).__name__}.")
    try:
        encoded = value.encode()
    except UnicodeEncodeError as error:
        raise Unencodable("A string holds a lone surrogate.") from error
    size = len(encoded)
    put(_SMALL[size] if size < SMALL_MAX else long_bytes(size))
    put(encoded)


def read_string(data: bytes, at: int) -> tuple[str, int]:
    raw, at = read_bytes(data, at)
    try:
        return raw.decode(), at
    except UnicodeDecodeError as error:
        raise Misread("a string is not UTF-8") from error


def write_boolean(put: Put, value: Any) -> None:
    if value is True:
        put(b"\x01")
    elif value is False:
        put(b"\x00")
    else:
        raise Unencodable(f"A boolean is wanted, not {type(value).__name__}.")


def read_boolean(data: bytes, at: int) -> tuple[bool, int]:
    byte = data[at]
    if byte > 1:
        raise Misread("a boolean is neither 0 nor 1")
    return byte == 1, at + 1
