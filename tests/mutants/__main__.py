"""Mutation testing of the machine: ``python -m tests.mutants --count 500``.

A seeded sample of small faults, each put into the machine alone; the tests that reach its line are run, in a
fork that has everything else imported. A fault that no test notices survives: it is mended by a test, or it
stands in ``explained.toml`` with the reason why nothing can notice it. The last line printed is JSON; the
exit status is 0 if every survivor is explained.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import tomllib
from pathlib import Path

from tests.mutants.operators import Mutant, mutants_of
from tests.mutants.trial import Trial, reach_of_tests

ROOT = Path(__file__).parents[2]
MACHINE = ROOT / "processors" / "machine"
PROGRESS_MUTANTS = 50
EXPLAINED = Path(__file__).parent / "explained.toml"


def all_mutants() -> list[Mutant]:
    """Every fault there is, module by module."""
    paths = sorted(MACHINE.glob("*.py"))
    return [mutant for path in paths for mutant in mutants_of(path.stem, path.read_text(encoding="utf-8"))]


def explained() -> dict[str, str]:
    """Survivors that nothing can notice, and why."""
    rows = tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))
    return {row["mutant"]: row["reason"] for row in rows.get("explained", [])}


def main() -> int:
    parser = argparse.ArgumentParser(description="Put small faults into the machine, one at a time.")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=60.0, help="stop taking new ones after this time")
    parser.add_argument("--only", default="", help="mutants whose key holds this text")
    parser.add_argument(
        "--again", type=Path, help="those that a run before printed as survived, in this file"
    )
    options = parser.parse_args()
    began_s = time.monotonic()
    known = [mutant for mutant in all_mutants() if options.only in mutant.key]
    chosen = random.Random(options.seed).sample(known, min(options.count, len(known)))
    if options.again is not None:
        told = options.again.read_text(encoding="utf-8").splitlines()
        keys = {line.split("  ", maxsplit=2)[2] for line in told if line.startswith("survived ")}
        chosen = [mutant for mutant in known if mutant.key in keys]
    print(f"{len(known)} mutants, {len(chosen)} of them with seed {options.seed}", flush=True)
    reach = reach_of_tests(ROOT)
    print(f"{len(reach.seconds)} tests in {sum(reach.seconds.values()):.1f} s", flush=True)
    reasons = explained()
    counts = {"mutants": 0, "killed": 0, "survived": 0, "explained": 0}
    survivors: list[str] = []
    trial = Trial(ROOT, reach, options.jobs)
    for mutant, verdict in trial.verdicts(chosen, began_s + options.minutes * 60):
        counts["mutants"] += 1
        if counts["mutants"] % PROGRESS_MUTANTS == 0:
            print(f"{counts['mutants']} tried in {time.monotonic() - began_s:.0f} s", flush=True)
        if verdict.is_killed:
            counts["killed"] += 1
            continue
        is_explained = mutant.key in reasons
        counts["explained" if is_explained else "survived"] += 1
        if not is_explained:
            survivors.append(mutant.key)
            print(f"survived  {mutant.module}.py:{mutant.first_line}  {mutant.key}", flush=True)
    seconds = round(time.monotonic() - began_s)
    print(json.dumps({**counts, "sampled_of": len(known), "seed": options.seed, "seconds": seconds}))
    return 1 if survivors or counts["mutants"] < len(chosen) else 0


if __name__ == "__main__":
    sys.exit(main())
