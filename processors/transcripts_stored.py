"""Transcripts that outlive the process: a cache in a local store, so that a restart asks for none again.

Rows: ``h`` run id -> head (marks and sizes); ``m`` run id, NUL, number -> message. A run's rows change in one
batch. A store that fails is a cache that misses: the transcript is asked for again.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec

from perdure.processors.store import Store, StoreBroken
from perdure.processors.transcripts import Marks, extended_marks, size_of

logger: Final = logging.getLogger(__name__)

STORED_BYTES_MAX: Final = 2 << 30
HEADS_A_SCAN: Final = 1_000

_HEAD: Final = b"h"
_HEADS_END: Final = b"i"
_MESSAGE: Final = b"m"
_NUMBER_BYTES: Final = 4


class _Head(msgspec.Struct, frozen=True):
    """``count`` messages of ``size`` bytes; ``marks``: (digest, number of messages), oldest first."""

    count: int = 0
    size: int = 0
    marks: tuple[tuple[bytes, int], ...] = ()


_decode: Final = msgspec.msgpack.Decoder(_Head).decode
_encode: Final = msgspec.msgpack.Encoder().encode


class StoredTranscripts:
    """See :class:`perdure.processors.transcripts.Transcripts`. Takes the store over and closes it.

    ``bytes_max`` bounds what is stored; the runs longest unused go first (after a restart, which remembers no
    order, those first by name).
    """

    def __init__(self, store: Store, bytes_max: int = STORED_BYTES_MAX) -> None:
        self._store = store
        self._bytes_max = bytes_max
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self.size = 0
        self._load()

    def get(self, run_id: str, digest: bytes) -> tuple[bytes, ...] | None:
        try:
            count = dict(self._head(run_id).marks).get(digest)
            if count is None:
                return None
            rows = self._store.scan(_key(run_id, 0), _key(run_id, count), count)
        except StoreBroken as error:
            self._warn(error)
            return None
        if len(rows) != count:
            return None
        self._sizes.move_to_end(run_id)
        return tuple(message for _, message in rows)

    def extend(self, run_id: str, base: bytes | None, digest: bytes, messages: Sequence[bytes]) -> None:
        try:
            self._extend(run_id, base, digest, messages)
        except StoreBroken as error:
            self._warn(error)

    def close(self) -> None:
        self._store.close()

    def _extend(self, run_id: str, base: bytes | None, digest: bytes, messages: Sequence[bytes]) -> None:
        head = self._head(run_id)
        marks = Marks(head.marks)
        start = 0 if base is None else marks.get(base)
        if start is None:
            return
        if marks.get(digest) == head.count == start + len(messages):
            self._sizes.move_to_end(run_id)  # the same attempt's messages, or a retry's: they are there
            return
        count = start + len(messages)
        cut = self._store.scan(_key(run_id, start), _key(run_id, head.count), head.count - start)
        size = head.size - size_of([message for _, message in cut]) + size_of(messages)
        changes: dict[bytes, bytes | None] = {key: None for key, _ in cut}
        changes |= {_key(run_id, start + index): message for index, message in enumerate(messages)}
        marks = extended_marks(marks, start, digest, len(messages))
        changes[_HEAD + run_id.encode()] = _encode(_Head(count, size, tuple(marks.items())))
        self._store.write(changes)
        self._note(run_id, size)
        while self.size > self._bytes_max:
            self._drop(next(iter(self._sizes)))

    def _drop(self, run_id: str) -> None:
        changes: dict[bytes, bytes | None] = {
            _key(run_id, number): None for number in range(self._head(run_id).count)
        }
        changes[_HEAD + run_id.encode()] = None
        self._store.write(changes)
        self.size -= self._sizes.pop(run_id)

    def _note(self, run_id: str, size: int) -> None:
        self.size += size - self._sizes.get(run_id, 0)
        self._sizes[run_id] = size
        self._sizes.move_to_end(run_id)

    def _head(self, run_id: str) -> _Head:
        row = self._store.get(_HEAD + run_id.encode())
        if row is None:
            return _Head()
        try:
            return _decode(row)
        except msgspec.MsgspecError as error:
            raise StoreBroken(f"The head of {run_id}: {error}.") from error

    def _load(self) -> None:
        start = _HEAD
        while rows := self._store.scan(start, _HEADS_END, HEADS_A_SCAN):
            for key, row in rows:
                run_id = key[len(_HEAD) :].decode()
                try:
                    self._note(run_id, _decode(row).size)
                except msgspec.MsgspecError:
                    self._store.write({key: None})
            start = rows[-1][0] + b"\0"

    def _warn(self, error: StoreBroken) -> None:
        logger.warning("transcripts: %s", error, extra={"action": "transcripts_broken"})


def _key(run_id: str, number: int) -> bytes:
    return b"%b%b\0%b" % (_MESSAGE, run_id.encode(), number.to_bytes(_NUMBER_BYTES, "big"))
