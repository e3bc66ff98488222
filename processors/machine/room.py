"""Room in the next request: what a turn adds to a transcript travels in one record, whose size is limited.

A record carries the last assistant message (at most a result's size), the results of its calls, and texts.
"""

from __future__ import annotations

from typing import Final

from perdure.processors.machine.state import Run
from perdure.schemas.canonical import dumps_verbatim, loads_json
from perdure.schemas.limits import RECORD_BYTES_MAX
from perdure.schemas.values import BlobRef

RESULTS_BYTES_MAX: Final = 2 << 20
"""Of all results of one turn together."""
HEAD_CHARS_TOLD: Final = 4 << 10
"""Of a result that came too late to be one."""
HEAD_BYTES_MIN: Final = 4 << 10
"""What every result may take, however much the others took."""
TEXTS_BYTES_MAX: Final = 256 << 10
"""Of all messages of people that wait for the next request."""
TAIL_BYTES_MAX: Final = RECORD_BYTES_MAX - (512 << 10)
"""Of a request whose turn is asked again and again, with ever more to say."""


def fitting_result(run: Run, content: bytes, blob: BlobRef | None = None) -> bytes:
    """``content`` itself, or its head with a note if the turn's other results leave no room for more.

    ``blob``: where it stands whole; the note names it.
    """
    used = sum(len(call.content or b"") for call in run.calls)
    room = max(HEAD_BYTES_MIN, RESULTS_BYTES_MAX - used)
    if len(content) <= room:
        return content
    whole = f"; the whole is at {blob.uri} ({blob.size} bytes)" if blob else ""
    limit = f"all results of a turn may have {RESULTS_BYTES_MAX}"
    note = f"\n[cut: the result has {len(content)} bytes, {limit}{whole}]"
    head = _head(_text_of(content), max(0, room - len(dumps_verbatim(note))))
    return dumps_verbatim(f"{head}{note}")


def has_room_for(run: Run, text: str) -> bool:
    """Whether the next request can carry one more message of a person."""
    texts = sum(len(dumps_verbatim(each)) for each in (*run.texts, text))
    return texts <= TEXTS_BYTES_MAX and texts + sum(map(len, run.tail)) <= TAIL_BYTES_MAX


def head_text(content: bytes) -> str:
    """The beginning of a result as text, for a message that only speaks of it."""
    text = _text_of(content)
    return text if len(text) <= HEAD_CHARS_TOLD else f"{text[:HEAD_CHARS_TOLD]} [cut]"


def _text_of(content: bytes) -> str:
    value = loads_json(content)
    if isinstance(value, str):
        return value
    blocks = value if isinstance(value, list) else []
    texts = (block.get("text") for block in blocks if isinstance(block, dict))
    return "\n".join(text for text in texts if isinstance(text, str))


def _head(text: str, room: int) -> str:
    """As much of ``text`` as its JSON form leaves room for."""
    head = text[:room]
    while (size := len(dumps_verbatim(head))) > room:
        head = head[: max(0, len(head) * room // size - 1)]
    return head
