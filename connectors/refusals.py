"""Commands that no run could answer: they are in dead-letters, with the reason.

A submit that is refused leaves no run behind, so this is where its sender finds out.
"""

from __future__ import annotations

from typing import Self

from perdure.connectors.topic_reader import TopicReader
from perdure.processors.clock import Clock
from perdure.schemas.codec import Undecodable, decode
from perdure.schemas.commands import Command
from perdure.schemas.errors import Reject
from perdure.schemas.outputs import DeadLetter
from perdure.topics.log import Log
from perdure.topics.table import DEAD_LETTERS, RUN_COMMANDS, Namespace


class RunRefused(Reject):
    """The run was refused and does not exist."""

    code = "run_refused"
    remedy = "Mend what the message says, and submit again (price_unknown: a budget in tokens)."

    def __init__(self, letter: DeadLetter) -> None:
        super().__init__(f"{letter.code}: {letter.reason}.")
        self.reason = letter.code


class Refusals:
    """Reads dead-letters when told to. One thread only; use it in a ``with``."""

    def __init__(self, log: Log, clock: Clock, namespace: Namespace, client_id: str) -> None:
        self._commands = namespace.topic(RUN_COMMANDS)
        self._reader = TopicReader(log, clock, namespace.topic(DEAD_LETTERS), client_id=client_id)
        self._found: dict[bytes, DeadLetter] = {}

    def of(self, run_id: str, command_id: str | None = None) -> DeadLetter | None:
        """The last command of this run that was set aside, as of now; or the one of this id."""
        records = list(self._reader.to_end())
        while more := self._reader.more(0.0):
            records += more
        for record in records:
            if record.value is None:
                continue
            letter = decode(DeadLetter, record.value)
            if letter.source.topic == self._commands and letter.key is not None:
                self._found[letter.key] = letter
        found = self._found.get(run_id.encode())
        return found if found is None or command_id in {None, _command_id(found)} else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()


def _command_id(letter: DeadLetter) -> str | None:
    """None: only the head of the command was kept."""
    try:
        return decode(Command, letter.head).command_id
    except Undecodable:
        return None
