"""What only a real cluster shows of the Log over Kafka; what both logs promise is in tests/contract."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from perdure.connectors.local_kafka import LocalKafka, kafka_tool
from perdure.schemas.errors import PerdureError
from perdure.topics.errors import (
    Fenced,
    LogMisuse,
    OffsetOutOfRange,
    OutcomeUnknown,
    Unavailable,
)
from perdure.topics.kafka_log import KafkaLog
from perdure.topics.kafka_settings import PROTECTED, SettingRefused
from perdure.topics.log import (
    CommitStatus,
    CommittedOffset,
    Consumer,
    ConsumerSpec,
    GroupProtocol,
    Isolation,
    Outgoing,
    Position,
    Record,
    TopicPartition,
)
from perdure.topics.partitioner import partition_of
from tests.integration.kafka_stage import Member, create, frozen, joined, opened, read_to_end, until, write

pytestmark = pytest.mark.timeout(120)

ASK_S = 10.0
POLL_S = 0.05
PARTITIONS = 3


@pytest.fixture
def log(kafka: str) -> KafkaLog:
    return KafkaLog(kafka)


@pytest.fixture
def topic(log: KafkaLog, namespace: str) -> str:
    return create(log, f"{namespace}.topic")


# ---- settings


@pytest.mark.parametrize("key", sorted(PROTECTED))
def test_a_setting_that_a_guarantee_rests_on_is_refused_by_name(key: str) -> None:
    """Also one that would repeat perdure's own value: there is one place for each of these."""
    with pytest.raises(SettingRefused, match=rf"kafka\.{key.replace('.', '[.]')}:"):
        KafkaLog("127.0.0.1:1", {key: "x"})


def test_a_callback_can_not_be_passed_through() -> None:
    """A callback from outside would replace the one that hears fatal errors."""
    with pytest.raises(SettingRefused, match="error_cb"):
        KafkaLog("127.0.0.1:1", {"error_cb": "x"})


@pytest.mark.parametrize(("key", "value"), [("sasl.mechanism.of.mine", "x"), ("security.protocol", "frog")])
def test_a_setting_that_the_client_refuses_is_told_as_such(key: str, value: str) -> None:
    """A typing error in a passed-through setting names the setting, and is no defect of perdure."""
    with pytest.raises(SettingRefused, match=key):
        KafkaLog("127.0.0.1:1", {key: value}).producer("p")


def test_other_settings_reach_every_client(kafka: str, topic: str) -> None:
    """A passed-through setting is taken by all four kinds of client, which then work."""
    log = KafkaLog(
        kafka, {"socket.send.buffer.bytes": 65_536, "ssl.endpoint.identification.algorithm": "none"}
    )
    write(log, topic, 0, b"x")
    producer = opened(log, f"{topic}.id")
    producer.abort(ASK_S)
    producer.close()
    reader = log.consumer(ConsumerSpec("r", eof=True))
    reader.assign([Position(TopicPartition(topic, 0), 0)])
    assert [record.value for record in read_to_end(reader)] == [b"x"]
    reader.close()
    assert log.describe([topic], ASK_S)[topic].partitions == PARTITIONS


# ---- membership


@pytest.mark.parametrize("protocol", GroupProtocol)
def test_generation_and_member_id_are_those_of_the_group(
    log: KafkaLog, topic: str, protocol: GroupProtocol
) -> None:
    """What is read out of the client's opaque metadata equals what the coordinator says about the member."""
    group = f"{topic}.group"
    consumer = log.consumer(ConsumerSpec("c", group=group, protocol=protocol))
    assert not consumer.group_metadata().is_member
    consumer.close()
    consumer, member = joined(log, ConsumerSpec("c", group=group, protocol=protocol), topic)
    described = log.admin.client.describe_consumer_groups([group])[group].result(ASK_S)
    assert member.metadata.is_member
    assert member.metadata.group == group
    assert [each.member_id for each in described.members] == [member.metadata.member_id]
    consumer.close()


