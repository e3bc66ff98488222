"""Limits of the executor engine. Seconds are of the boot clock, which also counts suspended time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from perdure.processors.offset_map import AGES_MAX, WINDOW_OFFSETS

DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """What an operator may change; the relations between the numbers are asserted.

    ``lease_s``: a claim is good for so long, from before its commit to the start of the call. ``margin_s``:
    what a new owner waits beyond it before it tells a suspect (clocks of two machines may run at different
    rates). ``commit_retry_backoff_ms``: the client's hidden re-sends of a commit come no sooner, and are
    noticed as late. ``slots``: calls running at once. ``backlog_max``, ``backlog_bytes_max``: waiting
    calls, and bytes in them, at which reading pauses; it resumes at half, for a pause throws prefetched
    records away. ``window_low_offsets``: where a partition resumes that paused because its base did not
    move. ``revoke_drain_s``: how long a revoked partition waits for its running calls; the whole group may
    wait with it, so it stays well below ``max_poll_interval_ms``. ``drain_s``: the same when leaving; None:
    the calls' own deadlines bound it. ``deadline_slack_s``: how much later than a call's own deadline the
    engine's comes, so that a tool port that keeps deadlines itself answers first. ``abort_grace_s``: from
    the abort signal to the cancellation of the call's task; ``cancel_wait_s``: from there until it is given
    up. ``abandoned_max``: calls that ignored both before the process leaves to be started anew.
    ``kept_days``: done requests are kept so long. ``flush_s``: how long a leaving worker waits for results
    to be acknowledged after its last call has ended. ``asks_max``: how often an unanswered question at
    take-over is put, each for ``ask_timeout_s``, with ``ask_retry_s`` between. ``hang_s``: a close that takes
    longer never returns, and ends the process; ``broken_close_s``: the same of a client known to be broken.
    """

    lease_s: float = 2.0
    margin_s: float = 0.5
    commit_retry_backoff_ms: int = 3_000
    slots: int = 64
    commit_interval_s: float = 0.2
    idle_commit_s: float = DAY_S / 4
    kept_days: int = 7
    delete_interval_s: float = 3_600.0
    claim_retry_s_min: float = 0.05
    claim_retry_s_max: float = 0.4
    poll_records_max: int = 256
    poll_wait_s_min: float = 0.001
    poll_wait_s_max: float = 0.02
    backlog_max: int = 2_000
    backlog_bytes_max: int = 64 << 20
    window_offsets: int = WINDOW_OFFSETS
    window_low_offsets: int = WINDOW_OFFSETS // 2
    revoke_drain_s: float = 30.0
    drain_s: float | None = None
    deadline_slack_s: float = 0.25
    abort_grace_s: float = 5.0
    cancel_wait_s: float = 1.0
    abandoned_max: int = 8
    ask_timeout_s: float = 5.0
    ask_retry_s: float = 0.25
    asks_max: int = 24
    flush_s: float = 10.0
    hang_s: float = 60.0
    broken_close_s: float = 10.0
    max_poll_interval_ms: int = 300_000
    session_timeout_ms: int = 6_000
    heartbeat_interval_ms: int = 1_000

    def __post_init__(self) -> None:
        assert self.lease_s > 0, "a claim needs time to be used"
        assert self.margin_s > 0
        assert self.commit_retry_backoff_ms > self.lease_s * 1000, "a hidden re-send must be noticed as late"
        assert self.slots > 0
        assert self.backlog_max > 0
        assert 0 < self.window_low_offsets < self.window_offsets <= WINDOW_OFFSETS
        assert self.poll_records_max < self.window_offsets - self.window_low_offsets, (
            "pauses need a wide band"
        )
        assert self.revoke_drain_s < self.hang_s, "a close that still drains does not hang"
        assert self.revoke_drain_s * 1000 < self.max_poll_interval_ms, "a draining member would be evicted"
        assert 0 < self.kept_days < AGES_MAX - 1, "older days are not remembered"
        assert self.idle_commit_s <= DAY_S, "a group that never commits loses its offsets"
        assert 0 < self.poll_wait_s_min <= self.poll_wait_s_max
