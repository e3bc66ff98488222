"""The Log port: who owns which partition, and what its commits are worth."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.topics.errors import Fenced
from perdure.topics.log import (
    CommitStatus,
    CommittedOffset,
    Consumer,
    GroupProtocol,
    Outgoing,
    Position,
    TopicPartition,
)
from tests.contract.members import partitions, sole, spec, told
from tests.contract.world import TIMEOUT_S, Owner, World, records_of

RANGE, COOPERATIVE, CONSUMER = GroupProtocol.RANGE, GroupProtocol.COOPERATIVE, GroupProtocol.CONSUMER
INCREMENTAL = [COOPERATIVE, CONSUMER]


@pytest.mark.parametrize("protocol", list(GroupProtocol))
def test_sole_member_owns_everything(world: World, protocol: GroupProtocol) -> None:
    """A group of one is assigned every partition, told once, as a member with a generation."""
    topic = world.topic(partitions=3)
    _, owner = sole(world, [topic], partitions(topic, 3), protocol=protocol)
    assert [happening for happening, _ in told(owner)] == ["assign"]
    assert owner.member.is_member
    assert owner.member.group == world.name("group")


@pytest.mark.parametrize("protocol", list(GroupProtocol))
def test_members_share_all_partitions(world: World, protocol: GroupProtocol) -> None:
    """Two members own every partition between them, none twice, two each."""
    topic = world.topic(partitions=4)
    first, one = sole(world, [topic], partitions(topic, 4), protocol=protocol)
    other = Owner(protocol)
    second = world.member(other, [topic], spec(world, "second", protocol))
    world.poll_all([first, second], lambda: len(one.owned) == 2 and len(other.owned) == 2)
    assert one.owned | other.owned == partitions(topic, 4)
    assert one.member.member_id != other.member.member_id


def test_eager_member_gives_up_everything_before_it_is_assigned_anew(world: World) -> None:
    """With range each rebalance revokes the whole assignment and assigns the whole new one."""
    topic = world.topic(partitions=2)
    first, one = sole(world, [topic], partitions(topic, 2))
    other = Owner()
    second = world.member(other, [topic], spec(world, "second"))
    world.poll_all([first, second], lambda: len(one.owned) == 1 and len(other.owned) == 1)
    both = (TopicPartition(topic, 0), TopicPartition(topic, 1))
    happenings = [(kind, tuple(sorted(which))) for kind, which in one.heard]
    assert happenings[:2] == [("assign", both), ("revoke", both)]
    assert happenings[-1] == ("assign", tuple(one.owned))


@pytest.mark.parametrize("protocol", INCREMENTAL)
def test_incremental_member_keeps_what_does_not_move(world: World, protocol: GroupProtocol) -> None:
    """With an incremental protocol a member that stays is told only of what it gives up."""
    topic = world.topic(partitions=4)
    first, one = sole(world, [topic], partitions(topic, 4), protocol=protocol)
    other = Owner(protocol)
    second = world.member(other, [topic], spec(world, "second", protocol))
    world.poll_all([first, second], lambda: len(one.owned) == 2 and len(other.owned) == 2)
    revoked = [set(which) for kind, which in one.heard if kind == "revoke" and which]
    assert revoked == [other.owned]
    assert one.times("lost") == 0
    assert [set(which) for kind, which in one.heard if kind == "assign" and which] == [partitions(topic, 4)]


@pytest.mark.parametrize("protocol", list(GroupProtocol))
def test_leaving_member_hands_over(world: World, protocol: GroupProtocol) -> None:
    """A member that closes is told to give up what it owns, and the other gets it at once."""
    topic = world.topic(partitions=2)
    first, one = sole(world, [topic], partitions(topic, 2), protocol=protocol)
    other = Owner(protocol)
    second = world.member(other, [topic], spec(world, "second", protocol))
    world.poll_all([first, second], lambda: len(one.owned) == 1 and len(other.owned) == 1)
    first.close()
    assert one.heard[-1][0] == "revoke"
    assert one.owned == set()
    world.poll_all([second], lambda: other.owned == partitions(topic, 2))


@pytest.mark.parametrize("protocol", list(GroupProtocol))
def test_revoked_member_may_still_commit(world: World, protocol: GroupProtocol) -> None:
    """Inside on_revoke the member is still the owner: its commit counts for whoever comes next."""
    topic = world.topic(partitions=2)
    at = TopicPartition(topic, 1)
    world.write(topic, b"a", b"b", partition=1)
    first, one = sole(world, [topic], partitions(topic, 2), protocol=protocol)
    statuses: list[CommitStatus] = []

    def commit(consumer: Consumer) -> None:
        statuses.append(consumer.commit([CommittedOffset(at, 1, "note")]).status)

    one.on_revoked = commit
    other = Owner(protocol)
    second = world.member(other, [topic], spec(world, "second", protocol))
    world.poll_all([first, second], lambda: len(one.owned) == 1 and len(other.owned) == 1)
    assert statuses[0] is CommitStatus.ACKNOWLEDGED
    (found,) = second.committed([at], TIMEOUT_S)
    assert (found.offset, found.metadata) == (1, "note")


@pytest.mark.parametrize("protocol", list(GroupProtocol))
def test_closing_member_may_still_commit(world: World, protocol: GroupProtocol) -> None:
    """Also the on_revoke that runs while a member closes may commit, and that counts."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    member, owner = sole(world, [topic], {at}, protocol=protocol)
    statuses: list[CommitStatus] = []
    owner.on_revoked = lambda consumer: statuses.append(consumer.commit([CommittedOffset(at, 7)]).status)
    member.close()
    assert statuses == [CommitStatus.ACKNOWLEDGED]
    assert world.lone_committer().committed([at], TIMEOUT_S)[0].offset == 7


