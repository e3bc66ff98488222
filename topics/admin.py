"""What provisioning asks of a cluster and may do to it: the small port under :mod:`perdure.topics.provision`.

All names are full names. Every call raises :class:`~perdure.topics.errors.Unavailable` when it is not
answered within its time, and :class:`~perdure.topics.errors.ClientFatal` where rights are missing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from perdure.schemas.errors import Retry
from perdure.topics.log import CommittedOffset, Isolation, TopicPartition, Watermarks


class GroupInUse(Retry):
    """A consumer group has live members, so that its offsets can not be set from outside."""

    code = "group_in_use"
    remedy = "Stop the group's members, wait for its session time-out, then do it again."


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as it is. ``settings``: what holds for it, set on the topic or by the broker's defaults."""

    partitions: int
    replication: int
    topic_id: str
    settings: Mapping[str, str]


class Admin(Protocol):
    """The cluster's administration."""

    def topics(self, names: Collection[str], timeout_s: float) -> Mapping[str, TopicState]:
        """Those of ``names`` that exist."""
        ...

    def create_topic(
        self, name: str, partitions: int, replication: int, settings: Mapping[str, str], timeout_s: float
    ) -> None:
        """Returns when the topic can be described. A topic that exists already is left as it is."""
        ...

    def alter_topic(self, name: str, settings: Mapping[str, str], timeout_s: float) -> None:
        """Change these settings and no other."""
        ...

    def members(self, group: str, timeout_s: float) -> int:
        """Live members of the group; 0 too for a group that does not exist."""
        ...

    def offsets(
        self, group: str, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> Sequence[CommittedOffset]:
        """What the group has committed, ``offset`` None where nothing."""
        ...

    def set_offsets(self, group: str, offsets: Sequence[CommittedOffset], timeout_s: float) -> None:
        """Commit on behalf of a group without members. Raises :class:`GroupInUse`."""
        ...

    def watermarks(self, at: TopicPartition, isolation: Isolation, timeout_s: float) -> Watermarks: ...
