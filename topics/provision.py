"""Bring a cluster to what the topic table says: first a plan to read, then the same plan applied.

A plan is data. It creates what is missing and changes settings that differ; it never changes a
partition count (a run's records are found by that number) and never moves an offset that exists.
Applied a second time, it changes nothing.

Groups get their first offsets here, because perdure reads with ``auto.offset.reset=error``: an offset
that is missing later was lost, and has to be told instead of being guessed. An executor's first offset
carries the map of "nothing started" only where there is nothing in the log. Where there is, nobody knows
what an earlier owner did, and an offset without map makes the executor ask about every call it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

from perdure.schemas.errors import Reject
from perdure.topics.admin import Admin, TopicState
from perdure.topics.log import CommittedOffset, Isolation, TopicPartition
from perdure.topics.table import INPUTS, MAPPED, TOPICS, Namespace, TopicSpec

ASK_TIMEOUT_S: Final = 30.0

EmptyMap: TypeAlias = Callable[[str], str]
"""From a topic's id to the map that says nothing was started (its format is the executor's)."""


class PartitionsDiffer(Reject):
    """Topics that exist have other partition counts than the settings ask for."""

    code = "partitions_differ"
    remedy = (
        "A partition count is final: set `partitions` to the number that exists, or provision another "
        "namespace and submit new runs there."
    )


@dataclass(frozen=True, slots=True)
class CreateTopic:
    topic: str
    partitions: int
    replication: int
    settings: Mapping[str, str]

    def describe(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in sorted(self.settings.items()))
        return (
            f"create {self.topic}: partitions={self.partitions}, replication={self.replication}, {settings}"
        )


@dataclass(frozen=True, slots=True)
class AlterTopic:
    """``before``: the values that ``settings`` replaces."""

    topic: str
    before: Mapping[str, str]
    settings: Mapping[str, str]

    def describe(self) -> str:
        changes = (f"{name} {self.before[name]} -> {value}" for name, value in sorted(self.settings.items()))
        return f"alter {self.topic}: {', '.join(changes)}"


@dataclass(frozen=True, slots=True)
class StartGroup:
    """Give a group its first offsets on a topic. ``mapped``: with the map that says nothing was started."""

    group: str
    topic: str
    partitions: tuple[int, ...]
    mapped: bool

    def describe(self) -> str:
        what = " with the empty map" if self.mapped else ""
        return f"start {self.group} on {self.topic}{_listed(self.partitions)} at the log's start{what}"


@dataclass(frozen=True, slots=True)
class Advice:
    """What differs and is not perdure's to change. Applying it does nothing."""

    subject: str
    text: str

    def describe(self) -> str:
        return f"note {self.subject}: {self.text}"


Change: TypeAlias = CreateTopic | AlterTopic | StartGroup | Advice


def plan(
    admin: Admin, namespace: Namespace, partitions: int, replication: int, timeout_s: float = ASK_TIMEOUT_S
) -> tuple[Change, ...]:
    """What has to change, in the order of doing it; empty when nothing has to.

    ``partitions``: of every run-keyed topic. ``replication``: of topics to be created. Raises
    :class:`PartitionsDiffer`, and what :class:`~perdure.topics.admin.Admin` raises.
    """
    found = admin.topics([namespace.topic(spec.name) for spec in TOPICS], timeout_s)
    _refuse_other_counts(found, namespace, partitions)
    changes: list[Change] = []
    for spec in TOPICS:
        topic = namespace.topic(spec.name)
        if (state := found.get(topic)) is None:
            settings = spec.settings(replication)
            changes.append(CreateTopic(topic, spec.partitions(partitions), replication, settings))
        else:
            changes.extend(_topic_changes(spec, topic, state, replication))
    for role, names in INPUTS.items():
        group = namespace.group(role)
        for name in names:
            topic = namespace.topic(name)
            missing = _without_offset(admin, group, topic, partitions, timeout_s)
            if missing:
                members = admin.members(group, timeout_s)
                changes.append(_start(group, topic, missing, members, mapped=role in MAPPED))
    return tuple(changes)


def apply(
    admin: Admin, changes: Iterable[Change], empty_map: EmptyMap, timeout_s: float = ASK_TIMEOUT_S
) -> None:
    """Do what a plan says. Safe to repeat, also after it stopped half-way."""
    for change in changes:
        match change:
            case CreateTopic(topic, partitions, replication, settings):
                admin.create_topic(topic, partitions, replication, settings, timeout_s)
            case AlterTopic(topic, _, settings):
                admin.alter_topic(topic, settings, timeout_s)
            case StartGroup():
                _start_group(admin, change, empty_map, timeout_s)
            case Advice():
                pass
            case _:
                assert_never(change)


def _refuse_other_counts(found: Mapping[str, TopicState], namespace: Namespace, partitions: int) -> None:
    wanted = {namespace.topic(spec.name): spec.partitions(partitions) for spec in TOPICS}
    other = [
        f"{topic} has {state.partitions} and should have {wanted[topic]}"
        for topic, state in found.items()
        if state.partitions != wanted[topic]
    ]
    if other:
        raise PartitionsDiffer(f"{'; '.join(sorted(other))}.")


def _topic_changes(spec: TopicSpec, topic: str, state: TopicState, replication: int) -> Iterable[Change]:
    # From what the topic has: a caller's smaller number must not lower what its acknowledgements promise.
    wanted = spec.settings(state.replication)
    differing = {name: value for name, value in wanted.items() if state.settings.get(name) != value}
    if differing:
        before = {name: state.settings.get(name, "unset") for name in differing}
        yield AlterTopic(topic, before, differing)
    if state.replication < replication:
        yield Advice(
            topic,
            f"has {state.replication} replicas, {replication} are wanted; reassign its partitions with "
            "kafka-reassign-partitions, then plan again.",
        )


def _without_offset(
    admin: Admin, group: str, topic: str, partitions: int, timeout_s: float
) -> tuple[int, ...]:
    asked = [TopicPartition(topic, partition) for partition in range(partitions)]
    committed = admin.offsets(group, asked, timeout_s)
    return tuple(sorted(each.at.partition for each in committed if each.offset is None))


def _start(group: str, topic: str, missing: tuple[int, ...], members: int, *, mapped: bool) -> Change:
    if members:
        where = f"{topic}{_listed(missing)}"
        return Advice(group, f"no offset on {where} but {members} live members; stop them, then plan again.")
    return StartGroup(group, topic, missing, mapped)


def _start_group(admin: Admin, change: StartGroup, empty_map: EmptyMap, timeout_s: float) -> None:
    topic_id = admin.topics([change.topic], timeout_s)[change.topic].topic_id
    asked = [TopicPartition(change.topic, partition) for partition in change.partitions]
    # Asked again: between the plan and now somebody else may have applied it and started work.
    committed = admin.offsets(change.group, asked, timeout_s)
    offsets: list[CommittedOffset] = []
    for each in committed:
        if each.offset is None:
            marks = admin.watermarks(each.at, Isolation.UNCOMMITTED, timeout_s)
            text = empty_map(topic_id) if change.mapped and marks.low == marks.end else ""
            offsets.append(CommittedOffset(each.at, marks.low, text))
    if offsets:
        admin.set_offsets(change.group, offsets, timeout_s)


def _listed(partitions: Sequence[int]) -> str:
    """``/0-3,5`` for partitions 0, 1, 2, 3 and 5."""
    runs: list[list[int]] = []
    for partition in partitions:
        if runs and runs[-1][1] == partition - 1:
            runs[-1][1] = partition
        else:
            runs.append([partition, partition])
    return "/" + ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
