"""A draft: the events that answer one input, and the run as it stands after them."""

from __future__ import annotations

import hashlib
from typing import Final

from perdure.processors.machine.apply import apply
from perdure.processors.machine.inputs import Context, Decided, Output
from perdure.processors.machine.state import Run
from perdure.schemas.commands import CommandBody
from perdure.schemas.definition import AgentDefinition
from perdure.schemas.events import CommandRejected, Event, EventBody

ID_HEX_CHARS: Final = 32


class Draft:
    """Collects the answer to one input. Lives only inside one call of ``decide``."""

    def __init__(self, run_id: str, run: Run | None, context: Context) -> None:
        self._run_id = run_id
        self._run = run
        self._before = run
        self.context = context
        self._events: list[Event] = []
        self._runs: list[Run] = []
        self._outputs: list[Output] = []
        self._cause: str | None = None
        self._answers_command = False
        self._ids = 0

    @property
    def run(self) -> Run:
        assert self._run is not None
        return self._run

    @property
    def is_new(self) -> bool:
        """Whether there is no such run, up to now."""
        return self._run is None

    @property
    def has_ended(self) -> bool:
        """Whether the run is in a terminal state now, and was not before this input."""
        was_ended = self._before is not None and self._before.state.is_terminal
        return self._run is not None and self._run.state.is_terminal and not was_ended

    @property
    def definition(self) -> AgentDefinition:
        """The pinned definition; the host has it for every run that is pinned."""
        assert self.context.definition is not None
        return self.context.definition

    @property
    def now_ms(self) -> int:
        return self.context.now_ms

    def caused_by(self, cause: str, *, answers_command: bool = False) -> None:
        """Name the input on the first event that follows."""
        self._cause, self._answers_command = cause, answers_command

    def emit(self, body: EventBody) -> Run:
        """Add an event and apply it."""
        event = Event(
            run_id=self._run_id,
            seq=1 if self._run is None else self._run.seq + 1,
            at_ms=self.context.now_ms,
            body=body,
            cause=self._cause,
            answers_command=self._answers_command,
        )
        self._cause, self._answers_command = None, False
        self._run = apply(self._run, event)
        self._events.append(event)
        self._runs.append(self._run)
        return self._run

    def reject(self, command: CommandBody, reason: str, message: str = "") -> None:
        """Answer a command that changes nothing; ``reason`` is stable, ``message`` says more."""
        self.emit(CommandRejected(kind=type(command).__name__, reason=reason, message=message))

    def output(self, output: Output) -> None:
        self._outputs.append(output)

    def new_id(self) -> str:
        """An identifier derived from the entropy of this input: 32 lower-case hex digits."""
        self._ids += 1
        material = self.context.entropy + self._ids.to_bytes(4, "big")
        return hashlib.sha256(material).hexdigest()[:ID_HEX_CHARS]

    def jitter(self) -> float:
        """A number in [0, 1) derived from the entropy of this input."""
        return int(self.new_id()[:8], 16) / 0x1_0000_0000

    def backoff_ms(self, failures: int) -> int:
        """Capped exponential backoff with full jitter over [min, min * 2^failures]."""
        settings = self.context.settings
        ceiling = min(settings.retry_delay_ms_max, settings.retry_delay_ms_min << min(failures, 20))
        return settings.retry_delay_ms_min + int(
            self.jitter() * max(0, ceiling - settings.retry_delay_ms_min)
        )

    def unavailable_ms(self, tries: int) -> int:
        """Until what no worker had is asked for again, after so many ``tries`` before: capped exponential
        backoff with jitter over its upper half, so that runs that wait for the same come back one by one.
        """
        settings = self.context.settings
        ceiling = min(settings.unavailable_delay_ms_max, settings.unavailable_delay_ms << min(tries, 20))
        return ceiling - int(self.jitter() * (ceiling // 2))

    def done(self) -> Decided:
        return Decided(tuple(self._events), tuple(self._outputs), tuple(self._runs))
