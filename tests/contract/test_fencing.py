"""The Log port: who may still write under a transactional id."""

from __future__ import annotations

import pytest

from perdure.topics.errors import Fenced, Unavailable
from perdure.topics.log import GroupMetadata, Isolation, Outgoing, Position, TopicPartition
from tests.contract.world import TIMEOUT_S, World


def record(topic: str, value: bytes) -> Outgoing:
    return Outgoing(topic, 0, b"key", value)


def written(world: World, topic: str) -> int:
    return world.log.watermarks(TopicPartition(topic, 0), Isolation.UNCOMMITTED, TIMEOUT_S).end


def test_newer_holder_fences_the_older(world: World) -> None:
    """After another producer took the transactional id, the older one's commit is Fenced."""
    topic = world.topic()
    older = world.transactional()
    older.begin()
    older.produce(record(topic, b"older"))
    world.until(lambda: written(world, topic) == 1)
    newer = world.transactional()
    with pytest.raises(Fenced):
        older.commit(TIMEOUT_S)
    world.write_transaction(newer, topic, b"newer")
    world.until(lambda: world.read_all(topic)[0] == [b"newer"])


def test_older_holder_between_transactions_is_fenced_by_its_next_write(world: World) -> None:
    """An idle older holder learns of its fencing when it next commits something."""
    topic = world.topic()
    older = world.transactional()
    world.write_transaction(older, topic, b"older")
    newer = world.transactional()
    with pytest.raises(Fenced):
        world.write_transaction(older, topic, b"zombie")
    world.write_transaction(newer, topic, b"newer")
    world.until(lambda: world.read_all(topic)[0] == [b"older", b"newer"])


def test_older_holder_can_not_send_offsets(world: World) -> None:
    """Offsets of a fenced producer are refused, whatever group metadata they carry."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    older = world.transactional()
    older.begin()
    world.transactional()
    with pytest.raises(Fenced):
        older.send_offsets([Position(at, 1)], GroupMetadata(world.name("group"), -1, ""), TIMEOUT_S)
    assert world.lone_committer().committed([at], TIMEOUT_S)[0].offset is None


def test_init_aborts_the_older_open_transaction(world: World) -> None:
    """When init returns, the killed predecessor's open transaction is aborted and holds nothing back."""
    topic = world.topic()
    older = world.transactional()
    older.begin()
    older.produce(record(topic, b"older"))
    world.until(lambda: written(world, topic) == 1)
    world.kill(older)
    newer = world.transactional()
    world.write_transaction(newer, topic, b"newer")
    world.until(lambda: world.read_all(topic) == ([b"newer"], 4))


def test_init_frees_the_offsets_of_the_older_transaction(world: World) -> None:
    """After init, offsets that a killed predecessor left pending are gone and committed() answers."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    group = GroupMetadata(world.name("group"), -1, "")
    older = world.transactional()
    older.begin()
    older.send_offsets([Position(at, 4)], group, TIMEOUT_S)
    world.kill(older)
    world.transactional()
    assert world.lone_committer().committed([at], TIMEOUT_S)[0].offset is None


def test_pending_offsets_are_not_told(world: World) -> None:
    """While a transaction holds an offset of a partition, committed() does not answer for that partition."""
    topic = world.topic(partitions=2)
    held, free = TopicPartition(topic, 0), TopicPartition(topic, 1)
    producer = world.transactional()
    producer.begin()
    producer.send_offsets([Position(held, 4)], GroupMetadata(world.name("group"), -1, ""), TIMEOUT_S)
    asking = world.lone_committer()
    assert asking.committed([free], TIMEOUT_S)[0].offset is None
    with pytest.raises(Unavailable):
        asking.committed([held], 1.0)
    producer.commit(TIMEOUT_S)
    assert asking.committed([held], TIMEOUT_S)[0].offset == 4


def test_coordinator_aborts_a_transaction_that_takes_too_long(world: World) -> None:
    """A killed producer's transaction is aborted after its time-out, without anyone asking."""
    topic = world.topic()
    producer = world.transactional(timeout_ms=1_000)
    producer.begin()
    producer.produce(record(topic, b"never"))
    world.until(lambda: written(world, topic) == 1)
    world.kill(producer)
    world.write(topic, b"after")
    world.until(lambda: world.read_all(topic) == ([b"after"], 3))


def test_holder_of_a_timed_out_transaction_can_not_commit_it(world: World) -> None:
    """A producer that was too slow finds its commit Fenced, and nothing of it is visible."""
    topic = world.topic()
    producer = world.transactional(timeout_ms=1_000)
    producer.begin()
    producer.produce(record(topic, b"never"))
    world.until(lambda: written(world, topic) == 2)
    with pytest.raises(Fenced):
        producer.commit(TIMEOUT_S)
    assert world.read_all(topic) == ([], 2)


def test_other_ids_are_not_fenced(world: World) -> None:
    """Producers of different transactional ids do not touch each other."""
    topic = world.topic()
    first, second = world.transactional("first"), world.transactional("second")
    world.write_transaction(first, topic, b"1")
    world.write_transaction(second, topic, b"2")
    world.write_transaction(first, topic, b"3")
    world.until(lambda: world.read_all(topic)[0] == [b"1", b"2", b"3"])


def test_closed_producer_leaves_its_transaction_open(world: World) -> None:
    """Close neither commits nor aborts: what was open goes on holding readers back."""
    topic = world.topic()
    producer = world.transactional()
    producer.begin()
    producer.produce(record(topic, b"open"))
    world.until(lambda: written(world, topic) == 1)
    producer.close()
    world.write(topic, b"plain")
    assert world.read_all(topic) == ([], 0)
