"""``python -m simulator``: lives of whole worlds, one a seed. See docs/SIMULATOR.md.

Remarks go to standard error; the last line of standard output is one JSON object. Exit status 0 only if
nothing was wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from simulator.life import live
from simulator.plan import draw
from simulator.planted import PLANTS
from simulator.runner import catch, cores, run, tell
from simulator.seeds import KEPT


def options_of(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="simulator", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seeds", type=int, help="so many lives, from --first on, and the kept seeds")
    what.add_argument("--seed", type=int, help="one life, told in full")
    what.add_argument("--planted", help="lives with planted bugs: the name of one, or all")
    parser.add_argument("--first", type=int, default=0, help="the first seed (%(default)s)")
    parser.add_argument("--jobs", type=int, default=cores(), help="processes (%(default)s)")
    return parser.parse_args(given)


def one(seed: int) -> dict[str, Any]:
    """One life, with each drawn parameter."""
    plan = draw(seed)
    for name, value in plan.told().items():
        tell(f"{name}: {value}")
    lived = live(seed)
    for name, count in sorted(lived.marks.items()):
        tell(f"{count:9d}  {name}")
    if lived.violation is not None:
        tell(lived.violation)
    return {
        "seeds": 1,
        "seed": seed,
        "violations": int(lived.violation is not None),
        "fault": lived.fault,
        "digest": lived.digest,
        "virtual_s": round(lived.virtual_s, 1),
    }


def main(given: Sequence[str] | None = None) -> int:
    options = options_of(given)
    if options.planted is not None:
        names = sorted(PLANTS) if options.planted == "all" else [options.planted]
        report = catch(names, options.jobs)
        print(json.dumps(report))
        return int(report["caught"] < report["planted"])
    if options.seed is not None:
        report = one(options.seed)
    else:
        seeds = sorted({*range(options.first, options.first + options.seeds), *KEPT})
        report = run(seeds, options.jobs)
    print(json.dumps(report))
    return int(bool(report["violations"] or report.get("marks_missing")))


if __name__ == "__main__":
    sys.exit(main())
