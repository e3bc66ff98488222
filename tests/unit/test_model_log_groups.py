"""What the model's group coordinator does in virtual time, and what it lets pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.topics.errors import ClientFatal, Fenced, Unavailable
from perdure.topics.log import (
    CommitStatus,
    CommittedOffset,
    Consumer,
    ConsumerSpec,
    GroupMetadata,
    GroupProtocol,
    Position,
    TopicPartition,
)
from perdure.topics.model_cluster import ModelCluster
from perdure.topics.model_consumer import ModelConsumer
from perdure.topics.model_faults import Api, Fate
from perdure.topics.model_log import ModelLog

DAY_MS = 86_400_000
AT = TopicPartition("tool-requests", 0)
SPEC = ConsumerSpec("worker", "tool-executor")


class Owner:
    """Takes what it is given, from offset 0."""

    def __init__(self, protocol: GroupProtocol = GroupProtocol.RANGE) -> None:
        self.heard: list[str] = []
        self.owned: set[TopicPartition] = set()
        self.metadata: GroupMetadata | None = None
        self._protocol = protocol

    def on_assign(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None:
        self.heard.append("assign")
        self.metadata = consumer.group_metadata()
        positions = [Position(at, 0) for at in partitions]
        self.owned |= set(partitions)
        if self._protocol.incremental:
            consumer.incremental_assign(positions)
        else:
            consumer.assign(positions)

    def on_revoke(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None:
        self.heard.append("revoke")
        self.owned -= set(partitions)

    def on_lost(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None:
        self.heard.append("lost")
        self.owned -= set(partitions)


@pytest.fixture
def cluster() -> ModelCluster:
    made = ModelCluster()
    made.create_topic("tool-requests", 4)
    made.create_topic("run-results", 4)
    return made


def join(cluster: ModelCluster, owner: Owner, spec: ConsumerSpec = SPEC) -> tuple[ModelLog, ModelConsumer]:
    log = ModelLog(cluster)
    consumer = log.consumer(spec)
    consumer.subscribe(["tool-requests"], owner)
    consumer.poll(1, 0)
    return log, consumer


def commit(consumer: ModelConsumer, offset: int, at: TopicPartition = AT) -> tuple[CommitStatus, str]:
    outcome = consumer.commit([CommittedOffset(at, offset)])
    return outcome.status, outcome.reason


def stored(cluster: ModelCluster, at: TopicPartition = AT) -> int | None:
    return ModelLog(cluster).consumer(SPEC).committed([at], 0)[0].offset


def test_stopped_process_loses_its_partitions_and_learns_it_later(cluster: ModelCluster) -> None:
    """A process stopped past its session hears on_lost when it goes on; its commit is REFUSED."""
    owner, other = Owner(), Owner()
    log, consumer = join(cluster, owner)
    log.stop()
    _, second = join(cluster, other, replace(SPEC, client_id="second"))
    cluster.advance(6_000)
    second.poll(1, 0)
    assert len(other.owned) == 4
    log.go_on()
    assert commit(consumer, 5) == (CommitStatus.REFUSED, "UNKNOWN_MEMBER_ID")
    consumer.poll(1, 0)
    assert owner.heard == ["assign", "lost"]


def test_process_stopped_for_less_than_its_session_stays(cluster: ModelCluster) -> None:
    """A short stop is not noticed by anyone."""
    owner = Owner()
    log, consumer = join(cluster, owner)
    log.stop()
    cluster.advance(5_999)
    log.go_on()
    cluster.advance(60_000)
    consumer.poll(1, 0)
    assert owner.heard == ["assign"]
    assert commit(consumer, 5)[0] is CommitStatus.ACKNOWLEDGED


def test_idle_process_stays_in_its_group(cluster: ModelCluster) -> None:
    """A live process heartbeats in the background however long nobody advances it in small steps."""
    owner = Owner()
    _, consumer = join(cluster, owner)
    cluster.advance(299_999)
    consumer.poll(1, 0)
    assert owner.heard == ["assign"]


def test_member_that_does_not_join_a_rebalance_is_left_behind(cluster: ModelCluster) -> None:
    """A live member that does not poll holds a rebalance up until max.poll.interval.ms, then it is out."""
    owner, other = Owner(), Owner()
    _, consumer = join(cluster, owner)
    _, second = join(cluster, other, replace(SPEC, client_id="second"))
    for _ in range(5):
        cluster.advance(59_000)
        second.poll(1, 0)
    assert other.owned == set()
    cluster.advance(5_000)
    second.poll(1, 0)
    assert len(other.owned) == 4
    consumer.poll(1, 0)
    assert owner.heard == ["assign", "revoke"]


def test_fresh_metadata_is_newer_than_what_the_callback_saw(cluster: ModelCluster) -> None:
    """Between the join and its callback the consumer tells the new generation already: that is no fence."""
    owner, other = Owner(), Owner()
    _, first = join(cluster, owner)
    _, second = join(cluster, other, replace(SPEC, client_id="second"))
    first.poll(1, 0)  # gives up, joins, and with that the rebalance is complete
    assert owner.metadata is not None
    assert second.group_metadata().generation > 1
    assert other.metadata is None


def test_commit_during_the_leaders_assignment_is_refused(cluster: ModelCluster) -> None:
    """Between JoinGroup and SyncGroup a commit is REFUSED with REBALANCE_IN_PROGRESS."""
    cluster.faults.hold_sync = True
    owner = Owner()
    _, consumer = join(cluster, owner)
    assert owner.heard == []
    assert commit(consumer, 5) == (CommitStatus.REFUSED, "REBALANCE_IN_PROGRESS")
    assert stored(cluster) is None
    cluster.groups.sync("tool-executor")
    consumer.poll(1, 0)
    assert owner.heard == ["assign"]
    assert commit(consumer, 5)[0] is CommitStatus.ACKNOWLEDGED


def test_commit_with_an_epoch_that_is_behind_is_stale(cluster: ModelCluster) -> None:
    """A KIP-848 member whose heartbeat got no answer commits with an old epoch and is REFUSED."""
    spec = replace(SPEC, protocol=GroupProtocol.CONSUMER)
    owner, other = Owner(GroupProtocol.CONSUMER), Owner(GroupProtocol.CONSUMER)
    _, consumer = join(cluster, owner, spec)
    _, second = join(cluster, other, replace(spec, client_id="second"))
    consumer.poll(1, 0)
    second.poll(1, 0)
    second.close()
    cluster.faults.inject(Api.HEARTBEAT, "worker", Fate.UNANSWERED)
    consumer.poll(1, 0)
    assert commit(consumer, 5) == (CommitStatus.REFUSED, "STALE_MEMBER_EPOCH")
    consumer.poll(1, 0)
    assert commit(consumer, 6)[0] is CommitStatus.ACKNOWLEDGED
    assert len(owner.owned) == 4


@pytest.mark.parametrize(("fate", "offset"), [(Fate.LOST, 1), (Fate.UNANSWERED, 2), (Fate.HELD, 1)])
def test_commit_without_an_answer_is_unknown(cluster: ModelCluster, fate: Fate, offset: int) -> None:
    """A commit that gets no answer is UNKNOWN whether it was stored, was not, or will be later."""
    _, consumer = join(cluster, Owner())
    commit(consumer, 1)
    cluster.faults.inject(Api.OFFSET_COMMIT, "worker", fate)
    assert commit(consumer, 2) == (CommitStatus.UNKNOWN, "REQUEST_TIMED_OUT")
    assert stored(cluster) == offset
    cluster.faults.release()
    assert stored(cluster) == (1 if fate is Fate.LOST else 2)


def test_hidden_resend_takes_the_backoff(cluster: ModelCluster) -> None:
    """The re-send of a commit is acknowledged no sooner than the consumer's retry backoff."""
    _, consumer = join(cluster, Owner(), replace(SPEC, commit_retry_backoff_ms=3_000))
    cluster.faults.inject(Api.OFFSET_COMMIT, "worker", Fate.RESENT)
    before_ms = cluster.now_ms
    assert commit(consumer, 2)[0] is CommitStatus.ACKNOWLEDGED
    assert cluster.now_ms - before_ms >= 3_000


