"""What becomes of a tool's answer: checked, and if it is large kept whole in the blob store, with its head
for the model.

Whatever happens here, the call was executed. So an answer of a non_idempotent tool is definite from the
moment it is given: a store that does not answer costs the whole of it, never its certainty.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any, Final, cast

from perdure.processors.abort import AbortSignal
from perdure.processors.blobs import BLOB_BYTES_MAX, JSON, TEXT, BlobStore, BlobUnreachable
from perdure.processors.executor.results import clipped
from perdure.processors.ports import ToolAnswer, ToolInvocation
from perdure.schemas.canonical import JsonValue, NotJson, dumps_verbatim, loads_json
from perdure.schemas.limits import JSON_BYTES_MAX, JSON_DEPTH_MAX, PAYLOAD_BYTES_MAX
from perdure.schemas.results import Completed, Declined, Failed, Reconciled, ResultBody
from perdure.schemas.values import BlobRef, Effect, FailureKind, Purpose

logger: Final = logging.getLogger(__name__)

CONTENT_BYTES_MAX: Final = PAYLOAD_BYTES_MAX - (16 << 10)
"""What a result's content may take; the rest of the limit is for ids, messages and framing."""
HEAD_BYTES_MAX: Final = 128 << 10
"""Of content that is cut, the model is told so much: a megabyte is more than most models take at once."""
KEPT_BYTES_MIN: Final = 128 << 10
"""From here on a result is kept whole: sixteen results of this size are what a turn has room for."""
KEEP_TIMEOUT_S: Final = 60.0
QUOTES: Final = '""'
ESCAPE_BYTES_MAX: Final = 6  # JSON may write one character as \\u0000


