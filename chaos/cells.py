"""The cells of the crash matrix, as data, and how a seeded sample is drawn from them."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from itertools import cycle, product
from typing import Final

from perdure.processors.crash_points import CrashPoint
from perdure.schemas.values import Effect
from perdure.topics.table import Role

SIGNALS: Final = ("SIGKILL", "SIGSTOP", "SIGTERM")
NTH_MAX: Final = 3

_OF_ANY_CALL: Final[tuple[CrashPoint, ...]] = (
    "executor.before_start",
    "executor.before_tell",
    "executor.after_tell",
    "executor.before_offsets",
    "executor.after_offsets",
)
_OF_CLAIMED_CALLS: Final[tuple[CrashPoint, ...]] = (
    "executor.before_claim",
    "executor.after_claim",
    "executor.after_call",
    "executor.after_result",
)
_OF_MODEL_CALLERS: Final[tuple[CrashPoint, ...]] = (
    "executor.before_start",
    "model.mid_stream",
    "executor.before_tell",
    "executor.after_tell",
    "executor.after_offsets",
)
_OF_ORCHESTRATORS: Final[tuple[CrashPoint, ...]] = (
    "orchestrator.after_init",
    "orchestrator.before_offsets",
    "orchestrator.before_commit",
    "orchestrator.after_commit",
    "orchestrator.after_store",
)
AT_ASSIGNMENT: Final[frozenset[CrashPoint]] = frozenset({"orchestrator.after_init"})
"""Points that a process passes when it is given partitions, and not while it works."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A crash: who, where, how, with which effect class under way, and whether its disk is lost with it."""

    role: Role
    point: CrashPoint
    signal: str
    is_forgotten: bool
    effect: Effect

    def __str__(self) -> str:
        state = "deleted" if self.is_forgotten else "kept"
        return f"{self.role.value} {self.point} {self.signal} state-{state} {self.effect.value}"


def points_of(role: Role, effect: Effect) -> tuple[CrashPoint, ...]:
    """The points that a process of the role passes while it serves a call of the effect class."""
    match role:
        case Role.ORCHESTRATOR:
            return _OF_ORCHESTRATORS
        case Role.MODEL_CALLER:
            return _OF_MODEL_CALLERS
        case Role.TOOL_EXECUTOR:
            return (*_OF_ANY_CALL, *(_OF_CLAIMED_CALLS if effect is Effect.NON_IDEMPOTENT else ()))


def all_cells() -> list[Cell]:
    return [
        Cell(role, point, signal, is_forgotten, effect)
        for role, signal, is_forgotten, effect in product(Role, SIGNALS, (False, True), Effect)
        for point in points_of(role, effect)
    ]


def sample(count: int, seed: int) -> list[Cell]:
    """``count`` cells: roles and signals in turn, each drawn without repeating until all were drawn."""
    chance = random.Random(seed)
    groups: defaultdict[tuple[Role, str], list[Cell]] = defaultdict(list)
    for cell in all_cells():
        groups[cell.role, cell.signal].append(cell)
    for cells in groups.values():
        chance.shuffle(cells)
    order = list(groups)
    chance.shuffle(order)
    drawn: list[Cell] = []
    left = {group: list(cells) for group, cells in groups.items()}
    for group in cycle(order):
        if len(drawn) == count:
            return drawn
        if not any(left.values()):
            left = {each: list(cells) for each, cells in groups.items()}
        if left[group]:
            drawn.append(left[group].pop())
    raise AssertionError
