"""The only module that asks the machine for time and randomness; everything else is given a Clock or
Entropy.
"""

from __future__ import annotations

import os
import time
from typing import Final, Protocol

ID_BYTES: Final = 16


class Clock(Protocol):
    """``wall_ms``: milliseconds since the epoch, may jump. ``boot_s``: seconds, monotonic, counts suspended
    time.
    """

    def wall_ms(self) -> int: ...

    def boot_s(self) -> float: ...


class Entropy(Protocol):
    """``take(n)``: n fresh random bytes."""

    def take(self, count: int) -> bytes: ...


class SystemClock:
    """The machine's own clocks (CLOCK_REALTIME and CLOCK_BOOTTIME)."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def boot_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)


class SystemEntropy:
    """The operating system's randomness."""

    def take(self, count: int) -> bytes:
        return os.urandom(count)


def new_id(entropy: Entropy) -> str:
    """A fresh identifier: 32 lower-case hex digits."""
    return entropy.take(ID_BYTES).hex()
