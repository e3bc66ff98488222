"""Claims: what has to be durable before a non_idempotent call is executed, and what happens if it is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from perdure.processors.abort import AbortSignal
from perdure.processors.executor.engine import Exit, Phase
from perdure.processors.offset_map import OffsetMap
from perdure.processors.ports import ToolAnswer, ToolInvocation
from perdure.schemas.results import Completed, Declined, Started
from perdure.schemas.values import DeclineReason, Effect
from perdure.topics.log import CommitOutcome, CommittedOffset, GroupProtocol
from perdure.topics.model_faults import Api, Fate
from perdure.topics.table import Role
from tests.scenario.executor_stage import NAMES, ONCE, READ, WRITE, Stage, hang

LEASE_MS = 2_000
SESSION_MS = 60_000


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    stage.provision()
    yield stage
    stage.close()


def test_a_claim_is_durable_before_the_call_begins(stage: Stage) -> None:
    """When a non_idempotent tool begins, its started bit is committed and its Started record stands in
    the log.
    """
    seen: list[tuple[OffsetMap, list[str]]] = []

    async def look(call: ToolInvocation, abort: AbortSignal) -> ToolAnswer:
        seen.append((stage.committed()[1], stage.told(call.call_id)))
        return Completed(b'""')

    stage.behaviours["look"] = look
    stage.ask("a", ONCE, "look")
    stage.worker()
    stage.settle()
    assert seen == [(OffsetMap(started=frozenset({0})), ["Started"])]
    assert stage.told("a") == ["Started", "Completed"]
    assert stage.committed() == (1, OffsetMap())


@pytest.mark.parametrize("effect", [READ, WRITE])
def test_calls_that_may_be_repeated_need_no_claim(stage: Stage, effect: Effect) -> None:
    """read_only and idempotent_write calls are executed without a Started record."""
    stage.ask("a", effect)
    stage.worker()
    stage.settle()
    assert stage.told("a") == ["Completed"]


def test_one_commit_claims_every_call_that_has_a_slot(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty waiting calls are claimed with one commit, not with thirty."""
    for number in range(30):
        stage.ask(f"c{number}", ONCE, "sleep:50")
    worker = stage.worker()
    commits: list[int] = []
    commit = worker.executor._consumer.commit

    def counting(offsets: Sequence[CommittedOffset]) -> CommitOutcome:
        commits.append(stage.cluster.now_ms)
        return commit(offsets)

    monkeypatch.setattr(worker.executor._consumer, "commit", counting)
    stage.until(lambda: len(stage.truth) == 30)
    assert len(commits) == 1


def test_the_deadline_of_a_claim_covers_lease_time_out_and_grace(stage: Stage) -> None:
    """Started names an instant after which the attempt can not be executing any more."""
    asked_ms = stage.cluster.now_ms
    stage.ask("a", ONCE, timeout_ms=10_000)
    stage.worker()
    stage.settle()
    deadline_ms = stage.body("a", Started).deadline_ms
    settings = stage.settings
    longest_s = settings.lease_s + settings.deadline_slack_s + settings.abort_grace_s + settings.cancel_wait_s
    assert asked_ms + 10_000 + longest_s * 1000 <= deadline_ms <= asked_ms + 10_000 + longest_s * 1000 + 1_000


@pytest.mark.parametrize("fate", [Fate.LOST, Fate.UNANSWERED, Fate.HELD, Fate.RESENT])
def test_a_claim_of_unknown_outcome_is_never_used(stage: Stage, fate: Fate) -> None:
    """A commit without a timely answer taints the member: it executes nothing more and leaves to be
    started anew.
    """
    worker = stage.worker()
    stage.run(100)
    stage.cluster.faults.inject(Api.OFFSET_COMMIT, worker.client_id, fate)
    stage.ask("a")
    stage.ask("b", ONCE)
    stage.until(lambda: worker.executor.phase is Phase.STOPPED)
    assert worker.executor.exit is Exit.TAINTED
    assert stage.truth == []
    stage.cluster.faults.release()
    stage.worker("w2")
    stage.run(SESSION_MS, stage.workers[1])
    stored = fate in {Fate.UNANSWERED, Fate.RESENT}
    expected = ["Started", "Suspect"] if stored else ["Started", "Started", "Completed"]
    assert stage.told("a") == stage.told("b") == expected
    assert stage.begun("a") == stage.begun("b") == (0 if stored else 1)


def test_a_frame_that_arrives_late_undoes_no_claim_of_a_successor(stage: Stage) -> None:
    """A held commit of a tainted member is refused when it arrives after another member's claim."""
    worker = stage.worker()
    stage.run(100)
    stage.ask("first", READ)
    stage.cluster.faults.inject(Api.OFFSET_COMMIT, worker.client_id, Fate.HELD)
    stage.until(lambda: worker.executor.phase is Phase.STOPPED)
    stage.behaviours["hang"] = hang
    stage.ask("a", ONCE, "hang")
    second = stage.worker("w2")
    stage.until(lambda: stage.begun("a") == 1, second)
    stage.cluster.faults.release()
    second.kill()
    third = stage.worker("w3")
    stage.until(lambda: "Suspect" in stage.told("a"), third, limit_ms=2 * SESSION_MS)
    assert stage.begun("a") == 1


