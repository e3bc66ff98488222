#!/usr/bin/env python3
"""A message service as one finds it in the world: HTTP in front, one SQLite file behind.

It knows nothing of whoever calls it. It keeps what it is sent and it does NOT deduplicate: a second POST with
the same ``client_reference`` is a second delivery. What it offers instead is a query by that reference, with
which a careful caller can find out what became of a request whose answer it never saw.

::

    POST /messages {"to", "text", "client_reference"}   201, the stored message with its id
    GET  /messages?client_reference=X                    200, a list, oldest first; without the query: all
    GET  /customers/ID                                   200, or 404; every look-up is counted in the file
    GET  /health                                         200
    POST /_test/release                                  lets a held request go on

A message is durable in the SQLite file (``synchronous=FULL``) before its answer leaves. For crash tests one
request per start may be held, after the message is stored or before it: the service then writes a marker
file and goes on when the marker is removed or on ``POST /_test/release``. A request held before the store is
stored on release even if its caller is gone by then: it had arrived, and that is how services are.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar, TypeAlias, cast
from urllib.parse import parse_qs, unquote, urlsplit

BODY_BYTES_MAX = 1 << 20
CUSTOMERS_COUNT = 1000
HOLD_LOOK_INTERVAL_S = 0.02
FIELDS = ("to", "text", "client_reference")
FIRST_NAMES = ("Ada", "Bruno", "Chidi", "Dagny", "Elif", "Farid", "Greta", "Hana", "Ivo", "Jun")
PR_SET_PDEATHSIG = 1  # prctl(2)

# strftime in SQL: the file's own clock, in UTC, so that rows can be compared whoever wrote them.
SCHEMA = """
CREATE TABLE IF NOT EXISTS messages (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    recipient TEXT NOT NULL,
    text TEXT NOT NULL,
    client_reference TEXT NOT NULL,
    stored_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);
CREATE INDEX IF NOT EXISTS messages_by_reference ON messages (client_reference);
CREATE TABLE IF NOT EXISTS lookups (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    customer_id TEXT NOT NULL,
    found INTEGER NOT NULL,
    looked_up_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);
CREATE TABLE IF NOT EXISTS customers (id TEXT PRIMARY KEY, name TEXT NOT NULL, email TEXT NOT NULL);
"""
INSERT_MESSAGE = """
INSERT INTO messages (recipient, text, client_reference) VALUES (?, ?, ?)
RETURNING number, recipient, text, client_reference, stored_at
"""
ALL_MESSAGES = "SELECT number, recipient, text, client_reference, stored_at FROM messages ORDER BY number"
MESSAGES_OF_REFERENCE = """
SELECT number, recipient, text, client_reference, stored_at FROM messages
WHERE client_reference = ? ORDER BY number
"""

JsonRow: TypeAlias = dict[str, str]


class Store:
    """The SQLite file: one connection, one lock, one durable commit per change."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(SCHEMA)
        names = (FIRST_NAMES[n % len(FIRST_NAMES)] for n in range(CUSTOMERS_COUNT))
        self._db.execute("BEGIN")
        self._db.executemany(
            "INSERT OR IGNORE INTO customers (id, name, email) VALUES (?, ?, ?)",
            [(f"c-{n}", f"{name} {n}", f"{name.lower()}.{n}@example.com") for n, name in enumerate(names, 1)],
        )
        self._db.execute("COMMIT")

    def add(self, to: str, text: str, client_reference: str) -> JsonRow:
        with self._lock:
            # fetched to its end: only then does SQLite commit the statement
            (row,) = self._db.execute(INSERT_MESSAGE, (to, text, client_reference)).fetchall()
        return message_json(row)

    def find(self, client_reference: str | None) -> list[JsonRow]:
        with self._lock:
            if client_reference is None:
                rows = self._db.execute(ALL_MESSAGES).fetchall()
            else:
                rows = self._db.execute(MESSAGES_OF_REFERENCE, (client_reference,)).fetchall()
        return [message_json(row) for row in rows]

    def customer(self, customer_id: str) -> JsonRow | None:
        with self._lock:
            found = self._db.execute(
                "SELECT id, name, email FROM customers WHERE id = ?", (customer_id,)
            ).fetchone()
            self._db.execute(
                "INSERT INTO lookups (customer_id, found) VALUES (?, ?)", (customer_id, found is not None)
            )
        return None if found is None else dict(zip(("id", "name", "email"), found, strict=True))

    def close(self) -> None:
        with self._lock:
            self._db.close()


def message_json(row: tuple[int, str, str, str, str]) -> JsonRow:
    number, recipient, text, client_reference, stored_at = row
    return {
        "id": f"msg-{number}",
        "to": recipient,
        "text": text,
        "client_reference": client_reference,
        "stored_at": stored_at,
    }


