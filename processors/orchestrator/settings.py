"""Limits of the orchestrator, each with its unit."""

from __future__ import annotations

from dataclasses import dataclass, field

from perdure.processors.machine.inputs import MachineSettings
from perdure.processors.machine.tokens import TokenKeys
from perdure.topics.table import DAY_MS, DELETE_RETENTION_MS, HOUR_MS, INBOX_BYTES_MAX, Namespace, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorSettings:
    """``partitions``: the pinned number. ``slot``: names this process for ever (transactional and instance
    id).

    ``running_runs_max``: runs per partition that may be running or awaiting tools.
    ``transaction_timeout_ms_max``: the largest transaction time-out of any producer to run-events; an open
    transaction that outlasts it is hanging.
    ``token_key``: secret of the resume tokens; those of ``token_keys_older`` are still taken.
    ``has_own_key``: this machine made it for itself, so tokens of other keys are compared with the log only.
    """

    namespace: Namespace
    slot: str
    partitions: int
    token_key: bytes = field(repr=False)
    machine: MachineSettings = field(default_factory=MachineSettings)
    token_keys_older: tuple[bytes, ...] = field(default=(), repr=False)
    has_own_key: bool = True
    running_runs_max: int = 1_000

    # A batch: how much goes into one transaction, and how long it waits for more.
    batch_inputs_max: int = 500
    batch_busy_inputs: int = 50
    batch_wait_ms_max: int = 4
    batch_timers_max: int = 200
    batch_purged_max: int = 200  # tombstones, and runs looked at
    poll_wait_ms_max: int = 100
    catch_up_quiet_ms: int = 2_000  # overdue timers wait that long for more of what lay unread at take-over
    input_bytes_max: int = INBOX_BYTES_MAX

    # Transactions. A call that ignores its time-out is ended with the process after ``hang_ms_max``.
    transaction_timeout_ms: int = 10_000
    transaction_timeout_ms_max: int = 60_000
    call_timeout_ms: int = 10_000
    hang_ms_max: int = 60_000
    aborts_before_bisecting: int = 2
    condemn_tries_max: int = 3
    retry_delay_ms_min: int = 50
    retry_delay_ms_max: int = 5_000
    timer_penalty_ms: int = 60_000

    # Membership. The group notices a dead process after the session time-out.
    session_timeout_ms: int = 6_000
    heartbeat_interval_ms: int = 1_000
    max_poll_interval_ms: int = 300_000

    # Questions to the cluster. ``committed`` waits for open transactions; it is rather asked again.
    committed_timeout_ms: int = 1_000
    question_timeout_ms: int = 5_000
    definitions_timeout_ms: int = 5_000

    # Restore: how much is folded between two polls of the main consumer.
    restore_slice_records: int = 2_000
    restore_wait_ms: int = 5

    # The local store: older than half of the tombstones' life it can not know what was deleted.
    delete_retention_ms: int = DELETE_RETENTION_MS
    caught_up_interval_ms: int = 60_000

    # Duties.
    offsets_refresh_ms: int = 12 * HOUR_MS  # well inside offsets.retention.minutes
    results_kept_ms: int = 7 * DAY_MS
    deletion_interval_ms: int = HOUR_MS
    age_mark_interval_ms: int = HOUR_MS

    @property
    def token_keys(self) -> TokenKeys:
        return TokenKeys(self.token_key, self.token_keys_older, is_strict=not self.has_own_key)

    @property
    def group(self) -> str:
        return self.namespace.group(Role.ORCHESTRATOR)

    @property
    def transactional_id(self) -> str:
        return self.namespace.transactional_id(Role.ORCHESTRATOR, self.slot)

    @property
    def instance_id(self) -> str:
        return self.namespace.instance_id(Role.ORCHESTRATOR, self.slot)

    def client_id(self, purpose: str) -> str:
        return self.namespace.client_id(Role.ORCHESTRATOR, self.slot, purpose)
