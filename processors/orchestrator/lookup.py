"""Which agent definition an input is decided with."""

from __future__ import annotations

from perdure.processors.definitions import Definitions
from perdure.processors.machine.inputs import ChildInput, CommandInput, Input, Source
from perdure.processors.machine.state import Run
from perdure.schemas.commands import Command, Submit
from perdure.schemas.definition import AgentDefinition


class Lookup:
    """Looks definitions up for one batch.

    A miss is believed only after reading the topic to its end as of now, which is later than when the input
    was read; once a batch is enough, since all its inputs were read before it began.
    """

    def __init__(self, definitions: Definitions, timeout_s: float) -> None:
        self._definitions = definitions
        self._timeout_s = timeout_s
        self._is_caught_up = False

    def find(
        self, run: Run | None, given: Input, source: Source | None = None
    ) -> tuple[str | None, AgentDefinition | None]:
        """(content hash, definition). ``source``: the run that ``given`` forks. Raises ``Unavailable`` if a
        miss can not be made sure of.
        """
        wanted = _wanted(run, given, source)
        if wanted is None:
            return None, None
        found = self._look_up(*wanted)
        if found is None and not self._is_caught_up:
            self._definitions.catch_up(self._timeout_s)
            self._is_caught_up = True
            found = self._look_up(*wanted)
        return found if found is not None else (None, None)

    def _look_up(
        self, digest: str | None, agent: str, version: str | None
    ) -> tuple[str, AgentDefinition] | None:
        if digest is None:
            return self._definitions.newest(agent, version)
        definition = self._definitions.by_digest(digest)
        return None if definition is None else (digest, definition)


def _wanted(
    run: Run | None, given: Input, source: Source | None
) -> tuple[str | None, str, str | None] | None:
    """(content hash of a pinned run, agent, version); None: the input needs no definition."""
    if run is None and source is not None:
        run = source.run
    if run is not None:
        return run.definition, run.agent, run.version
    match given:
        case CommandInput(command=Command(body=Submit(agent=agent, version=version))):
            return None, agent, version
        case ChildInput():
            return None, given.agent, given.version
        case _:
            return None
