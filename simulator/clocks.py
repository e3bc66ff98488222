"""The clocks of one process: wrong in their own way, and not in step with each other."""

from __future__ import annotations

from random import Random
from typing import Final

from perdure.testing.virtual import VirtualClock
from perdure.topics.model_cluster import ModelCluster

BOOT_S_MAX: Final = 1e6


class ProcessClock(VirtualClock):
    """``skew_ms``: how far the wall clock may be off, either way; ``drift``: by how much the boot clock may
    run too fast or too slow, as a share.
    """

    def __init__(self, cluster: ModelCluster, random: Random, skew_ms: int, drift: float) -> None:
        super().__init__(cluster)
        self._random = random
        self._skew_ms = skew_ms
        self._wall_off_ms = random.randint(-skew_ms, skew_ms)
        self._boot_s = random.uniform(0.0, BOOT_S_MAX)
        self._rate = 1.0 + random.uniform(-drift, drift)
        self._since_ms = cluster.now_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self._wall_off_ms

    def boot_s(self) -> float:
        return self._boot_s + (super().wall_ms() - self._since_ms) / 1000 * self._rate

    def jump(self) -> None:
        """Somebody sets the wall clock, as wrong as before."""
        self._wall_off_ms = self._random.randint(-self._skew_ms, self._skew_ms)
