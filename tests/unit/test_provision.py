"""Provisioning over a cluster that is a table: what it plans, does, leaves alone and refuses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from perdure.topics.admin import GroupInUse, TopicState
from perdure.topics.log import CommittedOffset, Isolation, TopicPartition, Watermarks
from perdure.topics.provision import (
    Advice,
    AlterTopic,
    Change,
    CreateTopic,
    PartitionsDiffer,
    StartGroup,
    apply,
    plan,
)
from perdure.topics.table import (
    MODEL_REQUESTS,
    RUN_COMMANDS,
    RUN_EVENTS,
    TOOL_REQUESTS,
    TOPICS,
    Namespace,
    Role,
)

NAMES = Namespace("acme")
PARTITIONS = 4


@dataclass
class Cluster:
    """Implements Admin; counts what changes it."""

    found: dict[str, TopicState] = field(default_factory=dict[str, TopicState])
    committed: dict[tuple[str, TopicPartition], CommittedOffset] = field(
        default_factory=dict[tuple[str, TopicPartition], CommittedOffset]
    )
    live: dict[str, int] = field(default_factory=dict[str, int])
    marks: dict[TopicPartition, Watermarks] = field(default_factory=dict[TopicPartition, Watermarks])
    changes: int = 0

    def topics(self, names: Collection[str], timeout_s: float) -> Mapping[str, TopicState]:
        return {name: self.found[name] for name in names if name in self.found}

    def create_topic(
        self, name: str, partitions: int, replication: int, settings: Mapping[str, str], timeout_s: float
    ) -> None:
        self.changes += 1
        self.found.setdefault(name, TopicState(partitions, replication, f"id-of-{name}", dict(settings)))

    def alter_topic(self, name: str, settings: Mapping[str, str], timeout_s: float) -> None:
        self.changes += 1
        state = self.found[name]
        self.found[name] = replace(state, settings={**state.settings, **settings})

    def members(self, group: str, timeout_s: float) -> int:
        return self.live.get(group, 0)

    def offsets(
        self, group: str, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> Sequence[CommittedOffset]:
        return [self.committed.get((group, at), CommittedOffset(at, None)) for at in partitions]

    def set_offsets(self, group: str, offsets: Sequence[CommittedOffset], timeout_s: float) -> None:
        self.changes += 1
        if self.live.get(group):
            raise GroupInUse(group)
        self.committed |= {(group, each.at): each for each in offsets}

    def watermarks(self, at: TopicPartition, isolation: Isolation, timeout_s: float) -> Watermarks:
        assert isolation is Isolation.UNCOMMITTED, "an open transaction's records count as records"
        return self.marks.get(at, Watermarks(0, 0))


def empty_map(topic_id: str) -> str:
    return f"nothing started in {topic_id}"


def planned(cluster: Cluster, partitions: int = PARTITIONS, replication: int = 1) -> tuple[Change, ...]:
    return plan(cluster, NAMES, partitions, replication)


@pytest.fixture
def cluster() -> Cluster:
    """One that is provisioned."""
    made = Cluster()
    apply(made, planned(made), empty_map)
    return made


def at(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(NAMES.topic(topic), partition)


def test_an_empty_cluster_gets_every_topic_before_any_offset() -> None:
    """The plan creates the whole table first, so that every group finds its topics."""
    kinds = [type(change) for change in planned(Cluster())]
    assert kinds == [CreateTopic] * len(TOPICS) + [StartGroup] * 4


def test_a_plan_that_was_applied_plans_nothing_more(cluster: Cluster) -> None:
    """Also applying the first plan once more changes no topic and no offset."""
    assert planned(cluster) == ()
    offsets, topics = dict(cluster.committed), dict(cluster.found)
    apply(cluster, planned(Cluster()), empty_map)
    assert (cluster.committed, cluster.found) == (offsets, topics)


def test_executors_start_with_the_map_of_their_topic_and_the_orchestrator_without(cluster: Cluster) -> None:
    """Each partition of each input has an offset; only the executors' carry the map, with the topic's id."""
    for group, topic, text in (
        (Role.TOOL_EXECUTOR, TOOL_REQUESTS, f"nothing started in id-of-{NAMES.topic(TOOL_REQUESTS)}"),
        (Role.MODEL_CALLER, MODEL_REQUESTS, f"nothing started in id-of-{NAMES.topic(MODEL_REQUESTS)}"),
        (Role.ORCHESTRATOR, RUN_COMMANDS, ""),
    ):
        for partition in range(PARTITIONS):
            stored = cluster.committed[NAMES.group(group), at(topic, partition)]
            assert (stored.offset, stored.metadata) == (0, text)


@pytest.mark.parametrize(
    ("marks", "offset", "mapped"),
    [
        (Watermarks(0, 0), 0, True),
        (Watermarks(7, 7), 7, True),
        (Watermarks(0, 5), 0, False),
        (Watermarks(3, 5), 3, False),
    ],
)
def test_the_empty_map_is_given_only_where_the_log_holds_nothing(
    cluster: Cluster, marks: Watermarks, offset: int, mapped: bool
) -> None:
    """Where requests stand and the offset is lost, nobody knows what was started, and no map says so."""
    lost = (NAMES.group(Role.TOOL_EXECUTOR), at(TOOL_REQUESTS, 2))
    del cluster.committed[lost]
    cluster.marks[at(TOOL_REQUESTS, 2)] = marks
    changes = planned(cluster)
    assert changes == (StartGroup(lost[0], NAMES.topic(TOOL_REQUESTS), (2,), mapped=True),)
    apply(cluster, changes, empty_map)
    assert cluster.committed[lost].offset == offset
    assert bool(cluster.committed[lost].metadata) == mapped


def test_an_offset_that_exists_is_never_moved(cluster: Cluster) -> None:
    """Not even by a plan made before it was committed."""
    stale = planned(Cluster(found=cluster.found))
    moved = CommittedOffset(at(TOOL_REQUESTS, 0), 42, "a map of somebody")
    cluster.committed[NAMES.group(Role.TOOL_EXECUTOR), moved.at] = moved
    apply(cluster, stale, empty_map)
    assert cluster.committed[NAMES.group(Role.TOOL_EXECUTOR), moved.at] == moved


def test_a_group_with_live_members_is_left_alone_and_told_about(cluster: Cluster) -> None:
    """The note names group, topic and partitions; applying it does nothing."""
    group = NAMES.group(Role.MODEL_CALLER)
    for partition in (0, 1, 3):
        del cluster.committed[group, at(MODEL_REQUESTS, partition)]
    cluster.live[group] = 2
    changes, before = planned(cluster), cluster.changes
    apply(cluster, changes, empty_map)
    assert cluster.changes == before
    (note,) = changes
    assert isinstance(note, Advice)
    assert f"no offset on {NAMES.topic(MODEL_REQUESTS)}/0-1,3 but 2 live members" in note.describe()


def test_settings_that_differ_are_changed_and_no_others(cluster: Cluster) -> None:
    """The plan says old and new value; a setting that perdure does not care about stays."""
    topic = NAMES.topic(RUN_EVENTS)
    state = cluster.found[topic]
    cluster.found[topic] = replace(
        state, settings={**state.settings, "cleanup.policy": "delete", "segment.ms": "7"}
    )
    (change,) = planned(cluster)
    assert change == AlterTopic(topic, {"cleanup.policy": "delete"}, {"cleanup.policy": "compact"})
    assert change.describe() == f"alter {topic}: cleanup.policy delete -> compact"
    apply(cluster, [change], empty_map)
    assert cluster.found[topic].settings == {**state.settings, "segment.ms": "7"}


def test_what_acknowledgements_promise_is_not_lowered_by_a_smaller_wish() -> None:
    """On topics with three replicas a plan for one replica keeps two in sync."""
    cluster = Cluster()
    apply(cluster, planned(cluster, replication=3), empty_map)
    assert cluster.found[NAMES.topic(RUN_EVENTS)].settings["min.insync.replicas"] == "2"
    assert planned(cluster, replication=1) == ()


def test_missing_replicas_are_told_and_not_made(cluster: Cluster) -> None:
    """Reassigning partitions is the operator's; each topic gets a note and nothing is changed."""
    changes, before = planned(cluster, replication=3), cluster.changes
    assert [type(change) for change in changes] == [Advice] * len(TOPICS)
    assert "has 1 replicas, 3 are wanted" in changes[0].describe()
    apply(cluster, changes, empty_map)
    assert cluster.changes == before


