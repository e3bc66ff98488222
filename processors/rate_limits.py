"""The rate limits of a provider's key, kept without coordination: each model-caller takes the share of them
that it has of the partitions. All shares together are the limits, whoever owns what.

A bucket fills evenly and holds a few seconds' worth. What is larger than a whole bucket goes when it is full
and leaves a debt. Tokens are taken by estimate before a call and set right when its usage is known, as the
provider does it: input without what was read from a cache, output at its most before, as it was afterwards.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from perdure.processors.clock import Clock
from perdure.schemas.values import Usage

BURST_S: Final = 10.0
PAUSE_S_DEFAULT: Final = 5.0
PAUSE_S_MAX: Final = 300.0
BYTES_PER_TOKEN: Final = 4
RATE_LIMITED: Final = "rate_limited"


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Of one key; None: none is known."""

    requests_per_min: int | None = None
    input_tokens_per_min: int | None = None
    output_tokens_per_min: int | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one call, as it counts against the limits."""

    input_tokens: int
    output_tokens: int


class _Bucket:
    """``level``: what may be taken; below zero is a debt."""

    def __init__(self, per_min: int) -> None:
        self._per_s = per_min / 60
        self._capacity = 0.0
        self.level: float | None = None

    def share(self, part: float) -> None:
        self._capacity = self._per_s * BURST_S * part
        self.level = self._capacity if self.level is None else min(self.level, self._capacity)

    def fill(self, seconds: float, part: float) -> None:
        assert self.level is not None
        self.level = min(self._capacity, self.level + self._per_s * part * seconds)

    def allows(self, wanted: int) -> bool:
        return self.level is not None and self.level >= min(wanted, self._capacity)

    def take(self, wanted: int) -> None:
        assert self.level is not None
        self.level = min(self._capacity, self.level - wanted)


class RateLimiter:
    """``partitions``: of the topic. Used by the engine's thread; only :meth:`tell` by others, too."""

    def __init__(self, limits: RateLimits, partitions: int, clock: Clock) -> None:
        assert partitions > 0
        self._partitions = partitions
        self._clock = clock
        self._held = 0
        self._at_s = clock.boot_s()
        self._pause_until_s = 0.0
        self._told: deque[tuple[Cost, Usage | None, float | None]] = deque()
        per_min = (limits.requests_per_min, limits.input_tokens_per_min, limits.output_tokens_per_min)
        self._buckets = [None if limit is None else _Bucket(limit) for limit in per_min]

    def hold(self, partitions: int) -> None:
        """So many are owned now. A share that comes begins with a full bucket, as the one that went had."""
        if partitions == self._held:
            return
        self._pass()
        self._held = partitions
        for bucket in self._buckets:
            if bucket is not None:
                bucket.share(self._part)

    def has_room(self, cost: Cost) -> bool:
        """Whether a call of this cost may start now."""
        self._pass()
        if self._clock.boot_s() < self._pause_until_s:
            return False
        return all(bucket is None or bucket.allows(wanted) for bucket, wanted in self._each(cost))

    def take(self, cost: Cost) -> None:
        for bucket, wanted in self._each(cost):
            if bucket is not None:
                bucket.take(wanted)

    def tell(self, cost: Cost, usage: Usage | None, pause_s: float | None = None) -> None:
        """What a call came to (usage None: not known), and how long the provider wants nothing more."""
        self._told.append((cost, usage, pause_s))

    @property
    def _part(self) -> float:
        return self._held / self._partitions

    def _each(self, cost: Cost) -> list[tuple[_Bucket | None, int]]:
        return list(zip(self._buckets, (1, cost.input_tokens, cost.output_tokens), strict=True))

    def _pass(self) -> None:
        """Take in what was told, and the time since the last look."""
        now_s = self._clock.boot_s()
        elapsed_s, self._at_s = now_s - self._at_s, now_s
        if self._held:
            for bucket in self._buckets:
                if bucket is not None:
                    bucket.fill(elapsed_s, self._part)
        while self._told:
            cost, usage, pause_s = self._told.popleft()
            if usage is not None:
                counted = usage.input_tokens + usage.cache_creation_tokens
                self._correct(cost, Cost(counted, usage.output_tokens))
            if pause_s is not None:
                self._pause_until_s = max(self._pause_until_s, now_s + min(pause_s, PAUSE_S_MAX))

    def _correct(self, taken: Cost, used: Cost) -> None:
        _, input_tokens, output_tokens = self._buckets
        if input_tokens is not None:
            input_tokens.take(used.input_tokens - taken.input_tokens)
        if output_tokens is not None:
            output_tokens.take(used.output_tokens - taken.output_tokens)