def test_late_commit_is_checked_when_it_arrives(cluster: ModelCluster) -> None:
    """A held commit frame whose member has gone meanwhile stores nothing."""
    log, consumer = join(cluster, Owner())
    commit(consumer, 1)
    cluster.faults.inject(Api.OFFSET_COMMIT, "worker", Fate.RESENT)
    commit(consumer, 2)
    log.kill_all()
    cluster.advance(6_000)
    join(cluster, Owner(), replace(SPEC, client_id="second"))
    ModelLog(cluster).consumer(SPEC)
    before = stored(cluster)
    cluster.faults.release()
    assert stored(cluster) == before == 2


def test_coordinator_away_answers_nobody(cluster: ModelCluster) -> None:
    """With the group coordinator away a commit is UNKNOWN, a question Unavailable, and members stay put."""
    owner = Owner()
    _, consumer = join(cluster, owner)
    cluster.faults.group_coordinator_down = True
    assert commit(consumer, 5)[0] is CommitStatus.UNKNOWN
    with pytest.raises(Unavailable):
        consumer.committed([AT], 1.0)
    consumer.poll(1, 0)
    assert owner.heard == ["assign"]


def test_static_member_of_a_new_style_group_is_not_replaced_while_it_lives(cluster: ModelCluster) -> None:
    """With KIP-848 the SECOND process under an instance id is refused until the first is gone."""
    spec = replace(SPEC, protocol=GroupProtocol.CONSUMER, instance_id="slot-0")
    first, second, third = (Owner(GroupProtocol.CONSUMER) for _ in range(3))
    log, _ = join(cluster, first, spec)
    with pytest.raises(Fenced):
        join(cluster, second, replace(spec, client_id="second"))
    log.kill_all()
    cluster.advance(6_000)
    join(cluster, third, replace(spec, client_id="third"))
    assert (len(second.owned), len(third.owned)) == (0, 4)