@pytest.mark.parametrize("protocol", list(GroupProtocol))
def test_killed_members_partitions_come_back_after_its_session(world: World, protocol: GroupProtocol) -> None:
    """What a killed process owned goes to the others once its session has run out."""
    topic = world.topic(partitions=4)
    first, one = sole(world, [topic], partitions(topic, 4), protocol=protocol)
    # A KIP-848 group's session is the broker's to set; a classic one need not take so long.
    remote = world.remote(replace(spec(world, "remote", protocol), session_timeout_ms=2_000), [topic])
    world.poll_all([first], lambda: len(one.owned) == 2 and len(remote.owned()) == 2)
    remote.kill()
    world.poll_all([first], lambda: one.owned == partitions(topic, 4))


@pytest.mark.parametrize("protocol", list(GroupProtocol))
def test_commit_of_a_member_is_acknowledged(world: World, protocol: GroupProtocol) -> None:
    """A member's commit is acknowledged, and a later reader of the offsets finds offset and metadata."""
    topic = world.topic()
    member, _ = sole(world, [topic], partitions(topic, 1), protocol=protocol)
    outcome = member.commit([CommittedOffset(TopicPartition(topic, 0), 5, "map")])
    assert (outcome.status, outcome.reason) == (CommitStatus.ACKNOWLEDGED, "")
    (found,) = world.lone_committer().committed([TopicPartition(topic, 0)], TIMEOUT_S)
    assert (found.offset, found.metadata) == (5, "map")


@pytest.mark.parametrize("protocol", [RANGE, COOPERATIVE])
def test_commit_of_an_evicted_member_is_refused(world: World, protocol: GroupProtocol) -> None:
    """A member that was evicted and does not know yet has its commit REFUSED, and nothing is stored."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    member, owner = sole(world, [topic], partitions(topic, 1), protocol=protocol)
    assert member.commit([CommittedOffset(at, 1)]).status is CommitStatus.ACKNOWLEDGED
    world.evict(world.name("group"), owner.member.member_id)
    outcome = member.commit([CommittedOffset(at, 9)])
    assert (outcome.status, outcome.reason) == (CommitStatus.REFUSED, "UNKNOWN_MEMBER_ID")
    assert world.lone_committer().committed([at], TIMEOUT_S)[0].offset == 1


@pytest.mark.parametrize("protocol", [RANGE, COOPERATIVE])
def test_evicted_member_loses_and_comes_back(world: World, protocol: GroupProtocol) -> None:
    """An evicted member hears on_lost, not on_revoke, and joins again under another generation."""
    topic = world.topic(partitions=2)
    member, owner = sole(world, [topic], partitions(topic, 2), protocol=protocol)
    before = owner.member
    world.evict(world.name("group"), before.member_id)
    world.poll_all([member], lambda: owner.times("lost") == 1 and owner.owned == partitions(topic, 2))
    assert owner.times("revoke") == 0
    assert (owner.member.generation, owner.member.member_id) != (before.generation, before.member_id)


def test_offsets_of_an_evicted_member_are_fenced(world: World) -> None:
    """A transaction with the metadata of a membership that is over is Fenced when it sends its offsets."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    _, owner = sole(world, [topic], partitions(topic, 1))
    world.evict(world.name("group"), owner.member.member_id)
    producer = world.transactional()
    producer.begin()
    producer.produce(Outgoing(topic, 0, b"key", b"zombie"))
    with pytest.raises(Fenced):
        producer.send_offsets([Position(at, 1)], owner.member, TIMEOUT_S)
    world.transactional()
    world.until(lambda: world.read_all(topic)[0] == [])
    assert world.lone_committer().committed([at], TIMEOUT_S)[0].offset is None


