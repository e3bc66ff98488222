"""What the Messages API refuses with HTTP 400 ``invalid_request_error``, as far as agents can get it wrong.

Source: the public Messages API reference (parameters, tool use, prompt caching) and the errors it is known to
answer with. Where the service is lenient (it joins consecutive messages of one role) these rules are strict,
so that a transcript which passes here is one the service takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias, cast

CACHE_BREAKPOINTS_MAX = 4
ID_PATTERN = re.compile(r"[a-zA-Z0-9_-]+")
TOOL_NAME_PATTERN = re.compile(r"[a-zA-Z0-9_-]{1,128}")
TOOL_CHOICES = ("auto", "any", "tool", "none")
UNCACHEABLE = ("thinking", "redacted_thinking")

Json: TypeAlias = Mapping[str, Any]


class InvalidRequest(Exception):
    """The request breaks a rule; the text says which, in the manner of the service."""


def check(request: object) -> Json:
    """The request itself if it is valid; raises :class:`InvalidRequest`."""
    body = _object(request)
    if body is None:
        raise InvalidRequest("The request body must be a JSON object.")
    _check_parameters(body)
    messages: Sequence[Json] = body["messages"]
    for number, message in enumerate(messages):
        _check_shape(f"messages.{number}", message)
        _check_blocks(f"messages.{number}", message)
    _check_roles(messages)
    _check_ids(messages)
    for number, (before, message) in enumerate(pairwise([{}, *messages, {}])):
        _check_results(number, before, message)
    _check_cache(body)
    return body


def turn_of(request: Json) -> int:
    """How many assistant messages the request already holds."""
    return sum(message["role"] == "assistant" for message in request["messages"])


def _check_parameters(body: Json) -> None:
    for name, kind in (("model", str), ("max_tokens", int), ("messages", list)):
        if name not in body:
            raise InvalidRequest(f"{name}: Field required")
        if not isinstance(body[name], kind) or isinstance(body[name], bool):
            raise InvalidRequest(f"{name}: Input should be a valid {kind.__name__}")
    if body["max_tokens"] < 1:
        raise InvalidRequest("max_tokens: Input should be greater than or equal to 1")
    if not body["messages"]:
        raise InvalidRequest("messages: at least one message is required")
    for place, block in _system_blocks(body):
        _check_text(place, block)
    if not isinstance(body.get("tools", []), list):
        raise InvalidRequest("tools: Input should be a valid list")
    names = [_tool_name(f"tools.{number}", tool) for number, tool in enumerate(_list(body.get("tools")))]
    if len(set(names)) < len(names):
        raise InvalidRequest("tools: Tool names must be unique.")
    _check_tool_choice(body.get("tool_choice"), names)


def _tool_name(place: str, value: Any) -> str:
    tool = _object(value)
    if tool is None:
        raise InvalidRequest(f"{place}: Input should be a valid dictionary")
    name, schema = tool.get("name"), _object(tool.get("input_schema"))
    if not isinstance(name, str) or not TOOL_NAME_PATTERN.fullmatch(name):
        raise InvalidRequest(f"{place}.name: String should match pattern '^{TOOL_NAME_PATTERN.pattern}$'")
    is_own = tool.get("type", "custom") == "custom"  # the service's own tools bring no schema
    if is_own and (schema is None or schema.get("type") != "object"):
        raise InvalidRequest(f"{place}.input_schema.type: Field required")
    return name


def _check_tool_choice(value: Any, names: Sequence[str]) -> None:
    if value is None:
        return
    choice = _object(value)
    if choice is None or choice.get("type") not in TOOL_CHOICES:
        raise InvalidRequest(f"tool_choice.type: Input should be one of {', '.join(TOOL_CHOICES)}")
    if not names:
        raise InvalidRequest("tool_choice may only be specified while providing tools")
    if choice["type"] == "tool" and choice.get("name") not in names:
        raise InvalidRequest(f"tool_choice: Tool '{choice.get('name')}' not found in provided tools")


def _check_shape(place: str, value: Any) -> None:
    message = _object(value)
    if message is None:
        raise InvalidRequest(f"{place}: Input should be a valid dictionary")
    for name in message:
        if name not in {"role", "content"}:
            raise InvalidRequest(f"{place}.{name}: Extra inputs are not permitted")
    if message.get("role") not in {"user", "assistant"}:
        raise InvalidRequest(f"{place}.role: Input should be 'user' or 'assistant'")
    content = message.get("content")
    if not isinstance(content, str | list):
        raise InvalidRequest(f"{place}.content: Input should be a valid string or list")
    if not content:
        raise InvalidRequest(f"{place}: all messages must have non-empty content")
    for number, item in enumerate(_list(content)):
        block = _object(item)
        if block is None or not isinstance(block.get("type"), str):
            raise InvalidRequest(f"{place}.content.{number}.type: Field required")


def _check_roles(messages: Sequence[Json]) -> None:
    if messages[0]["role"] != "user":
        raise InvalidRequest('messages: first message must use the "user" role')
    for before, after in pairwise(messages):
        if before["role"] == after["role"]:
            raise InvalidRequest(
                'messages: roles must alternate between "user" and "assistant", '
                f'but found multiple "{after["role"]}" roles in a row'
            )


def _check_ids(messages: Sequence[Json]) -> None:
    ids = [block.get("id") for message in messages for block in _blocks(message, "tool_use")]
    if len(set(ids)) < len(ids):
        raise InvalidRequest("messages: `tool_use` ids must be unique")


def _check_blocks(place: str, message: Json) -> None:
    if isinstance(message["content"], str):
        _check_text(place, {"text": message["content"]})
        return
    for number, block in enumerate(message["content"]):
        inside = f"{place}.content.{number}.{block['type']}"
        match block["type"]:
            case "text":
                _check_text(inside, block)
            case "tool_use":
                _check_tool_use(inside, message["role"], block)
            case "tool_result":
                _check_tool_result(inside, message["role"], block)
            case "thinking" if not isinstance(block.get("signature"), str) or not block["signature"]:
                raise InvalidRequest(f"{inside}.signature: Field required")
            case _:
                pass


def _check_text(place: str, block: Json) -> None:
    if not isinstance(block.get("text"), str):
        raise InvalidRequest(f"{place}.text: Field required")
    if not block["text"]:
        raise InvalidRequest("messages: text content blocks must be non-empty")
    if not block["text"].strip():
        raise InvalidRequest("messages: text content blocks must contain non-whitespace text")


def _check_tool_use(place: str, role: str, block: Json) -> None:
    if role != "assistant":
        raise InvalidRequest(f"{place}: `tool_use` blocks can only be in `assistant` messages")
    if not isinstance(block.get("id"), str) or not ID_PATTERN.fullmatch(block["id"]):
        raise InvalidRequest(f"{place}.id: String should match pattern '^{ID_PATTERN.pattern}$'")
    if not isinstance(block.get("name"), str) or not TOOL_NAME_PATTERN.fullmatch(block["name"]):
        raise InvalidRequest(f"{place}.name: String should match pattern '^{TOOL_NAME_PATTERN.pattern}$'")
    if not isinstance(block.get("input"), dict):
        raise InvalidRequest(f"{place}.input: Input should be a valid dictionary")


def _check_tool_result(place: str, role: str, block: Json) -> None:
    if role != "user":
        raise InvalidRequest(f"{place}: `tool_result` blocks can only be in `user` messages")
    content = block.get("content")
    if block.get("is_error") and not content:
        raise InvalidRequest(f"{place}: content cannot be empty if `is_error` is true")
    for number, item in enumerate(_list(content)):
        inner = _object(item) or {}
        if inner.get("type") == "text":
            _check_text(f"{place}.content.{number}.text", inner)


def _check_results(number: int, before: Json, message: Json) -> None:
    """Each call of the message before has exactly one result in this one, and results stand first in it."""
    calls = [block["id"] for block in _blocks(before, "tool_use")]
    leading: list[Any] = []
    for place, block in enumerate(_blocks(message)):
        if block["type"] != "tool_result":
            continue
        answered = block.get("tool_use_id")
        if answered not in calls:
            raise InvalidRequest(
                f"messages.{number}.content.{place}: unexpected `tool_use_id` found in `tool_result` blocks:"
                f" {answered}. Each `tool_result` block must have a corresponding `tool_use` block in the"
                " previous message."
            )
        if answered in leading:
            raise InvalidRequest(
                f"messages.{number}.content.{place}: each tool_use must have a single result."
                f" Found multiple `tool_result` blocks with id: {answered}"
            )
        if place == len(leading):
            leading.append(answered)
    missing = [call for call in calls if call not in leading]
    if missing:
        raise InvalidRequest(
            f"messages.{number - 1}: `tool_use` ids were found without `tool_result` blocks immediately"
            f" after: {', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result`"
            " block in the next message."
        )


def _check_cache(body: Json) -> None:
    tools = ((f"tools.{number}", tool) for number, tool in enumerate(_list(body.get("tools"))))
    in_messages = (
        (f"messages.{number}.content.{place}", block)
        for number, message in enumerate(body["messages"])
        for place, block in enumerate(_blocks(message))
    )
    count = 0
    for blocks in (tools, _system_blocks(body), in_messages):
        for place, block in blocks:
            if block.get("cache_control") is None:
                continue
            if block.get("type") in UNCACHEABLE:
                raise InvalidRequest(f"{place}.{block['type']}.cache_control: Extra inputs are not permitted")
            count += 1
    if count > CACHE_BREAKPOINTS_MAX:
        raise InvalidRequest(
            f"A maximum of {CACHE_BREAKPOINTS_MAX} blocks with cache_control may be provided. Found {count}."
        )


def _system_blocks(body: Json) -> Iterator[tuple[str, Json]]:
    system = body.get("system")
    if system is not None and not isinstance(system, str | list):
        raise InvalidRequest("system: Input should be a valid string or list")
    for number, item in enumerate(_list(system)):
        block = _object(item)
        if block is None:
            raise InvalidRequest(f"system.{number}: Input should be a valid dictionary")
        yield f"system.{number}", block


def _blocks(message: Json, kind: str | None = None) -> list[Json]:
    blocks = _list(message.get("content"))
    return [block for block in blocks if kind is None or block["type"] == kind]


def _object(value: Any) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _list(value: Any) -> Sequence[Any]:
    return cast("Sequence[Any]", value) if isinstance(value, list) else ()
