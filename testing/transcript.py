"""Is this transcript one that the Messages API takes?

Written from the API's rules alone (reference of the Messages endpoint; "handling tool results"), not from
what perdure builds, so that the two can disagree:

- messages alternate between user and assistant, where neighbours of one role count as one; the first is the
  user's;
- content is a text or a list of blocks, neither empty; a text is more than white space;
- a tool_use has an id and a name of the API's alphabets and an object as input; no id stands twice;
- each tool_use is answered by exactly one tool_result with its id, all of them in the single next user
  message, before anything else in it; a result answers a tool_use of the message before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

CALL_ID: Final = re.compile(r"[a-zA-Z0-9_-]+", re.ASCII)
TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}", re.ASCII)
ROLES: Final = ("user", "assistant")
IN_RESULTS: Final = frozenset({"text", "image", "document", "search_result", "tool_reference"})
"""Kinds of blocks that a tool_result may hold."""


class InvalidTranscript(AssertionError):
    """The Messages API would refuse these messages."""

    def __init__(self, fault: str, messages: Sequence[object]) -> None:
        super().__init__(f"{fault}\n{json.dumps(messages, indent=1, ensure_ascii=True, default=repr)}")
        self.fault = fault


Block = Mapping[str, Any]


def check_transcript(messages: Sequence[bytes], *, is_request: bool = True) -> None:
    """Raise :class:`InvalidTranscript` with the first fault found. ``messages``: UTF-8 JSON, in order.

    ``is_request`` False: the transcript is under way, and the calls of its last message may still be open.
    """
    decoded = [cast("object", json.loads(message.decode("utf-8", "strict"))) for message in messages]
    fault = transcript_fault(decoded, is_request=is_request)
    if fault is not None:
        raise InvalidTranscript(fault, decoded)


def transcript_fault(messages: Sequence[object], *, is_request: bool = True) -> str | None:
    """What is wrong with decoded messages, in words; None: nothing is."""
    turns: list[tuple[str, list[Block]]] = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            return f"message {number} is no object"
        role, content = _parts(cast("Mapping[str, object]", message))
        if role not in ROLES:
            return f"message {number} has the role {role!r}"
        blocks = _blocks(content)
        if blocks is None:
            return f"message {number} has no content, or something that is none"
        for block in blocks:
            fault = _block_fault(role, block)
            if fault is not None:
                return f"message {number}: {fault}"
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        else:
            turns.append((role, list(blocks)))
    if not turns:
        return "there are no messages" if is_request else None
    if turns[0][0] != "user":
        return "the first message is not the user's"
    return _pairing_fault(turns, is_request=is_request)


def _parts(message: Mapping[str, object]) -> tuple[str, object]:
    return str(message.get("role")), message.get("content")


def _blocks(content: object) -> list[Block] | None:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not content:
        return None
    blocks = cast("list[object]", content)
    if not all(isinstance(block, Mapping) for block in blocks):
        return None
    return cast("list[Block]", blocks)


def _block_fault(role: str, block: Block) -> str | None:
    match block.get("type"):
        case "text":
            return _text_fault(block)
        case "tool_use":
            return _use_fault(role, block)
        case "tool_result":
            return _result_fault(role, block)
        case str():
            return None  # thinking, images, documents, what servers did: not perdure's to judge
        case other:
            return f"a block of type {other!r}"


def _text_fault(block: Block) -> str | None:
    text = block.get("text")
    if not isinstance(text, str) or not text.strip():
        return f"an empty text block {text!r}"
    return None


def _use_fault(role: str, block: Block) -> str | None:
    if role != "assistant":
        return "a tool_use that is not the assistant's"
    if not isinstance(block.get("input"), Mapping):
        return "a tool_use whose input is no object"
    for field, pattern in (("id", CALL_ID), ("name", TOOL_NAME)):
        value = block.get(field)
        if not isinstance(value, str) or pattern.fullmatch(value) is None:
            return f"a tool_use whose {field} is {value!r}"
    return None


def _result_fault(role: str, block: Block) -> str | None:
    if role != "user":
        return "a tool_result that is not the user's"
    content = block.get("content")
    if isinstance(content, str):
        return None if content.strip() else "an empty tool_result"
    parts = _blocks(content)
    if parts is None:
        return "a tool_result without content"
    for part in parts:
        if part.get("type") not in IN_RESULTS:
            return f"a tool_result that holds a {part.get('type')}"
        if part.get("type") == "text" and _text_fault(part):
            return f"in a tool_result {_text_fault(part)}"
    return None


def _pairing_fault(turns: Sequence[tuple[str, list[Block]]], *, is_request: bool) -> str | None:
    """Calls and their results, over merged messages."""
    seen: set[str] = set()
    for number, (role, blocks) in enumerate(turns):
        if role == "user":
            before = turns[number - 1][1] if number else []
            fault = _answers_fault(_ids(before, "tool_use", "id"), blocks)
            if fault is not None:
                return fault
            continue
        for call_id in _ids(blocks, "tool_use", "id"):
            if call_id in seen:
                return f"the tool_use id {call_id} stands twice"
            seen.add(call_id)
    role, blocks = turns[-1]
    if is_request and role == "assistant" and _ids(blocks, "tool_use", "id"):
        return "the calls of the last message have no results"
    return None


def _answers_fault(asked: Sequence[str], blocks: Sequence[Block]) -> str | None:
    answered = _ids(blocks, "tool_result", "tool_use_id")
    if len(set(answered)) != len(answered):
        return f"a call is answered twice: {answered}"
    if set(answered) != set(asked):
        return f"called were {list(asked)}, answered in the next message {answered}"
    kinds = [block.get("type") for block in blocks]
    if kinds[: len(answered)] != ["tool_result"] * len(answered):
        return "something stands before a tool_result"
    return None


def _ids(blocks: Sequence[Block], kind: str, field: str) -> list[str]:
    return [str(block.get(field)) for block in blocks if block.get("type") == kind]
