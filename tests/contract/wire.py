"""Kafka's wire, as far as the contract disturbs it: a proxy that knows frames, and one hand-made request."""

from __future__ import annotations

import socket
import struct
import threading
from collections import deque
from dataclasses import dataclass, field

from perdure.topics.model_faults import Api, Fate

API_KEYS = {
    Api.PRODUCE: 0,
    Api.OFFSET_COMMIT: 8,
    Api.OFFSET_FETCH: 9,
    Api.HEARTBEAT: 12,
    Api.INIT: 22,
    Api.END_TXN: 26,
    Api.TXN_OFFSETS: 28,
}
METADATA_KEY, FIND_COORDINATOR_KEY, LEAVE_GROUP_KEY = 3, 10, 13
HEADER = struct.Struct(">hhi")  # api key, version, correlation id
FRAME = struct.Struct(">i")
CONNECT_TIMEOUT_S = 5.0


def read_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return data


def read_frame(connection: socket.socket) -> bytes:
    (size,) = FRAME.unpack(read_exactly(connection, FRAME.size))
    return read_exactly(connection, size)


def write_frame(connection: socket.socket, body: bytes) -> None:
    connection.sendall(FRAME.pack(len(body)) + body)


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">h", len(encoded)) + encoded


def leave_group(host: str, port: int, group: str, member_id: str) -> int:
    """LeaveGroup, version 1, in a member's name; the broker's error code."""
    with socket.create_connection((host, port), CONNECT_TIMEOUT_S) as connection:
        header = HEADER.pack(LEAVE_GROUP_KEY, 1, 1) + text("contract")
        write_frame(connection, header + text(group) + text(member_id))
        answer = read_frame(connection)
    (code,) = struct.unpack(">h", answer[8:10])
    return int(code)


@dataclass(eq=False)
class Pair:
    """A client's connection and the proxy's own behind it."""

    client: socket.socket
    broker: socket.socket
    asked: dict[int, int] = field(default_factory=dict[int, int])  # correlation id -> api key
    muted: set[int] = field(default_factory=set[int])  # correlation ids that get no answer
    kept: bool = False  # a held frame still wants the broker's side


class Proxy:
    """Stands between clients and one broker, whose address it replaces by its own in the broker's answers."""

    def __init__(self, host: str, port: int) -> None:
        self._broker = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._fates: dict[tuple[int, str], deque[Fate]] = {}
        self._held: list[tuple[Pair, bytes]] = []
        self._pairs: list[Pair] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def inject(self, api: Api, who: str, fate: Fate, count: int) -> None:
        with self._lock:
            self._fates.setdefault((API_KEYS[api], who), deque()).extend([fate] * count)

    def release(self) -> int:
        with self._lock:
            held, self._held = self._held, []
        for pair, body in held:
            write_frame(pair.broker, body)
        return len(held)

    def close(self) -> None:
        self._listener.close()
        for pair in self._pairs:
            pair.client.close()
            pair.broker.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                broker = socket.create_connection(self._broker, CONNECT_TIMEOUT_S)
            except OSError:
                return
            broker.settimeout(None)
            pair = Pair(client, broker)
            self._pairs.append(pair)
            threading.Thread(target=self._requests, args=(pair,), daemon=True).start()
            threading.Thread(target=self._answers, args=(pair,), daemon=True).start()

    def _requests(self, pair: Pair) -> None:
        try:
            while True:
                body = read_frame(pair.client)
                key, _, correlation = HEADER.unpack(body[: HEADER.size])
                pair.asked[correlation] = key
                fate = self._fate(key, body)
                if fate is Fate.UNANSWERED:
                    pair.muted.add(correlation)
                if fate in (Fate.HELD, Fate.RESENT):
                    with self._lock:
                        pair.kept = True
                        pair.muted.add(correlation)
                        self._held.append((pair, body))
                if fate is Fate.RESENT:
                    pair.client.shutdown(socket.SHUT_RDWR)  # the client connects again and sends again
                if fate in (None, Fate.UNANSWERED):
                    write_frame(pair.broker, body)
        except (EOFError, OSError):
            if not pair.kept:
                pair.broker.close()

    def _answers(self, pair: Pair) -> None:
        try:
            while True:
                body = read_frame(pair.broker)
                (correlation,) = FRAME.unpack(body[: FRAME.size])
                if pair.asked.get(correlation) in (METADATA_KEY, FIND_COORDINATOR_KEY):
                    body = self._readdress(body)
                if correlation not in pair.muted:
                    write_frame(pair.client, body)
        except (EOFError, OSError):
            pair.client.close()

    def _fate(self, key: int, body: bytes) -> Fate | None:
        (size,) = struct.unpack(">h", body[HEADER.size : HEADER.size + 2])
        who = body[HEADER.size + 2 : HEADER.size + 2 + max(0, size)].decode()
        with self._lock:
            waiting = self._fates.get((key, who))
            return waiting.popleft() if waiting else None

    def _readdress(self, body: bytes) -> bytes:
        """In these answers a port follows its host directly, whatever the version of the message."""
        host = self._broker[0].encode()
        return body.replace(host + FRAME.pack(self._broker[1]), host + FRAME.pack(self.port))
