"""A classic group: JoinGroup, SyncGroup, generations; range or cooperative-sticky (KIP-345, KIP-429)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from perdure.topics.log import GroupProtocol, TopicPartition
from perdure.topics.model_assignor import Candidate, assign_range, assign_sticky
from perdure.topics.model_broker import Broker
from perdure.topics.model_codes import Code
from perdure.topics.model_membership import Beat, GroupClient, HeartbeatRequest, JoinRequest


class ClassicState(Enum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(slots=True)
class ClassicMember:
    """``joined``: has (re)joined since the rebalance began."""

    member_id: str
    client: GroupClient
    topics: tuple[str, ...]
    owned: frozenset[TopicPartition]
    joined: bool = True
    assignment: frozenset[TopicPartition] = frozenset()


class ClassicGroup:
    """Members of one classic group."""

    def __init__(self, broker: Broker, protocol: GroupProtocol) -> None:
        self._broker = broker
        self.protocol = protocol
        self._members: dict[str, ClassicMember] = {}
        self._static: dict[str, str] = {}  # instance id -> member id
        self._rebalance_since_ms = 0
        self._rebalance_until_ms = 0
        self.state = ClassicState.EMPTY
        self.generation = 0

    @property
    def is_empty(self) -> bool:
        return not self._members

    @property
    def is_stable(self) -> bool:
        return self.state is ClassicState.STABLE

    @property
    def member_ids(self) -> tuple[str, ...]:
        return tuple(self._members)

    def subscribes(self, topic: str) -> bool:
        return any(topic in member.topics for member in self._members.values())

    def join(self, request: JoinRequest) -> tuple[Code, str]:
        spec = request.client.spec
        if spec.protocol is not self.protocol:
            return Code.INCONSISTENT_GROUP_PROTOCOL, ""
        known = self._static.get(spec.instance_id) if spec.instance_id is not None else None
        if request.member_id and request.member_id not in self._members:
            fenced = known is not None and known != request.member_id
            return (Code.FENCED_INSTANCE_ID if fenced else Code.UNKNOWN_MEMBER_ID), ""
        if known is not None and not request.member_id:
            return Code.NONE, self._replace_static(known, request)
        member_id = request.member_id or self._broker.next_member_id(spec.client_id)
        before = self._members.get(member_id)
        member = ClassicMember(member_id, request.client, request.topics, request.owned)
        member.assignment = frozenset() if before is None else before.assignment
        self._members[member_id] = member
        if spec.instance_id is not None:
            self._static[spec.instance_id] = member_id
        self._rebalance(member)
        return Code.NONE, member_id

    def _replace_static(self, old_id: str, request: JoinRequest) -> str:
        """A new process under a known instance id: takes the place, and the old member is fenced.

        In a stable group with an unchanged subscription nobody else hears of it.
        """
        old = self._members.pop(old_id)
        new_id = self._broker.next_member_id(request.client.spec.client_id)
        member = ClassicMember(new_id, request.client, request.topics, request.owned)
        member.assignment = old.assignment
        self._members[new_id] = member
        instance_id = request.client.spec.instance_id
        if instance_id is not None:
            self._static[instance_id] = new_id
        if self.state is not ClassicState.STABLE or old.topics != request.topics:
            self._rebalance(member)
        return new_id

    def heartbeat(self, request: HeartbeatRequest) -> Beat:
        """Also answers JoinGroup and SyncGroup: who has joined gets generation and assignment so."""
        if self._is_fenced(request.member_id, request.client.spec.instance_id):
            return Beat(Code.FENCED_INSTANCE_ID)
        member = self._members.get(request.member_id)
        if member is None:
            return Beat(Code.UNKNOWN_MEMBER_ID)
        match self.state:
            case ClassicState.PREPARING:
                return Beat(Code.NONE if member.joined else Code.REBALANCE_IN_PROGRESS, request.generation)
            case ClassicState.COMPLETING:
                return Beat(Code.NONE, self.generation)
            case ClassicState.STABLE | ClassicState.EMPTY:
                if not member.joined and request.generation != self.generation:
                    return Beat(Code.ILLEGAL_GENERATION)
                return Beat(Code.NONE, self.generation, member.assignment)

    def _is_fenced(self, member_id: str, instance_id: str | None) -> bool:
        """Whether another process holds the instance id now."""
        return instance_id is not None and self._static.get(instance_id, member_id) != member_id

    def leave(self, member_id: str) -> None:
        member = self._members.pop(member_id, None)
        if member is None:
            return
        if self.state is ClassicState.PREPARING and not member.joined:
            heard_ms = self._rebalance_since_ms + member.client.spec.heartbeat_interval_ms
            silent_ms = member.client.silent_since_ms
            could_hear = silent_ms is None or silent_ms >= heard_ms
            member.client.revocation_queued = could_hear and self._broker.now_ms >= heard_ms
        instance_id = member.client.spec.instance_id
        if instance_id is not None and self._static.get(instance_id) == member_id:
            del self._static[instance_id]
        self._rebalance(None)

    def close(self, member_id: str) -> None:
        """A static member does not leave: its place waits until the session time-out (KIP-345)."""
        member = self._members.get(member_id)
        if member is not None and member.client.spec.instance_id is None:
            self.leave(member_id)

    def check_commit(
        self, member_id: str, generation: int, instance_id: str | None, *, transactional: bool
    ) -> Code:
        if generation < 0 and not self._members:
            return Code.NONE
        if generation >= 0 or member_id or instance_id is not None:
            if self._is_fenced(member_id, instance_id):
                return Code.FENCED_INSTANCE_ID
            if member_id not in self._members:
                return Code.UNKNOWN_MEMBER_ID
            if generation != self.generation:
                return Code.ILLEGAL_GENERATION
        elif not transactional:
            return Code.UNKNOWN_MEMBER_ID
        if not transactional and self.state is ClassicState.COMPLETING:
            return Code.REBALANCE_IN_PROGRESS
        return Code.NONE

    def topics_changed(self, topic: str) -> None:
        """The leader sees other metadata and asks for a rebalance."""
        if self._members and self.subscribes(topic):
            self._rebalance(None)

    def sync(self) -> None:
        """The leader's assignment arrives (after ``Faults.hold_sync``)."""
        if self.state is ClassicState.COMPLETING:
            self.state = ClassicState.STABLE

    def next_deadline_ms(self) -> int | None:
        due = [m.client.gone_after_ms for m in self._members.values()]
        if self.state is ClassicState.PREPARING:
            due.append(self._rebalance_until_ms)
        return min(due, default=None)

    def expire(self) -> None:
        now_ms = self._broker.now_ms
        for member in list(self._members.values()):
            gone_ms = member.client.gone_after_ms
            if now_ms >= gone_ms:
                member.client.leave_if_lazy(now_ms)
                self.leave(member.member_id)
        if self.state is ClassicState.PREPARING and now_ms >= self._rebalance_until_ms:
            late = [m for m in self._members.values() if not m.joined and m.client.spec.instance_id is None]
            for member in late:
                member.client.revocation_queued = member.client.silent_since_ms is None
                del self._members[member.member_id]
            self._complete()

    def _rebalance(self, asked_by: ClassicMember | None) -> None:
        if not self._members:
            self.state = ClassicState.EMPTY
            self.generation += 1
            return
        if self.state is not ClassicState.PREPARING:
            self.state = ClassicState.PREPARING
            timeouts = [m.client.spec.max_poll_interval_ms for m in self._members.values()]
            self._rebalance_since_ms = self._broker.now_ms
            self._rebalance_until_ms = self._broker.now_ms + max(timeouts)
            for member in self._members.values():
                member.joined = member is asked_by
        if all(member.joined for member in self._members.values()):
            self._complete()

    def _complete(self) -> None:
        """All have joined: a new generation, its assignment, and (unless held) the leader's SyncGroup."""
        self.generation += 1
        if not self._members:
            self.state = ClassicState.EMPTY
            return
        candidates = [
            Candidate(m.member_id, m.client.spec.instance_id, m.topics, m.owned)
            for m in self._members.values()
        ]
        count = self._broker.partition_count
        if self.protocol is GroupProtocol.RANGE:
            assigned = assign_range(candidates, count)
        else:
            assigned = assign_sticky(candidates, count)
            owned = {at: c.member_id for c in candidates for at in c.owned}
            for (
                member_id,
                partitions,
            ) in assigned.items():  # what another still owns comes after it was revoked
                mine = {at for at in partitions if owned.get(at, member_id) == member_id}
                assigned[member_id] = frozenset(mine)
        for member in self._members.values():
            member.assignment = assigned[member.member_id]
        self.state = ClassicState.COMPLETING if self._broker.faults.hold_sync else ClassicState.STABLE
