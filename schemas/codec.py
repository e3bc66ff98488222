"""Records to bytes and back: Avro single-object encoding.

``C3 01``, then 8 bytes little-endian CRC-64-AVRO fingerprint of the writer's schema in parsing canonical
form, then the binary body (Avro 1.11 specification, "Single-object encoding"). The fingerprint finds the
released schema a record was written with; what an older version wrote is brought to the current schema by
Avro's own resolution.

:func:`decode` turns any bytes whatever into a record or an :class:`Undecodable`, never into another
exception, and in memory proportional to their size. :func:`encode` refuses what would not come back equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from io import BytesIO
from typing import Any, Final, TypeVar, cast

from perdure.schemas.errors import Reject
from perdure.schemas.limits import RECORD_BYTES_MAX
from perdure.schemas.registry import (
    BY_TYPE,
    RECORD_KINDS,
    RecordKind,
    Released,
    current_schema,
    fingerprint_of,
    released_schemas,
)
from perdure.schemas.shape import AvroSchema, shape_of
from perdure.schemas.values import Struct
from perdure.schemas.wire import BadValue, Misread, Unencodable

__all__ = [
    "Codec",
    "Malformed",
    "NotSingleObject",
    "Tombstone",
    "TooLarge",
    "TrailingBytes",
    "Unacceptable",
    "Undecodable",
    "Unencodable",
    "UnknownFingerprint",
    "codec_of",
    "decode",
    "encode",
    "identify",
]

MARKER: Final = b"\xc3\x01"
HEADER_BYTES: Final = 10

Record = TypeVar("Record", bound=Struct)


class Undecodable(Reject):
    """The bytes are not a record of the wanted type."""

    code = "undecodable"
    remedy = "Write the record with a released schema of perdure (perdure schemas)."


class NotSingleObject(Undecodable):
    """The bytes do not begin as an Avro single object."""

    code = "not_single_object"


class UnknownFingerprint(Undecodable):
    """The record was written with a schema that this version does not know."""

    code = "unknown_fingerprint"
    remedy = "Upgrade this process, or write the record with a released schema of perdure (perdure schemas)."


class Malformed(Undecodable):
    """The body is not an encoding of the schema its fingerprint names."""

    code = "malformed"


class TrailingBytes(Undecodable):
    """Bytes follow the record."""

    code = "trailing_bytes"


class Unacceptable(Undecodable):
    """The record is well encoded, but a value in it is none that its field takes."""

    code = "bad_value"


class Tombstone(Undecodable):
    """There is no value where a record is wanted."""

    code = "tombstone"


class TooLarge(Undecodable):
    """The record is larger than any that perdure writes or reads."""

    code = "too_large"


class Codec:
    """Encodes and decodes one type of record.

    ``released``: the schemas it was ever written with. They are given in only by tests of schema resolution;
    the codec of a type is :func:`codec_of`.
    """

    def __init__(self, kind: type[Struct], schema: AvroSchema, released: tuple[AvroSchema, ...] = ()) -> None:
        self._kind = kind
        self._schema = schema
        self._shape = shape_of(schema, kind)
        self._header = MARKER + fingerprint_of(schema)
        self._writers = {MARKER + fingerprint_of(writer): writer for writer in released}

    def encode(self, record: Struct) -> bytes:
        pieces = [self._header]
        try:
            self._shape.write(pieces.append, record)
        except (AttributeError, TypeError, ValueError) as error:
            raise Unencodable(f"{self._kind.__name__}: {error}.") from error
        data = b"".join(pieces)
        if len(data) > RECORD_BYTES_MAX:
            raise Unencodable(f"It takes {len(data)} of at most {RECORD_BYTES_MAX} bytes.")
        return data

    def decode(self, data: bytes | None) -> Struct:
        if data is None:
            raise Tombstone
        if len(data) > RECORD_BYTES_MAX:
            raise TooLarge(f"It takes {len(data)} of at most {RECORD_BYTES_MAX} bytes.")
        header = data[:HEADER_BYTES]
        if len(header) < HEADER_BYTES or not header.startswith(MARKER):
            raise NotSingleObject
        if header != self._header:
            data = self._resolve(header, data)
        try:
            record, end = self._shape.read(data, HEADER_BYTES)
        except BadValue as error:
            raise Unacceptable(str(error)) from error
        except Misread as error:
            raise Malformed(f"{self._kind.__name__}: {error}.") from error
        except IndexError as error:
            raise Malformed(f"{self._kind.__name__}: it ends too early.") from error
        if end != len(data):
            raise TrailingBytes(f"{self._kind.__name__}: {len(data) - end} of {len(data)}.")
        return cast("Struct", record)

    def _resolve(self, header: bytes, data: bytes) -> bytes:
        """The same record as the current schema writes it (Avro specification, "Schema Resolution")."""
        writer = self._writers.get(header)
        if writer is None:
            raise UnknownFingerprint(f"{self._kind.__name__}: {header[2:].hex()}.")
        source, target = BytesIO(data), BytesIO()
        source.seek(HEADER_BYTES)
        target.write(self._header)
        target.seek(HEADER_BYTES)
        try:
            _transcode(source, writer, target, self._schema)
        except Exception as error:  # fastavro lets out whatever the bytes make it meet
            raise Malformed(f"{self._kind.__name__}: {error!r:.200}.") from error
        if source.tell() != len(data):
            raise TrailingBytes(f"{self._kind.__name__}: {len(data) - source.tell()} of {len(data)}.")
        return target.getvalue()


def _transcode(source: BytesIO, writer: AvroSchema, target: BytesIO, reader: AvroSchema) -> None:
    import fastavro

    untyped: Any = fastavro  # its stubs leave the streams open
    value = untyped.schemaless_reader(source, writer, reader, return_record_name=True)
    untyped.schemaless_writer(target, reader, value)


@cache
def codec_of(kind: type[Struct]) -> Codec:
    """The codec of a type of record, put together on first use."""
    registered = BY_TYPE[kind]
    released: tuple[Mapping[str, Any], ...] = tuple(one.schema for one in released_schemas(registered))
    return Codec(kind, current_schema(registered), released)


def encode(record: Struct) -> bytes:
    """The record in single-object encoding.

    Raises :class:`Unencodable` for what :func:`decode` would refuse or not return equal: a lone surrogate, an
    integer beyond 64 bits, labels out of order, a value its field does not take, more than
    ``RECORD_BYTES_MAX`` bytes.
    """
    return codec_of(type(record)).encode(record)


def decode(kind: type[Record], data: bytes | None) -> Record:
    """The record of type ``kind`` that ``data`` encodes. Raises :class:`Undecodable`, and nothing else."""
    return cast("Record", codec_of(kind).decode(data))


def identify(data: bytes) -> tuple[RecordKind, Released] | None:
    """Which record, in which of its versions, these bytes claim to be, for diagnosis; None: none."""
    if not data.startswith(MARKER):
        return None
    fingerprint = data[len(MARKER) : HEADER_BYTES]
    for kind in RECORD_KINDS:
        for released in released_schemas(kind):
            if released.fingerprint == fingerprint:
                return kind, released
    return None
