"""Doctor on the groups: has each role members, and how much is there that they have not done?"""

from __future__ import annotations

from typing import Final

from confluent_kafka import IsolationLevel

from perdure.console.findings import Finding, note, ok, problem, warning
from perdure.console.patient import TIMEOUT_S, Patient, end_offsets, records_from
from perdure.processors.offset_map import OffsetMap, decode
from perdure.topics.kafka_provision import KafkaProvision
from perdure.topics.log import CommittedOffset, Position, TopicPartition
from perdure.topics.table import INPUTS, MAPPED, Role

CHECK: Final = "groups"
COUNTED_OFFSETS_MAX: Final = 12_000


def groups(patient: Patient) -> list[Finding]:
    """One finding a role, and one for each partition that stands where it can not."""
    return [each for role in INPUTS for each in _group(patient, role)]


def _group(patient: Patient, role: Role) -> list[Finding]:
    admin = KafkaProvision(patient.log.admin)
    group = patient.namespace.group(role)
    topics = [patient.namespace.topic(name) for name in INPUTS[role]]
    infos = patient.log.describe(topics, TIMEOUT_S)
    at = [TopicPartition(name, number) for name, info in infos.items() for number in range(info.partitions)]
    if not at:
        return []  # what is missing is told by the check of the topics
    ends = end_offsets(patient.admin, at, IsolationLevel.READ_COMMITTED)
    findings: list[Finding] = []
    starts: list[Position] = []
    done: set[tuple[TopicPartition, int]] = set()
    open_count = 0
    committed = admin.offsets(group, at, TIMEOUT_S)
    members = admin.members(group, TIMEOUT_S)
    for each in committed:
        base, end = each.offset or 0, ends[each.at]
        if base > end:
            findings.append(_beyond(group, each, end))
        if role in MAPPED:
            found = decode(base, each.metadata, infos[each.at.topic].topic_id)
            if isinstance(found, OffsetMap):
                done.update((each.at, offset) for offset in found.done)
            elif end > 0:
                findings.append(_unmapped(group, each, found.value))
        if base < end:
            start = max(base, end - COUNTED_OFFSETS_MAX)
            open_count += start - base
            starts.append(Position(each.at, start))
    # Markers of transactions take offsets too, and executors end out of order: what is open has to be
    # counted.
    open_count += sum((record.at, record.offset) not in done for record in records_from(patient, starts))
    return [*findings, _told(group, role, members, open_count)]


def _told(group: str, role: Role, members: int, open_count: int) -> Finding:
    text = f"{group}: {members} member(s), {open_count} record(s) not done."
    if members:
        return ok(CHECK, text)
    start = f"Start one: perdure worker --role {role.value}"
    return warning(CHECK, text, start) if open_count else note(CHECK, text, start)


def _beyond(group: str, stands: CommittedOffset, end: int) -> Finding:
    return problem(
        CHECK,
        f"{group} stands at {stands.offset} of {stands.at.topic}/{stands.at.partition}, which ends at {end}.",
        "Offsets and topic do not belong together (was the topic made anew?): stop the role, reset its "
        "offsets.",
    )


def _unmapped(group: str, stands: CommittedOffset, why: str) -> Finding:
    return note(
        CHECK,
        f"{group} has no map of what was begun on {stands.at.topic}/{stands.at.partition} ({why}).",
        "Its next owner takes every call it finds there for one that may have run; nothing is repeated "
        "blindly.",
    )