def test_offsets_of_an_older_generation_are_fenced(world: World) -> None:
    """Metadata captured before a rebalance does not commit offsets after it, though the member lives on."""
    topic = world.topic(partitions=2)
    first, one = sole(world, [topic], partitions(topic, 2))
    before = one.member
    other = Owner()
    second = world.member(other, [topic], spec(world, "second"))
    world.poll_all([first, second], lambda: len(one.owned) == 1 and len(other.owned) == 1)
    assert one.member.generation > before.generation
    producer = world.transactional()
    producer.begin()
    with pytest.raises(Fenced):
        producer.send_offsets([Position(TopicPartition(topic, 0), 1)], before, TIMEOUT_S)


@pytest.mark.parametrize("protocol", INCREMENTAL)
def test_offsets_of_an_older_generation_are_fenced_for_a_member_that_kept_its_partitions(
    world: World, protocol: GroupProtocol
) -> None:
    """Under an incremental protocol too, metadata from before a rebalance commits no offsets after it."""
    topic = world.topic(partitions=2)
    first, one = sole(world, [topic], partitions(topic, 2), protocol=protocol)
    before = first.group_metadata()
    other = Owner(protocol)
    second = world.member(other, [topic], spec(world, "second", protocol))
    world.poll_all([first, second], lambda: len(one.owned) == 1 and len(other.owned) == 1)
    world.poll_all([first, second], lambda: first.group_metadata().generation > before.generation)
    (kept,) = one.owned
    producer = world.transactional()
    producer.begin()
    with pytest.raises(Fenced):
        producer.send_offsets([Position(kept, 1)], before, TIMEOUT_S)


def test_metadata_of_nobody_is_accepted_on_a_live_group(world: World) -> None:
    """Offsets sent as nobody are taken although the group has a member: only what is set is checked."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    sole(world, [topic], partitions(topic, 1))
    stranger = world.lone_committer()
    nobody = stranger.group_metadata()
    assert not nobody.is_member
    producer = world.transactional()
    producer.begin()
    producer.send_offsets([Position(at, 3)], nobody, TIMEOUT_S)
    producer.commit(TIMEOUT_S)
    assert stranger.committed([at], TIMEOUT_S)[0].offset == 3


def test_plain_commit_of_nobody_is_refused_on_a_live_group(world: World) -> None:
    """Without a transaction a stranger's commit to a group with members is REFUSED."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    sole(world, [topic], partitions(topic, 1))
    outcome = world.lone_committer().commit([CommittedOffset(at, 3)])
    assert (outcome.status, outcome.reason) == (CommitStatus.REFUSED, "UNKNOWN_MEMBER_ID")


def test_nobody_checks_ownership(world: World) -> None:
    """A member's commit for a partition that another member owns is acknowledged."""
    topic = world.topic(partitions=2)
    first, one = sole(world, [topic], partitions(topic, 2))
    other = Owner()
    second = world.member(other, [topic], spec(world, "second"))
    world.poll_all([first, second], lambda: len(one.owned) == 1 and len(other.owned) == 1)
    (foreign,) = other.owned
    assert first.commit([CommittedOffset(foreign, 2)]).status is CommitStatus.ACKNOWLEDGED
    assert second.committed([foreign], TIMEOUT_S)[0].offset == 2


def test_hand_added_partitions_of_another_topic_ride_along(world: World) -> None:
    """Partitions added by hand in on_assign are read and their offsets committed in the same transaction."""
    commands, results = world.topic("commands", 2), world.topic("results", 2)
    world.write(commands, b"command", partition=1)
    world.write(results, b"result", partition=1)
    owner = Owner(beside=[results])
    member = world.member(owner, [commands], spec(world, "first"))
    found: dict[str, bytes | None] = {}

    def both() -> bool:
        found.update({record.topic: record.value for record in records_of(member.poll(10, 0.05))})
        return len(found) == 2

    world.until(both)
    assert found == {commands: b"command", results: b"result"}
    assert owner.owned == partitions(commands, 2)
    producer = world.transactional()
    producer.begin()
    offsets = [Position(TopicPartition(topic, 1), 1) for topic in (commands, results)]
    producer.send_offsets(offsets, owner.member, TIMEOUT_S)
    producer.commit(TIMEOUT_S)
    stored = member.committed([each.at for each in offsets], TIMEOUT_S)
    assert [each.offset for each in stored] == [1, 1]


