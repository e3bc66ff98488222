"""The Log port when requests are lost, late or sent twice: what may be known, what must not be believed."""

from __future__ import annotations

import pytest

from perdure.topics.errors import Fenced, OutcomeUnknown
from perdure.topics.log import (
    CommitStatus,
    CommittedOffset,
    Consumer,
    ConsumerSpec,
    GroupMetadata,
    Isolation,
    Outgoing,
    Position,
    TopicPartition,
)
from perdure.topics.model_faults import Api, Fate
from tests.contract.world import TIMEOUT_S, World

SHORT_S = 2.0  # for calls that will not succeed


def record(topic: str, value: bytes) -> Outgoing:
    return Outgoing(topic, 0, b"key", value)


def written(world: World, topic: str) -> int:
    return world.log.watermarks(TopicPartition(topic, 0), Isolation.UNCOMMITTED, TIMEOUT_S).end


def committer(world: World) -> tuple[str, Consumer]:
    client = world.name("committer")
    spec = ConsumerSpec(client, group=world.name("group"), commit_retry_backoff_ms=100)
    return client, world.consumer(spec, world.faulty)


def nobody(world: World) -> GroupMetadata:
    return GroupMetadata(world.name("group"), -1, "")


def test_hidden_resend_lets_an_older_commit_land_over_a_newer_one(world: World) -> None:
    """A commit's first frame may arrive after its acknowledged re-send, over a newer acknowledged commit."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    client, consumer = committer(world)
    assert consumer.commit([CommittedOffset(at, 1, "one")]).status is CommitStatus.ACKNOWLEDGED
    world.inject(Api.OFFSET_COMMIT, client, Fate.RESENT)
    assert consumer.commit([CommittedOffset(at, 2, "two")]).status is CommitStatus.ACKNOWLEDGED
    assert consumer.commit([CommittedOffset(at, 3, "three")]).status is CommitStatus.ACKNOWLEDGED
    assert world.release() == 1
    world.until(lambda: consumer.committed([at], TIMEOUT_S) == [CommittedOffset(at, 2, "two")])


def test_commit_without_an_answer_is_unknown_and_may_be_stored(world: World) -> None:
    """A commit whose answers are lost is UNKNOWN, never REFUSED, and here it was stored."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    client, consumer = committer(world)
    assert consumer.commit([CommittedOffset(at, 1)]).status is CommitStatus.ACKNOWLEDGED
    world.inject(Api.OFFSET_COMMIT, client, Fate.UNANSWERED)
    assert consumer.commit([CommittedOffset(at, 2)]).status is CommitStatus.UNKNOWN
    assert world.lone_committer().committed([at], TIMEOUT_S)[0].offset == 2


@pytest.mark.parametrize(("fate", "visible"), [(Fate.UNANSWERED, [b"a"]), (Fate.LOST, [])])
def test_commit_of_a_transaction_without_an_answer_went_either_way(
    world: World, fate: Fate, visible: list[bytes]
) -> None:
    """A transaction whose commit got no answer is OutcomeUnknown; after the next init its fate is settled."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    producer = world.transactional(log=world.faulty)
    world.inject(Api.END_TXN, world.name("slot-0"), fate)
    producer.begin()
    producer.produce(record(topic, b"a"))
    producer.send_offsets([Position(at, 5)], nobody(world), TIMEOUT_S)
    with pytest.raises(OutcomeUnknown):
        producer.commit(SHORT_S)
    producer.close()
    world.transactional()
    assert world.lone_committer().committed([at], TIMEOUT_S)[0].offset == (5 if visible else None)
    world.until(lambda: world.read_all(topic) == (visible, 2))


def test_late_end_of_a_transaction_commits_the_next_one(world: World) -> None:
    """The first frame of a re-sent EndTxn may end the producer's NEXT transaction: it names none."""
    topic = world.topic()
    producer = world.transactional(log=world.faulty)
    world.inject(Api.END_TXN, world.name("slot-0"), Fate.RESENT)
    world.write_transaction(producer, topic, b"first")
    producer.begin()
    producer.produce(record(topic, b"half"))
    world.until(lambda: written(world, topic) == 3)
    assert world.release() == 1
    world.until(lambda: world.read_all(topic) == ([b"first", b"half"], 4))


