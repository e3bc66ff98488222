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
    112: (
        "a call without a claim that a later worker handed back was said not to have been started:"
        " test_waiting_again.py::test_a_decline_after_the_end_of_a_call_that_needs_no_claim_proves_nothing"
    ),
    165: (
        "a run that ended before its agent was known, and was resumed, waited for ever:"
        " test_resume.py::test_a_run_without_an_agent_looks_for_it_again_when_it_is_resumed"
    ),
}
CHECKED_SEEDS: Final = 200
"""How many fixed seeds the test suite lives."""

PINNED: Final[dict[str, int]] = {
    "any-token": 61,
    "any-transcript": 1,
    "approve-is-enough": 27,
    "backlog-dropped": 289,
    "believe-negative-at-once": 41,
    "done-before-durable": 60,
    "doubt-costs-nothing": 3,
    "empty-offsets": 3,
    "execute-suspects": 38,
    "execute-without-claim": 38,
    "fresh-group-metadata": 111,
    "key-with-attempt": 1,
    "late-usage-forgotten": 13,
    "letter-outside-transaction": 136,
    "map-ignored": 38,
    "no-dedup": 6,
    "no-doubt": 30,
    "no-offsets-on-timers": 111,
    "no-reservation": 1,
    "no-settling": 41,
    "no-started-record": 38,
    "no-trailing-status": 11,
    "not-started-without-proof": 500,
    "one-offset-too-far": 36,
    "one-outcome-per-run": 9,
    "position-as-offset": 111,
    "questions-stay": 11,
    "read-uncommitted": 13,
    "restore-to-stable-end": 71,
    "retry-on-a-timer": 38,
    "reuse-producer": 574,
    "rows-before-commit": 45,
    "start-at-the-end": 17,
    "suspect-did-not-run": 145,
    "suspect-is-declined": 38,
    "tombstones-ascending": 30,
    "usage-twice": 14,
}
"""Planted bug -> the seed that catches it."""
