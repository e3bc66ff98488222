"""Agent definitions for an executor: the book of all that were published, read on when one is missed."""

from __future__ import annotations

import logging
from typing import Final

from perdure.processors.clock import Clock
from perdure.processors.definitions import DefinitionBook
from perdure.schemas.definition import AgentDefinition
from perdure.topics.errors import Unavailable

MISS_INTERVAL_S: Final = 1.0
CATCH_UP_TIMEOUT_S: Final = 2.0

_log: Final = logging.getLogger(__name__)


class KnownDefinitions:
    """A DefinitionSource. A miss reads the topic to its end, at most once in MISS_INTERVAL_S: a request for a
    definition that was just published must not be declined. Belongs to the engine's thread, as the book does.
    """

    def __init__(self, book: DefinitionBook, clock: Clock) -> None:
        self._book = book
        self._clock = clock
        self._next_look_s = 0.0

    def by_digest(self, digest: str) -> AgentDefinition | None:
        found = self._book.by_digest(digest)
        if found is None and self._looked():
            found = self._book.by_digest(digest)
        return found

    def newest(self, agent: str, version: str | None) -> tuple[str, AgentDefinition] | None:
        self._looked()
        return self._book.newest(agent, version)

    def _looked(self) -> bool:
        now_s = self._clock.boot_s()
        if now_s < self._next_look_s:
            return False
        self._next_look_s = now_s + MISS_INTERVAL_S
        try:
            self._book.catch_up(CATCH_UP_TIMEOUT_S)
        except Unavailable as error:
            _log.warning("agent definitions: %s", error, extra={"action": "definitions_behind"})
            return False
        return True
