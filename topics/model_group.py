"""The model's group coordinator: who is in a group, and what the group has committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perdure.topics.log import CommittedOffset, GroupProtocol, Position, TopicPartition
from perdure.topics.model_broker import Broker
from perdure.topics.model_classic_group import ClassicGroup
from perdure.topics.model_codes import Code
from perdure.topics.model_consumer_group import ConsumerGroup
from perdure.topics.model_faults import GroupLog
from perdure.topics.model_identity import Credentials, ProducerIdentity
from perdure.topics.model_membership import Beat, HeartbeatRequest, JoinRequest, Membership
from perdure.topics.model_offsets import GroupOffsets, StoredOffset
from perdure.topics.model_partition import Marker


@dataclass(slots=True)
class Group:
    """``empty_since_ms``: when the last member went, for the expiry of offsets; None: never had members."""

    offsets: GroupOffsets
    membership: Membership | None = None
    empty_since_ms: int | None = None
    oldest_ms: int | None = None
    """No offset is older; None: not looked yet."""


class GroupCoordinator:
    """All groups of the cluster."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._groups: dict[str, Group] = {}

    # ---- members -------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest) -> tuple[Code, str]:
        spec = request.client.spec
        group = self._group(spec.group or "")
        membership = self._membership_for(group, spec.protocol)
        answer = membership.join(request)
        self._note_empty()
        return answer

    def heartbeat(self, request: HeartbeatRequest) -> Beat:
        membership = self._group(request.client.spec.group or "").membership
        return Beat(Code.UNKNOWN_MEMBER_ID) if membership is None else membership.heartbeat(request)

    def close(self, group: str, member_id: str) -> None:
        """A client closes."""
        membership = self._group(group).membership
        if membership is not None:
            membership.close(member_id)
            self._note_empty()

    def evict(self, group: str, member_id: str) -> None:
        """Remove a member from outside, as an administrator does; its process does not know yet."""
        membership = self._group(group).membership
        if membership is not None:
            membership.leave(member_id)
            self._note_empty()

    def members(self, group: str) -> tuple[str, ...]:
        membership = self._group(group).membership
        return () if membership is None else membership.member_ids

    def is_stable(self, group: str) -> bool:
        membership = self._group(group).membership
        return membership is not None and membership.is_stable

    def sync(self, group: str) -> None:
        """Complete a rebalance that ``Faults.hold_sync`` keeps from completing."""
        membership = self._group(group).membership
        if membership is not None:
            membership.sync()

    # ---- offsets -------------------------------------------------------------------------------------------

    def commit(self, group: str, who: Credentials, offsets: Sequence[CommittedOffset]) -> Code:
        """OffsetCommit: all of ``offsets``, or none."""
        found = self._group(group)
        code = self._check(found, who, transactional=False)
        if code is not Code.NONE:
            return code
        if any(self._broker.find(each.at) is None for each in offsets):
            return Code.UNKNOWN_TOPIC_OR_PARTITION
        for each in offsets:
            if each.offset is not None:
                found.offsets.commit(each.at, each.offset, each.metadata, self._broker.now_ms)
        return Code.NONE

    def commit_transactional(
        self, group: str, who: Credentials, producer: ProducerIdentity, offsets: Sequence[Position]
    ) -> Code:
        """TxnOffsetCommit: the offsets wait for the transaction's marker."""
        code = self._broker.verify(producer, GroupLog(group))
        if code is not Code.NONE:
            return code
        found = self._group(group)
        code = self._check(found, who, transactional=True)
        if code is not Code.NONE:
            return code
        for each in offsets:
            found.offsets.commit_pending(producer.producer_id, each.at, each.offset, self._broker.now_ms)
        return Code.NONE

    def finish(self, group: str, producer_id: int, marker: Marker) -> None:
        """A transaction's marker reaches the group's offsets."""
        self._group(group).offsets.finish(producer_id, marker, self._broker.now_ms)

    def fetch(self, group: str, partitions: Sequence[TopicPartition]) -> list[CommittedOffset] | None:
        """OffsetFetch, require-stable: None while a transaction holds an offset of one of ``partitions``."""
        found = self._group(group)
        if any(found.offsets.is_unstable(at) for at in partitions):
            return None
        stored = [(at, found.offsets.get(at)) for at in partitions]
        return [
            CommittedOffset(at, None) if each is None else CommittedOffset(at, each.offset, each.metadata)
            for at, each in stored
        ]

    # ---- time and topics -----------------------------------------------------------------------------------

    def topics_changed(self, topic: str) -> None:
        for group in self._groups.values():
            if group.membership is not None:
                group.membership.topics_changed(topic)

    def topic_deleted(self, topic: str) -> None:
        for group in self._groups.values():
            group.offsets.forget_topic(topic)

    def next_deadline_ms(self) -> int | None:
        memberships = [g.membership for g in self._groups.values() if g.membership is not None]
        due = [membership.next_deadline_ms() for membership in memberships]
        return min((ms for ms in due if ms is not None), default=None)

    def expire(self) -> None:
        for group in self._groups.values():
            if group.membership is not None:
                group.membership.expire()
        self._note_empty()

    def expire_offsets(self, group: str) -> None:
        """Drop offsets older than the retention: all of an empty group's, counted from when it became empty;
        of a group with members only those on topics nobody subscribes to (hand-added ones, say).
        """
        found = self._groups[group]
        oldest_ms = self._broker.now_ms - self._broker.offsets_retention_ms
        if found.oldest_ms is not None and found.oldest_ms > oldest_ms:
            return
        membership = found.membership

        def is_expired(at: TopicPartition, stored: StoredOffset) -> bool:
            if membership is None:
                return stored.committed_ms <= oldest_ms
            if membership.is_empty:
                since_ms = stored.committed_ms if found.empty_since_ms is None else found.empty_since_ms
                return since_ms <= oldest_ms
            return (
                membership.is_stable
                and not membership.subscribes(at.topic)
                and stored.committed_ms <= oldest_ms
            )

        found.offsets.expire(is_expired)
        known = (found.offsets.oldest_ms, found.empty_since_ms, self._broker.now_ms)
        found.oldest_ms = min(each for each in known if each is not None)

    # ---- inside --------------------------------------------------------------------------------------------

    def _group(self, name: str) -> Group:
        group = self._groups.get(name)
        if group is None:
            group = Group(GroupOffsets(name, self._broker.add_offsets_partition()))
            self._groups[name] = group
        elif group.membership is None or group.membership.is_empty or group.membership.is_stable:
            self.expire_offsets(name)
        return group

    def _membership_for(self, group: Group, protocol: GroupProtocol) -> Membership:
        """The group's members; an empty group takes whatever protocol its first member brings."""
        membership = group.membership
        if membership is not None and not membership.is_empty:
            return membership
        match membership, protocol:
            case (ClassicGroup() as classic, GroupProtocol.RANGE | GroupProtocol.COOPERATIVE):
                classic.protocol = protocol
                return classic
            case (ConsumerGroup() as consumer, GroupProtocol.CONSUMER):
                return consumer
            case (_, GroupProtocol.CONSUMER):
                group.membership = ConsumerGroup(self._broker)
            case _:
                group.membership = ClassicGroup(self._broker, protocol)
        return group.membership

    def _check(self, group: Group, who: Credentials, *, transactional: bool) -> Code:
        if group.membership is None:
            return Code.NONE if who.generation < 0 else Code.ILLEGAL_GENERATION
        return group.membership.check_commit(
            who.member_id, who.generation, who.instance_id, transactional=transactional
        )

    def _note_empty(self) -> None:
        for group in self._groups.values():
            if group.membership is None or not group.membership.is_empty:
                group.empty_since_ms = None
            elif group.empty_since_ms is None:
                group.empty_since_ms = self._broker.now_ms
