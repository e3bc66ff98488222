"""The store port: what a partition's derived rows are kept in.

An ordered map from bytes to bytes with one atomic batch. Everything in it can be rebuilt from run-events;
it may lag the log, never lead it. Rows and the offset they belong to go into one batch, so that losing the
newest batches is harmless and losing half of one is impossible.

Two implementations are held to one contract suite: ``store_rocks`` on disk, ``store_memory`` for simulator
and tests. What the rows mean is said in ``store_rows``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from perdure.schemas.errors import Restore, Stop


class StoreBroken(Restore):
    """A local store can not be read or written."""

    code = "store_broken"
    remedy = "Wipe it and restore it from run-events; if it comes back, look at the disk."


class StoreTaken(Stop):
    """Another process has the local store open."""

    code = "store_taken"
    remedy = "End the other process with this slot, or give this one a slot of its own."


class StoreUnusable(Stop):
    """There is no place for a local store."""

    code = "store_unusable"
    remedy = "Look at the state directory: rights, free space, the disk."


class Reader(Protocol):
    """Something rows can be read from: a store, or an overlay over one."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, start: bytes, end: bytes, limit: int) -> Sequence[tuple[bytes, bytes]]:
        """Rows with ``start <= key < end`` in ascending order, at most ``limit``."""
        ...


class Store(Reader, Protocol):
    """The rows of one partition. One thread only. Every call may raise :class:`StoreBroken`."""

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Put (a value) or delete (None) all of ``changes``, or none of them."""
        ...

    def close(self) -> None:
        """Give the rows up, keeping them. Idempotent."""
        ...


class StoreFactory(Protocol):
    """Where the stores of a process are."""

    def open(self, partition: int) -> Store:
        """The partition's store as it was left; one that can not be opened is wiped, and said so in the
        log.
        """
        ...

    def wipe(self, partition: int) -> None:
        """Forget the partition's rows. Its store must be closed."""
        ...
