"""The model-caller's transcripts: a bounded cache that a request extends by what is new since the previous
one.

A run's transcript only ever grows, so it is kept once per run, with the digests of the lengths it was asked
for. What is not cached is asked for again (NeedTranscript): forgetting is always safe.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

MARKS_MAX: Final = 4
"""Lengths remembered per run: the previous request's, for a retry of the same turn, and a few more."""
MESSAGE_OVERHEAD_BYTES: Final = 64
CACHE_BYTES_MAX_DEFAULT: Final = 256 << 20


class Transcripts(Protocol):
    """Transcripts by run and digest (``machine.transcript``). Messages are UTF-8 JSON, in order."""

    def get(self, run_id: str, digest: bytes) -> tuple[bytes, ...] | None: ...

    def put(self, run_id: str, digest: bytes, messages: Sequence[bytes]) -> None:
        """``messages`` are the whole transcript with this digest; an older one of the run is its prefix."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Transcript:
    """``marks``: digest to number of messages, oldest first."""

    messages: list[bytes] = field(default_factory=list[bytes])
    marks: OrderedDict[bytes, int] = field(default_factory=OrderedDict[bytes, int])
    size: int = 0


class MemoryTranscripts:
    """Least recently used runs go first. ``bytes_max`` bounds messages and their bookkeeping together."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX_DEFAULT) -> None:
        self._bytes_max = bytes_max
        self._runs: OrderedDict[str, _Transcript] = OrderedDict()
        self.size = 0

    def get(self, run_id: str, digest: bytes) -> tuple[bytes, ...] | None:
        kept = self._runs.get(run_id)
        if kept is None or (count := kept.marks.get(digest)) is None:
            return None
        self._runs.move_to_end(run_id)
        return tuple(kept.messages[:count])

    def put(self, run_id: str, digest: bytes, messages: Sequence[bytes]) -> None:
        kept = self._runs.setdefault(run_id, _Transcript())
        self._runs.move_to_end(run_id)
        same = _common(kept.messages, messages)
        if same < len(kept.messages):
            kept.marks = OrderedDict((mark, count) for mark, count in kept.marks.items() if count <= same)
        kept.messages[same:] = messages[same:]
        kept.marks.pop(digest, None)
        kept.marks[digest] = len(messages)
        while len(kept.marks) > MARKS_MAX:
            kept.marks.popitem(last=False)
        size = sum(len(message) + MESSAGE_OVERHEAD_BYTES for message in kept.messages)
        self.size += size - kept.size
        kept.size = size
        while self.size > self._bytes_max:
            _, dropped = self._runs.popitem(last=False)
            self.size -= dropped.size

    def close(self) -> None:
        self._runs.clear()
        self.size = 0


def _common(left: Sequence[bytes], right: Sequence[bytes]) -> int:
    """How many messages two transcripts begin with alike."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one is not other and one != other:
            return index
    return min(len(left), len(right))
