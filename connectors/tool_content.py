"""What a tool returned, as the content of its result: UTF-8 JSON, a string or a list of content blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

import msgspec

from perdure.connectors.tool import ContentBlocks, ToolError
from perdure.schemas.canonical import NotJson, canonical_json, dumps_verbatim, normalise_json
from perdure.schemas.results import Completed, Failed
from perdure.schemas.values import FailureKind

NO_OUTPUT: Final = "(no output)"
ERROR_WITHOUT_MESSAGE: Final = "The tool reported an error without a message."
MESSAGE_CHARS_MAX: Final = 2_000


class NoContent(Exception):
    """The value cannot be the content of a result."""


def completed(value: object) -> Completed | Failed:
    """The tool's answer as a result, whole: the executor sees to it that it can be recorded.

    A value that is no JSON is ``Failed`` with kind OUTPUT: the tool ran, but nobody can say what it answered.
    """
    if isinstance(value, ToolError):
        text = value.message.strip() or ERROR_WITHOUT_MESSAGE
        return Completed(content_of(text), is_error=True)
    try:
        return Completed(content_of(value))
    except NoContent as error:
        return Failed(FailureKind.OUTPUT, str(error))


def content_of(value: object) -> bytes:
    """A string as a JSON string, blocks as they are, anything else as canonical JSON inside a string.

    Raises :class:`NoContent`.
    """
    if isinstance(value, ContentBlocks):
        return _blocks(value)
    if value is None:
        text = NO_OUTPUT
    elif isinstance(value, str):
        text = value if value.strip() else NO_OUTPUT
    else:
        text = _json(_builtins(value)).decode()
    return _string(text)


def shown(error: BaseException) -> str:
    """An exception in one bounded line of clean text."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return cast("str", normalise_json(text[:MESSAGE_CHARS_MAX]))


def _string(text: str) -> bytes:
    return dumps_verbatim(text)  # the canonical form of a text, and much faster on a large one


def _json(value: object) -> bytes:
    try:
        return canonical_json(value)
    except NotJson as error:
        raise NoContent(f"What the tool returned is no JSON: {error.detail}") from error


def _blocks(blocks: ContentBlocks) -> bytes:
    if not blocks:
        return _string(NO_OUTPUT)
    plain = cast("list[object]", _builtins(list(blocks)))
    for block in plain:
        if not isinstance(block, dict) or not isinstance(
            cast("Mapping[str, object]", block).get("type"), str
        ):
            raise NoContent("A content block is an object with a type.")
    return _json(plain)


def _builtins(value: object) -> object:
    """Records of msgspec, dataclasses, pydantic models, enums, dates ... as plain JSON values."""
    try:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=_foreign)
    except (TypeError, ValueError, RecursionError) as error:
        raise NoContent(f"What the tool returned is no JSON: {error}.") from error


def _foreign(value: object) -> object:
    dump = getattr(value, "model_dump", None)  # pydantic, without importing it
    if callable(dump):
        return dump(mode="json")
    raise TypeError(f"a {type(value).__name__} is no JSON value")
