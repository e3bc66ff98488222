"""The orchestrator moves runs on."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from perdure.processors.definitions import FixedDefinitions
from perdure.processors.headers import parse_headers
from perdure.schemas.commands import Cancel, Submit
from perdure.schemas.results import NeedTranscript
from perdure.schemas.values import RunState
from perdure.topics.errors import Unavailable
from tests.scenario.orchestrator_stage import AGENT, AGENT_DIGEST, Stage


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_run_goes_from_submit_to_outcome(stage: Stage) -> None:
    """A run with a tool call goes through model, tool and model again, and ends with exactly one outcome."""
    stage.worker()
    stage.submit("run-1")
    stage.settle()
    stage.reply(stage.model_requests("run-1")[-1], "look_up")
    stage.settle()
    stage.answer(stage.tool_requests("run-1")[-1])
    stage.settle()
    stage.reply(stage.model_requests("run-1")[-1], text="all good")
    stage.settle()
    assert [outcome.state for outcome in stage.outcomes("run-1")] == [RunState.COMPLETED]
    assert stage.outcomes("run-1")[0].definition == AGENT_DIGEST
    assert stage.dead_letters() == []
    stage.check_histories()


def test_every_record_of_a_run_stands_in_its_partition(stage: Stage) -> None:
    """Events, requests, status and outcome of a run are written to the partition of its commands."""
    stage.worker()
    for n in range(12):
        stage.submit(f"run-{n}")
    stage.play_to_the_end()
    for topic in ("run-events", "model-requests", "tool-requests", "run-status", "run-outcomes"):
        for record in stage.records(topic):
            run_id = (record.key or b"").decode().partition("/")[0]
            assert record.partition == stage.partition(run_id), topic
    stage.check_histories()


def test_command_sent_twice_is_answered_once(stage: Stage) -> None:
    """The same command id again changes nothing, in the same batch or later; another one is rejected."""
    stage.worker()
    stage.submit("run-1", command_id="c1")
    stage.submit("run-1", command_id="c1")
    stage.settle()
    stage.submit("run-1", command_id="c1")
    stage.submit("run-1", command_id="c2")
    stage.settle()
    assert stage.kinds("run-1").count("RunCreated") == 1
    assert stage.kinds("run-1").count("CommandRejected") == 1
    assert stage.dead_letters() == []
    stage.check_histories()


def test_result_sent_twice_is_effective_once(stage: Stage) -> None:
    """A result that is read again with the same id changes nothing; with another id it is surplus."""
    stage.worker()
    stage.submit("run-1")
    stage.settle()
    request = stage.model_requests("run-1")[-1]
    stage.reply(request, "look_up")
    stage.settle()
    before = stage.kinds("run-1")
    record = stage.records("run-results")[-1]
    stage.write("run-results", record.partition, record.key, record.value)
    stage.settle()
    assert stage.kinds("run-1") == before
    stage.reply(request, "look_up")
    stage.settle()
    assert stage.kinds("run-1") == [*before, "SurplusRecorded"]


def test_run_of_unknown_agent_waits_and_starts_when_it_is_published(stage: Stage) -> None:
    """A run whose agent nobody published is queued, says so, and starts by itself once it is there."""
    stage.worker()
    stage.command("run-1", Submit("stranger", b'"hi"'))
    stage.settle()
    assert stage.statuses("run-1")[-1].waiting_for
    stage.definitions.add(replace(AGENT, agent="stranger"))
    stage.until(lambda: stage.model_requests("run-1"))
    assert "AgentPinned" in stage.kinds("run-1")


class LateDefinitions(FixedDefinitions):
    """Knows an agent only after reading the topic to its end, and fails to a few times."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self._failures = failures

    def catch_up(self, timeout_s: float) -> None:
        if self._failures > 0:
            self._failures -= 1
            raise Unavailable
        self.add(AGENT)


@pytest.mark.parametrize("failures", [0, 3])
def test_miss_is_believed_only_at_the_end_of_the_topic(stage: Stage, failures: int) -> None:
    """An agent that is not known yet is looked for up to the topic's end before anything is decided."""
    stage.definitions = LateDefinitions(failures)
    stage.worker()
    stage.submit("run-1")
    stage.until(lambda: stage.model_requests("run-1"))
    assert stage.kinds("run-1") == ["RunCreated", "TurnStarted"]
    assert stage.dead_letters() == []


def test_runs_over_the_limit_wait_for_a_slot_oldest_first(stage: Stage) -> None:
    """With every slot taken a run waits; slots go to the runs that wait longest."""
    worker = stage.worker(running_runs_max=2)
    same = [run_id for run_id in (f"run-{n}" for n in range(60)) if stage.partition(run_id) == 0][:5]
    for run_id in same:
        stage.submit(run_id)
        stage.settle()
        stage.pass_ms(5)
    assert [run_id for run_id in same if stage.model_requests(run_id)] == same[:2]
    stage.command(same[0], Cancel("enough"))
    stage.settle()
    assert [run_id for run_id in same if stage.model_requests(run_id)] == same[:3]
    stage.play_to_the_end()
    assert worker.host.counts["inputs"] > 0
    started = [event.run_id for event in stage.events() if type(event.body).__name__ == "TurnStarted"]
    assert list(dict.fromkeys(started)) == same
    stage.check_histories()


