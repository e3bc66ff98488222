"""The one normalisation of an assistant message, before its first persist."""

from __future__ import annotations

import re
from typing import Any, Final

from perdure.processors.machine.apply_calls import CALL_ID_HASH_BYTES, hash_call_id
from perdure.processors.machine.messages import is_blank
from perdure.schemas.canonical import JsonValue, canonical_json, dumps_verbatim, loads_json, normalise_json
from perdure.schemas.definition import TOOL_NAME_PATTERN
from perdure.schemas.errors import Reject
from perdure.schemas.limits import JSON_DEPTH_MAX
from perdure.schemas.values import Struct

CALL_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
"""Ids the Messages API takes back in a tool_result."""
NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]", re.ASCII)
NAME_CHARS_KEPT: Final = 64
"""What is kept of a tool name that the Messages API would not take back."""


class WantedCall(Struct, frozen=True):
    """A tool_use block. ``arguments``: canonical JSON; ``fault``: why the call can not be made, None if it
    can.
    """

    call_id: str
    tool: str
    arguments: bytes
    fault: str | None


class AssistantMessage(Struct, frozen=True):
    """``message``: UTF-8 JSON, empty when the model said nothing. ``text``: its text blocks, joined."""

    message: bytes
    text: str
    calls: tuple[WantedCall, ...]


class MalformedReply(Reject):
    """The model's content is no list of content blocks."""

    code = "malformed_reply"
    remedy = "The turn is asked again."


def normalise_assistant(
    content: bytes, faults: dict[int, str], turn: int, seen_call_ids: bytes, *, is_cut: bool
) -> AssistantMessage:
    """Blocks as they will be stored and re-sent for ever.

    Lone surrogates and NUL are replaced, blank text blocks left out, tool_use ids that are empty, malformed,
    repeated or seen before renamed, and tool names outside the API's alphabet brought into it; everything
    else, thinking blocks and signatures included, stays as received. ``faults``: raw text of tool inputs
    that were no JSON object, by block index. ``is_cut``: the stop reason was max_tokens, so a tool_use in
    last place is incomplete. Raises :class:`MalformedReply`.
    """
    try:
        received = normalise_json(loads_json(content, depth_max=JSON_DEPTH_MAX))
    except Reject as error:
        raise MalformedReply(str(error)) from error
    if not isinstance(received, list) or not all(_is_block(block) for block in received):
        raise MalformedReply("not a list of objects with a type")
    names = _Names(turn, seen_call_ids)
    blocks: list[Any] = []
    calls: list[WantedCall] = []
    for index, block in enumerate(received):
        assert isinstance(block, dict)
        if is_blank(block):
            continue
        if block.get("type") == "tool_use":
            cut = is_cut and index == len(received) - 1
            stored, call = _tool_use(block, faults.get(index), names, is_cut=cut)
            calls.append(call)
            blocks.append(stored)
        else:
            blocks.append(block)
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    message = dumps_verbatim({"role": "assistant", "content": blocks}) if blocks else b""
    return AssistantMessage(message, text, tuple(calls))


def _is_block(block: JsonValue) -> bool:
    return isinstance(block, dict) and isinstance(block.get("type"), str)


class _Names:
    """Hands out call ids that are unique within the run."""

    def __init__(self, turn: int, seen: bytes) -> None:
        size = CALL_ID_HASH_BYTES
        self._turn = turn
        self._seen = {seen[start : start + size] for start in range(0, len(seen), size)}
        self._count = 0

    def unique(self, wanted: object) -> str:
        name = wanted if isinstance(wanted, str) and CALL_ID.fullmatch(wanted) else ""
        self._count += 1
        suffix = 0
        while not name or hash_call_id(name) in self._seen:
            name = f"call_{self._turn}_{self._count}" + (f"_{suffix}" if suffix else "")
            suffix += 1
        self._seen.add(hash_call_id(name))
        return name


def _tool_use(
    block: dict[str, JsonValue], raw: str | None, names: _Names, *, is_cut: bool
) -> tuple[dict[str, JsonValue], WantedCall]:
    fault = None
    arguments = block.get("input")
    tool = block.get("name") if isinstance(block.get("name"), str) else ""
    assert isinstance(tool, str)
    name = tool
    if not TOOL_NAME_PATTERN.fullmatch(tool):  # sent back as it is, it would have every later request refused
        name = NOT_IN_NAMES.sub("_", tool)[:NAME_CHARS_KEPT] or "unnamed"
    if is_cut:
        fault = "The call was cut off by the token limit and was not executed. Ask again, with less."
    elif raw is not None or not isinstance(arguments, dict):
        fault = "The call's input was not a JSON object, so it was not executed."
    elif not tool:
        fault = "The call names no tool, so it was not executed."
    elif name != tool:
        fault = f"There is no tool named {tool[:NAME_CHARS_KEPT]!r}, so nothing was executed."
    if not isinstance(arguments, dict):
        arguments = {}
    call_id = names.unique(block.get("id"))
    stored = {**block, "id": call_id, "name": name, "input": arguments}
    return stored, WantedCall(call_id, name, canonical_json(arguments), fault)
