"""The client over the model log: what it writes, what it reads, what it waits for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from perdure.connectors.agent import Agent
from perdure.connectors.client import Client
from perdure.connectors.client_errors import (
    CommandRefused,
    InputRefused,
    NoAnswerYet,
    NoOutcomeYet,
    NothingPending,
    RunIdRefused,
    SeveralPending,
    UnknownRun,
)
from perdure.connectors.settings import Settings
from perdure.connectors.topic_reader import TopicMissing, TopicReader
from perdure.processors.clock import SystemEntropy
from perdure.processors.definitions import digest_of
from perdure.schemas.codec import decode, encode
from perdure.schemas.commands import Cancel, Command, Decide, Submit
from perdure.schemas.events import (
    CommandRejected,
    Event,
    EventBody,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunResumed,
    RunWaiting,
    SurplusRecorded,
)
from perdure.schemas.outputs import Approval, Outcome, Status
from perdure.schemas.values import Effect, PendingKind, Provenance, RunState, Struct, Usage, Verdict
from perdure.topics.errors import RecordTooLarge
from perdure.topics.log import Outgoing, TopicPartition
from perdure.topics.model_cluster import ModelCluster
from perdure.topics.model_log import ModelLog
from perdure.topics.partitioner import partition_of
from perdure.topics.table import TOPICS, Namespace

PARTITIONS = 4
NAMES = Namespace("unit")


class SteppingClock:
    """Each look at the boot clock moves it, so that every wait ends."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def wall_ms(self) -> int:
        return 1_700_000_000_000

    def boot_s(self) -> float:
        self.now_s += 0.1
        return self.now_s


@dataclass
class Stage:
    """A cluster with a client on it and someone who writes what an orchestrator would."""

    log: ModelLog
    client: Client

    def write(self, name: str, key: str, record: Struct | None) -> None:
        topic = NAMES.topic(name)
        partition = partition_of(key, PARTITIONS)
        value = None if record is None else encode(record)
        producer = self.log.producer("w")
        producer.produce(Outgoing(topic, partition, key.encode(), value))
        assert producer.flush(1.0) == 0

    def events(self, run_id: str, *bodies: EventBody, start: int = 1, **more: Any) -> None:
        for seq, body in enumerate(bodies, start):
            self.write("run-events", f"{run_id}/{seq}", Event(run_id, seq, 1, body, **more))

    def commands(self) -> list[tuple[int, bytes | None, Command]]:
        topic = NAMES.topic("run-commands")
        with TopicReader(self.log, SteppingClock(), topic) as reader:
            return [
                (record.partition, record.key, decode(Command, record.value)) for record in reader.to_end()
            ]


@pytest.fixture
def stage() -> Iterator[Stage]:
    cluster = ModelCluster()
    for spec in TOPICS:
        cluster.create_topic(NAMES.topic(spec.name), spec.partitions(PARTITIONS), spec.settings(1))
    log = ModelLog(cluster)
    settings = Settings(namespace=NAMES.prefix)
    with Client(settings, log=log, clock=SteppingClock(), entropy=SystemEntropy()) as client:
        yield Stage(log, client)


CREATED = RunCreated("a", "1", "d", b'"i"', Provenance(), 5)


def outcome(run_id: str, execution: int) -> Outcome:
    return Outcome(
        run_id=run_id,
        execution=execution,
        state=RunState.COMPLETED,
        agent="a",
        definition="d",
        seq=9,
        output=b'"o"',
        stop_reason="end_turn",
        code=None,
        message=None,
        phase=None,
        usage=Usage(),
        turns=1,
        created_ms=1,
        ended_ms=2,
        provenance=Provenance(),
    )


def status(run_id: str, seq: int, created_ms: int = 1) -> Status:
    return Status(
        run_id=run_id,
        seq=seq,
        execution=0,
        state=RunState.RUNNING,
        agent="a",
        turn=1,
        usage=Usage(),
        created_ms=created_ms,
        updated_ms=1,
        pending_approvals=0,
        waiting_for=None,
        code=None,
        provenance=Provenance(),
    )


