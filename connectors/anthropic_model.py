"""The model port over the Anthropic Messages API, through the official SDK, always streaming.

The request goes out in the order model, system, tools, messages, everything else, and stored messages are
spliced in byte for byte: so request n up to the end of its messages is, cache breakpoints left out, a byte
prefix of request n+1. That is why it is handed to the SDK as bytes. Breakpoints (``cache_control``) exist on
the wire only. The SDK's own retries are off: a retry is a durable timer of the run, not a worker's wait.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpx2
import msgspec
from anthropic import (
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    AsyncAnthropic,
    AsyncStream,
    Timeout,
)
from msgspec.structs import replace

from perdure.connectors.anthropic_stream import ProviderError, StreamedReply, provider_error, scrub
from perdure.connectors.prices import SnapshotPrices
from perdure.connectors.structured_output import MEMBER, output_config
from perdure.processors.abort import AbortSignal
from perdure.processors.ports import ModelInvocation, OnDelta
from perdure.schemas.definition import AgentDefinition
from perdure.schemas.errors import PerdureError, Retry
from perdure.schemas.results import ModelFailed, ModelReplied
from perdure.schemas.values import Usage

CONNECT_TIMEOUT_S_MAX: Final = 10.0
DRAIN_TIMEOUT_S: Final = 1.0
"""How long to read on after message_stop: at the end of its body a connection can be used again."""
RETRY_AFTER_MS_MAX: Final = 24 * 60 * 60 * 1000
MESSAGE_CHARS_MAX: Final = 2000
OWN_PARAMETERS: Final = frozenset({"model", "system", "tools", "messages", "max_tokens", "stream"})
BREAKPOINT: Final = b'"cache_control":{"type":"ephemeral"}'
UNCACHEABLE: Final = frozenset({"thinking", "redacted_thinking"})

CODES: Final[Mapping[str, tuple[str, bool]]] = {
    "overloaded_error": ("overloaded", True),
    "rate_limit_error": ("rate_limited", True),
    "api_error": ("provider_error", True),
    "timeout_error": ("timeout", True),
    "invalid_request_error": ("invalid_request", False),
    "authentication_error": ("authentication", False),
    "billing_error": ("billing", False),
    "permission_error": ("permission", False),
    "not_found_error": ("not_found", False),
    "request_too_large": ("request_too_large", False),
}
"""The provider's error type -> (code, is_retryable)."""
STATUS_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""HTTP status -> the type it stands for, where a body (say, of a proxy) names none that is known."""


class AnthropicModel:
    """A :class:`~perdure.processors.ports.ModelPort`. One per worker, used from one event loop.

    ``base_url`` None: the SDK's own default (``ANTHROPIC_BASE_URL`` or the service). ``is_caching`` puts
    cache breakpoints on the last tool, the system prompt and the last block of the last message.
    """

    def __init__(
        self,
        api_key: str,
        base_url: str | None = None,
        *,
        is_caching: bool = True,
        prices: SnapshotPrices | None = None,
    ) -> None:
        self._client = AsyncAnthropic(api_key=api_key, base_url=base_url, max_retries=0)
        self._is_caching = is_caching
        self._prices = prices or SnapshotPrices()

    async def close(self) -> None:
        await self._client.close()

    async def invoke(
        self, call: ModelInvocation, abort: AbortSignal, on_delta: OnDelta
    ) -> ModelReplied | ModelFailed:
        """One call of the model; the HTTP stream is closed when this returns, however it ends.

        Failures that may pass: overloaded, rate_limited, provider_error, timeout, connection, cut_stream,
        malformed_stream. Permanent: invalid_request, authentication, billing, permission, not_found,
        request_too_large, unknown_content, invalid_parameters, aborted.
        """
        answered = await self._invoke(call, abort, on_delta)
        usage = answered.usage
        if usage is None or usage == Usage():
            return answered
        cost = self._prices.cost_nano_usd(call.definition.model, usage)
        return replace(answered, usage=replace(usage, cost_nano_usd=cost))

    async def _invoke(
        self, call: ModelInvocation, abort: AbortSignal, on_delta: OnDelta
    ) -> ModelReplied | ModelFailed:
        refused = OWN_PARAMETERS & call.definition.parameters.keys()
        if refused:
            told = f"parameters may not set {', '.join(sorted(refused))}"
            return _failed(call, "invalid_parameters", told, is_retryable=False)
        if abort.aborted:
            return _failed(call, "aborted", abort.reason or "", is_retryable=False)
        reply = StreamedReply(on_delta)
        exchange = asyncio.ensure_future(self._exchange(call, reply))
        aborted = asyncio.ensure_future(abort.wait())
        try:
            await asyncio.wait(
                {exchange, aborted},
                timeout=call.timeout_ms / 1000,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if exchange.done():
                return exchange.result()
            if aborted.done():
                return _failed(call, "aborted", aborted.result(), is_retryable=False, usage=reply.usage)
            told = f"no complete reply within {call.timeout_ms} ms"
            return _failed(call, "timeout", told, is_retryable=True, usage=reply.usage)
        finally:
            exchange.cancel()
            aborted.cancel()
            await asyncio.gather(exchange, aborted, return_exceptions=True)

    async def _exchange(self, call: ModelInvocation, reply: StreamedReply) -> ModelReplied | ModelFailed:
        timeout_s = call.timeout_ms / 1000
        timeout = Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S_MAX))
        try:
            stream = await self._client.post(
                "/v1/messages",
                cast_to=object,
                content=request_body(call, is_caching=self._is_caching),
                options={"timeout": timeout},
                stream=True,
                stream_cls=AsyncStream[object],
            )
        except APIStatusError as error:
            told = provider_error(error.response.text)
            return _classified(call, told, error.status_code, error.response.headers, None)
        except APITimeoutError as error:
            return _failed(call, "timeout", str(error), is_retryable=True)
        except APIConnectionError as error:
            return _failed(call, "connection", repr(error.__cause__ or error), is_retryable=True)
        except (httpx2.HTTPError, httpx2.StreamError) as error:  # while the body of an HTTP error was read
            return _failed(call, "connection", repr(error), is_retryable=True)
        async with stream:
            return await _read(call, reply, stream.response)


async def _read(
    call: ModelInvocation, reply: StreamedReply, response: httpx2.Response
) -> ModelReplied | ModelFailed:
    events = AsyncStream.raw_events(response)
    try:
        async for event in events:
            reply.take(event.event, event.data)
            if reply.is_over:
                break
    except PerdureError as error:
        is_retryable = isinstance(error, Retry)
        return _failed(call, error.code, str(error), is_retryable=is_retryable, usage=reply.usage)
    except UnicodeDecodeError as error:
        return _failed(call, "malformed_stream", str(error), is_retryable=True, usage=reply.usage)
    except httpx2.TimeoutException as error:
        return _failed(call, "timeout", repr(error), is_retryable=True, usage=reply.usage)
    except (httpx2.HTTPError, httpx2.StreamError) as error:
        return _failed(call, "cut_stream", repr(error), is_retryable=True, usage=reply.usage)
    if reply.error is not None:
        return _classified(call, reply.error, response.status_code, response.headers, reply.usage)
    if not reply.is_over or reply.stop_reason is None:
        told = "the stream ended without message_stop"
        return _failed(call, "cut_stream", told, is_retryable=True, usage=reply.usage)
    with suppress(TimeoutError, httpx2.HTTPError, httpx2.StreamError, UnicodeDecodeError):
        await asyncio.wait_for(_drain(events), DRAIN_TIMEOUT_S)
    content, faults = reply.content()
    return ModelReplied(
        invocation_id=call.invocation_id,
        digest=call.digest,
        content=content,
        stop_reason=reply.stop_reason,
        usage=reply.usage or Usage(),
        provider_message_id=reply.message_id,
        input_faults=faults,
    )


async def _drain(events: AsyncIterator[object]) -> None:
    async for _ in events:
        pass


def request_body(call: ModelInvocation, *, is_caching: bool) -> bytes:
    """The request's JSON. What varies between the requests of a run stands behind the messages."""
    definition = call.definition
    tools = _tools(definition)
    members = [b'"model":' + msgspec.json.encode(definition.model)]
    if definition.system:
        system = msgspec.json.encode({"type": "text", "text": definition.system})
        members.append(b'"system":[' + (_marked(system) if is_caching else system) + b"]")
    if tools:
        last = _marked(tools[-1]) if is_caching else tools[-1]
        members.append(b'"tools":[' + b",".join([*tools[:-1], last]) + b"]")
    *earlier, newest = call.messages
    sent = (*earlier, with_breakpoint(newest) if is_caching else newest)
    members.append(b'"messages":[' + b",".join(sent) + b"]")
    others: dict[str, Any] = {"max_tokens": call.max_tokens, "stream": True, **definition.parameters}
    others.pop(MEMBER, None)
    config = output_config(definition)
    if config is not None:
        others[MEMBER] = config
    if tools and not call.allow_tools:
        others["tool_choice"] = {"type": "none"}
    members.append(msgspec.json.encode(others)[1:-1])
    return b"{" + b",".join(members) + b"}"


