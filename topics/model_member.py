"""The group half of a model consumer: join, heartbeat, and the callbacks of a change of ownership."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from perdure.topics.errors import ClientFatal, Fenced
from perdure.topics.log import ConsumerSpec, GroupProtocol, TopicPartition
from perdure.topics.model_cluster import ModelCluster
from perdure.topics.model_codes import Code
from perdure.topics.model_faults import Api
from perdure.topics.model_identity import Credentials
from perdure.topics.model_membership import GroupClient, HeartbeatRequest, JoinRequest

STEPS_MAX = 20  # callbacks within one poll; more means two protocols that never agree


class Ownership(Protocol):
    """What the member tells its consumer to do; each runs a listener callback and changes the assignment."""

    def gain(self, partitions: frozenset[TopicPartition]) -> None: ...

    def give_up(self, partitions: frozenset[TopicPartition]) -> None: ...

    def lose(self, partitions: frozenset[TopicPartition]) -> None: ...


class Member:
    """One consumer's membership, seen from the client."""

    def __init__(self, cluster: ModelCluster, spec: ConsumerSpec, ownership: Ownership) -> None:
        self._cluster = cluster
        self._spec = spec
        self._ownership = ownership
        self._topics: tuple[str, ...] = ()
        self._owned: frozenset[TopicPartition] = frozenset()
        self._member_id = ""
        self._generation = -1
        self._joined = False
        self._awaiting = False  # joined, and the new assignment has not been taken yet
        self._broken: Callable[[], Exception] | None = None
        self.client = GroupClient(spec, cluster.now_ms)

    @property
    def credentials(self) -> Credentials:
        """As a background thread knows them: a new generation shows before its assign callback has run."""
        classic = self._spec.protocol is not GroupProtocol.CONSUMER
        if classic and self._awaiting and self._joined:
            beat = self._cluster.groups.heartbeat(self._heartbeat())
            if beat.code is Code.NONE:
                self._generation = beat.generation
        member_id = "" if self.client.left else self._member_id
        return Credentials(self._generation, member_id, self._spec.instance_id)

    @property
    def owned(self) -> frozenset[TopicPartition]:
        return self._owned

    def subscribe(self, topics: tuple[str, ...]) -> None:
        self._topics = topics

    def step(self) -> None:
        """What the background thread found out, and the callbacks that follow from it."""
        self.client.polled_ms = self._cluster.now_ms
        if not self._topics:
            return
        self.check()
        if self._cluster.faults.group_coordinator_down:
            return
        for _ in range(STEPS_MAX):
            if not self._step():
                return

    def check(self) -> None:
        if self._broken is not None:
            raise self._broken()

    def close(self) -> None:
        """Give everything up and leave."""
        if self._owned:
            owned, self._owned = self._owned, frozenset()
            self._ownership.give_up(owned)
        if self._member_id:
            self._cluster.groups.close(self._spec.group or "", self._member_id)
        self.client.silent_since_ms = self._cluster.now_ms
        self._joined = False
        self._topics = ()

    def _step(self) -> bool:
        """One exchange with the coordinator; True if there may be more to do at once."""
        if not self._joined:
            return self._join()
        if self._cluster.faults.meet(Api.HEARTBEAT, self._spec.client_id) is not None:
            self._cluster.groups.heartbeat(self._heartbeat())
            return False  # the coordinator went on, and the answer was lost
        beat = self._cluster.groups.heartbeat(self._heartbeat())
        match beat.code:
            case Code.NONE:
                self._generation = beat.generation
                return beat.assignment is not None and self._take(beat.assignment)
            case Code.REBALANCE_IN_PROGRESS:
                return self._rejoin()
            case Code.UNKNOWN_MEMBER_ID | Code.ILLEGAL_GENERATION | Code.FENCED_MEMBER_EPOCH:
                if beat.code is not Code.ILLEGAL_GENERATION:
                    self._member_id = ""
                self._lose()
                return True
            case _:
                self._break(beat.code)
                return False

    def _heartbeat(self) -> HeartbeatRequest:
        return HeartbeatRequest(self.client, self._member_id, self._generation, self._owned)

    def _join(self) -> bool:
        self.client.left = False
        code, member_id = self._cluster.groups.join(
            JoinRequest(self.client, self._member_id, self._topics, self._owned)
        )
        match code:
            case Code.NONE:
                self._member_id = member_id
                self._joined = self._awaiting = True
                return True
            case Code.UNKNOWN_MEMBER_ID:
                self._member_id = ""
                return True
            case _:
                self._break(code)
                return False

    def _rejoin(self) -> bool:
        """A classic rebalance began. Eager: everything is given up first; cooperative: nothing is."""
        if not self._spec.protocol.incremental and not self._awaiting:
            owned, self._owned = self._owned, frozenset()
            if owned:
                self._ownership.give_up(owned)
        self._joined = False
        return True

    def _take(self, assignment: frozenset[TopicPartition]) -> bool:
        """The coordinator's assignment, as far as it is new."""
        if not self._awaiting and assignment == self._owned:
            return False
        first, self._awaiting = self._awaiting, False
        revoked, added = self._owned - assignment, assignment - self._owned
        if not self._spec.protocol.incremental:
            self._owned = assignment
            self._ownership.gain(assignment)
            return False
        if revoked:
            self._owned -= revoked
            self._ownership.give_up(revoked)
            self._owned |= added
            if added:
                self._ownership.gain(added)
            self._after_revocation()
            return True
        self._owned |= added
        if added or first:
            self._ownership.gain(added)
        return True

    def _after_revocation(self) -> None:
        """Cooperative members join once more, so that others get what was given up; KIP-848 ones go on."""
        if self._spec.protocol is GroupProtocol.COOPERATIVE:
            self._joined = False

    def _lose(self) -> None:
        """Ownership is gone; a revocation that was on its way already is delivered as one all the same."""
        self._generation = -1
        self._joined = self._awaiting = False
        owned, self._owned = self._owned, frozenset()
        late, self.client.revocation_queued = self.client.revocation_queued, False
        if owned and late:
            self._ownership.give_up(owned)
        elif owned:
            self._ownership.lose(owned)

    def _break(self, code: Code) -> None:
        """Nothing helps but a new client. As with librdkafka no callback tells that ownership is gone."""
        self._joined = False
        self._owned = frozenset()
        self._member_id = ""
        fenced = code in (Code.FENCED_INSTANCE_ID, Code.UNRELEASED_INSTANCE_ID)
        self._broken = lambda: Fenced(code.value) if fenced else ClientFatal(code.value)
        self.check()
