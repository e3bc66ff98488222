"""The topic table: what design fixes about keeping, keys and names holds for every row."""

from __future__ import annotations

import re

import pytest

from perdure.topics.table import (
    BY_NAME,
    COMMANDS_COMPACTION_LAG_MS,
    DAY_MS,
    INBOX_BYTES_MAX,
    INPUTS,
    MAPPED,
    NAMESPACE_CHARS_MAX,
    PRODUCED_BYTES_MAX,
    RUN_COMMANDS,
    TOPIC_BYTES_MAX,
    TOPICS,
    Cleanup,
    Namespace,
    NamespaceRefused,
    Role,
    TopicSpec,
)

TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
every_topic = pytest.mark.parametrize("spec", TOPICS, ids=lambda spec: spec.name)


def test_names_are_unique() -> None:
    """No row hides another."""
    assert len(BY_NAME) == len(TOPICS)


@every_topic
def test_run_keyed_topics_are_keyed_by_the_run_id_first(spec: TopicSpec) -> None:
    """Otherwise partition p of two topics would speak of other runs."""
    assert spec.run_keyed == (spec.key.split("/")[0] == "run_id")


@every_topic
def test_only_run_keyed_topics_have_the_pinned_count(spec: TopicSpec) -> None:
    """All run-keyed topics have one count; the others have one partition, whatever is pinned."""
    assert spec.partitions(12) == (12 if spec.run_keyed else 1)


@every_topic
def test_topics_cleaned_by_their_consumer_never_expire(spec: TopicSpec) -> None:
    """A fixed retention shorter than an outage would lose requests for ever."""
    settings = spec.settings(replication=1)
    if spec.cleanup is Cleanup.CONSUMER:
        assert settings["cleanup.policy"] == "delete"
        assert settings["retention.ms"] == "-1"
        assert settings["retention.bytes"] == "-1"


@every_topic
def test_what_executors_and_the_orchestrator_consume_is_deleted_by_them_or_compacted(spec: TopicSpec) -> None:
    """No group's input loses records by age alone."""
    if any(spec.name in names for names in INPUTS.values()):
        assert spec.cleanup is not Cleanup.DELETE
        assert spec.settings(replication=1)["message.timestamp.type"] == "LogAppendTime"


def test_a_command_outlives_an_outage_of_thirty_days() -> None:
    """Compaction leaves a command alone that a later one of its run replaces."""
    assert COMMANDS_COMPACTION_LAG_MS == 30 * DAY_MS
    assert BY_NAME[RUN_COMMANDS].settings(1)["min.compaction.lag.ms"] == str(30 * 24 * 3600 * 1000)


@pytest.mark.parametrize(("replication", "in_sync"), [(1, "1"), (2, "1"), (3, "2"), (5, "2")])
def test_three_replicas_acknowledge_by_two(replication: int, in_sync: str) -> None:
    """With three replicas one broker may be away, and no acknowledged record rests on a single one."""
    assert BY_NAME[RUN_COMMANDS].settings(replication)["min.insync.replicas"] == in_sync


def test_limits_leave_room_for_each_other() -> None:
    """A record over the own limit can still be written, so that it can be told."""
    assert INBOX_BYTES_MAX == 1024 * 1024
    assert INBOX_BYTES_MAX < PRODUCED_BYTES_MAX < TOPIC_BYTES_MAX == 4 * 1024 * 1024


@every_topic
def test_a_full_name_is_legal_and_leads_back(spec: TopicSpec) -> None:
    """The longest namespace makes a topic name that Kafka takes, and it can be told apart again."""
    names = Namespace("n" * NAMESPACE_CHARS_MAX)
    topic = names.topic(spec.name)
    assert TOPIC_NAME.fullmatch(topic)
    assert names.name(topic) == spec.name


@pytest.mark.parametrize("topic", ["acme", "acme.", "acme.nothing", "acme.x.run-events", "acmexrun-events"])
def test_foreign_topics_are_not_ours(topic: str) -> None:
    """A name that only looks alike is not of the namespace."""
    assert Namespace("acme").name(topic) is None


def test_an_unknown_topic_has_no_full_name() -> None:
    """Names at the broker come from the table alone."""
    with pytest.raises(KeyError):
        Namespace().topic("run-event")


@pytest.mark.parametrize("prefix", ["", ".", "a.", "-a", "a b", "ä", "a/b", "n" * (NAMESPACE_CHARS_MAX + 1)])
def test_a_prefix_that_kafka_would_not_take_is_refused(prefix: str) -> None:
    """Before anything is made with it."""
    with pytest.raises(NamespaceRefused):
        Namespace(prefix)


def test_roles_slots_and_namespaces_never_share_a_name() -> None:
    """A transactional id shared by two slots would let each fence the other for ever."""
    names = [
        Namespace(prefix).transactional_id(role, slot)
        for prefix in ("perdure", "acme")
        for role in Role
        for slot in ("0", "1")
    ]
    assert len(set(names)) == len(names)


def test_executors_have_maps_and_one_input() -> None:
    """The map is metadata of one topic's offsets; the orchestrator's offsets carry none."""
    assert set(INPUTS) == set(Role)
    assert {role for role in Role if role in MAPPED} == {Role.MODEL_CALLER, Role.TOOL_EXECUTOR}
    assert all(len(INPUTS[role]) == 1 for role in MAPPED)
