"""Tools of MCP servers, over the official ``mcp`` package.

::

    files = McpServer.stdio("files", ["files-server", "--root", "."])
    agent = Agent("a", model="...", tools=files.tools(effects={"read_file": "read_only"}))

What a server says of itself decides nothing: its tools are non_idempotent unless the author says otherwise.
The name of the server and a hash of what it says of a tool become part of the agent's definition; before each
call the server is asked again, and a tool that has changed is declined as unavailable.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import httpx2
from mcp.client import Transport
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, ImageContent, TextContent
from mcp.types import Tool as ServerTool

from perdure.connectors.declared_tool import (
    OUTPUT_BYTES_MAX_DEFAULT,
    UnusableDeclaration,
    check_arguments,
    cut,
    shown_url,
    unless_aborted,
)
from perdure.connectors.guardian import GRACE_S_DEFAULT
from perdure.connectors.http_tools import Headers
from perdure.connectors.mcp_known import FOLDER, KnownTools
from perdure.connectors.mcp_session import (
    CLOSE_TIMEOUT_S,
    OPEN_TIMEOUT_S,
    NotReached,
    Refused,
    Session,
    in_background,
    in_background_blocking,
    schema_hash,
)
from perdure.connectors.mcp_transport import guarded_streams
from perdure.connectors.reconciler import Reconciler
from perdure.connectors.subprocess_tools import ENV_DEFAULT
from perdure.connectors.tool import (
    TOOL_TIMEOUT_S_DEFAULT,
    ContentBlocks,
    EffectName,
    Tool,
    ToolContext,
    ToolError,
    tool,
)
from perdure.schemas.values import Effect, ExecutorKind

NAME_CHARS_MAX: Final = 64
_log: Final = logging.getLogger(__name__)
_ODD: Final = re.compile(r"[^A-Za-z0-9_-]")


class McpServer:
    """An MCP server whose tools an agent may use; made by :meth:`stdio` or :meth:`http`.

    Its session is opened at the first use, shared by all calls, and opened again when it broke. A worker
    that leaves closes it. ``known``: the file where its tools are remembered, for when it is down while an
    agent is declared; by default ``.perdure/mcp/NAME.json`` in the working folder.
    """

    def __init__(
        self, name: str, connect: Callable[[], Transport], address: str = "", *, known: Path | None = None
    ) -> None:
        self.name = name
        self._shown = f"{name} {address}".strip()
        self._connect = connect
        self._known = KnownTools(known or FOLDER / f"{_ODD.sub('_', name)}.json")
        self._session: Session | None = None

    @classmethod
    def stdio(
        cls,
        name: str,
        command: Sequence[str],
        *,
        env: Collection[str] = ENV_DEFAULT,
        extra_env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        grace_s: float = GRACE_S_DEFAULT,
        known: Path | None = None,
    ) -> McpServer:
        """A server that is a command, under a guardian.

        ``env``: names of the worker's variables it is given; ``extra_env``: further ones.
        """

        def connect() -> Transport:
            passed = {each: os.environ[each] for each in env if each in os.environ}
            given = {**passed, **(extra_env or {})}
            return cast("Transport", guarded_streams(command, given, cwd, grace_s))

        return cls(name, connect, known=known)

    @classmethod
    def http(
        cls, name: str, url: str, *, headers: Headers | None = None, known: Path | None = None
    ) -> McpServer:
        """A server that speaks streamable HTTP; ``headers``: as of ``http_tool``, asked for per session."""

        @asynccontextmanager
        async def streams() -> AsyncGenerator[Any, None]:
            given = headers() if callable(headers) else headers
            timeout = httpx2.Timeout(OPEN_TIMEOUT_S, read=None)  # the executor enforces deadlines
            async with (
                httpx2.AsyncClient(headers=given, timeout=timeout) as client,
                streamable_http_client(url, http_client=client) as both,
            ):
                yield both

        return cls(name, lambda: cast("Transport", streams()), shown_url(url), known=known)

    def tools(
        self,
        *,
        effects: Mapping[str, Effect | EffectName] | None = None,
        only: Collection[str] | None = None,
        prefix: str = "",
        timeout_s: float = TOOL_TIMEOUT_S_DEFAULT,
        output_bytes_max: int = OUTPUT_BYTES_MAX_DEFAULT,
        needs_approval: Collection[str] | Mapping[str, bool | Mapping[str, Any]] = (),
        reconcile: Mapping[str, Reconciler] | None = None,
        concurrency_max: Mapping[str, int] | None = None,
    ) -> list[Tool[..., Any]]:
        """Ask the server for its tools, and declare them; those it last had, if it can not be reached.

        Args:
            effects: by the server's name of a tool; non_idempotent for those not named.
            only: the server's names of those wanted; all by default.
            prefix: put before the names the model sees.
            timeout_s: an attempt's deadline.
            output_bytes_max: how much of a textual answer is kept.
            needs_approval: the server's names of those that a person has to approve, or by such a name what
                ``@tool`` takes.
            reconcile: by the server's name of a non_idempotent tool, what finds out what became of a call.
            concurrency_max: by the server's name of a tool, as of ``@tool``.

        Raises:
            NotReached (and nothing is remembered), UnusableDeclaration (a name that the server does not
            have), UnusableTool, UnusableSchema.
        """
        found = self._found()
        named = {
            *(effects or {}),
            *(only or ()),
            *needs_approval,
            *(reconcile or {}),
            *(concurrency_max or {}),
        }
        absent = named - set(found)
        if absent:
            raise UnusableDeclaration(f"The server {self.name} has no {', '.join(sorted(absent))}.")
        declared: list[Tool[..., Any]] = []
        for name in sorted(found if only is None else set(only)):
            check_arguments(found[name].input_schema, output_bytes_max)
            declare = tool(
                name=_ODD.sub("_", prefix + name)[:NAME_CHARS_MAX],
                description=self._described(found[name]),
                effect=(effects or {}).get(name, Effect.NON_IDEMPOTENT),
                schema=found[name].input_schema,
                timeout_s=timeout_s,
                needs_approval=_approval(needs_approval, name),
                reconcile=(reconcile or {}).get(name),
                concurrency_max=(concurrency_max or {}).get(name),
            )
            expected = schema_hash(found[name])
            made = declare(self._body(name, expected, output_bytes_max))
            declared.append(
                replace(
                    made,
                    service=self,
                    executor=ExecutorKind.MCP,
                    server=self._shown,
                    server_schema=expected,
                )
            )
        return declared

    def close(self) -> None:
        """End the session; a later call opens another."""
        if self._session is not None:
            in_background_blocking(self._session.close(), OPEN_TIMEOUT_S + CLOSE_TIMEOUT_S)

    def _found(self) -> Mapping[str, ServerTool]:
        """Now, or when it was last asked: a server that is down must not keep a worker from starting."""
        try:
            found = in_background_blocking(self._listed(), 2 * OPEN_TIMEOUT_S + CLOSE_TIMEOUT_S)
        except (NotReached, TimeoutError) as error:
            recalled = self._known.recall()
            if recalled is None:
                raise NotReached(
                    f"{self.name}: {error}, and nothing is remembered in {self._known}."
                ) from error
            _log.warning(
                "MCP server %s is declared as it last was: %s", self.name, error,
                extra={"action": "mcp_declared_from_memory"},
            )  # fmt: skip
            return recalled
        self._known.remember(found)
        return found

    async def _listed(self) -> Mapping[str, ServerTool]:
        return await self._opened().tools()

    def _opened(self) -> Session:
        """In the background loop only, so that there is one."""
        if self._session is None:
            self._session = Session(self._connect)
        return self._session

    def _body(self, name: str, expected: str, output_bytes_max: int) -> Callable[..., Any]:
        async def call(arguments: dict[str, Any], key: str) -> CallToolResult:
            return await self._opened().call(name, expected, arguments, key)

        async def run(perdure_context: ToolContext, **arguments: Any) -> Any:
            try:
                calling = in_background(call(arguments, perdure_context.idempotency_key))
                result = await unless_aborted(calling, perdure_context)
            except Refused as error:
                return ToolError(str(error))
            return _answer(result, output_bytes_max)

        return run

    def _described(self, tool: ServerTool) -> str:
        hints = tool.annotations.model_dump_json(by_alias=True, exclude_none=True) if tool.annotations else ""
        claim = f"; the server's own hints, not verified: {hints}" if hints not in {"", "{}"} else ""
        origin = f"[MCP server {self.name}, schema sha256:{schema_hash(tool)}{claim}]"
        return f"{tool.description or ''}\n\n{origin}".strip()


def _approval(
    given: Collection[str] | Mapping[str, bool | Mapping[str, Any]], name: str
) -> bool | Mapping[str, Any]:
    if isinstance(given, Mapping):
        return cast("Mapping[str, bool | Mapping[str, Any]]", given).get(name, False)
    return name in given


def _answer(result: CallToolResult, bytes_max: int) -> Any:
    blocks: list[Mapping[str, Any]] = []
    for each in result.content:
        match each:
            case TextContent(text=text):
                blocks.append({"type": "text", "text": text})
            case ImageContent(data=data, mime_type=kind):
                source = {"type": "base64", "media_type": kind, "data": data}
                blocks.append({"type": "image", "source": source})
            case _:
                shown = each.model_dump_json(by_alias=True, exclude_none=True)
                blocks.append({"type": "text", "text": shown})
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    if len(texts) == len(blocks) or result.is_error:
        whole = "\n".join(texts).encode("utf-8", "replace")
        text = cut(whole[:bytes_max], len(whole))
        if not blocks and result.structured_content is not None:
            return result.structured_content
        return ToolError(text) if result.is_error else text
    return ContentBlocks(blocks)
