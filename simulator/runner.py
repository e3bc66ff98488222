"""Many lives on all cores, and what they came to."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Final

from simulator.life import Lived, live
from simulator.marks import EXPECTED
from simulator.planted import PLANTS, live_with
from simulator.seeds import PINNED

MARKS_FROM_SEEDS: Final = 2_000
"""From so many seeds on, a mark that never occurred is a failure."""
SEARCHED_SEEDS_MAX: Final = 150
VIOLATION_CHARS: Final = 160
CHUNK: Final = 4
TELL_EVERY: Final = 200


def lives(seeds: Iterable[int], jobs: int) -> Iterator[Lived]:
    """In the order of the seeds, whoever lived them."""
    chosen = list(seeds)
    if jobs == 1:
        yield from map(live, chosen)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(live, chosen, chunksize=CHUNK)


def run(seeds: list[int], jobs: int) -> dict[str, Any]:
    """Live them all; the report. Violations are told as they are found."""
    began_s = time.monotonic()
    marks: Counter[str] = Counter()
    failed: dict[int, str] = {}
    virtual_s = 0.0
    for number, lived in enumerate(lives(seeds, jobs), 1):
        marks += lived.marks
        virtual_s += lived.virtual_s
        if lived.violation is not None:
            failed[lived.seed] = lived.fault or ""
            tell(f"seed {lived.seed}: {lived.violation}")
        if number % TELL_EVERY == 0:
            tell(f"{number} of {len(seeds)} seeds, {len(failed)} violations")
    took_s = time.monotonic() - began_s
    for name, count in sorted(marks.items()):
        tell(f"{count:9d}  {name}")
    missing = sorted(EXPECTED - set(marks)) if len(seeds) >= MARKS_FROM_SEEDS else []
    return {
        "seeds": len(seeds),
        "violations": len(failed),
        "failed": failed,
        "marks": len(marks),
        "marks_missing": missing,
        "seeds_per_minute": round(len(seeds) / took_s * 60, 1) if took_s else None,
        "virtual_hours": round(virtual_s / 3600, 1),
        "seconds": round(took_s, 1),
    }


def catch(names: list[str], jobs: int) -> dict[str, Any]:
    """Catch every planted bug: on its pinned seed, or else, where the world has changed, on another one."""
    began_s = time.monotonic()
    caught: dict[str, int] = {}
    missed: list[str] = []
    with ProcessPoolExecutor(jobs) as pool:
        for name, found in zip(names, pool.map(_caught, names), strict=True):
            if found is None:
                missed.append(name)
                tell(f"MISSED  {name}: {PLANTS[name].what}")
                continue
            seed, violation = found
            caught[name] = seed
            tell(f"caught  {name} by seed {seed}: {violation[:VIOLATION_CHARS]}")
    moved = {name: seed for name, seed in caught.items() if seed != PINNED.get(name)}
    return {
        "planted": len(names),
        "caught": len(caught),
        "missed": missed,
        "moved": moved,
        "seconds": round(time.monotonic() - began_s, 1),
    }


def _caught(name: str) -> tuple[int, str] | None:
    """The seed that catches it, and as what."""
    pinned = [PINNED[name]] if name in PINNED else []
    for seed in [*pinned, *range(SEARCHED_SEEDS_MAX)]:
        violation = live_with(name, seed).violation
        if violation is not None:
            return seed, violation
    return None


def cores() -> int:
    return os.cpu_count() or 1


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