def message_fields(body: bytes) -> JsonRow | None:
    """The fields of a message, or None if the body has another shape or text that is no Unicode."""
    try:
        asked = cast("object", json.loads(body))
        if not isinstance(asked, dict):
            return None
        texts = {
            name: value for name, value in cast("dict[str, object]", asked).items() if isinstance(value, str)
        }
        for field in FIELDS:
            texts[field].encode()
    except (ValueError, KeyError):
        return None
    return {field: texts[field] for field in FIELDS}


class Hold:
    """Stops the first request that passes, and says so with a marker file; later ones pass freely."""

    def __init__(self, marker: Path | None) -> None:
        self._marker = marker
        self._unused = threading.Lock()
        self._released = threading.Event()

    def pass_or_wait(self, note: Mapping[str, str]) -> None:
        """``note`` becomes the marker's content, so that a test can see what is held."""
        if self._marker is None or not self._unused.acquire(blocking=False):
            return
        write_whole(self._marker, json.dumps(note))
        print(f"held: {self._marker}", flush=True)
        while self._marker.exists() and not self._released.wait(HOLD_LOOK_INTERVAL_S):
            pass
        self._marker.unlink(missing_ok=True)

    def release(self) -> None:
        self._released.set()


class Service(ThreadingHTTPServer):
    """A thread per connection, so that a held request does not keep others from being answered."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, port: int, store: Store, before_store: Hold, after_store: Hold) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.store = store
        self.before_store = before_store
        self.after_store = after_store

    def release(self) -> None:
        self.before_store.release()
        self.after_store.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A caller that went away is no error of the service; anything else is shown."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body leave in one segment
    quiet: ClassVar[bool] = True

    @property
    def service(self) -> Service:
        return cast("Service", self.server)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        match url.path.strip("/").split("/"):
            case ["messages"]:
                wanted = parse_qs(url.query, keep_blank_values=True).get("client_reference")
                self._answer(HTTPStatus.OK, self.service.store.find(wanted[0] if wanted else None))
            case ["customers", customer_id]:
                record = self.service.store.customer(unquote(customer_id))
                if record is None:
                    self._refuse(HTTPStatus.NOT_FOUND, "no such customer")
                else:
                    self._answer(HTTPStatus.OK, record)
            case ["health"]:
                self._answer(HTTPStatus.OK, {"status": "ok"})
            case _:
                self._refuse(HTTPStatus.NOT_FOUND, "no such resource")

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > BODY_BYTES_MAX:
            self.close_connection = True  # what follows on this connection cannot be told apart
            self._refuse(HTTPStatus.BAD_REQUEST, "a body with a Content-Length of at most 1 MiB is needed")
            return
        body = self.rfile.read(int(length))
        match urlsplit(self.path).path:
            case "/messages":
                self._post_message(body)
            case "/_test/release":
                self.service.release()
                self._answer(HTTPStatus.OK, {"status": "released"})
            case _:
                self._refuse(HTTPStatus.NOT_FOUND, "no such resource")

    def _post_message(self, body: bytes) -> None:
        wanted = message_fields(body)
        if wanted is None:
            self._refuse(HTTPStatus.UNPROCESSABLE_ENTITY, f"a JSON object is needed with texts for {FIELDS}")
            return
        self.service.before_store.pass_or_wait(wanted)
        stored = self.service.store.add(wanted["to"], wanted["text"], wanted["client_reference"])
        self.service.after_store.pass_or_wait(stored)
        self._answer(HTTPStatus.CREATED, stored)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._answer(status, {"error": why})

    def _answer(self, status: HTTPStatus, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        if not self.quiet:
            super().log_message(format, *args)


def write_whole(path: Path, text: str) -> None:
    """Readers see the whole file or none."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def die_with_parent() -> None:
    """SIGTERM when the parent's starting thread ends, whatever ends it (Linux)."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before the wish was known
        raise SystemExit(0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A message service that does not deduplicate.")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--db", type=Path, required=True, help="SQLite file, made if missing")
    parser.add_argument("--port-file", type=Path, help="where the port is written once it listens")
    parser.add_argument("--hold-before-store", type=Path, metavar="MARKER")
    parser.add_argument("--hold-after-store", type=Path, metavar="MARKER")
    parser.add_argument("--die-with-parent", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="a line per request on standard error")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    # Blocked before any thread starts, so that only sigwait below ever takes them.
    ending = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    if options.die_with_parent:
        die_with_parent()
    Handler.quiet = not options.verbose
    store = Store(options.db)
    service = Service(options.port, store, Hold(options.hold_before_store), Hold(options.hold_after_store))
    port = service.server_address[1]
    threading.Thread(target=service.serve_forever, daemon=True).start()
    if options.port_file is not None:
        write_whole(options.port_file, f"{port}\n")
    print(f"message service on http://127.0.0.1:{port}", flush=True)
    signal.sigwait(ending)
    service.shutdown()
    service.server_close()
    if options.port_file is not None:
        options.port_file.unlink(missing_ok=True)
    store.close()


if __name__ == "__main__":
    main()
