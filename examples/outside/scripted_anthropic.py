#!/usr/bin/env python3
"""A local server that speaks the Messages API's wire format and says what a script tells it to.

It stands in for the model where none may be paid for: tests, the demo, benchmarks. It refuses what the
service refuses (``messages_rules``), answers from a script (``scripted_messages``) and goes wrong on demand:
HTTP errors, errors in mid-stream, cut and stalled streams, and one answer per start held in mid-stream until
a marker file is removed or ``POST /_test/release`` comes.

Each request leaves one JSON line in the log when it is over: ``turn`` (assistant messages it held; null if it
was refused), ``stream``, ``completed`` (the whole answer was handed to the socket), ``status`` (HTTP) and
``fault`` (the scripted fault's kind, or null).
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import signal
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path

from messages_rules import InvalidRequest, Json, check, turn_of
from scripted_messages import (
    ERROR_TYPES,
    Answer,
    Fault,
    Step,
    answer,
    digest_of,
    dump,
    error_body,
    error_data,
    frame,
    load_script,
)

HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 32 * 1024 * 1024
HOLD_LOOK_INTERVAL_S = 0.02
LISTEN_BACKLOG = 1024
PR_SET_PDEATHSIG = 1  # prctl(2)
END_OF_BODY = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class HttpError(Exception):
    """The request gets an HTTP error; ``headers`` go with it."""

    def __init__(self, status: int, error_type: str, message: str, headers: Mapping[str, str]) -> None:
        super().__init__(message)
        self.status = status
        self.error_type = error_type
        self.headers = headers


class Model:
    """The script, the log, and what was asked so far."""

    def __init__(self, script: tuple[Step, ...], log: Path, think_time_s: float) -> None:
        self._script = script
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.think_time_s = think_time_s
        self._asked: Counter[str] = Counter()
        self._requests = 0
        self.hold_turn: int | None = None
        self.hold_marker = Path()
        self._released = asyncio.Event()

    def next_request_id(self) -> str:
        self._requests += 1
        return f"req_{os.getpid()}_{self._requests:08d}"

    def read(self, request: Request) -> Json:
        """The decoded request body; raises :class:`HttpError` for what the service refuses."""
        if not (request.headers.get("x-api-key") or request.headers.get("authorization")):
            raise refusal(401, "x-api-key header is required")
        if "anthropic-version" not in request.headers:
            raise refusal(400, "anthropic-version: header is required")
        try:
            decoded = json.loads(request.body)
            if b"\\ud" in request.body or b"\\uD" in request.body:
                json.dumps(decoded, ensure_ascii=False).encode()  # raises for lone surrogates
        except (ValueError, RecursionError) as error:
            raise refusal(400, f"The request body is not valid JSON: {error}") from None
        try:
            return check(decoded)
        except InvalidRequest as broken:
            raise refusal(400, str(broken)) from None

    def choose(self, request: Json) -> tuple[Answer, Fault | None]:
        """The script's answer, and what is to go wrong with it."""
        turn = turn_of(request)
        if turn >= len(self._script):
            raise refusal(400, f"the script has no step {turn}")
        step, digest = self._script[turn], digest_of(request)
        fault = None
        if step.faults:
            fault = step.fault_for(self._asked[digest])
            self._asked[digest] += 1
        return answer(step, request, turn, digest), fault

    def record(self, **line: object) -> None:
        os.write(self._log, dump(line) + b"\n")  # one write to a file opened for append: lines stay whole

    def takes_hold(self, turn: int) -> bool:
        """Whether a request of ``turn`` is to be held: true once."""
        if self.hold_turn != turn:
            return False
        self.hold_turn = None
        return True

    async def hold(self) -> None:
        write_whole(self.hold_marker, "held\n")
        print(f"held: {self.hold_marker}", flush=True)
        while self.hold_marker.exists() and not self._released.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._released.wait(), HOLD_LOOK_INTERVAL_S)
        self.hold_marker.unlink(missing_ok=True)

    def release(self) -> None:
        self._released.set()


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection: requests one after another, each answered by a task that dies with it."""

    def __init__(self, model: Model, open_connections: set[Connection]) -> None:
        self._model = model
        self._open = open_connections
        self._received = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._open.discard(self)
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._next()

    def close(self) -> None:
        self._transport.abort()

    def _next(self) -> None:
        if self._task is not None or self._transport.is_closing():
            return
        try:
            request = take_request(self._received)
        except HttpError as error:
            self._send_error(error, "req_unread")
            self._transport.close()
            return
        if request is not None:
            self._task = asyncio.create_task(self._serve(request))
            self._task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "serving failed", "exception": error}
            )
            self._transport.abort()
        self._next()

    async def _serve(self, request: Request) -> None:
        request_id = self._model.next_request_id()
        try:
            match request.method, request.path.partition("?")[0]:
                case "POST", "/v1/messages":
                    await self._messages(request, request_id)
                case "POST", "/_test/release":
                    self._model.release()
                    self._send(200, b"{}", request_id)
                case _:
                    raise refusal(404, "Not found")
        except HttpError as error:
            self._send_error(error, request_id)

    async def _messages(self, request: Request, request_id: str) -> None:
        turn, fault, status, is_stream, is_complete = None, None, 200, False, False
        try:
            body = self._model.read(request)
            turn, is_stream = turn_of(body), body.get("stream") is True
            if self._model.think_time_s:
                await asyncio.sleep(self._model.think_time_s)
            chosen, fault = self._model.choose(body)
            raise_status(fault)
            if is_stream:
                is_complete = await self._stream(chosen, fault, turn, request_id)
            else:
                if self._model.takes_hold(turn):
                    await self._model.hold()
                self._send(200, chosen.body, request_id)
                is_complete = True
        except HttpError as error:
            status = error.status
            raise
        finally:
            self._model.record(
                turn=turn,
                stream=is_stream,
                completed=is_complete and not self._transport.is_closing(),
                status=status,
                fault=None if fault is None else fault.kind,
            )

    async def _stream(self, chosen: Answer, fault: Fault | None, turn: int, request_id: str) -> bool:
        """Whether the whole answer was sent."""
        frames = [frame(name, data) for name, data in chosen.events()]
        self._transport.write(
            head(
                200,
                {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"},
                request_id,
            )
        )
        if self._model.takes_hold(turn):
            middle = len(frames) // 2
            self._transport.write(chunks(frames[:middle]))
            await self._model.hold()
            frames = frames[middle:]
        if fault is None:
            self._transport.write(chunks(frames) + END_OF_BODY)
            return True
        if fault.kind == "cut":
            self._transport.write(chunks([b"".join(frames)[: fault.after_bytes]]))
            self._transport.close()
            return False
        sent = len(frames) // 2 if fault.after_events is None else fault.after_events
        self._transport.write(chunks(frames[:sent]))
        if fault.kind == "stall":
            await asyncio.Event().wait()  # until the caller goes away
        error = frame("error", error_data(fault.error_type, fault.message, request_id))
        self._transport.write(chunks([error]) + END_OF_BODY)
        return False

    def _send(
        self, status: int, body: bytes, request_id: str, headers: Mapping[str, str] | None = None
    ) -> None:
        described = {"Content-Type": "application/json", **(headers or {})}
        self._transport.write(head(status, described, request_id, length=len(body)) + body)

    def _send_error(self, error: HttpError, request_id: str) -> None:
        self._send(
            error.status, error_body(error.error_type, str(error), request_id), request_id, error.headers
        )


def refusal(status: int, message: str) -> HttpError:
    return HttpError(status, ERROR_TYPES[status], message, {})


def raise_status(fault: Fault | None) -> None:
    if fault is not None and fault.kind == "status":
        raise HttpError(fault.status, fault.error_type, fault.message, fault.headers)


def take_request(received: bytearray) -> Request | None:
    """Takes one whole request off the front, or None while it is not all there."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        if len(received) > HEAD_BYTES_MAX:
            raise refusal(413, "the head of the request is too large")
        return None
    first, *lines = received[:end].decode("latin-1").split("\r\n")
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    length = headers.get("content-length", "0")
    words = first.split(" ")
    if len(words) != 3 or not length.isdecimal() or "transfer-encoding" in headers:
        raise refusal(400, "a plain HTTP/1.1 request with a Content-Length is needed")
    if int(length) > BODY_BYTES_MAX:
        raise refusal(413, "Request exceeds the maximum size")
    whole = end + 4 + int(length)
    if len(received) < whole:
        return None
    body = bytes(received[end + 4 : whole])
    del received[:whole]
    return Request(words[0], words[1], headers, body)


