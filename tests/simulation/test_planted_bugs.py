"""Planted bugs: a simulator that can not catch what is known to be wrong proves nothing."""

from __future__ import annotations

import pytest

from simulator.life import live
from simulator.planted import PLANTS, live_with
from simulator.seeds import PINNED

PLANTED_MIN = 25


def test_there_are_enough_planted_bugs() -> None:
    """Each says what it undoes, and has the seed that catches it."""
    assert len(PINNED) >= PLANTED_MIN
    assert set(PINNED) <= set(PLANTS)
    assert all(plant.what for plant in PLANTS.values())


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", sorted(PINNED))
def test_a_planted_bug_is_caught(name: str) -> None:
    """On its pinned seed a checker finds it (``make sim PLANTED=all`` finds another seed)."""
    assert live_with(name, PINNED[name]).violation is not None


@pytest.mark.timeout(120)
def test_nothing_of_a_planted_bug_stays() -> None:
    """Without it the same seed keeps all promises."""
    name = min(PINNED)
    assert live(PINNED[name]).violation is None
