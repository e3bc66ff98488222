"""The example message service, as its callers meet it: a process, a port and a SQLite file."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "outside" / "message_service.py"
WAIT_S = 20
MESSAGE = {"to": "ada@example.com", "text": "hello", "client_reference": "ref-1"}


class Service:
    """A started service; ``port`` is read from the line it prints once it listens."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.db = folder / "messages.sqlite"
        self.port_file = folder / "port"
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), "--db", str(self.db), "--port-file", str(self.port_file), *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port = int(self.line().rpartition(":")[2])

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def post_and_leave_open(self, body: object) -> socket.socket:
        content = json.dumps(body).encode()
        caller = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)
        caller.sendall(
            b"POST /messages HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(content) + content
        )
        return caller

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Read from the file by another connection, as the crash demo does."""
        db = sqlite3.connect(f"file:{self.db}?mode=ro", uri=True)
        try:
            return db.execute(query).fetchall()
        finally:
            db.close()

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        code = self.process.wait(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    started: list[Service] = []

    def start_one(*options: str) -> Service:
        started.append(Service(tmp_path, *options))
        return started[-1]

    yield start_one
    for service in started:
        if service.process.poll() is None:
            service.end(signal.SIGKILL)


def test_a_repeated_reference_is_a_second_delivery(start: Callable[..., Service]) -> None:
    """Two POSTs with one reference are two messages, and the query by reference shows both in order."""
    service = start()
    first = service.ask("POST", "/messages", MESSAGE)
    second = service.ask("POST", "/messages", MESSAGE)
    service.ask("POST", "/messages", {**MESSAGE, "client_reference": "ref-2"})
    assert (first[0], second[0]) == (201, 201)
    assert first[1]["id"] != second[1]["id"]
    assert service.ask("GET", "/messages?client_reference=ref-1") == (200, [first[1], second[1]])
    assert service.ask("GET", "/messages?client_reference=other") == (200, [])
    assert len(service.ask("GET", "/messages")[1]) == 3


def test_lookups_are_counted_in_the_file(start: Callable[..., Service]) -> None:
    """Each customer look-up leaves one row, also one that finds nobody."""
    service = start()
    status, customer = service.ask("GET", "/customers/c-1")
    assert (status, customer["id"], "@" in customer["email"]) == (200, "c-1", True)
    assert service.ask("GET", "/customers/nobody")[0] == 404
    assert service.rows("SELECT customer_id, found FROM lookups ORDER BY number") == [
        ("c-1", 1),
        ("nobody", 0),
    ]


@pytest.mark.parametrize(
    "body",
    [
        [],
        {"to": "a", "text": "b"},
        {"to": "a", "text": 3, "client_reference": "c"},
        {"to": "a", "text": "\ud800", "client_reference": "c"},
    ],
    ids=["no object", "a field missing", "not a text", "no Unicode"],
)
def test_a_malformed_message_is_refused_and_not_stored(start: Callable[..., Service], body: object) -> None:
    """What is no message gets a 422 and leaves no row."""
    service = start()
    assert service.ask("POST", "/messages", body)[0] == 422
    assert service.rows("SELECT count(*) FROM messages") == [(0,)]


def test_a_hold_after_store_keeps_the_answer_back_but_not_the_row(
    start: Callable[..., Service], tmp_path: Path
) -> None:
    """While held, the message is in the file, others are answered, and the caller has heard nothing."""
    marker = tmp_path / "held"
    service = start("--hold-after-store", str(marker))
    with service.post_and_leave_open(MESSAGE) as caller:
        assert service.line() == f"held: {marker}"
        assert json.loads(marker.read_text())["client_reference"] == "ref-1"
        assert service.rows("SELECT client_reference FROM messages") == [("ref-1",)]
        assert [m["id"] for m in service.ask("GET", "/messages?client_reference=ref-1")[1]] == ["msg-1"]
        caller.setblocking(False)
        with pytest.raises(BlockingIOError):
            caller.recv(1)
        caller.settimeout(WAIT_S)
        marker.unlink()
        assert caller.recv(4096).startswith(b"HTTP/1.1 201 ")


def test_a_caller_lost_while_held_leaves_one_row_that_can_be_found(
    start: Callable[..., Service], tmp_path: Path
) -> None:
    """After a caller vanished without its answer, its reference finds the message; only one is held."""
    service = start("--hold-after-store", str(tmp_path / "held"))
    caller = service.post_and_leave_open(MESSAGE)
    service.line()
    caller.close()
    assert [m["text"] for m in service.ask("GET", "/messages?client_reference=ref-1")[1]] == ["hello"]
    assert service.ask("POST", "/messages", MESSAGE)[0] == 201
    assert service.rows("SELECT count(*) FROM messages") == [(2,)]


def test_a_hold_before_store_has_stored_nothing_until_released(
    start: Callable[..., Service], tmp_path: Path
) -> None:
    """While held nothing is stored; what had arrived is stored on release."""
    service = start("--hold-before-store", str(tmp_path / "held"))
    with service.post_and_leave_open(MESSAGE) as caller:
        service.line()
        assert service.rows("SELECT count(*) FROM messages") == [(0,)]
        assert service.ask("POST", "/_test/release", {})[0] == 200
        assert caller.recv(4096).startswith(b"HTTP/1.1 201 ")
    assert service.rows("SELECT count(*) FROM messages") == [(1,)]


def test_stored_messages_survive_a_kill(start: Callable[..., Service]) -> None:
    """A message that was answered is in the file after kill -9 and a new start, and numbering goes on."""
    service = start()
    service.ask("POST", "/messages", MESSAGE)
    service.end(signal.SIGKILL)
    again = start()
    assert again.ask("POST", "/messages", MESSAGE)[1]["id"] == "msg-2"
    assert again.rows("SELECT count(*) FROM messages") == [(2,)]


def test_sigterm_ends_it_also_while_it_holds(start: Callable[..., Service], tmp_path: Path) -> None:
    """SIGTERM ends the service with exit code 0 and takes the port file away, a held request or not."""
    service = start("--hold-before-store", str(tmp_path / "held"))
    assert int(service.port_file.read_text()) == service.port
    with service.post_and_leave_open(MESSAGE):
        service.line()
        assert service.end() == 0
    assert not service.port_file.exists()
    assert service.rows("SELECT count(*) FROM messages") == [(0,)]


def test_it_dies_with_its_parent(tmp_path: Path) -> None:
    """With --die-with-parent the kill -9 of the process that started it ends the service too."""
    read_end, write_end = os.pipe()
    command = [sys.executable, str(SCRIPT), "--db", str(tmp_path / "db"), "--die-with-parent"]
    program = f"import subprocess; subprocess.Popen({command!r}, pass_fds=[{write_end}]).wait()"
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, pass_fds=[write_end]
    )
    os.close(write_end)
    assert parent.stdout is not None
    assert parent.stdout.readline().startswith("message service on")
    parent.kill()
    parent.wait(WAIT_S)
    with os.fdopen(read_end, "rb") as pipe:
        assert pipe.read() == b""  # reached only when the last holder of the other end is gone
    parent.stdout.close()
