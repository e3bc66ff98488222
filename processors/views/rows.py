"""Where the rows of a view are: run-status records as they are in the log, by run id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class Rows(Protocol):
    """What is held. Reading only: each keeper writes in its own way, with its own place in the log."""

    def get(self, run_id: str) -> bytes | None: ...

    def items(self) -> Iterator[tuple[str, bytes]]:
        """All of them, in any order; nothing is written meanwhile."""
        ...


class MemoryRows:
    """Rows in a dictionary, for readers that live for one answer, and for tests."""

    def __init__(self) -> None:
        self._rows: dict[str, bytes] = {}

    def get(self, run_id: str) -> bytes | None:
        return self._rows.get(run_id)

    def items(self) -> Iterator[tuple[str, bytes]]:
        return iter(self._rows.items())

    def put(self, run_id: str, value: bytes) -> None:
        self._rows[run_id] = value

    def remove(self, run_id: str) -> None:
        del self._rows[run_id]