@pytest.mark.parametrize("protocol", [GroupProtocol.RANGE, GroupProtocol.COOPERATIVE])
def test_a_member_that_was_evicted_knows_it_and_is_refused(
    log: KafkaLog, topic: str, protocol: GroupProtocol
) -> None:
    """After eviction the metadata is no membership, commits are refused, the captured metadata is fenced."""
    spec = ConsumerSpec("c", group=f"{topic}.group", protocol=protocol, max_poll_interval_ms=6_000)
    consumer, member = joined(log, spec, topic)
    # Not polled any more, the client leaves the group by itself.
    until(lambda: not consumer.group_metadata().is_member)
    at = next(iter(member.owned))
    outcome = consumer.commit([CommittedOffset(at, 0)])
    assert (outcome.status, outcome.reason) == (CommitStatus.REFUSED, "UNKNOWN_MEMBER_ID")
    producer = opened(log, f"{topic}.id")
    producer.produce(Outgoing(topic, 0, None, b"x"))
    with pytest.raises(Fenced, match="UNKNOWN_MEMBER_ID"):
        producer.send_offsets([Position(at, 1)], member.metadata, ASK_S)
    producer.close()
    until(lambda: consumer.poll(1, POLL_S) or member.seen == ["assign", "lost", "assign"])
    consumer.close()


def test_a_static_member_that_was_taken_over_is_told_so(log: KafkaLog, topic: str) -> None:
    """A second process with the same instance id fences the first, in poll and in its commits."""
    spec = ConsumerSpec("c", group=f"{topic}.group", instance_id="slot-0")
    first, first_member = joined(log, spec, topic)
    second, second_member = joined(log, spec, topic)
    assert second_member.owned == first_member.owned
    outcome = first.commit([CommittedOffset(TopicPartition(topic, 0), 0)])
    assert (outcome.status, outcome.reason) == (CommitStatus.UNKNOWN, "FENCED_INSTANCE_ID")
    with pytest.raises(Fenced):
        until(lambda: first.poll(1, POLL_S) and False)
    with pytest.raises(Fenced):  # and again: it does not pass
        first.poll(1, POLL_S)
    first.close()
    second.close()


