"""The run view read at once, without Faust and without keeping anything: for one answer, and for tests."""

from __future__ import annotations

from typing import Self

from perdure.connectors.topic_reader import TopicReader
from perdure.processors.clock import Clock
from perdure.processors.views.run_view import MemoryRunView
from perdure.topics.log import Log
from perdure.topics.table import RUN_STATUS, Namespace


class RunsReader:
    """A view that reads run-status when it is told to. One thread only. Close it, or use it in a ``with``."""

    def __init__(self, log: Log, clock: Clock, namespace: Namespace, client_id: str) -> None:
        self.view = MemoryRunView()
        self._reader = TopicReader(log, clock, namespace.topic(RUN_STATUS), client_id=client_id)

    def to_end(self) -> MemoryRunView:
        """The view of everything that is visible now. Raises :class:`~perdure.topics.errors.Unavailable`."""
        for record in self._reader.to_end():
            self.view.feed(record.key, record.value)
        return self.view

    def more(self, wait_s: float) -> int:
        """Take what has come since, waiting up to ``wait_s`` for the first; how many records it was."""
        records = self._reader.more(wait_s)
        for record in records:
            self.view.feed(record.key, record.value)
        return len(records)

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
