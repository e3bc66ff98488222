"""The model-caller's transcripts: a bounded cache that each request extends by what is new since the last
one.

A run's transcript only ever grows, so it is kept once per run, with the digests of the lengths it was asked
for. What is not cached is asked for again (NeedTranscript): forgetting is always safe, and what is read back
is checked against its digest by the caller.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

MARKS_MAX: Final = 4
"""Lengths remembered per run: the previous request's, for a retry of the same turn, and a few more."""
MESSAGE_OVERHEAD_BYTES: Final = 64
MEMORY_BYTES_MAX: Final = 256 << 20

Marks = OrderedDict[bytes, int]


class Transcripts(Protocol):
    """Transcripts by run and digest (``machine.transcript``). Messages are UTF-8 JSON, in order."""

    def get(self, run_id: str, digest: bytes) -> tuple[bytes, ...] | None: ...

    def extend(self, run_id: str, base: bytes | None, digest: bytes, messages: Sequence[bytes]) -> None:
        """``messages`` follow the transcript with digest ``base`` (None: the empty one) and give ``digest``.

        What the run had beyond ``base`` is forgotten. Nothing is kept if ``base`` is not known.
        """
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Transcript:
    """``marks``: digest to number of messages, oldest first."""

    messages: list[bytes] = field(default_factory=list[bytes])
    marks: Marks = field(default_factory=Marks)
    size: int = 0


class MemoryTranscripts:
    """Least recently used runs go first. ``bytes_max`` bounds messages and their bookkeeping together."""

    def __init__(self, bytes_max: int = MEMORY_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._runs: OrderedDict[str, _Transcript] = OrderedDict()
        self.size = 0

    def get(self, run_id: str, digest: bytes) -> tuple[bytes, ...] | None:
        kept = self._runs.get(run_id)
        if kept is None or (count := kept.marks.get(digest)) is None:
            return None
        self._runs.move_to_end(run_id)
        return tuple(kept.messages[:count])

    def extend(self, run_id: str, base: bytes | None, digest: bytes, messages: Sequence[bytes]) -> None:
        kept = self._runs.get(run_id, _Transcript())
        count = 0 if base is None else kept.marks.get(base)
        if count is None:
            return
        kept.messages[count:] = messages
        kept.marks = extended_marks(kept.marks, count, digest, len(messages))
        self._runs[run_id] = kept
        self._runs.move_to_end(run_id)
        size = size_of(kept.messages)
        self.size += size - kept.size
        kept.size = size
        while self.size > self._bytes_max:
            _, dropped = self._runs.popitem(last=False)
            self.size -= dropped.size

    def close(self) -> None:
        self._runs.clear()
        self.size = 0


def extended_marks(marks: Marks, base_count: int, digest: bytes, added: int) -> Marks:
    """The newest marks of a transcript whose first ``base_count`` messages stay, followed by ``added``."""
    left = Marks((mark, count) for mark, count in marks.items() if count <= base_count and mark != digest)
    left[digest] = base_count + added
    while len(left) > MARKS_MAX:
        left.popitem(last=False)
    return left


def size_of(messages: Sequence[bytes]) -> int:
    """What messages take, their bookkeeping included."""
    return sum(len(message) + MESSAGE_OVERHEAD_BYTES for message in messages)
