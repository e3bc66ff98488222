"""The proxy of the chaos runs: what it does to frames, between a client and a service that echoes them."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from chaos.proxy import DELAY_S, Proxy, Weather

FRAME = struct.Struct(">i")
ANSWERS_S = 5.0
SILENT_S = 0.3


def read_frame(connection: socket.socket) -> bytes:
    def exactly(size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = connection.recv(size - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return data

    return exactly(FRAME.unpack(exactly(FRAME.size))[0])


def write_frame(connection: socket.socket, body: bytes) -> None:
    connection.sendall(FRAME.pack(len(body)) + body)


@dataclass
class Echo:
    """Answers each frame with itself; ``seen``: what has reached it."""

    listener: socket.socket
    seen: list[bytes]

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                while True:
                    body = read_frame(connection)
                    self.seen.append(body)
                    write_frame(connection, body)
            except (EOFError, OSError):
                return


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo(socket.create_server(("127.0.0.1", 0)), [])
    thread = threading.Thread(target=echo.serve, daemon=True)
    thread.start()
    yield echo
    echo.listener.shutdown(socket.SHUT_RDWR)
    echo.listener.close()
    thread.join(ANSWERS_S)


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    proxy = Proxy("127.0.0.1", int(echo.listener.getsockname()[1]))
    yield proxy
    proxy.close()


@pytest.fixture
def client(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), ANSWERS_S) as client:
        yield client


def test_clear_weather_passes_everything_on(client: socket.socket) -> None:
    """Frames of any size come back whole and in order."""
    for body in (b"a", b"", b"x" * 200_000):
        write_frame(client, body)
        assert read_frame(client) == body


def test_delayed_frames_come_late(proxy: Proxy, client: socket.socket) -> None:
    """Both ways are slow."""
    proxy.change(Weather.DELAY)
    begun_s = time.monotonic()
    write_frame(client, b"late")
    assert read_frame(client) == b"late"
    assert time.monotonic() - begun_s >= 2 * DELAY_S


def test_held_frames_come_when_the_weather_clears(proxy: Proxy, client: socket.socket, echo: Echo) -> None:
    """What is held is not lost."""
    write_frame(client, b"before")
    assert read_frame(client) == b"before"
    proxy.change(Weather.HOLD)
    write_frame(client, b"held")
    client.settimeout(SILENT_S)
    with pytest.raises(TimeoutError):
        read_frame(client)
    assert echo.seen == [b"before"]
    client.settimeout(ANSWERS_S)
    proxy.change(Weather.CLEAR)
    assert read_frame(client) == b"held"


def test_dropped_answers_were_carried_out(proxy: Proxy, client: socket.socket, echo: Echo) -> None:
    """The service did what was asked; only the client does not learn of it."""
    proxy.change(Weather.DROP)
    write_frame(client, b"asked")
    client.settimeout(SILENT_S)
    with pytest.raises(TimeoutError):
        read_frame(client)
    assert echo.seen == [b"asked"]
    assert proxy.lost == 1


def test_a_cut_closes_connections_and_refuses_new_ones(proxy: Proxy, client: socket.socket) -> None:
    """Until the weather clears."""
    write_frame(client, b"before")
    assert read_frame(client) == b"before"
    proxy.change(Weather.CUT)
    with pytest.raises((EOFError, ConnectionError)):
        read_frame(client)
    refused = socket.create_connection(("127.0.0.1", proxy.port), ANSWERS_S)
    with refused, pytest.raises((EOFError, ConnectionError)):
        read_frame(refused)
    proxy.change(Weather.CLEAR)
    with socket.create_connection(("127.0.0.1", proxy.port), ANSWERS_S) as again:
        write_frame(again, b"after")
        assert read_frame(again) == b"after"
