"""A Messages API in a thread of the benchmark: it streams for ever, or asks for the one tool, as it is told.

It notes when a stream began and when its connection was closed by the other side.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Self

PIECE_S: Final = 0.05
HEADER_END: Final = b"\r\n\r\n"
USAGE: Final = {"input_tokens": 10, "output_tokens": 1}
JOIN_S: Final = 5.0
STREAM: Final = "stream"
"""Runs whose input begins so are streamed to for ever; the others are asked for their tool."""


class EndlessApi:
    """``began_s``, ``closed_s``: by run id, as time.perf_counter says. A run's input is ``WORD RUN_ID``."""

    def __init__(self) -> None:
        self.began_s: dict[str, float] = {}
        self.closed_s: dict[str, float] = {}
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="endless-api", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(JOIN_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(JOIN_S)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._over.wait()
        server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(HEADER_END)).lower()
                size = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
                word, run_id = _asked(json.loads(await reader.readexactly(size)))
                if word != STREAM:
                    await _reply(writer, _calling())
                    continue
                await self._stream(reader, writer, run_id)
                break
        writer.close()

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, run_id: str) -> None:
        ended = asyncio.ensure_future(reader.read(1))  # nothing is sent any more: it ends with the connection
        writer.write(_HEAD)
        for event in (_start(), _begun({"type": "text", "text": ""})):
            await _send(writer, event)
        self.began_s[run_id] = time.perf_counter()
        while not ended.done():
            piece = {"type": "text_delta", "text": "and so on, "}
            await _send(writer, {"type": "content_block_delta", "index": 0, "delta": piece})
            await asyncio.wait({ended}, timeout=PIECE_S)
        self.closed_s[run_id] = time.perf_counter()
        ended.exception()


_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _asked(body: Mapping[str, Any]) -> tuple[str, str]:
    """The first two words of what the run was asked."""
    content = body["messages"][0]["content"]
    text = content if isinstance(content, str) else content[0]["text"]
    word, run_id, *_ = text.split()
    return word, run_id


def _start() -> dict[str, Any]:
    return {
        "type": "message_start",
        "message": {
            "id": "msg", "type": "message", "role": "assistant", "model": "scripted", "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": USAGE,
        },
    }  # fmt: skip


def _begun(block: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": 0, "content_block": block}


def _calling() -> list[dict[str, Any]]:
    return [
        _start(),
        _begun({"type": "tool_use", "id": "call_0", "name": "hold", "input": {}}),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": USAGE},
        {"type": "message_stop"},
    ]


async def _send(writer: asyncio.StreamWriter, event: Mapping[str, Any]) -> None:
    data = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
    with suppress(ConnectionError):
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await writer.drain()


async def _reply(writer: asyncio.StreamWriter, events: list[dict[str, Any]]) -> None:
    writer.write(_HEAD)
    for event in events:
        await _send(writer, event)
    writer.write(b"0\r\n\r\n")
    await writer.drain()
