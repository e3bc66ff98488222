"""Reconciliation tools: what became of a call whose outcome nobody saw.

A reconciler asks the outside service, by the idempotency key that the call was made with, and answers one of
three things: :func:`happened` with the call's result, :func:`did_not_happen`, or :func:`unknown`. It must be
read_only. An exception is not an answer: the question is asked again, a bounded number of times.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, overload

from perdure.processors.abort import AbortSignal
from perdure.schemas.definition import ToolDefinition
from perdure.schemas.errors import Reject
from perdure.schemas.values import Answer, Effect

RECONCILER_TIMEOUT_S_DEFAULT: Final = 30.0


class UnusableReconciler(Reject):
    """A reconciler is a function of one parameter, the Question."""

    code = "reconciler_unusable"
    remedy = "Write `@reconciler def find(question: Question) -> ReconcileAnswer: ...`."


@dataclass(frozen=True, slots=True)
class Question:
    """What is known about the call in doubt.

    ``tool``: the name of this reconciler. ``arguments``: those of the call. ``idempotency_key``: what the
    tool's context gave it. ``started_ms``: when the attempt was started, milliseconds since the epoch (None:
    not known). ``timeout_ms``: how long the answer is waited for.
    """

    run_id: str
    turn: int
    call_id: str
    attempt: int
    tool: str
    arguments: Mapping[str, Any]
    idempotency_key: str
    started_ms: int | None
    timeout_ms: int
    abort: AbortSignal


@dataclass(frozen=True, slots=True)
class ReconcileAnswer:
    """An answer; made by :func:`happened`, :func:`did_not_happen` or :func:`unknown`."""

    answer: Answer
    result: Any = None
    message: str = ""


def happened(result: Any, message: str = "") -> ReconcileAnswer:
    """The effect took place; ``result`` becomes the call's result, as if the tool had returned it."""
    return ReconcileAnswer(Answer.HAPPENED, result, message)


def did_not_happen(message: str = "") -> ReconcileAnswer:
    """The service has no trace of the call.

    Believed only after the attempt's deadline and the tool's ``settle_s`` have passed; before that the
    question is asked again later, for the service may still be working on what it received.
    """
    return ReconcileAnswer(Answer.DID_NOT_HAPPEN, None, message)


def unknown(message: str = "") -> ReconcileAnswer:
    """Nothing can be told; a person will be asked."""
    return ReconcileAnswer(Answer.UNKNOWN, None, message)


@dataclass(frozen=True, slots=True)
class Reconciler:
    """A function that answers a :class:`Question`; still callable as it is."""

    name: str
    function: Callable[[Question], Any]
    timeout_s: float
    is_async: bool

    def __call__(self, question: Question) -> Any:
        return self.function(question)

    def definition(self) -> ToolDefinition:
        return ToolDefinition(
            name=self.name,
            description=inspect.getdoc(self.function) or "",
            input_schema={"type": "object"},
            effect=Effect.READ_ONLY,
            timeout_ms=round(self.timeout_s * 1000),
            is_hidden=True,
        )


@overload
def reconciler(function: Callable[[Question], Any], /) -> Reconciler: ...
@overload
def reconciler(
    *, name: str | None = None, timeout_s: float = RECONCILER_TIMEOUT_S_DEFAULT
) -> Callable[[Callable[[Question], Any]], Reconciler]: ...
def reconciler(
    function: Callable[[Question], Any] | None = None,
    /,
    *,
    name: str | None = None,
    timeout_s: float = RECONCILER_TIMEOUT_S_DEFAULT,
) -> Reconciler | Callable[[Callable[[Question], Any]], Reconciler]:
    """Declare a function, sync or async, as a reconciliation tool; pass it to ``@tool(reconcile=...)``.

    Args:
        function: takes a :class:`Question`, returns a :class:`ReconcileAnswer`.
        name: unique among the agent's tools; the function's own by default.
        timeout_s: how long one answer may take.

    Raises:
        UnusableReconciler: the function has not exactly one parameter.
    """

    def declare(function: Callable[[Question], Any]) -> Reconciler:
        if len(inspect.signature(function).parameters) != 1:
            raise UnusableReconciler(f"{function.__name__}.")
        return Reconciler(
            name or function.__name__, function, timeout_s, inspect.iscoroutinefunction(function)
        )

    return declare if function is None else declare(function)
