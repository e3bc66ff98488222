"""The vocabulary of the executors' log lines: each carries one of these as ``action``."""

from __future__ import annotations

from enum import StrEnum
from typing import TypedDict


class Action(StrEnum):
    """Stable names; a line's further fields are in its message."""

    ASSIGNED = "executor_assigned"
    NO_MAP = "executor_no_usable_map"
    REQUESTS_LOST = "executor_requests_lost"
    DELETED = "executor_requests_deleted"
    REVOKED = "executor_revoked"
    PARTITIONS_LOST = "executor_partitions_lost"
    CLAIM_REFUSED = "executor_claim_refused"
    CLAIM_LATE = "executor_claim_late"
    TAINTED = "executor_tainted"
    SUSPECT_TOLD = "executor_suspect_told"
    DECLINED = "executor_declined"
    UNDECODABLE = "executor_undecodable"
    TOMBSTONE = "executor_tombstone"
    DUPLICATE = "executor_duplicate"
    ADOPTED = "executor_call_adopted"
    ABORTING = "executor_aborting"
    ABANDONED = "executor_call_abandoned"
    LATE_ANSWER = "executor_late_answer"
    RESULT_REPLACED = "executor_result_replaced"
    RESULT_FAILED = "executor_result_not_written"
    DRAINING = "executor_draining"
    STOPPED = "executor_stopped"
    BROKEN = "executor_consumer_broken"
    DEFECT = "executor_defect"
    NOT_TAKEN = "executor_not_taken_over"
    WAITING = "executor_waiting"
    DELTA_DROPPED = "executor_delta_dropped"


class Extra(TypedDict):
    action: str


def extra(action: Action) -> Extra:
    """The ``extra`` argument of a log call."""
    return {"action": action.value}
