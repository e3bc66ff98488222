"""Fixed seeds: whole worlds in which anything may fail, and then everything has to end and add up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.life import live
from simulator.plan import draw
from simulator.seeds import CHECKED_SEEDS, KEPT

ROOT = Path(__file__).parents[2]
BLOCK = 10
REPEATED = (7, 10, 21)
PRINT_DIGESTS = (
    "import sys; from simulator.life import live; print(*(live(int(n)).digest for n in sys.argv[1:]))"
)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("first", range(0, CHECKED_SEEDS, BLOCK))
def test_every_life_of_a_block_of_seeds_keeps_all_promises(first: int) -> None:
    """Whatever a seed lets happen, no checker finds anything, and every run ends."""
    lives = [live(seed) for seed in range(first, first + BLOCK)]
    assert [each.violation for each in lives if each.violation] == []


@pytest.mark.parametrize("seed", sorted(KEPT))
def test_a_seed_that_failed_once_does_not_fail_again(seed: int) -> None:
    """What was found is kept."""
    assert live(seed).violation is None


@pytest.mark.timeout(120)
def test_a_seed_is_one_history_byte_for_byte() -> None:
    """The same seeds give the same logs, in another process and under another order of hashes."""
    told = [
        subprocess.run(
            [sys.executable, "-c", PRINT_DIGESTS, *map(str, REPEATED)],
            check=True,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hashes},
        ).stdout
        for hashes in ("1", "4711")
    ]
    assert len(set(told)) == 1
    assert len(set(told[0].split())) == len(REPEATED)
    assert told[0].split() == [live(seed).digest for seed in REPEATED]


def test_seeds_draw_worlds_of_their_own() -> None:
    """Swarm testing: over many seeds each disturbance is left out somewhere and taken elsewhere."""
    plans = [draw(seed) for seed in range(60)]
    for name in ("kill", "brake", "fate", "outage", "poison_result"):
        taken = sum(name in plan.weights for plan in plans)
        assert 4 < taken < 56, name
