"""A KIP-848 group: the coordinator assigns, and members move to it one heartbeat at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

from perdure.topics.log import GroupProtocol, TopicPartition
from perdure.topics.model_assignor import Candidate, assign_sticky
from perdure.topics.model_broker import Broker
from perdure.topics.model_codes import Code
from perdure.topics.model_membership import Beat, GroupClient, HeartbeatRequest, JoinRequest


@dataclass(slots=True)
class ConsumerMember:
    """``assigned``: granted by the coordinator; ``revoking``: taken back, not yet given up by the client."""

    member_id: str
    client: GroupClient
    topics: tuple[str, ...]
    epoch: int = 0
    previous_epoch: int = 0  # still good for a heartbeat whose predecessor's answer was lost
    target: frozenset[TopicPartition] = frozenset()
    assigned: set[TopicPartition] = field(default_factory=set[TopicPartition])
    revoking: set[TopicPartition] = field(default_factory=set[TopicPartition])
    revoke_until_ms: int = 0
    away: bool = False  # a static member that closed and may come back

    @property
    def holds(self) -> set[TopicPartition]:
        return self.assigned | self.revoking


class ConsumerGroup:
    """Members of one KIP-848 group."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._members: dict[str, ConsumerMember] = {}
        self._static: dict[str, str] = {}
        self.epoch = 0

    @property
    def is_empty(self) -> bool:
        return not self._members

    @property
    def is_stable(self) -> bool:
        return not self.is_empty and all(
            m.epoch == self.epoch and not m.target ^ m.assigned for m in self._members.values()
        )

    @property
    def member_ids(self) -> tuple[str, ...]:
        return tuple(self._members)

    def subscribes(self, topic: str) -> bool:
        return any(topic in member.topics for member in self._members.values())

    def join(self, request: JoinRequest) -> tuple[Code, str]:
        spec = request.client.spec
        if spec.protocol is not GroupProtocol.CONSUMER:
            return Code.INCONSISTENT_GROUP_PROTOCOL, ""
        known = self._static.get(spec.instance_id) if spec.instance_id is not None else None
        member_id = request.member_id or self._broker.next_member_id(spec.client_id)
        if known is not None and known != member_id:
            if not self._members[known].away:
                return Code.UNRELEASED_INSTANCE_ID, ""
            self._take_over(known, member_id, request)
            return Code.NONE, member_id
        self._members[member_id] = ConsumerMember(member_id, request.client, request.topics)
        if spec.instance_id is not None:
            self._static[spec.instance_id] = member_id
        self._retarget()
        return Code.NONE, member_id

    def _take_over(self, known: str, member_id: str, request: JoinRequest) -> None:
        """A static member comes back: same target, no new group epoch unless it subscribes otherwise."""
        old = self._members.pop(known)
        self._members[member_id] = ConsumerMember(
            member_id, request.client, request.topics, target=old.target
        )
        self._static[request.client.spec.instance_id or ""] = member_id
        if old.topics != request.topics:
            self._retarget()

    def heartbeat(self, request: HeartbeatRequest) -> Beat:
        member = self._members.get(request.member_id)
        if member is None:
            return Beat(Code.UNKNOWN_MEMBER_ID)
        if request.generation not in (member.epoch, member.previous_epoch, -1):
            return Beat(Code.FENCED_MEMBER_EPOCH)
        self._reconcile(member, request.owned)
        return Beat(Code.NONE, member.epoch, frozenset(member.assigned))

    def _reconcile(self, member: ConsumerMember, owned: frozenset[TopicPartition]) -> None:
        """First give up what is not in the target, only then take the new epoch and what is free."""
        member.revoking &= owned
        surplus = member.assigned - member.target
        if surplus:
            member.assigned -= surplus
            member.revoking |= surplus & owned
            member.revoke_until_ms = self._broker.now_ms + member.client.spec.max_poll_interval_ms
        if member.revoking:
            return
        held = {at for other in self._members.values() if other is not member for at in other.holds}
        member.assigned |= member.target - held
        if member.epoch != self.epoch:
            member.previous_epoch, member.epoch = member.epoch, self.epoch

    def leave(self, member_id: str) -> None:
        member = self._members.pop(member_id, None)
        if member is None:
            return
        instance_id = member.client.spec.instance_id
        if instance_id is not None and self._static.get(instance_id) == member_id:
            del self._static[instance_id]
        self._retarget()

    def close(self, member_id: str) -> None:
        """A static member goes with epoch -2: its partitions wait for it until the session time-out."""
        member = self._members.get(member_id)
        if member is None:
            return
        if member.client.spec.instance_id is None:
            self.leave(member_id)
        else:
            member.away = True

    def check_commit(
        self, member_id: str, generation: int, instance_id: str | None, *, transactional: bool
    ) -> Code:
        if generation < 0 and not self._members:
            return Code.NONE
        if transactional and generation < 0 and not member_id and instance_id is None:
            return Code.NONE
        member = self._members.get(member_id)
        if member is None:
            return Code.UNKNOWN_MEMBER_ID
        if generation != member.epoch:
            return Code.ILLEGAL_GENERATION if transactional else Code.STALE_MEMBER_EPOCH
        return Code.NONE

    def sync(self) -> None:
        """Nothing is held here: each member moves by its own heartbeats."""

    def topics_changed(self, topic: str) -> None:
        if self.subscribes(topic):
            self._retarget()

    def next_deadline_ms(self) -> int | None:
        due = [m.client.gone_after_ms for m in self._members.values()]
        due += [m.revoke_until_ms for m in self._members.values() if m.revoking]
        return min(due, default=None)

    def expire(self) -> None:
        now_ms = self._broker.now_ms
        for member in list(self._members.values()):
            gone_ms = member.client.gone_after_ms
            if now_ms >= gone_ms or (member.revoking and now_ms >= member.revoke_until_ms):
                member.client.leave_if_lazy(now_ms)
                self.leave(member.member_id)

    def _retarget(self) -> None:
        self.epoch += 1
        candidates = [
            Candidate(m.member_id, m.client.spec.instance_id, m.topics, m.target)
            for m in self._members.values()
        ]
        assigned = assign_sticky(candidates, self._broker.partition_count)
        for member in self._members.values():
            member.target = assigned[member.member_id]