def head(status: int, headers: Mapping[str, str], request_id: str, length: int | None = None) -> bytes:
    framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    phrase = HTTPStatus(status).phrase if status in {known.value for known in HTTPStatus} else "Error"
    lines = [
        f"HTTP/1.1 {status} {phrase}",
        f"Date: {formatdate(usegmt=True)}",
        f"request-id: {request_id}",
        framing,
    ]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode()


def chunks(parts: Iterable[bytes]) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts if part)


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
    parser = argparse.ArgumentParser(description="A scripted stand-in for the Messages API.")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--script", type=Path, required=True, help="a JSON list of steps")
    parser.add_argument("--log", type=Path, required=True, help="gets one JSON line per request")
    parser.add_argument("--port-file", type=Path, help="where the port is written once it listens")
    parser.add_argument("--hold-mid-stream", nargs=2, metavar=("STEP", "MARKER"))
    parser.add_argument("--think-time-ms", type=int, default=0)
    parser.add_argument("--die-with-parent", action="store_true")
    return parser.parse_args()


async def serve(options: argparse.Namespace) -> None:
    model = Model(load_script(options.script), options.log, options.think_time_ms / 1000)
    if options.hold_mid_stream is not None:
        step, marker = options.hold_mid_stream
        model.hold_turn, model.hold_marker = int(step), Path(marker)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for ending in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(ending, ended.set)
    if options.die_with_parent:
        die_with_parent()
    connections: set[Connection] = set()
    server = await loop.create_server(
        lambda: Connection(model, connections), "127.0.0.1", options.port, backlog=LISTEN_BACKLOG
    )
    port = server.sockets[0].getsockname()[1]
    if options.port_file is not None:
        write_whole(options.port_file, f"{port}\n")
    print(f"scripted model on http://127.0.0.1:{port}", flush=True)
    await ended.wait()
    server.close()
    for connection in list(connections):
        connection.close()  # its request ends, and is logged, as one whose caller went away
    if options.port_file is not None:
        options.port_file.unlink(missing_ok=True)


def main() -> None:
    asyncio.run(serve(arguments()))


if __name__ == "__main__":
    main()
