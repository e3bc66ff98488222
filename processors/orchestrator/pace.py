"""How soon something that failed is tried again: capped exponential delays, by a clock that is handed in."""

from __future__ import annotations

from typing import Final

from perdure.processors.clock import Clock
from perdure.processors.orchestrator.settings import OrchestratorSettings

DOUBLINGS_MAX: Final = 16


class Pace:
    """Counts failures in a row. Nothing waits here: the loop goes on polling while :attr:`is_resting`."""

    def __init__(self, clock: Clock, settings: OrchestratorSettings) -> None:
        self._clock = clock
        self._settings = settings
        self._failures = 0
        self._until_s = 0.0

    @property
    def is_resting(self) -> bool:
        return self.left_s > 0

    @property
    def left_s(self) -> float:
        return max(0.0, self._until_s - self._clock.boot_s())

    def failed(self) -> int:
        """Rest; for how many milliseconds."""
        shortest_ms, longest_ms = self._settings.retry_delay_ms_min, self._settings.retry_delay_ms_max
        delay_ms = min(longest_ms, shortest_ms << min(self._failures, DOUBLINGS_MAX))
        self._failures += 1
        self._until_s = self._clock.boot_s() + delay_ms / 1_000
        return delay_ms

    def succeeded(self) -> None:
        self._failures = 0
