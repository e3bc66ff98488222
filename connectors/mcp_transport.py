"""An MCP server that is a command, under a guardian: one JSON-RPC message a line on stdin and stdout."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeAlias

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

from perdure.connectors.guardian import READ_BYTES, Guarded

MESSAGE_BYTES_MAX: Final = 16 << 20

Incoming: TypeAlias = SessionMessage | Exception
Streams: TypeAlias = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]

_log: Final = logging.getLogger(__name__)


@asynccontextmanager
async def guarded_streams(
    command: Sequence[str], env: Mapping[str, str], cwd: str | os.PathLike[str] | None, grace_s: float
) -> AsyncGenerator[Streams, None]:
    """Start the server, and give the streams a session of the ``mcp`` package wants; stops it at the end.

    Raises :class:`perdure.connectors.guardian.NotStarted`.
    """
    process = await Guarded.start(command, env=env, cwd=cwd, grace_s=grace_s)
    received, incoming = anyio.create_memory_object_stream[Incoming](0)
    outgoing, sent = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read, process, received)
            tasks.start_soon(_write, process, sent, received)
            tasks.start_soon(_drain, process)
            try:
                yield incoming, outgoing
            finally:
                tasks.cancel_scope.cancel()
    finally:
        process.close()
        for each in (received, incoming, outgoing, sent):
            each.close()


async def _read(process: Guarded, received: MemoryObjectSendStream[Incoming]) -> None:
    """Pass messages on; the end of the stream is the end of the session."""
    buffer = b""
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async with received:
            while chunk := await process.stdout.read(READ_BYTES):
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        await received.send(_message(line))
                if len(buffer) > MESSAGE_BYTES_MAX:
                    _log.error("an MCP server sent too large a message", extra={"action": "mcp_overflow"})
                    return


def _message(line: bytes) -> Incoming:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


async def _write(
    process: Guarded,
    sent: MemoryObjectReceiveStream[SessionMessage],
    received: MemoryObjectSendStream[Incoming],
) -> None:
    try:
        async with sent:
            async for each in sent:
                text = each.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode() + b"\n")
                await process.stdin.drain()
    except OSError:
        received.close()  # else a request would wait for a server that is gone


async def _drain(process: Guarded) -> None:
    while chunk := await process.stderr.read(READ_BYTES):
        _log.debug("%s", chunk.decode("utf-8", "replace"), extra={"action": "mcp_stderr"})