def test_static_member_of_a_new_style_group_comes_back_to_its_partitions(cluster: ModelCluster) -> None:
    """A KIP-848 static member that closed gets the same partitions again without anyone else being moved."""
    spec = replace(SPEC, protocol=GroupProtocol.CONSUMER, instance_id="slot-0")
    first, other, again = (Owner(GroupProtocol.CONSUMER) for _ in range(3))
    _, consumer = join(cluster, first, spec)
    _, second = join(cluster, other, replace(spec, client_id="second", instance_id="slot-1"))
    consumer.poll(1, 0)
    second.poll(1, 0)
    owned, heard = set(first.owned), list(other.heard)
    consumer.close()
    join(cluster, again, spec)
    second.poll(1, 0)
    assert again.owned == owned
    assert other.heard == heard


def test_protocols_do_not_mix(cluster: ModelCluster) -> None:
    """A member that brings another protocol than its group's is broken for good."""
    join(cluster, Owner())
    with pytest.raises(ClientFatal):
        join(cluster, Owner(), replace(SPEC, client_id="other", protocol=GroupProtocol.COOPERATIVE))


def test_empty_group_takes_another_protocol(cluster: ModelCluster) -> None:
    """Once its last member has left a group may come back under another protocol, its offsets kept."""
    _, consumer = join(cluster, Owner())
    commit(consumer, 3)
    consumer.close()
    owner = Owner(GroupProtocol.CONSUMER)
    join(cluster, owner, replace(SPEC, protocol=GroupProtocol.CONSUMER))
    assert len(owner.owned) == 4
    assert stored(cluster) == 3


def test_offsets_of_an_empty_group_expire(cluster: ModelCluster) -> None:
    """An empty group's offsets go after the retention, counted from when its last member left."""
    _, consumer = join(cluster, Owner(), replace(SPEC, max_poll_interval_ms=100 * DAY_MS))
    commit(consumer, 3)
    cluster.advance(5 * DAY_MS)
    consumer.close()
    cluster.advance(7 * DAY_MS - 1)
    assert stored(cluster) == 3
    cluster.advance(1)
    assert stored(cluster) is None


def test_offsets_on_hand_added_topics_expire_under_a_live_group(cluster: ModelCluster) -> None:
    """A group with members still loses offsets on topics that nobody subscribes to, if they get too old."""
    _, consumer = join(cluster, Owner(), replace(SPEC, max_poll_interval_ms=100 * DAY_MS))
    beside = TopicPartition("run-results", 0)
    commit(consumer, 3)
    commit(consumer, 4, beside)
    cluster.advance(7 * DAY_MS)
    assert (stored(cluster), stored(cluster, beside)) == (3, None)


def test_offsets_go_with_their_topic(cluster: ModelCluster) -> None:
    """A topic that is deleted takes the groups' offsets along; re-created, it starts without."""
    _, consumer = join(cluster, Owner())
    commit(consumer, 3)
    consumer.close()
    cluster.recreate_topic("tool-requests")
    assert stored(cluster) is None


def test_callbacks_error_breaks_the_consumer(cluster: ModelCluster) -> None:
    """What a listener raises comes out of poll, then and at every later poll."""

    class Clumsy(Owner):
        def on_assign(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None:
            raise ZeroDivisionError

    log = ModelLog(cluster)
    consumer = log.consumer(SPEC)
    consumer.subscribe(["tool-requests"], Clumsy())
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            consumer.poll(1, 0)