def test_a_tainted_member_lets_running_calls_end_and_tells_their_results(stage: Stage) -> None:
    """What was claimed before the taint is finished and its result written, though nothing is committed."""
    worker = stage.worker()
    stage.ask("a", ONCE, "sleep:10000")
    stage.until(lambda: stage.begun("a") == 1)
    stage.cluster.faults.inject(Api.OFFSET_COMMIT, worker.client_id, Fate.LOST)
    stage.ask("b", ONCE)
    stage.until(lambda: worker.executor.phase is Phase.STOPPED)
    assert stage.told("a") == ["Started", "Completed"]
    assert stage.begun("b") == 0
    assert stage.committed()[1] == OffsetMap(started=frozenset({0}))


def test_an_acknowledged_claim_that_comes_too_late_is_declined(stage: Stage) -> None:
    """If the Started record is acknowledged only after the lease, the call is not executed and handed
    back.
    """
    worker = stage.worker()
    stage.run(100)
    stage.cluster.faults.inject(Api.PRODUCE, worker.results_id, Fate.HELD)
    stage.ask("a")
    stage.run(LEASE_MS + 100)
    stage.cluster.faults.release(Api.PRODUCE)
    stage.settle()
    assert stage.begun("a") == 0
    assert stage.body("a", Declined).reason is DeclineReason.LATE_CLAIM
    assert stage.committed() == (1, OffsetMap())


def test_the_lease_is_looked_at_again_just_before_the_call(stage: Stage) -> None:
    """A process that stood still between claim and call does not execute on an old claim."""
    worker = stage.worker()
    stage.run(100)
    stage.ask("a")
    stage.until(lambda: stage.told("a") == ["Started"])
    stage.cluster.advance(LEASE_MS + 1)
    stage.settle(worker)
    assert stage.begun("a") == 0
    assert stage.body("a", Declined).reason is DeclineReason.LATE_CLAIM


def test_a_refused_claim_keeps_the_call_waiting() -> None:
    """While the group rebalances claims are refused; the call waits, is not told suspect, and runs once
    afterwards.
    """
    stage = Stage(protocol=GroupProtocol.COOPERATIVE, partitions=2)
    stage.provision()
    first = stage.worker("w1")
    stage.run(200)
    stage.cluster.faults.hold_sync = True
    second = stage.worker("w2")
    stage.run(50)
    for partition in (0, 1):
        stage.ask(f"p{partition}", partition=partition)
    stage.run(300)
    assert stage.truth == []
    assert first.executor.phase is Phase.RUNNING
    stage.cluster.faults.hold_sync = False
    stage.cluster.groups.sync(NAMES.group(Role.TOOL_EXECUTOR))
    stage.run(20_000)
    assert [stage.begun("p0"), stage.begun("p1")] == [1, 1]
    told = stage.told("p0") + stage.told("p1")
    assert "Suspect" not in told
    assert told.count("Started") > 2, "no claim was refused"
    assert second.executor.phase is Phase.RUNNING
    stage.close()


def test_a_call_past_its_start_limit_is_declined_even_with_a_claim(stage: Stage) -> None:
    """Nothing starts after start_by_ms, whatever was claimed before."""
    worker = stage.worker()
    stage.run(100)
    stage.ask("a", start_in_ms=1_000)
    stage.until(lambda: stage.told("a") == ["Started"])
    stage.cluster.advance(1_500)
    stage.settle(worker)
    assert stage.begun("a") == 0
    assert stage.body("a", Declined).reason is DeclineReason.EXPIRED


def test_a_call_killed_after_its_claim_is_told_suspect_and_not_repeated(stage: Stage) -> None:
    """A worker that dies while a claimed call runs leaves a Suspect behind its Started, not a second
    execution.
    """
    stage.behaviours["hang"] = hang
    stage.ask("a", ONCE, "hang")
    first = stage.worker("w1")
    stage.until(lambda: stage.begun("a") == 1)
    first.kill()
    second = stage.worker("w2")
    stage.until(lambda: bool(second.executor.assigned), limit_ms=2 * SESSION_MS)
    taken_ms = stage.cluster.now_ms
    stage.until(lambda: stage.told("a") == ["Started", "Suspect"])
    margin_ms = stage.settings.margin_s * 1000
    assert stage.cluster.now_ms - taken_ms >= LEASE_MS + margin_ms - 20
    stage.settle(second)
    assert stage.begun("a") == 1
    assert stage.committed() == (1, OffsetMap())


def test_a_claim_that_was_not_used_before_the_partition_was_lost_is_handed_back(stage: Stage) -> None:
    """A member that loses a partition between claim and call says that it did not call, late as it may be."""
    worker = stage.worker()
    stage.run(100)
    stage.cluster.faults.inject(Api.PRODUCE, worker.results_id, Fate.HELD)
    stage.ask("a")
    stage.run(20)
    worker.log.stop()
    stage.cluster.advance(SESSION_MS)
    worker.log.go_on()
    stage.cluster.faults.release()
    stage.settle()
    assert stage.begun("a") == 0
    assert stage.body("a", Declined).reason is DeclineReason.LATE_CLAIM


def test_draining_hands_unused_claims_back(stage: Stage) -> None:
    """SIGTERM between claim and call: the call is declined, so that another worker may take it at once."""
    worker = stage.worker()
    stage.run(100)
    stage.cluster.faults.inject(Api.PRODUCE, worker.results_id, Fate.HELD)
    stage.ask("a")
    stage.run(20)
    worker.executor.drain()
    stage.run(20)
    stage.cluster.faults.release()
    stage.until(lambda: worker.executor.phase is Phase.STOPPED)
    assert worker.executor.exit is Exit.ASKED
    assert stage.begun("a") == 0
    assert stage.body("a", Declined).reason is DeclineReason.LATE_CLAIM
    assert stage.committed() == (1, OffsetMap())
