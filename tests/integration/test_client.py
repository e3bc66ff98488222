"""The client on a real broker: what it writes is durable and where it belongs, what it reads is committed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from perdure.connectors.agent import Agent
from perdure.connectors.client import Client
from perdure.connectors.client_errors import NoOutcomeYet, UnknownRun
from perdure.connectors.settings import Settings
from perdure.connectors.topic_reader import TopicMissing
from perdure.console.topics import provisioned
from perdure.schemas.codec import decode, encode
from perdure.schemas.commands import Command, Submit
from perdure.schemas.events import Event, RunCompleted, RunCreated
from perdure.schemas.outputs import Outcome
from perdure.schemas.values import Provenance, RunState, Struct, Usage
from perdure.topics.partitioner import partition_of
from perdure.topics.table import Namespace

PARTITIONS = 4
CREATED = RunCreated("a", "1", "d", b'"i"', Provenance(), 5)
COMPLETED = RunCompleted(b'"o"', "end_turn")


@pytest.fixture
def settings(kafka: str, namespace: str) -> Settings:
    made = Settings(bootstrap=kafka, namespace=namespace, partitions=PARTITIONS)
    provisioned(made)
    return made


@pytest.fixture
def client(settings: Settings) -> Iterator[Client]:
    with Client(settings) as client:
        yield client


@pytest.fixture
def orchestrator(settings: Settings) -> Iterator[Producer]:
    """Someone who writes in transactions, as an orchestrator does."""
    producer = Producer(
        {
            "bootstrap.servers": settings.bootstrap,
            "transactional.id": f"{settings.namespace}.test",
            "log_level": 0,
        }
    )
    producer.init_transactions(30)
    yield producer
    producer.flush(10)


def write(producer: Producer, settings: Settings, name: str, key: str, record: Struct) -> None:
    topic = Namespace(settings.namespace).topic(name)
    partition = partition_of(key, PARTITIONS)
    producer.produce(topic, key=key.encode(), value=encode(record), partition=partition)


def outcome(run_id: str) -> Outcome:
    return Outcome(
        run_id, 0, RunState.COMPLETED, "a", "d", 2, b'"o"', "end_turn", None, None, None, Usage(), 1, 1, 2,
        Provenance()
    )  # fmt: skip


def test_a_submit_is_in_the_log_when_it_returns(client: Client, settings: Settings) -> None:
    """An independent reader finds exactly one record, on the partition that the Java client would choose."""
    run_id = client.submit("a", "hello", run_id="order-1")
    topic = Namespace(settings.namespace).topic("run-commands")
    reader = Consumer(
        {"bootstrap.servers": settings.bootstrap, "group.id": "reader", "isolation.level": "read_committed"}
    )
    reader.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    message = reader.poll(20)
    assert message is not None
    assert message.error() is None
    assert (message.partition(), message.key()) == (partition_of(run_id, PARTITIONS), b"order-1")
    assert decode(Command, message.value()).body == Submit("a", b'"hello"')
    assert reader.poll(0.5) is None
    reader.close()


def test_only_committed_records_are_seen(client: Client, settings: Settings, orchestrator: Producer) -> None:
    """Events and outcomes of an aborted transaction do not exist; those of a committed one do, once."""
    for is_committed in (False, True):
        orchestrator.begin_transaction()
        write(orchestrator, settings, "run-events", "r/1", Event("r", 1, 1, CREATED))
        write(orchestrator, settings, "run-events", "r/2", Event("r", 2, 1, COMPLETED))
        write(orchestrator, settings, "run-outcomes", "r", outcome("r"))
        if is_committed:
            orchestrator.commit_transaction(30)
        else:
            orchestrator.abort_transaction(30)
            assert list(client.events("r")) == []
            with pytest.raises(NoOutcomeYet):
                client.outcome("r", timeout_s=0.5)
    assert [event.seq for event in client.events("r", follow=True, timeout_s=30)] == [1, 2]
    assert client.outcome("r", timeout_s=30) == outcome("r")


def test_an_open_transaction_holds_readers_back_without_losing_what_follows(
    client: Client, settings: Settings, orchestrator: Producer
) -> None:
    """Following sees nothing of it while it is open and everything, in order, once it is committed."""
    orchestrator.begin_transaction()
    write(orchestrator, settings, "run-events", "r/1", Event("r", 1, 1, CREATED))
    orchestrator.flush(10)
    assert list(client.events("r", follow=True, timeout_s=0.5)) == []
    write(orchestrator, settings, "run-events", "r/2", Event("r", 2, 1, COMPLETED))
    orchestrator.commit_transaction(30)
    assert [event.seq for event in client.events("r", follow=True, timeout_s=30)] == [1, 2]


def test_nobody_answers_for_a_run_that_does_not_exist(client: Client) -> None:
    """A command to nobody is told as such after a bounded wait, and there is no status of it."""
    with pytest.raises(UnknownRun):
        client.answered("nobody", client.cancel("nobody"), timeout_s=1)
    with pytest.raises(UnknownRun):
        client.status("nobody")
    assert client.runs() == []
    assert client.approvals() == []


def test_an_agent_is_published_once_on_the_real_topic(client: Client) -> None:
    """Publishing again finds it there."""
    agent = Agent("a", model="m", system="x")
    assert client.publish(agent) == client.publish(agent) == agent.digest


def test_a_namespace_without_topics_is_told(kafka: str, namespace: str) -> None:
    """Nothing hangs and no topic is created by asking."""
    with Client(Settings(bootstrap=kafka, namespace=namespace)) as client, pytest.raises(TopicMissing):
        client.runs()
