"""Marks: how often each rare event occurred. A proof without an event proves nothing about it."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

EXPECTED: Final[frozenset[str]] = frozenset()
"""What has to occur in any two thousand seeds."""


class Marks(logging.Handler):
    """Counts by name; as a handler of perdure's log it counts each line's ``action``."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.counts: Counter[str] = Counter()

    def add(self, name: str) -> None:
        self.counts[name] += 1

    def emit(self, record: logging.LogRecord) -> None:
        self.counts[f"log_{getattr(record, 'action', record.name)}"] += 1


class Listening:
    """While inside, the product's log is counted, and shown nowhere."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._logger = logging.getLogger("perdure")

    def __enter__(self) -> None:
        self._before = (self._logger.level, self._logger.propagate)
        self._logger.setLevel(logging.INFO)
        self._logger.propagate = False
        self._logger.addHandler(self._marks)

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self._marks)
        level, self._logger.propagate = self._before
        self._logger.setLevel(level)
