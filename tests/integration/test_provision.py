"""Provisioning a real cluster."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from perdure.connectors.local_kafka import kafka_tool
from perdure.processors.offset_map import OffsetMap, decode, empty_map
from perdure.topics.admin import GroupInUse
from perdure.topics.kafka_log import KafkaLog
from perdure.topics.log import (
    CommittedOffset,
    Consumer,
    ConsumerSpec,
    GroupProtocol,
    Outgoing,
    Position,
    TopicPartition,
)
from perdure.topics.provision import Advice, AlterTopic, PartitionsDiffer, StartGroup, apply, plan
from perdure.topics.table import RUN_COMMANDS, RUN_EVENTS, TOOL_REQUESTS, TOPICS, Namespace, Role

pytestmark = pytest.mark.timeout(120)

ASK_S = 10.0
PARTITIONS = 2


@pytest.fixture
def log(kafka: str) -> KafkaLog:
    return KafkaLog(kafka)


@pytest.fixture
def names(log: KafkaLog, namespace: str) -> Namespace:
    """A namespace that is provisioned."""
    made = Namespace(namespace)
    apply(log.provision, plan(log.provision, made, PARTITIONS, 1), empty_map)
    return made


class Bystander:
    """Takes what it is given and reads nothing of it."""

    owned: tuple[TopicPartition, ...] = ()

    def on_assign(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None:
        self.owned = partitions
        consumer.incremental_assign([Position(at, 0) for at in partitions])

    def on_revoke(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None: ...

    def on_lost(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None: ...


def until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"


def test_what_was_applied_is_what_the_table_says(log: KafkaLog, names: Namespace) -> None:
    """The brokers report each topic with the table's partitions and settings; a second plan is empty."""
    assert plan(log.provision, names, PARTITIONS, 1) == ()
    found = log.provision.topics([names.topic(spec.name) for spec in TOPICS], ASK_S)
    for spec in TOPICS:
        state = found[names.topic(spec.name)]
        assert state.partitions == spec.partitions(PARTITIONS)
        assert spec.settings(1).items() <= state.settings.items()


def test_an_executor_finds_an_offset_and_a_map_it_can_read(log: KafkaLog, names: Namespace) -> None:
    """What a member of the group fetches is offset 0 and the empty map of this topic."""
    topic = names.topic(TOOL_REQUESTS)
    spec = ConsumerSpec("c", group=names.group(Role.TOOL_EXECUTOR), protocol=log.consumer_protocol())
    consumer = log.consumer(spec)
    committed = consumer.committed([TopicPartition(topic, p) for p in range(PARTITIONS)], ASK_S)
    topic_id = log.describe([topic], ASK_S)[topic].topic_id
    assert [each.offset for each in committed] == [0] * PARTITIONS
    assert [decode(0, each.metadata, topic_id) for each in committed] == [OffsetMap()] * PARTITIONS
    consumer.close()


def test_a_topic_altered_by_somebody_is_put_right(log: KafkaLog, names: Namespace) -> None:
    """The plan names the setting with both values, and applying it changes it back."""
    topic = names.topic(RUN_EVENTS)
    log.provision.alter_topic(topic, {"cleanup.policy": "delete", "segment.ms": "86400000"}, ASK_S)
    until(lambda: log.provision.topics([topic], ASK_S)[topic].settings["cleanup.policy"] == "delete")
    changes = plan(log.provision, names, PARTITIONS, 1)
    assert changes == (AlterTopic(topic, {"cleanup.policy": "delete"}, {"cleanup.policy": "compact"}),)
    apply(log.provision, changes, empty_map)
    until(lambda: plan(log.provision, names, PARTITIONS, 1) == ())
    assert log.provision.topics([topic], ASK_S)[topic].settings["segment.ms"] == "86400000"


def test_added_partitions_are_refused(log: KafkaLog, names: Namespace, kafka: str) -> None:
    """Partitions added with Kafka's own tool are found, named and not accepted."""
    topic = names.topic(RUN_COMMANDS)
    kafka_tool(
        "org.apache.kafka.tools.TopicCommand",
        ["--bootstrap-server", kafka, "--alter", "--topic", topic, "--partitions", "5"],
    )
    until(lambda: log.describe([topic], ASK_S)[topic].partitions == 5)
    with pytest.raises(PartitionsDiffer, match=f"{topic} has 5 and should have {PARTITIONS}"):
        plan(log.provision, names, PARTITIONS, 1)


@pytest.mark.parametrize("protocol", [GroupProtocol.COOPERATIVE, GroupProtocol.CONSUMER])
def test_a_live_group_is_left_alone_until_it_has_gone(
    log: KafkaLog, namespace: str, protocol: GroupProtocol
) -> None:
    """With a member in the group its offsets are only told about, and refused; without, they are set."""
    names = Namespace(namespace)
    group, topic = names.group(Role.TOOL_EXECUTOR), names.topic(TOOL_REQUESTS)
    changes = plan(log.provision, names, PARTITIONS, 1)
    later = [change for change in changes if isinstance(change, StartGroup) and change.group == group]
    apply(log.provision, [change for change in changes if change not in later], empty_map)
    consumer, listener = log.consumer(ConsumerSpec("c", group=group, protocol=protocol)), Bystander()
    consumer.subscribe([topic], listener)
    until(lambda: consumer.poll(1, 0.05) or listener.owned)
    (note,) = plan(log.provision, names, PARTITIONS, 1)
    assert isinstance(note, Advice)
    assert f"no offset on {topic}/0-1 but 1 live members" in note.describe()
    with pytest.raises(GroupInUse):
        apply(log.provision, later, empty_map)
    consumer.close()
    until(lambda: log.provision.members(group, ASK_S) == 0)
    apply(log.provision, plan(log.provision, names, PARTITIONS, 1), empty_map)
    assert plan(log.provision, names, PARTITIONS, 1) == ()


def test_a_group_that_lost_its_offsets_is_not_told_that_nothing_was_started(
    log: KafkaLog, names: Namespace
) -> None:
    """After the offsets are gone, a partition with requests starts at its first one without a map."""
    group, topic = names.group(Role.TOOL_EXECUTOR), names.topic(TOOL_REQUESTS)
    producer = log.producer("p")
    for _ in range(3):
        producer.produce(Outgoing(topic, 0, b"run", b"request"))
    assert producer.flush(ASK_S) == 0
    producer.close()
    log.delete_records([Position(TopicPartition(topic, 0), 1)], ASK_S)
    log.admin.client.delete_consumer_groups([group])[group].result(ASK_S)
    apply(log.provision, plan(log.provision, names, PARTITIONS, 1), empty_map)
    topic_id = log.describe([topic], ASK_S)[topic].topic_id
    assert list(
        log.provision.offsets(group, [TopicPartition(topic, p) for p in range(PARTITIONS)], ASK_S)
    ) == [
        CommittedOffset(TopicPartition(topic, 0), 1, ""),
        CommittedOffset(TopicPartition(topic, 1), 0, empty_map(topic_id)),
    ]
