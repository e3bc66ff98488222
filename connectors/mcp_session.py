"""Sessions with MCP servers: opened when needed, opened again when broken, in a loop of their own.

A session belongs to the task that opened it, and outlives the calls that use it; so all of them live in one
background loop, and calls are handed over.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import Callable, Coroutine, Mapping
from functools import cache
from typing import Any, Final, TypeVar, cast

import anyio
import httpx2
from mcp import Client, MCPError
from mcp.client import Transport
from mcp.types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    REQUEST_TIMEOUT,
    CallToolResult,
    RequestParamsMeta,
)
from mcp.types import Tool as ServerTool

from perdure.connectors.tool import NotExecuted
from perdure.connectors.tool_failures import ConnectionLost, ToolFailure, Unavailable, UnusableOutput
from perdure.schemas.canonical import canonical_json

T = TypeVar("T")

OPEN_TIMEOUT_S: Final = 30.0
CLOSE_TIMEOUT_S: Final = 5.0
PAGES_MAX: Final = 100
KEY_META: Final = "perdure/idempotency-key"


class NotReached(NotExecuted):
    """No session with the MCP server could be opened; the tool was not called."""

    code = "mcp_not_reached"
    remedy = "Check that the server starts and answers; perdure tries again within attempts_max."


class ServerFault(ToolFailure):
    """The MCP server answered the call with an error of the protocol."""

    code = "mcp_server_fault"
    remedy = "Look at the server's log."


class Refused(Exception):
    """The server refused the call's arguments: a definite answer."""


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="mcp-sessions", daemon=True).start()
    return loop


def in_background(work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """Run it in the sessions' loop; cancelling the future cancels it there."""
    return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, _loop()))


def in_background_blocking(work: Coroutine[Any, Any, T], timeout_s: float) -> T:
    """The same for callers without a loop. Raises ``TimeoutError``."""
    return asyncio.run_coroutine_threadsafe(work, _loop()).result(timeout_s)


def schema_hash(tool: ServerTool) -> str:
    """Of everything the model or the author was told of the tool: 64 lower-case hex digits."""
    told = tool.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"meta", "icons"})
    return hashlib.sha256(canonical_json(told)).hexdigest()


class Session:
    """The session with one server, used in the background loop only."""

    def __init__(self, connect: Callable[[], Transport]) -> None:
        self._connect = connect
        self._lock = asyncio.Lock()
        self._client: Client | None = None
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def tools(self) -> Mapping[str, ServerTool]:
        """What the server offers now. Opens the session, also again if it is broken.

        Raises :class:`NotReached`.
        """
        async with self._lock:
            if self._client is not None:
                with contextlib.suppress(Exception):  # it is opened again, whatever is wrong with it
                    async with asyncio.timeout(OPEN_TIMEOUT_S):
                        return await _listed(self._client)
            try:
                await self._open()
                assert self._client is not None
                async with asyncio.timeout(OPEN_TIMEOUT_S):
                    return await _listed(self._client)
            except Exception as error:
                await self._end()
                raise NotReached(_why(error)) from error

    async def call(self, name: str, expected: str, arguments: dict[str, Any], key: str) -> CallToolResult:
        """Call a tool, if it is still the one of that :func:`schema_hash`.

        Raises:
            NotReached, Unavailable: it was not called.
            Refused: the server said that the arguments or the tool are none.
            ConnectionLost, ServerFault, UnusableOutput.
        """
        now = (await self.tools()).get(name)  # looked at each time: a server may change without a word
        if now is None or schema_hash(now) != expected:
            raise Unavailable(f"The server's {name} {'is gone' if now is None else 'has changed'}.")
        client = self._client
        if client is None:
            raise NotReached("The session was closed.")
        try:
            meta = cast("RequestParamsMeta", {KEY_META: key})
            return await client.session.call_tool(name, arguments, meta=meta)
        except MCPError as error:
            if error.code in {INVALID_PARAMS, METHOD_NOT_FOUND}:
                raise Refused(str(error)) from error
            if error.code in {CONNECTION_CLOSED, REQUEST_TIMEOUT}:
                raise ConnectionLost(str(error)) from error
            raise ServerFault(str(error)) from error
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, httpx2.HTTPError, OSError) as error:
            raise ConnectionLost(f"{type(error).__name__}: {error}") from error
        except (RuntimeError, ValueError) as error:
            raise UnusableOutput(str(error)) from error

    async def close(self) -> None:
        async with self._lock:
            await self._end()

    async def _open(self) -> None:
        await self._end()
        self._closing = asyncio.Event()
        opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(opened, self._closing))
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            self._client = await opened

    async def _hold(self, opened: asyncio.Future[Client], closing: asyncio.Event) -> None:
        """The life of one session: entered and left in one task, as its cancel scopes demand."""
        try:
            async with Client(self._connect(), cache=None) as client:
                opened.set_result(client)
                await closing.wait()
        except Exception as error:  # noqa: BLE001 - whoever waits is told; a broken session ends anyhow
            if not opened.done():
                opened.set_exception(error)

    async def _end(self) -> None:
        task, self._task, self._client = self._task, None, None
        if task is None:
            return
        self._closing.set()
        _, late = await asyncio.wait({task}, timeout=CLOSE_TIMEOUT_S)
        for each in late:
            each.cancel()


async def _listed(client: Client) -> dict[str, ServerTool]:
    found: dict[str, ServerTool] = {}
    cursor: str | None = None
    for _ in range(PAGES_MAX):
        page = await client.list_tools(cursor=cursor)
        found.update((each.name, each) for each in page.tools)
        cursor = page.next_cursor
        if cursor is None:
            return found
    raise ValueError(f"the list of tools has more than {PAGES_MAX} pages")


def _why(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return f"{type(error).__name__}: {error}"
