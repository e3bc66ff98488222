"""One streamed reply of the Messages API, put together verbatim. Pure: events in, content and usage out.

Source: the Messages API's streaming reference. Usage comes in ``message_start`` and again, cumulative, in
``message_delta``: it is one count, in which the later figure of each field stands. The text of a tool call's
input is kept as it came: it becomes the block's ``input`` byte for byte if it is a JSON object; if not,
``input`` holds the bare text as a string, so that nobody can take it for arguments, and the block is named in
``input_faults``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

from perdure.schemas.canonical import NotJson, loads_json
from perdure.schemas.errors import Reject, Retry
from perdure.schemas.limits import JSON_DEPTH_MAX
from perdure.schemas.values import Usage

OnDelta: TypeAlias = Callable[[int, str, str], None]

USAGE_FIELDS: Final = (
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
)
TOKENS_MAX: Final = 1_000_000_000
"""More in one reply is no count: sums and prices of it would leave what a record can hold."""
PIECES: Final = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
"""Deltas that lengthen a field: delta type -> the delta's own field."""


class MalformedStream(Retry):
    """The provider's stream breaks the rules of the Messages API."""

    code = "malformed_stream"
    remedy = "Ask the model again; nothing of the reply was kept."


class UnknownContent(Reject):
    """The stream holds a kind of content that this version cannot keep verbatim."""

    code = "unknown_content"
    remedy = "Upgrade perdure, or leave out the parameter that asks for such content."


@dataclass(frozen=True, slots=True)
class ProviderError:
    """An error as the provider words it; ``type`` is empty where it names none."""

    type: str
    message: str


@dataclass(slots=True)
class _Block:
    """A content block under way. ``pieces``: what its deltas brought, by field."""

    fields: dict[str, Any]
    pieces: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    is_open: bool = True

    def append(self, name: str, piece: str) -> None:
        self.pieces.setdefault(name, []).append(piece)

    def joined(self, name: str) -> str:
        return "".join(self.pieces.get(name, ()))


