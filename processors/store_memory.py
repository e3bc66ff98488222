"""The store in memory: for the simulator, for tests, and for trying perdure without a disk."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence

from perdure.processors.store import StoreBroken


class MemoryRows:
    """What outlives a closed store: the disk, so to speak."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.keys: list[bytes] = []


class MemoryStore:
    """See :class:`perdure.processors.store.Store`."""

    def __init__(self, rows: MemoryRows) -> None:
        self._rows = rows
        self._closed = False

    def get(self, key: bytes) -> bytes | None:
        self._open()
        return self._rows.values.get(key)

    def scan(self, start: bytes, end: bytes, limit: int) -> Sequence[tuple[bytes, bytes]]:
        self._open()
        keys = self._rows.keys
        first = bisect_left(keys, start)
        last = min(bisect_left(keys, end, lo=first), first + limit)
        return [(key, self._rows.values[key]) for key in keys[first:last]]

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        self._open()
        values, keys = self._rows.values, self._rows.keys
        for key, value in changes.items():
            if value is None:
                if values.pop(key, None) is not None:
                    del keys[bisect_left(keys, key)]
            else:
                if key not in values:
                    insort(keys, key)
                values[key] = value

    def close(self) -> None:
        self._closed = True

    def _open(self) -> None:
        if self._closed:
            raise StoreBroken("It is closed.")


class MemoryStores:
    """See :class:`perdure.processors.store.StoreFactory`; rows live as long as this object."""

    def __init__(self) -> None:
        self._rows: dict[int, MemoryRows] = {}

    def open(self, partition: int) -> MemoryStore:
        return MemoryStore(self._rows.setdefault(partition, MemoryRows()))

    def wipe(self, partition: int) -> None:
        self._rows.pop(partition, None)
