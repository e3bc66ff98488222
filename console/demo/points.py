"""Where the demo can crash a run, and what must be true afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from perdure.processors.crash_points import CrashPoint
from perdure.topics.table import Role

SCRIPTED_CALLS: Final = 3
"""Model calls of the script: look up, send, say so."""


class Way(Enum):
    """Who kills the process, and what makes the moment exact."""

    SERVICE = "the service holds its answer; the demo kills from outside"
    MODEL = "the model holds its answer in the middle; the demo kills from outside"
    ITSELF = "a crash point of the product, armed from the start"
    ARMED = "a crash point of the product, armed while the model asks for the message"


@dataclass(frozen=True, slots=True)
class Point:
    """A place to crash. ``before`` and ``after`` continue the sentence "killed ...".

    ``model_calls``: that must have been made in the end. ``is_reconciled``: the message's result must come
    from the reconciliation tool. ``is_in_doubt``: nobody could tell without it, or without a person.
    """

    name: str
    role: Role
    way: Way
    moment: str
    crash_point: CrashPoint | None = None
    model_calls: int = SCRIPTED_CALLS
    is_reconciled: bool = False
    is_in_doubt: bool = False
    is_delivered: bool = False


DEFAULT: Final = "after-store"

POINTS: Final[tuple[Point, ...]] = (
    Point(
        "before-claim",
        Role.TOOL_EXECUTOR,
        Way.ITSELF,
        "before it claims the call: nothing has left it",
        "executor.before_claim",
    ),
    Point(
        "after-claim",
        Role.TOOL_EXECUTOR,
        Way.ITSELF,
        "with the claim acknowledged and the tool not yet called",
        "executor.after_claim",
        is_in_doubt=True,
    ),
    Point(
        DEFAULT,
        Role.TOOL_EXECUTOR,
        Way.SERVICE,
        "after the service stored the message, before it answered",
        is_reconciled=True,
        is_in_doubt=True,
        is_delivered=True,
    ),
    Point(
        "after-call",
        Role.TOOL_EXECUTOR,
        Way.ITSELF,
        "with the tool's answer in hand, before it is written to the log",
        "executor.after_call",
        is_reconciled=True,
        is_in_doubt=True,
        is_delivered=True,
    ),
    Point(
        "after-result",
        Role.TOOL_EXECUTOR,
        Way.ITSELF,
        "with the result in the log, before its offset is committed",
        "executor.after_result",
        is_delivered=True,
    ),
    Point(
        "orchestrator-before-commit",
        Role.ORCHESTRATOR,
        Way.ARMED,
        "with its transaction written, before the commit",
        "orchestrator.before_commit",
    ),
    Point(
        "orchestrator-after-commit",
        Role.ORCHESTRATOR,
        Way.ARMED,
        "with its transaction committed, before its own store knows of it",
        "orchestrator.after_commit",
    ),
    Point(
        "model-mid-stream",
        Role.MODEL_CALLER,
        Way.MODEL,
        "in the middle of the model's answer",
        "model.mid_stream",
        model_calls=SCRIPTED_CALLS + 1,
    ),
)
BY_NAME: Final = {point.name: point for point in POINTS}