@pytest.mark.parametrize(
    ("topic", "count"), [(RUN_EVENTS, PARTITIONS - 1), (RUN_COMMANDS, PARTITIONS + 1), ("dead-letters", 2)]
)
def test_another_partition_count_is_refused_naming_topic_and_counts(
    cluster: Cluster, topic: str, count: int
) -> None:
    """Nothing is planned beside it: a half-right layout sends a run's records to two places."""
    name = NAMES.topic(topic)
    wanted = cluster.found[name].partitions
    cluster.found[name] = replace(cluster.found[name], partitions=count)
    with pytest.raises(PartitionsDiffer, match=f"{name} has {count} and should have {wanted}"):
        planned(cluster)


def test_another_pinned_number_is_refused_for_all_topics_that_exist(cluster: Cluster) -> None:
    """Partitions are never added, and the topics of one partition are not complained about."""
    with pytest.raises(PartitionsDiffer) as raised:
        planned(cluster, partitions=PARTITIONS + 1)
    assert str(raised.value).count("should have 5") == sum(spec.run_keyed for spec in TOPICS)
    assert "set `partitions` to the number that exists" in str(raised.value)


def test_an_interrupted_application_is_finished_by_the_next(cluster: Cluster) -> None:
    """However many changes were done, planning and applying again ends in the same cluster."""
    whole = planned(Cluster())
    for done in range(len(whole)):
        partly = Cluster()
        apply(partly, whole[:done], empty_map)
        apply(partly, planned(partly), empty_map)
        assert (partly.found, partly.committed) == (cluster.found, cluster.committed)


def test_every_change_says_what_it_does() -> None:
    """One line each, beginning with the verb, naming the topic or group."""
    lines = [change.describe() for change in planned(Cluster())]
    assert all("\n" not in line for line in lines)
    assert lines[0].startswith(
        "create acme.run-commands: partitions=4, replication=1, cleanup.policy=compact"
    )
    assert (
        lines[-1]
        == "start acme.tool-executor on acme.tool-requests/0-3 at the log's start with the empty map"
    )
