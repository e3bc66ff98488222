"""Lanes: requests that share a limit beside the slots wait by themselves, and nobody else with them.

What waits here is not started in any sense: no slot, no claim, no started bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from perdure.processors.executor.partition import Partition
from perdure.processors.executor.work import Request


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """A request that waits for a slot."""

    request: Request
    partition: Partition


class Lanes:
    """Queues by the key of their lane, each in order."""

    def __init__(self) -> None:
        self._lanes: dict[str, deque[Waiting]] = {}

    def __iter__(self) -> Iterator[Waiting]:
        return (each for lane in self._lanes.values() for each in lane)

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def waiting_in(self, key: str) -> int:
        return len(self._lanes.get(key, ()))

    def park(self, key: str, waiting: Waiting) -> None:
        self._lanes.setdefault(key, deque()).append(waiting)

    def take(self, may_start: Callable[[Waiting], bool]) -> Waiting | None:
        """The first of a lane, if it may start; lanes take turns."""
        for key, lane in self._lanes.items():
            if not may_start(lane[0]):
                continue
            taken = lane.popleft()
            del self._lanes[key]
            if lane:
                self._lanes[key] = lane  # behind the others
            return taken
        return None

    def drop(self, is_unwanted: Callable[[Waiting], bool]) -> None:
        kept = {
            key: deque(each for each in lane if not is_unwanted(each)) for key, lane in self._lanes.items()
        }
        self._lanes = {key: lane for key, lane in kept.items() if lane}
