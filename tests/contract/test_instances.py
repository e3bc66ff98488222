"""The Log port: static membership, and what ends it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.topics.errors import Fenced
from perdure.topics.log import (
    CommitStatus,
    CommittedOffset,
    GroupProtocol,
    Position,
    TopicPartition,
)
from tests.contract.members import same_generation, spec, told
from tests.contract.world import TIMEOUT_S, Owner, World

RANGE, COOPERATIVE, CONSUMER = GroupProtocol.RANGE, GroupProtocol.COOPERATIVE, GroupProtocol.CONSUMER
INCREMENTAL = [COOPERATIVE, CONSUMER]


@pytest.mark.parametrize("protocol", list(GroupProtocol))
def test_static_member_that_restarts_keeps_its_partitions(world: World, protocol: GroupProtocol) -> None:
    """A process that comes back under its instance id gets its partitions again, and only it hears of it."""
    topic = world.topic(partitions=2)
    one, other = Owner(protocol), Owner(protocol)
    first = world.member(one, [topic], spec(world, "first", protocol, "a"))
    second = world.member(other, [topic], spec(world, "second", protocol, "b"))
    world.poll_all([first, second], lambda: len(one.owned) == 1 and len(other.owned) == 1)
    generation = world.poll_all([first, second], lambda: same_generation(first, second))
    owned, heard = set(one.owned), told(other)
    first.close()
    again = Owner(protocol)
    restarted = world.member(again, [topic], spec(world, "first", protocol, "a"))
    world.poll_all([restarted, second], lambda: again.owned == owned)
    assert again.member.generation == generation
    assert again.member.member_id != one.member.member_id
    assert told(other) == heard


def test_second_process_under_an_instance_id_fences_the_first(world: World) -> None:
    """The older process is Fenced at every poll, without a callback, and its commits store nothing."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    one, other = Owner(), Owner()
    first = world.member(one, [topic], spec(world, "first", instance="a"))
    world.poll_all([first], lambda: one.owned == {at})
    second = world.member(other, [topic], spec(world, "second", instance="a"))
    world.poll_all([second], lambda: other.owned == {at})
    outcome = first.commit([CommittedOffset(at, 4)])
    assert (outcome.status, outcome.reason) == (CommitStatus.UNKNOWN, "FENCED_INSTANCE_ID")

    def fenced() -> bool:
        try:
            first.poll(1, 0.1)
        except Fenced:
            return True
        return False

    world.until(fenced)
    assert fenced()
    first.close()
    assert [kind for kind, _ in one.heard] == ["assign"]
    assert second.committed([at], TIMEOUT_S)[0].offset is None


def test_new_style_instance_id_is_not_taken_over_while_its_process_lives(world: World) -> None:
    """With KIP-848 it is the SECOND process under an instance id that is Fenced; the first goes on."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    one, other = Owner(CONSUMER), Owner(CONSUMER)
    first = world.member(one, [topic], spec(world, "first", CONSUMER, "a"))
    world.poll_all([first], lambda: one.owned == {at})
    second = world.member(other, [topic], spec(world, "second", CONSUMER, "a"))

    def fenced() -> bool:
        try:
            second.poll(1, 0.1)
        except Fenced:
            return True
        return False

    world.until(fenced)
    assert other.heard == []
    assert first.commit([CommittedOffset(at, 4)]).status is CommitStatus.ACKNOWLEDGED


def test_transaction_of_a_fenced_instance_is_fenced(world: World) -> None:
    """The metadata of a process whose instance id was taken over does not commit offsets."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    one, other = Owner(), Owner()
    first = world.member(one, [topic], spec(world, "first", instance="a"))
    world.poll_all([first], lambda: one.owned == {at})
    second = world.member(other, [topic], spec(world, "second", instance="a"))
    world.poll_all([second], lambda: other.owned == {at})
    producer = world.transactional()
    producer.begin()
    with pytest.raises(Fenced):
        producer.send_offsets([Position(at, 1)], one.member, TIMEOUT_S)


def test_member_that_polls_too_rarely_is_out(world: World) -> None:
    """A live process that does not poll in time leaves the group, and its commit is REFUSED."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    owner, other = Owner(), Owner()
    rare = replace(spec(world, "rare"), max_poll_interval_ms=6_000)
    member = world.member(owner, [topic], rare)
    world.poll_all([member], lambda: owner.owned == {at})
    second = world.member(other, [topic], spec(world, "second"))
    world.poll_all([second], lambda: other.owned == {at})
    assert not member.group_metadata().is_member
    outcome = member.commit([CommittedOffset(at, 4)])
    assert (outcome.status, outcome.reason) == (CommitStatus.REFUSED, "UNKNOWN_MEMBER_ID")
    world.poll_all([member, second], lambda: owner.member.generation > 1 and len(owner.heard) > 2)
    # The rebalance that the second member asked for was on its way to the first when that one left.
    assert owner.heard[1] == ("revoke", (at,))
