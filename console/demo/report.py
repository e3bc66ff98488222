"""What the demo says: to a person step by step, and to a program in one JSON line at the end."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from perdure.console.demo.ledger import Counted
from perdure.console.timeline import timeline
from perdure.processors.clock import Clock
from perdure.schemas.events import Event

LABEL_CHARS: Final = 8
STYLES: Final = {"kill": "bold red", "start": "green", "trouble": "yellow", "person": "yellow"}


class Teller:
    """Prints steps with the seconds since the beginning."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self.console = console
        self._clock = clock
        self._begun_s = clock.boot_s()

    @property
    def seconds(self) -> float:
        return self._clock.boot_s() - self._begun_s

    def step(self, label: str, text: str) -> None:
        line = Text(f"{self.seconds:6.1f} s  ", "dim")
        line.append(f"{label:<{LABEL_CHARS}} ", STYLES.get(label, "bold"))
        line.append(text, "bold" if label == "kill" else "default")
        self.console.print(line, soft_wrap=True)

    def event(self, line: Text | None) -> None:
        """A line of the run's own timeline, indented below the steps."""
        if line is not None:
            self.console.print(Text(" " * 11).append(line), no_wrap=True, overflow="ellipsis", crop=True)

    def rule(self, title: str) -> None:
        self.console.print(Rule(title, align="left", style="dim"))

    def history(self, run_id: str, events: Iterable[Event]) -> None:
        self.rule(f"run {run_id}")
        self.console.print(timeline(events))
        self.console.print(Rule(style="dim"))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came out. ``faults``: what should be otherwise at this crash point, in words."""

    status: str
    counted: Counted
    kills: int
    is_reconciled: bool
    seconds: float
    crash: str
    faults: tuple[str, ...]

    @property
    def line(self) -> str:
        """The JSON line."""
        return json.dumps(
            {
                "status": self.status,
                "deliveries": self.counted.deliveries,
                "lookups": self.counted.lookups,
                "model_calls": self.counted.model_calls,
                "kills": self.kills,
                "reconciled": self.is_reconciled,
                "seconds": round(self.seconds, 1),
                "crash": self.crash,
            }
        )

    @property
    def exit_code(self) -> int:
        return 1 if self.faults else 0
