"""The script of a pretended model, and the Messages API's wire form of what it says.

A script is a JSON list of steps; step N answers a request that already holds N assistant messages, so that
the same request always gets the same answer. A step::

    {"content": [{"type": "text", "text": "..."},
                 {"type": "thinking", "thinking": "...", "signature": "..."},
                 {"type": "tool_use", "name": "send", "input": {...}, "id": "optional"},
                 {"type": "tool_use", "name": "send", "input_text": "sent as it is, valid JSON or not"}],
     "stop_reason": "...",   default: tool_use if there is one, else end_turn; any text is sent as it is
     "usage": {...},         default: counted from the bytes of the request and of the content
     "faults": [...]}        consumed first, see Fault

Without ``id`` a tool call gets one that depends on the request alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

Json: TypeAlias = Mapping[str, Any]

BYTES_PER_TOKEN = 4
PIECE_CHARS = 40
TOOL_CALLS = ("tool_use", "server_tool_use")
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong instead of the step's answer, ``times`` times per distinct request (null: always).

    ``kind`` is one of: ``status`` (an HTTP error: ``status``, ``type``, ``message``, ``headers``);
    ``error_event`` (an error event of ``type`` in mid-stream, after ``after_events`` events);
    ``cut`` (the connection is closed after ``after_bytes`` bytes of the body);
    ``stall`` (nothing more after ``after_events`` events, the connection stays open).
    """

    kind: str
    times: int | None = 1
    status: int = 500
    type: str | None = None
    message: str = "scripted fault"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    after_events: int | None = None
    after_bytes: int = 0

    def __post_init__(self) -> None:
        if self.kind not in {"status", "error_event", "cut", "stall"}:
            raise ValueError(f"no such fault: {self.kind}")

    @property
    def error_type(self) -> str:
        default = "overloaded_error" if self.kind == "error_event" else "api_error"
        return self.type or ERROR_TYPES.get(self.status if self.kind == "status" else 0, default)


@dataclass(frozen=True, slots=True)
class Step:
    """One answer of the script."""

    content: tuple[Json, ...]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: Mapping[str, int] = field(default_factory=dict[str, int])
    faults: tuple[Fault, ...] = ()

    def fault_for(self, requests_before: int) -> Fault | None:
        """The fault for a request that was made ``requests_before`` times before."""
        for fault in self.faults:
            if fault.times is None or requests_before < fault.times:
                return fault
            requests_before -= fault.times
        return None


def load_script(path: Path) -> tuple[Step, ...]:
    """Raises ``ValueError``, ``KeyError`` or ``TypeError`` for a file that is no script."""
    steps = cast("list[dict[str, Any]]", json.loads(path.read_bytes()))
    return tuple(_step(**step) for step in steps)


def _step(content: list[Json], faults: list[dict[str, Any]] | None = None, **others: Any) -> Step:
    return Step(tuple(content), faults=tuple(Fault(**fault) for fault in faults or ()), **others)


@dataclass(frozen=True, slots=True)
class Answer:
    """A step made into the answer to one request."""

    message: Json
    input_texts: Mapping[int, str]

    @property
    def body(self) -> bytes:
        return dump(self.message)

    def events(self) -> Iterator[tuple[str, Json]]:
        """The stream's events in order, as (name, data)."""
        usage = self.message["usage"]
        empty: Json = {"content": [], "stop_reason": None, "stop_sequence": None}
        start = {**self.message, **empty}
        yield _event("message_start", message={**start, "usage": {**usage, "output_tokens": 1}})
        for index, block in enumerate(self.message["content"]):
            started, deltas = _opened(block, self.input_texts.get(index))
            yield _event("content_block_start", index=index, content_block=started)
            if index == 0:
                yield _event("ping")
            for delta in deltas:
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        final = {name: self.message[name] for name in ("stop_reason", "stop_sequence")}
        counted = {name: count for name, count in usage.items() if name.endswith("_tokens")}
        yield _event("message_delta", delta=final, usage=counted)
        yield _event("message_stop")


def answer(step: Step, request: Json, turn: int, digest: str) -> Answer:
    """The answer of ``step`` to ``request``; ids depend on ``digest`` (:func:`digest_of`) alone."""
    content: list[dict[str, Any]] = []
    input_texts: dict[int, str] = {}
    for index, scripted in enumerate(step.content):
        block = dict(scripted)
        if block["type"] in TOOL_CALLS:
            text = block.pop("input_text", None)
            input_texts[index] = json.dumps(block.get("input", {})) if text is None else text
            if text is not None:
                block["input"] = _parsed(text)
            block = {"type": block["type"], "id": f"toolu_{digest[:20]}{index:02d}", **block}
        content.append(block)
    calls_tool = any(block["type"] == "tool_use" for block in content)
    read = len(dump({name: request[name] for name in ("system", "tools", "messages") if name in request}))
    usage = {
        "input_tokens": read // BYTES_PER_TOKEN,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": max(1, len(dump(content)) // BYTES_PER_TOKEN),
        **step.usage,
    }
    message = {
        "id": f"msg_{digest[:20]}{turn:02d}",
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "content": content,
        "stop_reason": step.stop_reason or ("tool_use" if calls_tool else "end_turn"),
        "stop_sequence": step.stop_sequence,
        "usage": {**usage, "service_tier": "standard"},
    }
    return Answer(message, input_texts)


def digest_of(request: Json) -> str:
    return hashlib.sha256(dump(request["messages"])).hexdigest()


def error_body(error_type: str, message: str, request_id: str) -> bytes:
    return dump(error_data(error_type, message, request_id))


def error_data(error_type: str, message: str, request_id: str) -> Json:
    return {"type": "error", "error": {"type": error_type, "message": message}, "request_id": request_id}


def frame(name: str, data: Json) -> bytes:
    """A server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), dump(data))


def dump(value: object) -> bytes:
    """Compact JSON; raw UTF-8 as the service sends it, escapes only where text is no Unicode."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def _event(name: str, **data: Any) -> tuple[str, Json]:
    return name, {"type": name, **data}


def _opened(block: Json, input_text: str | None) -> tuple[Json, list[Json]]:
    """How a block begins, and the deltas that complete it; a block of an unknown kind comes whole."""
    match block["type"]:
        case "text":
            return {**block, "text": ""}, [
                {"type": "text_delta", "text": piece} for piece in _pieces(block["text"])
            ]
        case "thinking":
            deltas: list[Json] = [
                {"type": "thinking_delta", "thinking": piece} for piece in _pieces(block["thinking"])
            ]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
            return {**block, "thinking": "", "signature": ""}, deltas
        case _ if input_text is not None:
            return {**block, "input": {}}, [
                {"type": "input_json_delta", "partial_json": piece} for piece in ("", *_pieces(input_text))
            ]
        case _:
            return block, []


def _pieces(text: str) -> list[str]:
    return [text[start : start + PIECE_CHARS] for start in range(0, len(text), PIECE_CHARS)]


def _parsed(text: str) -> Any:
    """For the form without a stream, which cannot carry broken JSON: there it is the bare text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
