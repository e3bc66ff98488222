"""What a checker raises, by the names that the field uses (Jepsen's Kafka workload) and our own."""

from __future__ import annotations

from enum import StrEnum


class Fault(StrEnum):
    # Jepsen's names
    LOST_WRITE = "lost-write"
    ABORTED_READ = "aborted-read"
    DUPLICATE = "duplicate"
    INCONSISTENT_OFFSETS = "inconsistent-offsets"
    NONMONOTONIC = "nonmonotonic"
    POLL_SKIP = "poll-skip"
    UNSEEN = "unseen"
    # ours
    EFFECT_TWICE = "effect-twice"
    UNTRUE_RESULT = "untrue-result"
    CHANGED_AFTER_END = "changed-after-end"
    STATE_NOT_FOLD = "state-not-fold"
    TWO_RESULTS = "two-results"
    INVALID_TRANSCRIPT = "invalid-transcript"
    PREFIX_CHANGED = "prefix-changed"
    BUDGET_EXCEEDED = "budget-exceeded"
    USAGE_WRONG = "usage-wrong"
    OUTCOME_WRONG = "outcome-wrong"
    DEAD_LETTER_WRONG = "dead-letter-wrong"
    STATUS_STALE = "status-stale"
    QUESTION_STALE = "question-stale"
    HISTORY_ILLEGAL = "history-illegal"
    DECISION_FORGED = "decision-forged"
    TIMER_FIRST = "timer-first"
    PROCESS_FAILED = "process-failed"
    STUCK = "stuck"


class Violated(AssertionError):
    """A promise is broken."""

    def __init__(self, fault: Fault, detail: str) -> None:
        super().__init__(f"{fault}: {detail}")
        self.fault = fault
        self.detail = detail
