"""The messages of a transcript, built from events, byte for byte the same wherever they are built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from perdure.processors.machine.state import Run
from perdure.schemas import events as ev
from perdure.schemas.canonical import dumps_verbatim, loads_json, normalise_json

NO_OUTPUT = "(no output)"


def is_blank(block: Mapping[str, Any]) -> bool:
    """Whether it is a text block without any text: the Messages API refuses it, in whatever message."""
    text = block.get("text")
    return block.get("type") == "text" and not (isinstance(text, str) and text.strip())


def message_of(before: Run, body: ev.EventBody) -> bytes | None:
    """The message that ``body`` appends to the transcript of ``before``.

    The assistant message of a turn with ModelResponded; with the next TurnStarted the one user message that
    answers it: all results in call order, then text (Messages API: tool results come first).
    """
    match body:
        case ev.ModelResponded():
            return body.message or None
        case ev.TurnStarted() if body.turn == before.turn + 1:
            return _user_message(before, body.texts)
        case ev.TurnStarted() if body.texts:
            return texts_message(body.texts)
        case _:
            return None


def clean_text(text: str) -> str:
    """A text as it will be stored and sent: lone surrogates and NUL replaced."""
    cleaned = normalise_json(text)
    assert isinstance(cleaned, str)
    return cleaned


def texts_message(texts: Sequence[str]) -> bytes:
    """A user message of texts alone: a resumed turn has more to say than its first attempt."""
    return dumps_verbatim({"role": "user", "content": [_text(text) for text in texts]})


def _user_message(before: Run, texts: Sequence[str]) -> bytes | None:
    blocks: list[Any] = []
    if before.turn == 0 and before.input is not None:
        content = loads_json(before.input)
        if not texts:
            return dumps_verbatim({"role": "user", "content": content})
        blocks = [_text(content)] if isinstance(content, str) else list(cast("list[Any]", content))
    for call in sorted(before.calls, key=lambda call: call.index):
        blocks.append(_result_block(call.call_id, call.content, is_error=call.is_error))
    blocks += [_text(text) for text in texts]
    return dumps_verbatim({"role": "user", "content": blocks}) if blocks else None


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _result_block(call_id: str, content: bytes | None, *, is_error: bool) -> dict[str, Any]:
    value = loads_json(content) if content else NO_OUTPUT
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call_id, "content": value or NO_OUTPUT}
    if is_error:
        block["is_error"] = True
    return block