def approval(run_id: str, call_id: str, requested_ms: int = 1) -> Approval:
    return Approval(
        run_id=run_id,
        turn=1,
        call_id=call_id,
        kind=PendingKind.AMBIGUITY,
        tool="send",
        arguments=b"{}",
        effect=Effect.NON_IDEMPOTENT,
        known=b"{}",
        verdicts=(Verdict.RAN,),
        token=f"token of {call_id}",
        requested_ms=requested_ms,
        deadline_ms=None,
        provenance=Provenance(),
    )


def test_a_submit_lands_on_the_partition_of_its_run_with_everything_it_asks(stage: Stage) -> None:
    """Key, partition, input, instants and provenance are in the one record it writes."""
    provenance = Provenance(correlation_id="c", labels=(("k", "v"),))
    agent = Agent("a", model="m", version="7")
    run_id = stage.client.submit(
        agent, "hällo", run_id="order:1", deadline_s=2, delay_s=1, max_turns=3, provenance=provenance
    )
    [(partition, key, command)] = stage.commands()
    assert run_id == "order:1"
    assert (partition, key) == (partition_of("order:1", PARTITIONS), b"order:1")
    now_ms = SteppingClock().wall_ms()
    assert command.body == Submit("a", '"hällo"'.encode(), "7", now_ms + 2000, now_ms + 1000, 3)
    assert command.provenance == provenance


def test_an_equal_submit_is_the_same_command_and_another_one_is_not(stage: Stage) -> None:
    """Calling submit again is harmless; another input under the same run id is another command."""
    for text in ("x", "x", "y"):
        stage.client.submit("a", text, run_id="r", deadline_s=5)
    first, second, third = (command.command_id for _, _, command in stage.commands())
    assert first == second != third


def test_run_ids_are_ulids_by_default(stage: Stage) -> None:
    """26 characters of Crockford's base 32 that begin with the time."""
    ids = {stage.client.submit("a", "x") for _ in range(3)}
    assert len(ids) == 3
    assert {len(each) for each in ids} == {26}
    assert {each[:10] for each in ids} == {"01HF7YAT00"}


@pytest.mark.parametrize("run_id", ["", "a b", "a/b", "a~b", "x" * 129, "ä"])
def test_a_run_id_that_is_none_is_refused(stage: Stage, run_id: str) -> None:
    """Nothing is sent; ids of children are not a client's to choose."""
    with pytest.raises(RunIdRefused):
        stage.client.submit("a", "x", run_id=run_id)
    assert stage.commands() == []


def test_an_input_that_is_none_is_refused(stage: Stage) -> None:
    """Empty texts and lists, untyped blocks, what is no JSON, and more than the limit are not sent."""
    bad: list[Any] = ["", "  ", [], [{"text": "x"}], ["x"], [{"type": "text", "text": object()}]]
    for given in bad:
        with pytest.raises(InputRefused):
            stage.client.submit("a", given)
    with pytest.raises(RecordTooLarge):
        stage.client.submit("a", "x" * (1 << 20))
    assert stage.commands() == []


def test_events_are_those_of_the_run_alone_and_following_ends_with_it(stage: Stage) -> None:
    """Neighbours in the partition are passed over; what follows an end without undoing it is read."""
    stage.events("r", CREATED, RunWaiting("agent", 5))
    stage.write("run-events", "r~child/1", Event("r~child", 1, 1, CREATED))
    assert [event.seq for event in stage.client.events("r")] == [1, 2]
    assert [event.seq for event in stage.client.events("r", follow=True, timeout_s=3)] == [1, 2]
    stage.events(
        "r", RunCancelled("x"), RunResumed(1, None, 5, None), RunCompleted(b'"o"', "end_turn"), start=3
    )
    stage.events("r", SurplusRecorded(1, "c", 1, "q", "Completed", "late"), start=6)
    assert [event.seq for event in stage.client.events("r", follow=True)] == [1, 2, 3, 4, 5, 6]
    assert list(stage.client.events("nobody")) == []


def test_an_outcome_is_the_last_or_that_of_one_execution(stage: Stage) -> None:
    """Without a number the newest; with one exactly that, waited for until the time is over."""
    for execution in (0, 1):
        stage.write("run-outcomes", "r", outcome("r", execution))
    assert stage.client.outcome("r").execution == 1
    assert stage.client.outcome("r", execution=0).execution == 0
    with pytest.raises(NoOutcomeYet):
        stage.client.outcome("r", 2, execution=2)


