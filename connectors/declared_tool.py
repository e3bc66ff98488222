"""What tools have in common that are no Python functions of the agent's author."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping
from typing import Any, Final, TypedDict, TypeVar
from urllib.parse import urlsplit, urlunsplit

from perdure.connectors.json_schema import compile_schema
from perdure.connectors.reconciler import Reconciler
from perdure.connectors.tool import ToolContext
from perdure.connectors.tool_failures import UnusableOutput
from perdure.processors.abort import Aborted
from perdure.schemas.errors import Reject
from perdure.schemas.json_schema import Check

T = TypeVar("T")

OUTPUT_BYTES_MAX_DEFAULT: Final = 256 << 10
# Where a tool's context is passed; no argument can be called so.
CONTEXT: Final = "perdure_context"


class UnusableDeclaration(Reject):
    """A tool's declaration contradicts itself."""

    code = "tool_declaration_unusable"
    remedy = "Correct the arguments of the tool's declaration."


class ToolOptions(TypedDict, total=False):
    """Options of ``@tool`` that mean the same for every kind of tool."""

    description: str
    settle_s: float
    attempts_max: int
    needs_approval: bool | Mapping[str, Any]
    approval_timeout_s: float | None
    reconcile: Reconciler | None
    concurrency_max: int | None


def check_arguments(schema: Mapping[str, Any], output_bytes_max: int) -> None:
    """Raise :class:`UnusableDeclaration` for what no call could be made with."""
    if CONTEXT in schema.get("properties", {}):
        raise UnusableDeclaration(f"No argument can be called {CONTEXT}.")
    if output_bytes_max < 1:
        raise UnusableDeclaration("output_bytes_max must be at least 1.")


def described(options: ToolOptions) -> ToolOptions:
    """With a description: what the docstring of a function is for ``@tool``, nothing is here."""
    return {"description": "", **options}


def shown_url(url: str) -> str:
    """An address as people and definitions are told it: what may be a secret in it is left out."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def output_check(schema: Mapping[str, Any] | None) -> Check | None:
    """The checker of a tool's output. Raises ``UnusableSchema``."""
    return None if schema is None else compile_schema(schema)


def checked(value: Any, check: Check | None) -> Any:
    """``value``, if it is what the tool promises. Raises :class:`UnusableOutput`."""
    fault = None if check is None else check(value)
    if fault is not None:
        raise UnusableOutput(f"The output does not match its schema: {fault}")
    return value


def cut(head: bytes, count: int) -> str:
    """The head of an output of ``count`` bytes as text, with a note if it is not all."""
    text = head.decode("utf-8", "replace")
    if count <= len(head):
        return text
    return f"{text}\n[cut: the output has {count} bytes, of which the first {len(head)} are kept]"


async def unless_aborted(call: Awaitable[T], context: ToolContext) -> T:
    """The call's value; an abort cancels it.

    Raises :class:`Aborted`: what the call did until then is not known.
    """
    running = asyncio.ensure_future(call)
    aborting = asyncio.ensure_future(context.abort.wait())
    try:
        await asyncio.wait({running, aborting}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return running.result()
        raise Aborted(context.abort.reason)
    finally:
        aborting.cancel()
        if not running.done():
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await running
