"""The aggregates of the run view: which runs are in which group, in the order of the list; what they used.

Runs are filed by group (state, agent, tenant), so that counts are lengths, and a page of any filter is a
merge of the few groups that fit it. About 200 bytes a run; the rows themselves stay where they are.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from perdure.processors.views.row import VIEW_STATES, Group, Row
from perdure.schemas.values import Usage

Place: TypeAlias = tuple[int, str]
"""Where a run stands in the list: (created_ms, run_id); the list is shown from the highest down."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which runs; None takes any. ``tenant`` "": those without a tenant."""

    state: str | None = None
    agent: str | None = None
    tenant: str | None = None

    def takes(self, group: Group) -> bool:
        return (
            self.state in {None, group.state}
            and self.agent in {None, group.agent}
            and (self.tenant is None or self.tenant == (group.tenant or ""))
        )


@dataclass(slots=True)
class Tally:
    """``states``: number of runs by state, every state named."""

    runs: int = 0
    states: dict[str, int] = field(default_factory=lambda: dict.fromkeys(VIEW_STATES, 0))
    usage: Usage = field(default_factory=Usage)

    def add(self, state: str, runs: int, usage: Usage) -> None:
        self.runs += runs
        self.states[state] += runs
        self.usage += usage


@dataclass(frozen=True, slots=True)
class Counts:
    """Runs and their usage: all of them, by agent, by tenant (None: those without one).

    Runs that can not be read have neither agent nor tenant; ``agents`` leaves them out.
    """

    total: Tally
    agents: dict[str, Tally]
    tenants: dict[str | None, Tally]


@dataclass(slots=True)
class _Filed:
    places: list[Place] = field(default_factory=list[Place])  # ascending
    usage: Usage = field(default_factory=Usage)


class RunIndex:
    """Every run once. The caller says what left before it says what came."""

    def __init__(self) -> None:
        self._groups: dict[Group, _Filed] = {}

    def add(self, row: Row) -> None:
        filed = self._groups.setdefault(row.group, _Filed())
        insort(filed.places, _place(row))
        filed.usage += row.usage

    def remove(self, row: Row) -> None:
        filed = self._groups[row.group]
        at = bisect_left(filed.places, _place(row))
        assert filed.places[at] == _place(row), "the row was never added"
        del filed.places[at]
        filed.usage = _less(filed.usage, row.usage)
        if not filed.places:
            del self._groups[row.group]

    def build(self, rows: Iterable[Row]) -> None:
        """Begin anew with ``rows``."""
        groups: dict[Group, _Filed] = {}
        for row in rows:
            filed = groups.setdefault(row.group, _Filed())
            filed.places.append(_place(row))
            filed.usage += row.usage
        for filed in groups.values():
            filed.places.sort()
        self._groups = groups

    def counts(self) -> Counts:
        counts = Counts(Tally(), {}, {})
        for group, filed in self._groups.items():
            runs = len(filed.places)
            counts.total.add(group.state, runs, filed.usage)
            counts.tenants.setdefault(group.tenant, Tally()).add(group.state, runs, filed.usage)
            if group.agent is not None:
                counts.agents.setdefault(group.agent, Tally()).add(group.state, runs, filed.usage)
        return counts

    def page(self, wanted: Filter, limit: int, after: Place | None) -> list[Place]:
        """The next places of the list, highest first, at most ``limit``, all below ``after``."""
        fitting = [_down(filed.places, after) for group, filed in self._groups.items() if wanted.takes(group)]
        return list(islice(heapq.merge(*fitting, reverse=True), limit))


def _place(row: Row) -> Place:
    return (row.created_ms, row.run_id)


def _down(places: list[Place], after: Place | None) -> Iterator[Place]:
    end = len(places) if after is None else bisect_left(places, after)
    return (places[number] for number in range(end - 1, -1, -1))


def _less(usage: Usage, part: Usage) -> Usage:
    return Usage(
        usage.input_tokens - part.input_tokens,
        usage.output_tokens - part.output_tokens,
        usage.cache_creation_tokens - part.cache_creation_tokens,
        usage.cache_read_tokens - part.cache_read_tokens,
        usage.cost_nano_usd - part.cost_nano_usd,
    )