class StreamedReply:
    """Takes a stream's events in order; ``on_delta`` is told each piece of text and thinking."""

    def __init__(self, on_delta: OnDelta) -> None:
        self._on_delta = on_delta
        self._blocks: dict[int, _Block] = {}
        self._usage: dict[str, int] = {}
        self._is_stopped = False
        self.message_id = ""
        self.stop_reason: str | None = None
        self.error: ProviderError | None = None

    @property
    def is_over(self) -> bool:
        """Nothing more is to be expected: the reply is complete, or the provider said what is wrong."""
        return self._is_stopped or self.error is not None

    @property
    def usage(self) -> Usage | None:
        """What the reply cost as far as it was told; None while nothing was."""
        if not self._usage:
            return None
        return Usage(*(self._usage.get(name, 0) for name in USAGE_FIELDS))

    def take(self, name: str | None, data: str) -> None:
        """The next event. Raises :class:`MalformedStream` or :class:`UnknownContent`."""
        match name:
            case "message_start":
                message = _object(_decoded(data).get("message"))
                self.message_id = scrub(_text(message, "id"))
                self._count(message)
            case "content_block_start":
                event = _decoded(data)
                index = _index(event)
                if index in self._blocks:
                    raise MalformedStream(f"Content block {index} begins twice.")
                self._blocks[index] = _Block(_object(event.get("content_block")))
            case "content_block_delta":
                event = _decoded(data)
                self._extend(_index(event), _object(event.get("delta")))
            case "content_block_stop":
                self._open_block(_index(_decoded(data))).is_open = False
            case "message_delta":
                event = _decoded(data)
                self._count(event)
                reason = _object(event.get("delta")).get("stop_reason")
                self.stop_reason = scrub(reason) if isinstance(reason, str) else self.stop_reason
            case "message_stop":
                self._stop()
            case "error":
                self.error = provider_error(data)
            case _:
                pass  # ping, and whatever the API adds: its versioning policy asks clients to pass over it

    def content(self) -> tuple[bytes, tuple[tuple[int, str], ...]]:
        """(UTF-8 JSON list of blocks, input faults) of a complete reply."""
        texts: list[str] = []
        faults: list[tuple[int, str]] = []
        for position, index in enumerate(sorted(self._blocks)):
            block = self._blocks[index]
            for name in ("text", "thinking"):
                if name in block.pieces:
                    block.fields[name] = f"{block.fields.get(name) or ''}{block.joined(name)}"
            members = {name: json.dumps(value, ensure_ascii=False) for name, value in block.fields.items()}
            raw = block.joined("partial_json")
            is_cut = self.stop_reason == "max_tokens" and position == len(self._blocks) - 1
            if raw and is_json_object(raw):
                members["input"] = raw
            elif raw or (is_cut and block.fields.get("type") == "tool_use"):
                members["input"] = json.dumps(raw, ensure_ascii=False)
                faults.append((position, scrub(raw)))
            elif "input" in block.fields and not isinstance(block.fields["input"], dict):
                faults.append((position, scrub(members["input"])))
            texts.append("{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in members.items()) + "}")
        return _utf8("[" + ",".join(texts) + "]"), tuple(faults)

    def _count(self, event: Mapping[str, Any]) -> None:
        told = event.get("usage")
        usage = {} if told is None else _object(told)
        for name in USAGE_FIELDS:
            count = usage.get(name)
            if isinstance(count, int) and 0 <= count <= TOKENS_MAX:
                self._usage[name] = count

    def _extend(self, index: int, delta: Mapping[str, Any]) -> None:
        block = self._open_block(index)
        match delta.get("type"):
            case "text_delta" | "thinking_delta" | "input_json_delta" as kind:
                name = PIECES[kind]
                piece = _text(delta, name)
                block.append(name, piece)
                if kind != "input_json_delta" and piece:
                    self._on_delta(index, name, scrub(piece))
            case "signature_delta":
                block.fields["signature"] = _text(delta, "signature")
            case "citations_delta":
                block.fields["citations"] = [*(block.fields.get("citations") or ()), delta.get("citation")]
            case unknown:
                raise UnknownContent(f"A delta of type {unknown!r}.")

    def _open_block(self, index: int) -> _Block:
        block = self._blocks.get(index)
        if block is None or not block.is_open:
            raise MalformedStream(f"Content block {index} is not open.")
        return block

    def _stop(self) -> None:
        if self.stop_reason is None:
            raise MalformedStream("message_stop came without a stop reason.")
        if any(block.is_open for block in self._blocks.values()):
            raise MalformedStream("message_stop came while a content block was open.")
        self._is_stopped = True


def provider_error(body: str) -> ProviderError:
    """The error in an error event or an HTTP error's body, whatever its shape."""
    try:
        decoded: object = loads_json(_utf8(body))
    except NotJson:
        decoded = None
    error: object = cast("dict[str, Any]", decoded).get("error") if isinstance(decoded, dict) else None
    told = cast("dict[str, Any]", error) if isinstance(error, dict) else {}
    kind, message = told.get("type"), told.get("message")
    return ProviderError(
        scrub(kind) if isinstance(kind, str) else "", scrub(message if isinstance(message, str) else body)
    )


def is_json_object(text: str) -> bool:
    """Whether ``text`` is one JSON object that perdure can read."""
    try:
        return isinstance(loads_json(_utf8(text), depth_max=JSON_DEPTH_MAX), dict)
    except NotJson:
        return False


def scrub(text: str) -> str:
    """``text`` with lone surrogates replaced, so that it can be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _utf8(text: str) -> bytes:
    """JSON text as UTF-8; lone surrogates, which have no UTF-8, as the escapes they were received as."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return "".join(f"\\u{ord(c):04x}" if "\ud800" <= c <= "\udfff" else c for c in text).encode()


def _decoded(data: str) -> dict[str, Any]:
    try:
        return _object(loads_json(_utf8(data)))
    except NotJson as error:
        raise MalformedStream(f"An event can not be read: {error}") from error


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MalformedStream("An event lacks an object.")
    return cast("dict[str, Any]", value)


def _index(event: Mapping[str, Any]) -> int:
    index = event.get("index")
    if not isinstance(index, int):
        raise MalformedStream("An event names no content block.")
    return index


def _text(holder: Mapping[str, Any], name: str) -> str:
    value = holder.get(name)
    if not isinstance(value, str):
        raise MalformedStream(f"{name} is no text.")
    return value
