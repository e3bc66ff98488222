"""Marks: how often each rare event occurred. A proof without an event proves nothing about it."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

EXPECTED: Final = frozenset(
    """
    AgentPinned ApprovalRequested ChildEnded ChildStarted CommandRejected_already_decided
    CommandRejected_decision_expired CommandRejected_empty_message CommandRejected_invalid_result
    CommandRejected_no_turns_left CommandRejected_run_cancelled CommandRejected_run_completed
    CommandRejected_run_exists CommandRejected_run_not_ended CommandRejected_run_terminal
    CommandRejected_token_forged CommandRejected_unknown_call DecisionRecorded_approve
    DecisionRecorded_did_not_run DecisionRecorded_give_up DecisionRecorded_ran
    DecisionRecorded_reject ModelAttemptEnded_api_error ModelAttemptEnded_connection
    ModelAttemptEnded_expired ModelAttemptEnded_invalid_request ModelAttemptEnded_malformed_reply
    ModelAttemptEnded_output_unusable ModelAttemptEnded_overloaded ModelAttemptEnded_rate_limited
    ModelAttemptEnded_refusal ModelAttemptEnded_suspect ModelAttemptEnded_timeout
    ModelAttemptEnded_tool_use_without_calls ModelAttemptEnded_unknown_stop_reason
    ModelAttemptEnded_watchdog ModelResponded ReconciliationAnswered_did_not_happen
    ReconciliationAnswered_did_not_happen_again ReconciliationAnswered_unknown_again
    ReconciliationAsked RunCancelled RunCancelled_deadline RunCompleted RunCreated
    RunFailed_budget_exceeded RunFailed_invalid_request RunFailed_max_turns_exceeded
    RunFailed_output_unusable RunFailed_refusal RunFailed_tool_use_without_calls
    RunFailed_unknown_stop_reason RunPurged RunResumed RunTimedOut_approval RunWaiting
    SignalReceived SurplusRecorded_late SurplusRecorded_not_pending SurplusRecorded_terminal
    ToolAmbiguous_connection ToolAmbiguous_deadline ToolAmbiguous_exception ToolAmbiguous_suspect
    ToolAmbiguous_watchdog ToolAttemptEnded_connection ToolAttemptEnded_deadline
    ToolAttemptEnded_decided_did_not_run ToolAttemptEnded_did_not_happen ToolAttemptEnded_exception
    ToolAttemptEnded_expired ToolAttemptEnded_late_claim ToolAttemptEnded_not_executed
    ToolAttemptEnded_watchdog ToolCallRequested ToolCompleted_decided ToolCompleted_executed
    ToolCompleted_reconciled ToolCompleted_synthetic ToolDispatched ToolStarted TranscriptSent
    TurnResumed TurnStarted command_repeated compacted compacted_events coordinators_False_False
    coordinators_False_True coordinators_True_False died_inside_a_step disk_lost
    drawn_brake drawn_break_disk drawn_cancel drawn_compact drawn_coordinator drawn_deafness
    drawn_decide drawn_decide_wrongly drawn_evict drawn_fate drawn_fork drawn_fuse drawn_go_on
    drawn_hold_sync drawn_jump drawn_kill drawn_lag drawn_late_records drawn_lose_disk drawn_markers
    drawn_outage drawn_pause drawn_poison_command drawn_poison_request drawn_poison_result
    drawn_publish drawn_release drawn_repeat_command drawn_repeat_result drawn_resume drawn_signal
    drawn_slowness drawn_start drawn_stop drawn_submit event_purged evicted
    exit_tainted exit_unwritable fate_EndTxn_lost fate_EndTxn_resent fate_EndTxn_unanswered
    fate_Heartbeat_held fate_Heartbeat_lost fate_Heartbeat_resent fate_Heartbeat_unanswered
    fate_InitProducerId_held fate_OffsetCommit_held fate_OffsetCommit_lost fate_OffsetCommit_resent
    fate_OffsetCommit_unanswered fate_OffsetFetch_held fate_OffsetFetch_lost fate_OffsetFetch_resent
    fate_OffsetFetch_unanswered fate_Produce_held fate_Produce_lost fate_Produce_resent
    fate_Produce_unanswered fate_TxnOffsetCommit_unanswered killed landed_later
    letter_bad_command_id letter_bad_key letter_deadline_passed letter_no_such_turn
    letter_not_single_object letter_run_purged letter_too_large letter_undecodable
    letter_unknown_run log_asked_again log_assigned log_definition_published log_executor_aborting
    log_executor_assigned log_executor_call_adopted log_executor_claim_late log_executor_declined
    log_executor_draining log_executor_no_usable_map log_executor_partitions_lost
    log_executor_result_not_written log_executor_revoked log_executor_stopped
    log_executor_suspect_told log_executor_tainted log_executor_tombstone log_executor_undecodable
    log_executor_waiting log_fenced log_input_set_aside log_lost log_restored log_revoked
    log_started_over log_store_wiped log_tool_raised model_calls model_calls_in_vain model_cut
    model_end model_failed model_odd_arguments model_odd_content model_odd_ids model_odd_stop
    model_permanent model_silent model_slow outage paused poison_model-requests poison_run-commands
    poison_run-results poison_tool-requests reconciled_did_not_happen reconciled_happened
    result_repeated spawned stillborn stopped_inside_a_step terminated tool_answer
    tool_connection tool_crash_after tool_crash_before_landing tool_deaf tool_error
    tool_ignored_cancel tool_lands_later tool_never_sent tool_not_executed tool_odd tool_slow
    tool_too_slow went_on
    """.split()  # noqa: SIM905 - a list of so many would be a page of quotes
)
"""What has to occur in any two thousand seeds: in two hundred each of it occurred several times."""


class Marks(logging.Handler):
    """Counts by name; as a handler of perdure's log it counts each line's ``action``."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.counts: Counter[str] = Counter()

    def add(self, name: str) -> None:
        self.counts[name] += 1

    def emit(self, record: logging.LogRecord) -> None:
        self.counts[f"log_{getattr(record, 'action', record.name)}"] += 1


class Listening:
    """While inside, the product's log is counted, and shown nowhere."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._logger = logging.getLogger("perdure")

    def __enter__(self) -> None:
        self._before = (self._logger.level, self._logger.propagate)
        self._logger.setLevel(logging.INFO)
        self._logger.propagate = False
        self._logger.addHandler(self._marks)

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self._marks)
        level, self._logger.propagate = self._before
        self._logger.setLevel(level)
