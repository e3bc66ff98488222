"""The one table of legal moves. The diagram in docs/ARCHITECTURE.md is generated from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from perdure.schemas.errors import Stop
from perdure.schemas.values import RunState

S = RunState

SUCCESSORS: Final[Mapping[RunState, frozenset[RunState]]] = {
    S.QUEUED: frozenset({S.RUNNING, S.CANCELLED}),
    S.RUNNING: frozenset({S.AWAITING_TOOL, S.AWAITING_APPROVAL, S.COMPLETED, S.FAILED, S.CANCELLED}),
    S.AWAITING_TOOL: frozenset({S.RUNNING, S.AWAITING_APPROVAL, S.FAILED, S.CANCELLED}),
    S.AWAITING_APPROVAL: frozenset({S.AWAITING_TOOL, S.RUNNING, S.CANCELLED, S.TIMED_OUT}),
    S.COMPLETED: frozenset(),
    S.FAILED: frozenset({S.QUEUED}),
    S.CANCELLED: frozenset({S.QUEUED}),
    S.TIMED_OUT: frozenset({S.QUEUED}),
}
"""Successors of each state; staying in a state is no move."""


class IllegalMove(Stop):
    """A state change that the lifecycle table does not have."""

    code = "illegal_move"
    remedy = "This is a defect in perdure or a damaged history; do not go on with this run."


class IllegalEvent(Stop):
    """An event that can not follow the ones before it."""

    code = "illegal_event"
    remedy = "This is a defect in perdure or a damaged history; do not go on with this run."


def move(before: RunState, after: RunState) -> RunState:
    """``after``, if the table allows it from ``before``. Raises :class:`IllegalMove`."""
    if after is not before and after not in SUCCESSORS[before]:
        raise IllegalMove(f"{before} -> {after}")
    return after


def mermaid() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {S.QUEUED}"]
    for state, successors in SUCCESSORS.items():
        lines += [f"    {state} --> {successor}" for successor in RunState if successor in successors]
    lines.append(f"    {S.COMPLETED} --> [*]")
    return "\n".join(lines)