class _Content(msgspec.Struct, frozen=True):
    content: msgspec.Raw = msgspec.Raw(b"")


class _Kind(msgspec.Struct, frozen=True):
    type: str = ""


def with_breakpoint(message: bytes) -> bytes:
    """``message`` with a cache breakpoint on its last content block, all other bytes as they are.

    Unchanged where a breakpoint is not allowed (thinking) or would change the shape (a string as content).
    """
    listed = bytes(msgspec.json.decode(message, type=_Content).content)
    if not listed.startswith(b"["):
        return message
    blocks = msgspec.json.decode(listed, type=list[msgspec.Raw])
    if not blocks:
        return message
    last = bytes(blocks[-1])
    if msgspec.json.decode(last, type=_Kind).type in UNCACHEABLE:
        return message
    end = message.rindex(listed) + listed.rindex(last) + len(last)
    return message[: end - 1] + b"," + BREAKPOINT + message[end - 1 :]


def _marked(block: bytes) -> bytes:
    return block[:-1] + b"," + BREAKPOINT + b"}"


def _tools(definition: AgentDefinition) -> list[bytes]:
    return [
        msgspec.json.encode(
            {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
        )
        for tool in definition.tools
        if not tool.is_hidden
    ]


def _classified(
    call: ModelInvocation,
    error: ProviderError,
    status: int,
    headers: Mapping[str, str],
    usage: Usage | None,
) -> ModelFailed:
    """By the error's type, or by the HTTP status where it is unknown; unknown in a stream (200): may pass."""
    default = "invalid_request_error" if 400 <= status < 500 else "api_error"
    code, is_retryable = CODES.get(error.type) or CODES[STATUS_TYPES.get(status, default)]
    told = f"{error.type or status}: {error.message}"
    if usage is None and status >= 400:
        usage = Usage()  # refused with a status: nothing was generated, nothing is billed
    return _failed(
        call,
        code,
        told,
        is_retryable=is_retryable,
        usage=usage,
        retry_after_ms=retry_after_ms(headers) if is_retryable else None,
    )


def retry_after_ms(headers: Mapping[str, str]) -> int | None:
    """What the provider asks for, at most a day; a date counts from the answer's own ``Date``, not a clock.

    ``retry-after-ms`` is the provider's finer form; ``retry-after``: RFC 9110, section 10.2.3.
    """
    for name, factor in (("retry-after-ms", 1.0), ("retry-after", 1000.0)):
        with suppress(ValueError):
            wait_ms = float(headers.get(name, "")) * factor
            if math.isfinite(wait_ms):
                return round(min(max(wait_ms, 0.0), RETRY_AFTER_MS_MAX))
    with suppress(ValueError, TypeError):  # no date, or one of the two without a time zone
        until = parsedate_to_datetime(headers.get("retry-after", ""))
        wait_s = (until - parsedate_to_datetime(headers.get("date", ""))).total_seconds()
        return round(min(max(wait_s * 1000, 0.0), RETRY_AFTER_MS_MAX))
    return None


def _failed(
    call: ModelInvocation,
    code: str,
    message: str,
    *,
    is_retryable: bool,
    usage: Usage | None = None,
    retry_after_ms: int | None = None,
) -> ModelFailed:
    return ModelFailed(
        invocation_id=call.invocation_id,
        code=code,
        is_retryable=is_retryable,
        message=scrub(message)[:MESSAGE_CHARS_MAX],
        retry_after_ms=retry_after_ms,
        usage=usage,
    )
