"""Partition assignment as Kafka's assignors do it, as pure functions over members and topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from perdure.topics.log import TopicPartition


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member that wants partitions; ``owned``: what it says it holds already."""

    member_id: str
    instance_id: str | None
    topics: tuple[str, ...]
    owned: frozenset[TopicPartition]

    @property
    def rank(self) -> tuple[bool, str]:
        """Order within a group: static members first, by instance id, the others by member id."""
        return (self.instance_id is None, self.instance_id or self.member_id)


Assignment = dict[str, frozenset[TopicPartition]]
PartitionCount = Callable[[str], int]


def assign_range(members: Sequence[Candidate], count: PartitionCount) -> Assignment:
    """Consecutive ranges, each topic by itself (which is why two topics need not go together)."""
    assigned: dict[str, set[TopicPartition]] = {member.member_id: set() for member in members}
    for topic in sorted({topic for member in members for topic in member.topics}):
        readers = sorted((m for m in members if topic in m.topics), key=lambda m: m.rank)
        share, extra = divmod(count(topic), len(readers))
        first = 0
        for place, reader in enumerate(readers):
            size = share + (1 if place < extra else 0)
            assigned[reader.member_id] |= {TopicPartition(topic, p) for p in range(first, first + size)}
            first += size
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


def assign_sticky(members: Sequence[Candidate], count: PartitionCount) -> Assignment:
    """Even shares that move as little as possible: what a member owns stays unless it has too much."""
    ranked = sorted(members, key=lambda m: m.rank)
    wanted = {TopicPartition(t, p) for m in ranked for t in m.topics for p in range(count(t))}
    assigned: dict[str, set[TopicPartition]] = {m.member_id: set() for m in ranked}
    free = set(wanted)
    for member in ranked:
        kept = {at for at in member.owned if at in free and at.topic in member.topics}
        assigned[member.member_id] |= kept
        free -= kept
    for at in sorted(free):
        readers = [m for m in ranked if at.topic in m.topics]
        poorest = min(readers, key=lambda m: len(assigned[m.member_id]))
        assigned[poorest.member_id].add(at)
    while move := _imbalance(ranked, assigned):
        at, giver, taker = move
        assigned[giver].discard(at)
        assigned[taker].add(at)
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


def _imbalance(
    ranked: Sequence[Candidate], assigned: Mapping[str, set[TopicPartition]]
) -> tuple[TopicPartition, str, str] | None:
    """A move that evens shares out by at least one, if there is any."""
    for taker in sorted(ranked, key=lambda m: len(assigned[m.member_id])):
        poor = len(assigned[taker.member_id])
        for giver in sorted(ranked, key=lambda m: -len(assigned[m.member_id])):
            if len(assigned[giver.member_id]) - poor < 2:
                break
            movable = sorted(at for at in assigned[giver.member_id] if at.topic in taker.topics)
            if movable:
                return movable[-1], giver.member_id, taker.member_id
    return None