def test_a_listener_that_raises_breaks_its_consumer(log: KafkaLog, topic: str) -> None:
    """The failure reaches the poller, again each time, and no record is delivered as if nothing had been."""

    class Broken(Member):
        def on_assign(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None:
            raise RuntimeError("no room")

    write(log, topic, 0, b"x")
    consumer = log.consumer(ConsumerSpec("c", group=f"{topic}.group"))
    consumer.subscribe([topic], Broken(GroupProtocol.RANGE))
    with pytest.raises(RuntimeError, match="no room"):
        until(lambda: consumer.poll(1, POLL_S))
    with pytest.raises(RuntimeError, match="no room"):
        consumer.poll(1, POLL_S)
    consumer.close()


# ---- reading


def test_partitions_added_by_hand_and_resumed_ones_deliver_at_once(log: KafkaLog, topic: str) -> None:
    """The client's own sleep of up to a second after an assignment or a resume does not show."""
    beside = create(log, f"{topic}.beside")
    for partition in range(PARTITIONS):
        write(log, beside, partition, b"x")
    waits = [_first_record_after_resume_s(log, topic, beside, f"{topic}.{attempt}") for attempt in range(3)]
    assert sorted(waits)[1] < 0.5


def _first_record_after_resume_s(log: KafkaLog, topic: str, beside: str, group: str) -> float:
    consumer, _ = joined(log, ConsumerSpec("c", group=group), topic, beside=beside)
    first = TopicPartition(beside, 0)
    consumer.pause([first])
    until(lambda: not consumer.poll(10, POLL_S))
    consumer.seek(Position(first, 0))
    started = time.monotonic()
    consumer.resume([first])
    until(lambda: [item for item in consumer.poll(10, POLL_S) if item.topic == beside])
    waited = time.monotonic() - started
    consumer.close()
    return waited


def test_the_first_item_is_not_held_back_for_more(log: KafkaLog, topic: str) -> None:
    """Asked for 1,000 records within 10 s, poll returns the one that is there."""
    write(log, topic, 0, b"x")
    reader = log.consumer(ConsumerSpec("r"))
    reader.assign([Position(TopicPartition(topic, 0), 0)])
    started = time.monotonic()
    assert len(reader.poll(1_000, 10.0)) == 1
    assert time.monotonic() - started < 5
    reader.close()


def test_a_partition_below_its_log_start_fails_alone(log: KafkaLog, topic: str) -> None:
    """Records of other partitions come through; the missing offset is an error naming the partition."""
    write(log, topic, 0, b"a", b"b")
    write(log, topic, 1, b"c")
    log.delete_records([Position(TopicPartition(topic, 0), 1)], ASK_S)
    reader = log.consumer(ConsumerSpec("r"))
    reader.assign([Position(TopicPartition(topic, 0), 0), Position(TopicPartition(topic, 1), 0)])
    values: list[bytes | None] = []
    failures: list[str] = []

    def both() -> bool:
        try:
            values.extend(item.value for item in reader.poll(10, POLL_S) if isinstance(item, Record))
        except OffsetOutOfRange as raised:
            failures.append(str(raised))
        return values == [b"c"] and len(failures) == 1

    until(both)
    assert f"{topic}/0" in failures[0]
    reader.assign([Position(TopicPartition(topic, 0), 1)])
    until(lambda: [r for r in reader.poll(10, POLL_S) if isinstance(r, Record) and r.value == b"b"])
    reader.close()


def test_a_seek_to_what_is_not_assigned_is_misuse(log: KafkaLog, topic: str) -> None:
    """The caller is told; Kafka's own error does not leak through the port."""
    reader = log.consumer(ConsumerSpec("r"))
    reader.assign([Position(TopicPartition(topic, 0), 0)])
    with pytest.raises(LogMisuse):
        reader.seek(Position(TopicPartition(topic, 1), 0))
    reader.close()
    with pytest.raises(LogMisuse):
        reader.poll(1, 0)


def test_the_end_of_an_open_transaction_is_seen_by_the_uncommitted_mark_alone(
    log: KafkaLog, topic: str
) -> None:
    """Watermarks come from the leader each time, for the isolation asked for."""
    at = TopicPartition(topic, 0)
    producer = opened(log, f"{topic}.id")
    producer.produce(Outgoing(topic, 0, None, b"x"), track=True)
    until(lambda: log.watermarks(at, Isolation.UNCOMMITTED, ASK_S).end == 1)
    assert log.watermarks(at, Isolation.COMMITTED, ASK_S).end == 0
    assert producer.commit(ASK_S) == {at: 0}
    until(lambda: log.watermarks(at, Isolation.COMMITTED, ASK_S).end == 2)
    producer.close()


# ---- a broker that is away


@pytest.mark.slow
def test_nothing_but_a_commit_waits_longer_than_told_for_a_broker_that_hangs(tmp_path: Path) -> None:
    """Questions are Unavailable, a commit of unknown outcome is called so, closing does not wait for it."""
    broker = LocalKafka(tmp_path / "broker").start()
    try:
        log = KafkaLog(broker.bootstrap)
        topic = create(log, "topic")
        at = TopicPartition(topic, 0)
        consumer, _ = joined(log, ConsumerSpec("c", group="group"), topic)
        producer = opened(log, "id")
        producer.produce(Outgoing(topic, 0, None, b"x"))
        until(lambda: log.watermarks(at, Isolation.UNCOMMITTED, ASK_S).end == 1)
        reports: list[tuple[PerdureError | None, int]] = []
        plain = log.producer("plain")
        with frozen(broker):
            started = time.monotonic()
            assert consumer.poll(1, 0.1) == []
            with pytest.raises(Unavailable):
                consumer.committed([at], 0.5)
            with pytest.raises(Unavailable):
                log.watermarks(at, Isolation.COMMITTED, 0.5)
            with pytest.raises(Unavailable):
                log.describe([topic], 0.5)
            with pytest.raises(OutcomeUnknown):
                producer.commit(0.5)
            with pytest.raises(LogMisuse):
                producer.abort(0.5)
            producer.close()
            plain.produce(Outgoing(topic, 1, None, b"x"), lambda error, at: reports.append((error, at)))
            assert plain.flush(0.5) == 1
            plain.close()
            consumer.close()
            assert time.monotonic() - started < 20
        assert [(type(error), offset) for error, offset in reports] == [(OutcomeUnknown, -1)]
    finally:
        broker.kill()


# ---- the cluster


def test_a_cluster_with_the_new_protocol_is_recognised(log: KafkaLog) -> None:
    """Kafka 4 has KIP-848 groups on unless told otherwise."""
    assert log.consumer_protocol() is GroupProtocol.CONSUMER


def test_a_cluster_without_the_new_protocol_is_recognised(tmp_path: Path) -> None:
    """A broker that names the API but has such groups switched off refuses the probe."""
    broker = LocalKafka(tmp_path / "broker", overrides={"group.coordinator.rebalance.protocols": "classic"})
    try:
        assert KafkaLog(broker.start().bootstrap).consumer_protocol() is GroupProtocol.COOPERATIVE
    finally:
        broker.kill()


def test_a_cluster_that_does_not_answer_has_no_protocol_yet() -> None:
    """Nothing is guessed, and nothing remembered: the next question asks again."""
    log = KafkaLog("127.0.0.1:1")
    with pytest.raises(Unavailable):
        log.consumer_protocol()


def test_a_record_of_the_java_client_lands_where_the_partitioner_says(
    log: KafkaLog, kafka: str, topic: str
) -> None:
    """Kafka's own producer, with its default partitioner, agrees on each of 300 keys."""
    wide = create(log, f"{topic}.wide", partitions=16)
    kafka_tool(
        "org.apache.kafka.tools.VerifiableProducer",
        ["--bootstrap-server", kafka, "--topic", wide, "--max-messages", "300", "--repeating-keys", "300"],
    )
    reader = log.consumer(ConsumerSpec("r"))
    reader.assign([Position(TopicPartition(wide, partition), 0) for partition in range(16)])
    found: dict[str, int] = {}

    def all_read() -> bool:
        for item in reader.poll(100, POLL_S):
            assert isinstance(item, Record)
            assert item.key is not None
            found[item.key.decode()] = item.partition
        return len(found) == 300

    until(all_read)
    reader.close()
    assert found == {key: partition_of(key, 16) for key in found}


def test_delete_records_moves_the_start_and_tells_what_lies_beyond_the_end(log: KafkaLog, topic: str) -> None:
    """The low mark follows; an offset beyond the end is an error and moves nothing."""
    at = TopicPartition(topic, 0)
    write(log, topic, 0, b"a", b"b", b"c")
    log.delete_records([Position(at, 2)], ASK_S)
    assert log.watermarks(at, Isolation.COMMITTED, ASK_S).low == 2
    with pytest.raises(OffsetOutOfRange):
        log.delete_records([Position(at, 9)], ASK_S)
    assert log.watermarks(at, Isolation.COMMITTED, ASK_S).low == 2
    log.delete_records([], ASK_S)


def test_a_topic_made_again_has_another_id(log: KafkaLog, topic: str) -> None:
    """So that offsets and stores of the earlier one can be told apart."""
    before = log.describe([topic, f"{topic}.never"], ASK_S)
    assert set(before) == {topic}
    log.admin.client.delete_topics([topic])[topic].result(ASK_S)
    until(lambda: topic not in log.describe([topic], ASK_S))
    create(log, topic)
    assert log.describe([topic], ASK_S)[topic].topic_id != before[topic].topic_id