def test_late_offsets_of_a_transaction_replace_those_of_the_next(world: World) -> None:
    """The first frame of a re-sent TxnOffsetCommit may land in the NEXT transaction, offsets going back."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    producer = world.transactional(log=world.faulty)
    world.inject(Api.TXN_OFFSETS, world.name("slot-0"), Fate.RESENT)
    producer.begin()
    producer.send_offsets([Position(at, 1)], nobody(world), TIMEOUT_S)
    producer.commit(TIMEOUT_S)
    producer.begin()
    producer.send_offsets([Position(at, 2)], nobody(world), TIMEOUT_S)
    assert world.release() == 1
    producer.commit(TIMEOUT_S)
    assert world.lone_committer().committed([at], TIMEOUT_S)[0].offset == 1


def test_late_init_of_a_dead_process_fences_its_successor(world: World) -> None:
    """An InitProducerId that arrives late takes the id over from whoever holds it by then."""
    topic = world.topic()
    dead = world.transactional(init=False, log=world.faulty)
    world.inject(Api.INIT, world.name("slot-0"), Fate.HELD)
    with pytest.raises(OutcomeUnknown):
        dead.init(SHORT_S)
    dead.close()
    successor = world.transactional()
    world.write_transaction(successor, topic, b"a")
    # While its markers are under way the coordinator would turn the late request away, to be asked again.
    world.until(lambda: world.read_all(topic) == ([b"a"], 2))
    assert world.release() >= 1

    def fenced() -> bool:
        try:
            world.write_transaction(successor, topic, b"b")
        except Fenced:
            return True
        return False

    world.until(fenced)


def test_late_record_of_a_dead_producer_is_refused(world: World) -> None:
    """A transactional record that arrives after the id was taken over is never written."""
    topic = world.topic()
    dead = world.transactional(log=world.faulty)
    world.inject(Api.PRODUCE, world.name("slot-0"), Fate.HELD)
    dead.begin()
    dead.produce(record(topic, b"late"))
    with pytest.raises(OutcomeUnknown):
        dead.commit(SHORT_S)
    dead.close()
    successor = world.transactional()
    world.write_transaction(successor, topic, b"a")
    assert world.release() >= 1
    world.write_transaction(successor, topic, b"b")
    world.until(lambda: world.read_all(topic)[0] == [b"a", b"b"])


def test_resent_record_is_written_once(world: World) -> None:
    """An idempotent producer's record whose first frame comes late stands in the log once."""
    topic = world.topic()
    producer = world.producer(log=world.faulty)
    producer.produce(record(topic, b"warm"))
    assert producer.flush(TIMEOUT_S) == 0
    world.inject(Api.PRODUCE, world.name("producer"), Fate.RESENT)
    producer.produce(record(topic, b"twice?"))
    assert producer.flush(TIMEOUT_S) == 0
    world.release()
    producer.produce(record(topic, b"after"))
    assert producer.flush(TIMEOUT_S) == 0
    world.until(lambda: world.read_all(topic)[0] == [b"warm", b"twice?", b"after"])


def test_unanswered_record_is_not_known_to_be_durable(world: World) -> None:
    """A record whose answers are lost stays open in flush and is reported with an error at close."""
    topic = world.topic()
    producer = world.producer(log=world.faulty)
    reports: list[tuple[Exception | None, int]] = []
    producer.produce(record(topic, b"warm"))
    assert producer.flush(TIMEOUT_S) == 0
    world.inject(Api.PRODUCE, world.name("producer"), Fate.HELD)
    producer.produce(record(topic, b"open"), lambda error, offset: reports.append((error, offset)))
    assert producer.flush(SHORT_S) == 1
    assert reports == []
    producer.close()
    ((error, offset),) = reports
    assert isinstance(error, OutcomeUnknown)
    assert offset == -1
