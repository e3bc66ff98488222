"""The limiter of one model-caller: its share, its estimates, its pauses."""

from __future__ import annotations

import pytest

from perdure.processors.rate_limits import BURST_S, PAUSE_S_MAX, Cost, RateLimiter, RateLimits
from perdure.schemas.values import Usage

FREE = Cost(0, 0)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def wall_ms(self) -> int:
        return round(self.now_s * 1000)

    def boot_s(self) -> float:
        return self.now_s


def started(limiter: RateLimiter, clock: Clock, cost: Cost, seconds: float, step_s: float = 0.05) -> int:
    """How many calls start in so much time, if one is always waiting."""
    count = 0
    end_s = clock.now_s + seconds
    while clock.now_s < end_s:
        while limiter.has_room(cost):
            limiter.take(cost)
            count += 1
        clock.now_s += step_s
    return count


@pytest.mark.parametrize(
    ("limits", "cost", "per_min"),
    [
        (RateLimits(requests_per_min=60), FREE, 60),
        (RateLimits(requests_per_min=3), FREE, 3),
        (RateLimits(input_tokens_per_min=60_000), Cost(1_000, 9), 60),
        (RateLimits(output_tokens_per_min=6_000), Cost(9, 100), 60),
        (RateLimits(requests_per_min=600, output_tokens_per_min=3_000), Cost(9, 100), 30),
    ],
)
@pytest.mark.parametrize(("held", "partitions"), [(1, 1), (8, 8), (2, 8), (1, 8)])
def test_no_more_starts_than_its_share_of_the_tightest_limit(
    limits: RateLimits, cost: Cost, per_min: int, held: int, partitions: int
) -> None:
    """Over an hour the rate is the share, to a burst; and it is used, not only kept."""
    clock = Clock()
    limiter = RateLimiter(limits, partitions, clock)
    limiter.hold(held)
    count = started(limiter, clock, cost, 3_600)
    share = per_min * held / partitions
    assert share * 60 - 1 <= count <= share * (60 + BURST_S / 60) + 1


def test_nothing_starts_without_a_partition() -> None:
    """Who owns nothing has no share of the key."""
    limiter = RateLimiter(RateLimits(requests_per_min=60), 4, Clock())
    assert not limiter.has_room(FREE)
    limiter.hold(1)
    assert limiter.has_room(FREE)


def test_shares_of_all_members_are_the_limit_through_a_rebalance() -> None:
    """What one loses another gets; together they start what the key allows."""
    clock = Clock()
    limits = RateLimits(requests_per_min=120)
    one, two = RateLimiter(limits, 8, clock), RateLimiter(limits, 8, clock)
    one.hold(8)
    count = started(one, clock, FREE, 600)
    one.hold(3)
    two.hold(5)
    end_s = clock.now_s + 600
    while clock.now_s < end_s:
        for each in (one, two):
            if each.has_room(FREE):
                each.take(FREE)
                count += 1
        clock.now_s += 0.05
    bursts = 2 * 120 * BURST_S / 60
    assert 20 * 120 - 2 <= count <= 20 * 120 + bursts + 2


def test_a_call_larger_than_a_minute_s_limit_goes_and_is_paid_off() -> None:
    """It would otherwise wait for ever; the debt keeps the average."""
    clock = Clock()
    limiter = RateLimiter(RateLimits(input_tokens_per_min=1_000), 1, clock)
    limiter.hold(1)
    count = started(limiter, clock, Cost(5_000, 1), 3_600)
    assert 11 <= count <= 13


def test_the_estimate_is_set_right_when_the_usage_is_known() -> None:
    """What was read from a cache costs nothing, and an answer that was short gives back the rest."""
    clock = Clock()
    limiter = RateLimiter(RateLimits(output_tokens_per_min=600), 1, clock)
    limiter.hold(1)
    cost = Cost(100, 100)
    limiter.take(cost)
    assert not limiter.has_room(cost)
    limiter.tell(cost, Usage(output_tokens=1, cache_read_tokens=10_000))
    assert limiter.has_room(Cost(100, 99))
    limiter.tell(Cost(0, 0), Usage(output_tokens=500))
    assert not limiter.has_room(Cost(0, 1))


def test_nothing_starts_before_the_provider_wants_it() -> None:
    """A pause it asked for holds for every call of the key, and is bounded."""
    clock = Clock()
    limiter = RateLimiter(RateLimits(), 1, clock)
    limiter.hold(1)
    limiter.tell(FREE, None, 30.0)
    assert not limiter.has_room(FREE)
    clock.now_s += 29
    limiter.tell(FREE, None, 0.0)
    assert not limiter.has_room(FREE)
    clock.now_s += 1
    assert limiter.has_room(FREE)
    limiter.tell(FREE, None, 86_400.0)
    assert not limiter.has_room(FREE)
    clock.now_s += PAUSE_S_MAX
    assert limiter.has_room(FREE)