def test_hand_added_partitions_go_with_the_assignment(world: World) -> None:
    """When an eager member is revoked, what it added by hand falls silent too."""
    commands, results = world.topic("commands", 2), world.topic("results", 2)
    owner = Owner(beside=[results])
    first = world.member(owner, [commands], spec(world, "first"))
    world.poll_all([first], lambda: owner.owned == partitions(commands, 2))
    other = Owner(beside=[results])
    second = world.member(other, [commands], spec(world, "second"))
    world.poll_all([first, second], lambda: len(owner.owned) == 1 and len(other.owned) == 1)
    for partition in range(2):
        world.write(results, b"%d" % partition, partition=partition)
    seen: dict[str, list[bytes | None]] = {"first": [], "second": []}

    def both() -> bool:
        for name, member in (("first", first), ("second", second)):
            seen[name] += [record.value for record in records_of(member.poll(10, 0.05))]
        return len(seen["first"]) + len(seen["second"]) >= 2

    world.until(both)
    (mine,), (theirs,) = owner.owned, other.owned
    assert seen == {"first": [b"%d" % mine.partition], "second": [b"%d" % theirs.partition]}


def test_range_assigns_each_topic_by_itself(world: World) -> None:
    """With unequal partition counts partition 0 of two topics may go to different members."""
    small, large = world.topic("small", 1), world.topic("large", 2)
    one, other = Owner(), Owner()
    first = world.member(one, [small, large], spec(world, "first", instance="a"))
    second = world.member(other, [large], spec(world, "second", instance="b"))
    world.poll_all([first, second], lambda: len(one.owned) == 2 and len(other.owned) == 1)
    assert one.owned == {TopicPartition(small, 0), TopicPartition(large, 0)}


@pytest.mark.parametrize("length", [0, 1, 4_095])
def test_metadata_comes_back_as_it_was_committed(world: World, length: int) -> None:
    """Up to 4,095 characters of metadata are stored beside an offset."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    committer = world.lone_committer()
    text = "x" * length
    assert committer.commit([CommittedOffset(at, 0, text)]).status is CommitStatus.ACKNOWLEDGED
    assert committer.committed([at], TIMEOUT_S) == [CommittedOffset(at, 0, text)]


def test_commit_replaces_offset_and_metadata_together(world: World) -> None:
    """A later commit replaces both; going back is allowed."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    committer = world.lone_committer()
    committer.commit([CommittedOffset(at, 9, "nine")])
    committer.commit([CommittedOffset(at, 2, "two")])
    assert committer.committed([at], TIMEOUT_S) == [CommittedOffset(at, 2, "two")]


def test_group_without_offsets_has_none(world: World) -> None:
    """A partition that was never committed has no offset, which is not offset 0."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    assert world.lone_committer().committed([at], TIMEOUT_S) == [CommittedOffset(at, None)]


def test_transactional_offset_drops_the_metadata(world: World) -> None:
    """An offset committed by a transaction replaces what a plain commit stored, metadata included."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    committer = world.lone_committer()
    committer.commit([CommittedOffset(at, 1, "plain")])
    producer = world.transactional()
    producer.begin()
    producer.send_offsets([Position(at, 2)], committer.group_metadata(), TIMEOUT_S)
    producer.commit(TIMEOUT_S)
    assert committer.committed([at], TIMEOUT_S) == [CommittedOffset(at, 2)]


def test_member_starts_where_the_group_committed(world: World) -> None:
    """A member that assigns itself from committed offsets reads on from there."""
    topic = world.topic()
    world.write(topic, b"a", b"b", b"c")
    world.lone_committer().commit([CommittedOffset(TopicPartition(topic, 0), 2)])
    owner = Owner()
    member = world.member(owner, [topic], spec(world, "first"))
    (found,) = world.read(member, 1)
    assert found.value == b"c"


def test_cluster_offers_the_new_protocol(world: World) -> None:
    """The protocol for groups that may choose is KIP-848's, where the brokers have it."""
    assert world.log.consumer_protocol() is GroupProtocol.CONSUMER


def test_reader_without_members_joins_no_group(world: World) -> None:
    """A consumer assigned by hand has no membership and takes nothing from the group's members."""
    topic = world.topic()
    _, owner = sole(world, [topic], partitions(topic, 1))
    stranger = world.lone_committer()
    stranger.assign([Position(TopicPartition(topic, 0), 0)])
    world.write(topic, b"a")
    assert world.read(stranger, 1)[0].value == b"a"
    assert not stranger.group_metadata().is_member
    assert owner.owned == partitions(topic, 1)


def test_subscription_to_a_topic_that_comes_later(world: World) -> None:
    """A member subscribed to a topic that does not exist is assigned its partitions once it does."""
    topic = world.name("late")
    owner = Owner()
    member = world.member(owner, [topic], spec(world, "first"))
    for _ in range(3):
        assert records_of(member.poll(1, 0.05)) == []
    assert owner.owned == set()
    world.create_topic(topic, 2, {})
    world.poll_all([member], lambda: owner.owned == partitions(topic, 2))