class Answers:
    """``blobs`` None: of what is too large only the head is kept."""

    def __init__(self, blobs: BlobStore | None) -> None:
        self._blobs = blobs

    async def recordable(self, answer: ToolAnswer, call: ToolInvocation, abort: AbortSignal) -> ResultBody:
        """The answer as it may be written: of the kind that was asked for, JSON, and within the limit."""
        match answer:
            case Failed():
                return Failed(answer.kind, clipped(answer.message))
            case Declined():
                return Declined(answer.reason, clipped(answer.message))
            case Completed() if call.purpose is Purpose.CALL:
                kept = await self._kept(answer.content, call, abort)
                return kept if isinstance(kept, Failed) else Completed(kept[0], answer.is_error, kept[1])
            case Reconciled() if call.purpose is Purpose.RECONCILE:
                message = clipped(answer.message)
                if answer.content is None:
                    return Reconciled(answer.answer, None, message)
                kept = await self._kept(answer.content, call, abort)
                return (
                    kept if isinstance(kept, Failed) else Reconciled(answer.answer, kept[0], message, kept[1])
                )
            case Completed() | Reconciled():
                kind = type(answer).__name__
                return Failed(FailureKind.OUTPUT, f"the tool answered a {call.purpose.value} with {kind}")

    async def _kept(
        self, content: bytes, call: ToolInvocation, abort: AbortSignal
    ) -> tuple[bytes, BlobRef | None] | Failed:
        """The content or its head, and where it stands whole."""
        if len(content) < KEPT_BYTES_MIN:
            fitted = fitting(content)
            return fitted if isinstance(fitted, Failed) else (fitted, None)
        if self._blobs is None:
            fitted = fitting(content)
        elif len(content) > BLOB_BYTES_MAX:
            fitted = fitting(content, f"a blob takes at most {BLOB_BYTES_MAX}, so the rest is lost")
        else:
            if isinstance(fitted := fitting(content), Failed):
                return fitted
            try:
                ref = await self._stored(self._blobs, content, call, abort)
            except BlobUnreachable as error:
                logger.warning(
                    "a result of %d bytes is not kept whole: %s", len(content), error,
                    extra={"action": "blob_not_stored"},
                )  # fmt: skip
                return _without(content, fitted, call, error)
            fitted = fitting(content, f"the whole is at {ref.uri} ({ref.size} bytes)")
            if not isinstance(fitted, Failed):
                return fitted, ref
        return fitted if isinstance(fitted, Failed) else (fitted, None)

    async def _stored(
        self, blobs: BlobStore, content: bytes, call: ToolInvocation, abort: AbortSignal
    ) -> BlobRef:
        """Raises :class:`BlobUnreachable`, also if it takes longer than the call may take."""
        loop = asyncio.get_running_loop()
        storing = loop.run_in_executor(None, _store, blobs, call.run_id, content)
        aborting = asyncio.ensure_future(abort.wait())
        either: set[asyncio.Future[Any]] = {storing, aborting}
        try:
            await asyncio.wait(either, timeout=KEEP_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
            if storing.done():
                return storing.result()
            raise BlobUnreachable("It did not answer in time.")
        finally:
            aborting.cancel()
            if not storing.done():
                storing.add_done_callback(_look_away)


def _store(blobs: BlobStore, run_id: str, content: bytes) -> BlobRef:
    return blobs.put(run_id, *_as_file(content))


def _without(
    content: bytes, fitted: bytes, call: ToolInvocation, error: BlobUnreachable
) -> tuple[bytes, BlobRef | None] | Failed:
    """An answer that could not be kept whole."""
    if fitted is content:  # it stands whole in the result
        return content, None
    is_repeatable = call.effect is not Effect.NON_IDEMPOTENT and call.purpose is Purpose.CALL
    if is_repeatable:
        said = f"the tool ran, but its result of {len(content)} bytes could not be stored: {error.args[0]}"
        return Failed(FailureKind.CONNECTION, clipped(said))
    head = fitting(content, "the blob store did not take the whole, so the rest is lost")
    return head if isinstance(head, Failed) else (head, None)


def _as_file(content: bytes) -> tuple[bytes, str]:
    """What a person wants to find in a file, and its type: a text as it is, anything else as JSON."""
    text = _text_of(content)
    return (content, JSON) if text is None else (text.encode("utf-8", "replace"), TEXT)


def _text_of(content: bytes) -> str | None:
    """The text that the content is, however long; None if it is none."""
    if content[:1] != b'"':
        return None
    try:
        value = cast("object", json.loads(content))
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def _look_away(storing: asyncio.Future[BlobRef]) -> None:
    """What becomes of a blob that nobody waits for is of no interest; written again it is the same."""
    if not storing.cancelled():
        storing.exception()


def fitting(content: bytes, where: str = "") -> bytes | Failed:
    """``content`` itself, its head if it is too large, or Failed if it is no text and no list of blocks.

    ``where``: said of the rest.
    """
    rest = f"; {where}" if where else ""
    note = f"[cut: the tool returned {len(content)} bytes, the limit is {CONTENT_BYTES_MAX}{rest}]"
    room = HEAD_BYTES_MAX
    if len(content) > JSON_BYTES_MAX:  # too large to be looked at; its head is still worth more than nothing
        text = _text_of(content) or content[:room].decode("utf-8", "replace")
        return dumps_verbatim(f"{_head(text, room)}\n{note}")
    try:
        value = loads_json(content, depth_max=JSON_DEPTH_MAX)
    except NotJson as error:
        return Failed(FailureKind.OUTPUT, clipped(f"the tool's output can not be used: {error.detail}"))
    if not isinstance(value, str) and not _are_blocks(value):
        message = "the tool's output is neither a string nor a list of content blocks"
        return Failed(FailureKind.OUTPUT, message)
    if len(content) <= CONTENT_BYTES_MAX:
        return content
    if isinstance(value, str):
        return dumps_verbatim(f"{_head(value, room)}\n{note}")
    return _cut_blocks(cast("list[JsonValue]", value), room, note)


def _cut_blocks(blocks: list[JsonValue], room: int, note: str) -> bytes:
    """Whole blocks as long as they fit, the head of a text that does not, and the note."""
    kept: list[JsonValue] = []
    for block in blocks:
        size = len(dumps_verbatim(block)) + 1
        if size <= room:
            kept.append(block)
            room -= size
            continue
        text = block.get("text") if isinstance(block, dict) else None
        frame = len(dumps_verbatim({"type": "text", "text": ""})) + 1
        if isinstance(text, str) and room > frame:
            kept.append({"type": "text", "text": _head(text, room - frame)})
        break
    kept.append({"type": "text", "text": note})
    return dumps_verbatim(kept)


def _head(text: str, room: int) -> str:
    """As much of ``text`` as its JSON form leaves room for."""
    head = text[:room]
    while (excess := len(dumps_verbatim(head)) - len(QUOTES) - room) > 0:
        head = head[: max(0, len(head) - max(1, excess // ESCAPE_BYTES_MAX))]
    return head


def _are_blocks(value: JsonValue) -> bool:
    return isinstance(value, list) and all(
        isinstance(block, dict) and isinstance(block.get("type"), str) for block in value
    )
