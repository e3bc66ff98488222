"""What the two kinds of group have in common: who a member is and when it falls silent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from perdure.topics.log import ConsumerSpec, TopicPartition
from perdure.topics.model_codes import Code


@dataclass(slots=True)
class GroupClient:
    """The process side of a member as its heartbeats tell of it.

    A live process heartbeats in the background whatever its code does, so only these two things matter:
    since when it is silent (killed, stopped, cut off), and when its code last polled.
    """

    spec: ConsumerSpec
    polled_ms: int
    silent_since_ms: int | None = None
    left: bool = False  # by itself, because its code did not poll; the code learns that at its next poll
    revocation_queued: bool = False  # found out in the background, and its callback has not run yet

    def leave_if_lazy(self, now_ms: int) -> None:
        """What the background thread does when the code has not polled for too long."""
        if self.silent_since_ms is None and now_ms >= self.polled_ms + self.spec.max_poll_interval_ms:
            self.left = self.spec.instance_id is None

    @property
    def gone_after_ms(self) -> int:
        """When the coordinator gives the member up, if nothing changes.

        A lazy poller leaves by itself (KIP-62); a static one only stops to heartbeat.
        """
        lazy_ms = self.polled_ms + self.spec.max_poll_interval_ms
        if self.spec.instance_id is not None:
            lazy_ms += self.spec.session_timeout_ms
        if self.silent_since_ms is None:
            return lazy_ms
        return min(lazy_ms, self.silent_since_ms + self.spec.session_timeout_ms)


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """What a client says when it joins; an empty ``member_id`` asks for a new one."""

    client: GroupClient
    member_id: str
    topics: tuple[str, ...]
    owned: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """What a member says of itself from time to time; KIP-848 members also say what they own."""

    client: GroupClient
    member_id: str
    generation: int
    owned: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat's answer. ``assignment is None``: nothing (new) is said about partitions."""

    code: Code
    generation: int = -1
    assignment: frozenset[TopicPartition] | None = None


class Membership(Protocol):
    """A group's members under one protocol."""

    @property
    def is_empty(self) -> bool: ...

    @property
    def is_stable(self) -> bool: ...

    @property
    def member_ids(self) -> tuple[str, ...]: ...

    def subscribes(self, topic: str) -> bool: ...

    def join(self, request: JoinRequest) -> tuple[Code, str]:
        """Join or join again; returns the member id."""
        ...

    def heartbeat(self, request: HeartbeatRequest) -> Beat: ...

    def leave(self, member_id: str) -> None:
        """Give a membership up for good."""
        ...

    def close(self, member_id: str) -> None:
        """What a client does when it closes: leave, or go away for a while if it is static."""
        ...

    def sync(self) -> None:
        """Let a held rebalance complete."""
        ...

    def check_commit(
        self, member_id: str, generation: int, instance_id: str | None, *, transactional: bool
    ) -> Code:
        """Whether a commit with these credentials is taken; who owns a partition is never asked."""
        ...

    def topics_changed(self, topic: str) -> None: ...

    def next_deadline_ms(self) -> int | None: ...

    def expire(self) -> None: ...
