"""Tools that are HTTP requests.

How an end counts:

- **2xx**: the body is the answer.
- **4xx**, and what ``definite_statuses`` names: the service's answer, an error; the model is told it.
- **no connection**: nothing was sent, so definitely nothing happened; so are ``not_executed_statuses``.
- **5xx, 3xx, 408, 425, a reset, a time-out, an abort**, and what ``unknown_statuses`` names: for a
  non_idempotent tool nobody knows what happened.

Redirects are not followed: the second request would be another call than the one that was recorded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias, Unpack
from urllib.parse import quote, urlsplit

import httpx2

from perdure.connectors.declared_tool import (
    OUTPUT_BYTES_MAX_DEFAULT,
    ToolOptions,
    UnusableDeclaration,
    check_arguments,
    checked,
    cut,
    described,
    output_check,
    shown_url,
    unless_aborted,
)
from perdure.connectors.tool import (
    TOOL_TIMEOUT_S_DEFAULT,
    EffectName,
    NotExecuted,
    Tool,
    ToolContext,
    ToolError,
    tool,
)
from perdure.connectors.tool_failures import ConnectionLost, ToolFailure, UnusableOutput
from perdure.schemas.canonical import NotJson, canonical_json, loads_json
from perdure.schemas.json_schema import Check
from perdure.schemas.limits import JSON_BYTES_MAX
from perdure.schemas.values import Effect, ExecutorKind

Method: TypeAlias = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
Headers: TypeAlias = Mapping[str, str] | Callable[[], Mapping[str, str]]

CONNECT_TIMEOUT_S: Final = 10.0
# 408 and 425 are 4xx by number only: a proxy sends them for requests that the service may have begun.
UNKNOWN_STATUSES: Final = frozenset({408, 425})
_BODILESS: Final = frozenset({"GET", "HEAD", "DELETE"})
_PLACE: Final = re.compile(r"\{([A-Za-z0-9_]+)\}")


class NotSent(NotExecuted):
    """The service could not be reached; no request was sent."""

    code = "http_not_sent"
    remedy = "Check the tool's URL and whether the service runs; perdure tries again within attempts_max."


class StatusUnknown(ToolFailure):
    """The service answered with a status that does not say whether it did what it was asked."""

    code = "http_status_unknown"
    remedy = "If the status is an answer of this service, name it in definite_statuses."


@dataclass(frozen=True, slots=True)
class _Endpoint:
    method: Method
    url: str
    headers: Headers
    output_check: Check | None
    output_bytes_max: int
    definite: frozenset[int]
    unknown: frozenset[int]
    not_executed: frozenset[int]

    async def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> Any:
        rest = dict(arguments)
        url = self.url
        for place in _PLACE.findall(self.url):
            text = _plain(rest.pop(place, ""))
            if text in {"", ".", ".."}:
                return ToolError(f"The tool was not called: {place} must not be empty or consist of dots.")
            url = url.replace(f"{{{place}}}", quote(text, safe=""))
        given = self.headers() if callable(self.headers) else self.headers
        headers = {**given, "Idempotency-Key": context.idempotency_key}
        body: bytes | None = None
        query: dict[str, str] | None = None
        if self.method in _BODILESS:
            query = {name: _plain(value) for name, value in rest.items()} or None
        else:
            body = canonical_json(rest)
            headers["Content-Type"] = "application/json"
        connect_s = min(CONNECT_TIMEOUT_S, context.remaining_s() or CONNECT_TIMEOUT_S)
        # The executor enforces the deadline of the whole; only connecting has a time of its own.
        timeout = httpx2.Timeout(None, connect=connect_s)
        async with httpx2.AsyncClient(timeout=timeout, follow_redirects=False) as client:
            request = client.build_request(self.method, url, params=query, content=body, headers=headers)
            return await self._send(client, request)

    async def _send(self, client: httpx2.AsyncClient, request: httpx2.Request) -> Any:
        try:
            response = await client.send(request, stream=True)
            try:
                head, count = await self._body(response)
            finally:
                await response.aclose()
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            raise NotSent(f"{type(error).__name__}: {error}") from error
        except (httpx2.TransportError, httpx2.StreamError, httpx2.DecodingError) as error:
            raise ConnectionLost(f"{type(error).__name__}: {error}") from error
        return self._answer(response, head, count)

    async def _body(self, response: httpx2.Response) -> tuple[bytes, int]:
        """The head of the body and how much was seen of it; what is over the limit is not waited for."""
        kept = bytearray()
        async for chunk in response.aiter_bytes():
            kept += chunk
            if len(kept) > self.output_bytes_max:
                break
        return bytes(kept[: self.output_bytes_max]), len(kept)

    def _answer(self, response: httpx2.Response, head: bytes, count: int) -> Any:
        status = response.status_code
        text = cut(head, count) if count <= len(head) else f"{cut(head, len(head))}\n[cut: the limit]"
        said = f"HTTP {status} {response.reason_phrase}".rstrip()
        where = response.headers.get("location")
        full = f"{said}{f' to {where}' if where else ''}{f': {text}' if text.strip() else ''}"
        if status in self.not_executed:
            raise NotExecuted(full)
        if status in self.unknown:
            raise StatusUnknown(full)
        if 400 <= status < 500 or (status in self.definite and status >= 300):
            return ToolError(full)
        if not 200 <= status < 300:
            raise StatusUnknown(full)
        if count > len(head):
            return text
        is_json = "json" in response.headers.get("content-type", "")
        if not is_json:
            return checked(text, self.output_check)
        try:
            value = loads_json(head) if head.strip() else None
        except NotJson as error:
            raise UnusableOutput(f"The body is no JSON: {error.detail}") from error
        return checked(value, self.output_check)


def http_tool(
    name: str,
    *,
    url: str,
    method: Method = "POST",
    effect: Effect | EffectName = Effect.NON_IDEMPOTENT,
    schema: Mapping[str, Any],
    headers: Headers | None = None,
    output_schema: Mapping[str, Any] | None = None,
    output_bytes_max: int = OUTPUT_BYTES_MAX_DEFAULT,
    definite_statuses: Collection[int] = (),
    unknown_statuses: Collection[int] = (),
    not_executed_statuses: Collection[int] = (),
    timeout_s: float = TOOL_TIMEOUT_S_DEFAULT,
    **options: Unpack[ToolOptions],
) -> Tool[..., Any]:
    """Declare an HTTP request as a tool of an agent. The idempotency key goes into ``Idempotency-Key``.

    Args:
        name: what the model calls it.
        url: may hold ``{argument}`` places in path and query, filled in percent-encoded.
        method: the other arguments are the JSON body of POST, PUT and PATCH, and the query of the others.
        effect: as of ``@tool``; non_idempotent unless you say otherwise, also for GET.
        schema: JSON Schema of the arguments.
        headers: further headers, or a function that is asked for them at each call (secrets that rotate).
        output_schema: JSON Schema of a 2xx answer; one that violates it is no answer.
        output_bytes_max: how much of the body is kept, from its beginning.
        definite_statuses: statuses that are the service's own answer, an error, beside 4xx.
        unknown_statuses: statuses that say nothing about what was done (409 of a service that is still busy
            with the same key, say).
        not_executed_statuses: statuses that say that nothing was done (429, say); it may be called again.
        timeout_s: an attempt's deadline.
        **options: description, settle_s, attempts_max, needs_approval, approval_timeout_s, reconcile,
            concurrency_max, as of ``@tool``.

    Raises:
        UnusableDeclaration, EffectMissing, UnusableTool, UnusableSchema.
    """
    _check_url(name, url, schema)
    check_arguments(schema, output_bytes_max)
    endpoint = _Endpoint(
        method=method,
        url=url,
        headers=headers or {},
        output_check=output_check(output_schema),
        output_bytes_max=min(output_bytes_max, JSON_BYTES_MAX),
        definite=frozenset(definite_statuses),
        unknown=(UNKNOWN_STATUSES | frozenset(unknown_statuses)) - frozenset(definite_statuses),
        not_executed=frozenset(not_executed_statuses),
    )

    async def run(perdure_context: ToolContext, **arguments: Any) -> Any:
        return await unless_aborted(endpoint.call(perdure_context, arguments), perdure_context)

    made = tool(name=name, effect=effect, schema=schema, timeout_s=timeout_s, **described(options))(run)
    return replace(made, executor=ExecutorKind.HTTP, server=f"{method} {shown_url(url)}")


def _check_url(name: str, url: str, schema: Mapping[str, Any]) -> None:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.netloc or "{" in parts.netloc:
        raise UnusableDeclaration(f"{name}: url is http(s)://host/..., with places in path and query only.")
    required = schema.get("required", ())
    absent = [place for place in _PLACE.findall(url) if place not in required]
    if absent:
        raise UnusableDeclaration(f"{name}: the schema does not require {', '.join(absent)} of its url.")


def _plain(value: Any) -> str:
    """A value in a URL: text as it is, everything else as JSON."""
    return value if isinstance(value, str) else canonical_json(value).decode()
