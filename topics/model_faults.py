"""Faults and laxness that a test injects into the model cluster; all of it is off by default.

A *frame* is one request on the wire. What befalls the next requests of one client is their :class:`Fate`; the
rest are standing conditions (delayed markers, coordinators away, records that come late).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from perdure.topics.log import TopicPartition


class Api(Enum):
    """Requests that can be hit."""

    PRODUCE = "Produce"
    INIT = "InitProducerId"
    TXN_OFFSETS = "TxnOffsetCommit"
    END_TXN = "EndTxn"
    OFFSET_COMMIT = "OffsetCommit"
    OFFSET_FETCH = "OffsetFetch"
    HEARTBEAT = "Heartbeat"


class Fate(Enum):
    """What befalls a request.

    LOST: it never arrives, hidden re-sends included; the client sees a time-out. UNANSWERED: it takes effect;
    the client sees a time-out. HELD: the client sees a time-out; the frame takes effect whenever
    :meth:`Faults.release` is called. RESENT: the connection breaks, the first frame is held as above, and the
    client's hidden re-send is acknowledged.
    """

    LOST = "lost"
    UNANSWERED = "unanswered"
    HELD = "held"
    RESENT = "resent"


@dataclass(frozen=True, slots=True)
class GroupLog:
    """A marker's way into a group's offsets, as a target of its own beside the partitions."""

    group: str


MarkerTarget: TypeAlias = TopicPartition | GroupLog


@dataclass(slots=True)
class Faults:
    """Switches of one :class:`~perdure.topics.model_cluster.ModelCluster`.

    ``marker_delay_ms``: how long after EndTxn a marker reaches its target; ``None``: held until
    ``ModelCluster.release_markers``. ``marker_delays_ms``: the same for single targets.
    ``late_records``: transactional records leave their producer only when it commits, after its offsets
    were acknowledged. ``hold_sync``: groups stay in CompletingRebalance, where commits are refused.
    """

    marker_delay_ms: int | None = 0
    marker_delays_ms: dict[MarkerTarget, int | None] = field(default_factory=dict[MarkerTarget, int | None])
    late_records: bool = False
    hold_sync: bool = False
    group_coordinator_down: bool = False
    transaction_coordinator_down: bool = False
    _fates: dict[tuple[Api, str], deque[Fate]] = field(default_factory=dict[tuple[Api, str], deque[Fate]])
    _held: list[tuple[Api, str, Callable[[], object]]] = field(
        default_factory=list[tuple[Api, str, Callable[[], object]]]
    )

    def inject(self, api: Api, who: str, fate: Fate, count: int = 1) -> None:
        """Let the next ``count`` requests of ``who`` (a client id or transactional id) meet ``fate``."""
        self._fates.setdefault((api, who), deque()).extend([fate] * count)

    def clear(self) -> None:
        """Disarm what was injected and has met no request yet. What is held stays held until released."""
        self._fates.clear()

    def meet(self, api: Api, who: str) -> Fate | None:
        """Take the fate of the request that is being sent now."""
        waiting = self._fates.get((api, who))
        return waiting.popleft() if waiting else None

    def hold(self, api: Api, who: str, apply: Callable[[], object]) -> None:
        """Keep a frame that has not arrived yet."""
        self._held.append((api, who, apply))

    @property
    def held(self) -> int:
        """How many frames are under way."""
        return len(self._held)

    def release(self, api: Api | None = None, who: str | None = None) -> int:
        """Let held frames arrive now, oldest first; returns how many."""
        arriving = [f for f in self._held if api in (None, f[0]) and who in (None, f[1])]
        self._held = [f for f in self._held if f not in arriving]
        for _, _, apply in arriving:
            apply()
        return len(arriving)

    def marker_delay(self, target: MarkerTarget) -> int | None:
        return self.marker_delays_ms.get(target, self.marker_delay_ms)