def test_deadline_passes_without_any_input(stage: Stage) -> None:
    """A run deadline is a durable timer: it ends the run although nothing is read."""
    stage.worker()
    deadline_ms = stage.cluster.now_ms + 5_000
    stage.command("run-1", Submit("support", b'"hi"', deadline_ms=deadline_ms))
    stage.settle()
    stage.until(lambda: stage.outcomes("run-1"))
    assert stage.outcomes("run-1")[0].state is RunState.CANCELLED
    assert deadline_ms <= stage.cluster.now_ms < deadline_ms + 1_000


def test_run_starts_at_its_time(stage: Stage) -> None:
    """A run that may not start before an instant starts then."""
    stage.worker()
    start_ms = stage.cluster.now_ms + 3_000
    stage.command("run-1", Submit("support", b'"hi"', not_before_ms=start_ms))
    stage.settle()
    assert stage.model_requests("run-1") == []
    stage.until(lambda: stage.model_requests("run-1"))
    assert start_ms <= stage.cluster.now_ms < start_ms + 1_000


def test_time_never_falls_within_a_partition(stage: Stage) -> None:
    """With a wall clock that jumps back, events of a partition still ascend in time."""
    stage.worker()
    stage.submit("run-1")
    stage.settle()
    created_ms = stage.events("run-1")[0].at_ms
    stage.cluster.now_ms -= 60_000
    stage.reply(stage.model_requests("run-1")[-1])
    stage.settle()
    assert [event.at_ms for event in stage.events("run-1")] == [created_ms] * len(stage.events("run-1"))


def test_status_is_conflated_and_the_last_one_gets_out(stage: Stage) -> None:
    """Within a second only must-tell changes are published; what was held back follows by itself."""
    stage.worker()
    stage.submit("run-1")
    stage.settle()
    stage.reply(stage.model_requests("run-1")[-1], "look_up")
    stage.settle()
    told = stage.statuses("run-1")
    assert [status.state for status in told] == [RunState.QUEUED]
    stage.pass_ms(1_100)
    stage.settle()
    newest = stage.statuses("run-1")[-1]
    assert (newest.state, newest.seq) == (RunState.AWAITING_TOOL, stage.events("run-1")[-1].seq)
    stage.play_to_the_end()
    assert stage.statuses("run-1")[-1].state is RunState.COMPLETED
    count = len(stage.statuses("run-1"))
    stage.pass_ms(5_000)
    stage.settle()
    assert len(stage.statuses("run-1")) == count


def test_held_back_status_gets_out_after_the_worker_is_gone(stage: Stage) -> None:
    """The status that was held back is published by whoever owns the partition next, on an empty disk too."""
    worker = stage.worker()
    stage.submit("run-1")
    stage.settle()
    stage.reply(stage.model_requests("run-1")[-1], "look_up")
    stage.settle()
    worker.kill()
    stage.worker()
    stage.until(lambda: stage.statuses("run-1")[-1].state is RunState.AWAITING_TOOL)


def test_whole_transcript_is_sent_on_demand_in_one_transaction(stage: Stage) -> None:
    """A model-caller without the transcript gets all of it, once, for the pending request only."""
    stage.worker()
    stage.submit("run-1", "the question")
    stage.settle()
    stage.reply(stage.model_requests("run-1")[-1], "look_up")
    stage.settle()
    stage.answer(stage.tool_requests("run-1")[-1])
    stage.settle()
    pending = stage.model_requests("run-1")[-1]
    assert not pending.is_whole
    stage.result(pending, NeedTranscript())
    stage.settle()
    whole = stage.model_requests("run-1")[-1]
    assert whole.is_whole
    assert (whole.request_id, whole.digest) == (pending.request_id, pending.digest)
    assert [json.loads(message)["role"] for message in whole.messages] == ["user", "assistant", "user"]
    assert whole.messages[-len(pending.messages) :] == pending.messages


def test_requests_can_be_answered_from_their_headers(stage: Stage) -> None:
    """Every request carries headers that name it, so that an undecodable one can be answered."""
    stage.worker()
    stage.submit("run-1")
    stage.settle()
    stage.reply(stage.model_requests("run-1")[-1], "look_up")
    stage.settle()
    for topic in ("model-requests", "tool-requests"):
        for record in stage.records(topic):
            identity = parse_headers(record.headers)
            assert identity is not None
            assert identity.run_id == "run-1"
