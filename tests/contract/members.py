"""Members of one group, put together alike in every test of groups."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.topics.log import (
    Consumer,
    ConsumerSpec,
    GroupProtocol,
    TopicPartition,
)
from tests.contract.world import Owner, World

RANGE, COOPERATIVE, CONSUMER = GroupProtocol.RANGE, GroupProtocol.COOPERATIVE, GroupProtocol.CONSUMER
INCREMENTAL = [COOPERATIVE, CONSUMER]


def spec(
    world: World,
    client: str,
    protocol: GroupProtocol = RANGE,
    instance: str | None = None,
) -> ConsumerSpec:
    return ConsumerSpec(
        world.name(client),
        group=world.name("group"),
        protocol=protocol,
        instance_id=instance,
        heartbeat_interval_ms=200,
        session_timeout_ms=6_000,
    )


def partitions(topic: str, count: int) -> set[TopicPartition]:
    return {TopicPartition(topic, p) for p in range(count)}


def told(owner: Owner) -> list[tuple[str, tuple[TopicPartition, ...]]]:
    """The callbacks that carried partitions; the incremental protocols also make empty ones."""
    return [(kind, which) for kind, which in owner.heard if which]


def sole(
    world: World, topics: Sequence[str], wanted: set[TopicPartition], **more: object
) -> tuple[Consumer, Owner]:
    """A group of one that has got its partitions."""
    protocol = more.get("protocol", RANGE)
    assert isinstance(protocol, GroupProtocol)
    owner = Owner(protocol)
    member = world.member(owner, topics, spec(world, "first", protocol))
    world.poll_all([member], lambda: owner.owned == wanted)
    return member, owner


def same_generation(first: Consumer, second: Consumer) -> int:
    """The generation of two members, once the rebalance that brought them together is over; else 0."""
    one, other = first.group_metadata().generation, second.group_metadata().generation
    return one if one == other else 0