def test_runs_are_the_newest_status_of_each(stage: Stage) -> None:
    """A lower seq that comes later is ignored, a tombstone removes, the newest run comes first."""
    for each in (status("r", 2), status("r", 5), status("r", 3), status("s", 1, 9), status("gone", 1)):
        stage.write("run-status", each.run_id, each)
    stage.write("run-status", "gone", None)
    assert [(each.run_id, each.seq) for each in stage.client.runs()] == [("s", 1), ("r", 5)]
    assert stage.client.status("r").seq == 5
    with pytest.raises(UnknownRun):
        stage.client.status("gone")


def test_pending_decisions_are_found_and_decided_with_the_token_shown(stage: Stage) -> None:
    """Withdrawn questions are gone, an open choice has to be named, and the decision carries that token."""
    for call_id, at in (("c1", 3), ("c2", 1), ("c3", 2)):
        stage.write("run-approvals", f"r/{call_id}", approval("r", call_id, at))
    stage.write("run-approvals", "other/c1", approval("other", "c1"))
    stage.write("run-approvals", "r/c3", None)
    assert [each.call_id for each in stage.client.approvals("r")] == ["c2", "c1"]
    assert len(stage.client.approvals()) == 3
    with pytest.raises(SeveralPending, match="c2, c1"):
        stage.client.approval("r")
    with pytest.raises(NothingPending):
        stage.client.approval("r", "c3")
    asked = stage.client.approval("r", "c1")
    stage.client.approve(asked, by="ann", arguments={"b": 1, "a": "x"})
    with pytest.raises(InputRefused):
        stage.client.approve(asked, by="ann", arguments={"a": float("nan")})
    stage.client.reject(asked, by="ann", message="no")
    stage.client.ran(asked, {"id": 1}, by="ann")
    stage.client.did_not_run(asked, by="ann")
    stage.client.give_up(asked, by="ann")
    stage.client.cancel("r", "why")
    bodies = [command.body for _, _, command in stage.commands()]
    decisions = [body for body in bodies if isinstance(body, Decide)]
    assert [body.arguments for body in decisions] == [b'{"b":1,"a":"x"}', None, None, None, None]
    assert [body.verdict for body in decisions] == [
        Verdict.APPROVE,
        Verdict.REJECT,
        Verdict.RAN,
        Verdict.DID_NOT_RUN,
        Verdict.GIVE_UP,
    ]
    assert {(body.call_id, body.token, body.decided_by) for body in decisions} == {
        ("c1", "token of c1", "ann")
    }
    assert decisions[2].result == b'{"id":1}'
    assert bodies[-1] == Cancel("why")
    with pytest.raises(InputRefused):
        stage.client.ran(asked, object(), by="ann")


def test_the_answer_to_a_command_is_the_event_that_names_it(stage: Stage) -> None:
    """Accepted: the event; refused: the stable reason; not answered; and no event of such a run."""
    stage.events("r", CREATED, cause="one", answers_command=True)
    stage.events("r", CommandRejected("Cancel", "run_terminal"), start=2, cause="two", answers_command=True)
    stage.events("r", RunWaiting("agent", 5), start=3, cause="three", answers_command=False)
    assert stage.client.answered("r", "one").seq == 1
    with pytest.raises(CommandRefused) as refused:
        stage.client.answered("r", "two")
    assert refused.value.reason == "run_terminal"
    with pytest.raises(NoAnswerYet):
        stage.client.answered("r", "three", 1)
    with pytest.raises(UnknownRun):
        stage.client.answered("s", "one", 1)


def test_publishing_writes_a_definition_once(stage: Stage) -> None:
    """A second publish of the same agent finds it there."""
    agent = Agent("a", model="m")
    assert stage.client.publish(agent) == stage.client.publish(agent) == agent.digest
    partition = stage.log.cluster.partition(TopicPartition(NAMES.topic("agent-definitions"), 0))
    assert partition.end == 1
    assert digest_of(agent.encoded[1]) == agent.digest


def test_missing_topics_are_told_with_what_to_do() -> None:
    """On a cluster without perdure's topics nothing hangs and nothing is created."""
    with Client(Settings(namespace="unit"), log=ModelLog(ModelCluster()), clock=SteppingClock()) as client:
        for ask in (lambda: client.submit("a", "x"), client.runs, lambda: client.outcome("r")):
            with pytest.raises(TopicMissing, match="perdure topics apply"):
                ask()
