"""Seeds that failed once, and what was wrong. They are lived again by every run, for ever.

A seed means what the world makes of it: a change of the world gives it another life. What a seed found is
therefore also held by a test of its own, named here.
"""

from __future__ import annotations

from typing import Final

KEPT: Final[dict[int, str]] = {
    51: (
        "an attempt that ended its run for good was charged its usage and its reservation:"
        " test_budget.py::test_an_attempt_that_ends_its_run_is_charged_once"
    ),
    165: (
        "a run that ended before its agent was known, and was resumed, waited for ever:"
        " test_resume.py::test_a_run_without_an_agent_looks_for_it_again_when_it_is_resumed"
    ),
}
CHECKED_SEEDS: Final = 200
"""How many fixed seeds the test suite lives."""

PINNED: Final[dict[str, int]] = {
    "done-before-durable": 60,
    "empty-offsets": 3,
    "execute-suspects": 38,
    "fresh-group-metadata": 111,
    "letter-outside-transaction": 136,
    "no-dedup": 6,
    "no-offsets-on-timers": 111,
    "no-trailing-status": 11,
    "one-offset-too-far": 36,
    "position-as-offset": 111,
    "restore-to-stable-end": 71,
    "rows-before-commit": 45,
    "timers-before-backlog": 112,
    "tombstones-ascending": 30,
}
"""Planted bug -> the seed that catches it."""
