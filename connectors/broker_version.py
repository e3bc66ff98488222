"""Which Kafka a broker is, as far as it tells: its supported feature levels, asked by one ApiVersions
request.

The client libraries do not pass this on, so it is asked on a socket of its own (KIP-482 flexible request,
version 3; KIP-584 features). Brokers answer it before any SASL handshake; TLS listeners are spoken to through
``ssl``. Patch levels are not visible.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from perdure.schemas.errors import Retry

API_VERSIONS: Final = 18
VERSION: Final = 3
CORRELATION: Final = 7
TIMEOUT_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 1 << 20
TAG_SUPPORTED: Final = 0
TAG_FINALIZED: Final = 2

# The first metadata.version level of each release (org.apache.kafka.server.common.MetadataVersion).
RELEASES: Final[tuple[tuple[int, str], ...]] = (
    (21, "3.9"),
    (22, "4.0"),
    (26, "4.1"),
    (28, "4.2"),
    (30, "4.3 or later"),
)
FIRST_SUPPORTED: Final = 22
FIRST_DOUBTFUL: Final = 30


class VersionUnknown(Retry):
    """The broker did not say which Kafka it is."""

    code = "broker_version_unknown"
    remedy = "Look at the broker's own log; perdure wants Kafka 4.0 to 4.2."


@dataclass(frozen=True, slots=True)
class Features:
    """Highest level of each feature: ``supported`` by the broker, ``finalized`` for the cluster."""

    supported: Mapping[str, int]
    finalized: Mapping[str, int]

    @property
    def release(self) -> str:
        """The release the broker's software is of, from the newest metadata.version it supports."""
        level = self.supported.get("metadata.version", 0)
        names = [name for first, name in RELEASES if first <= level]
        return names[-1] if names else "older than 3.9"

    @property
    def is_too_old(self) -> bool:
        return self.supported.get("metadata.version", 0) < FIRST_SUPPORTED

    @property
    def is_doubtful(self) -> bool:
        """May be one of 4.3.0-4.3.2 and 4.4.0, where KAFKA-20734 freezes partitions."""
        return self.supported.get("metadata.version", 0) >= FIRST_DOUBTFUL


def features_of(host: str, port: int, *, tls: ssl.SSLContext | None = None) -> Features:
    """Ask one broker. Raises :class:`VersionUnknown`."""
    try:
        with socket.create_connection((host, port), TIMEOUT_S) as plain:
            if tls is None:
                return _asked(plain)
            with tls.wrap_socket(plain, server_hostname=host) as wrapped:
                return _asked(wrapped)
    except (OSError, ValueError, struct.error, IndexError) as error:
        raise VersionUnknown(f"{host}:{port}: {error}.") from error


def _asked(connection: socket.socket) -> Features:
    name = b"perdure"
    request = (
        struct.pack(">hhih", API_VERSIONS, VERSION, CORRELATION, len(name))
        + name
        + b"\x00"  # no tagged fields in the header
        + bytes([len(name) + 1])
        + name  # client software name
        + b"\x02"
        + b"1"  # and version
        + b"\x00"
    )
    connection.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", _exactly(connection, 4))
    if not 0 < size <= ANSWER_BYTES_MAX:
        raise ValueError(f"an answer of {size} bytes")
    return parsed(_exactly(connection, size))


def parsed(answer: bytes) -> Features:
    """The features in an ApiVersions answer, version 3. Raises ValueError, IndexError or struct.error."""
    reader = _Reader(answer)
    if reader.number(">i") != CORRELATION:
        raise ValueError("an answer to another question")
    error = reader.number(">h")
    if error != 0:
        raise ValueError(f"error {error}")
    for _ in range(reader.varint() - 1):  # the API keys, each with its version range
        reader.skip(6)
        reader.skip_tags()
    reader.skip(4)  # throttle time
    found: dict[int, dict[str, int]] = {}
    for _ in range(reader.varint()):
        tag, size = reader.varint(), reader.varint()
        end = reader.at + size
        if tag in {TAG_SUPPORTED, TAG_FINALIZED}:
            found[tag] = _levels(reader, is_finalized=tag == TAG_FINALIZED)
        reader.at = end
    return Features(found.get(TAG_SUPPORTED, {}), found.get(TAG_FINALIZED, {}))


def _levels(reader: _Reader, *, is_finalized: bool) -> dict[str, int]:
    """Name to highest level; supported ranges say the lowest first, finalized ones the highest."""
    levels: dict[str, int] = {}
    for _ in range(reader.varint() - 1):
        name = reader.take(reader.varint() - 1).decode()
        first, second = reader.number(">h"), reader.number(">h")
        levels[name] = first if is_finalized else second
        reader.skip_tags()
    return levels


class _Reader:
    """Walks through the answer's bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self._data):
            raise ValueError("the answer ends too early")
        self.at += count
        return self._data[self.at - count : self.at]

    def skip(self, count: int) -> None:
        self.take(count)

    def number(self, layout: str) -> int:
        (number,) = struct.unpack(layout, self.take(struct.calcsize(layout)))
        assert isinstance(number, int)
        return number

    def varint(self) -> int:
        number = shift = 0
        while True:
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return number
            shift += 7

    def skip_tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self.skip(self.varint())


def _exactly(connection: socket.socket, count: int) -> bytes:
    pieces: list[bytes] = []
    while count:
        piece = connection.recv(count)
        if not piece:
            raise ValueError("the broker closed the connection")
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)
