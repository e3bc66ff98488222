"""Tools as Python functions: ``@tool(effect=...)``.

What a tool function tells perdure, and how:

- **it returns a value**: that is the call's result, definite. A :class:`ToolError` is a definite error
  result.
- **it raises NotExecuted**: definitely nothing happened; the call may be tried again.
- **it raises anything else**, runs into its deadline or ignores an abort: for a non_idempotent tool nobody
  knows what happened; the reconciler is asked, or a person. Others are tried again, then become an error
  result.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, ParamSpec, Protocol, TypeAlias, TypeVar

from perdure.connectors.json_schema import Signature, signature_of, summary_of
from perdure.connectors.reconciler import Reconciler
from perdure.processors.abort import AbortSignal
from perdure.processors.clock import Clock
from perdure.schemas.definition import (
    TOOL_ATTEMPTS_MAX_DEFAULT,
    TOOL_REPEATS_MAX_DEFAULT,
    TOOL_TIMEOUT_MS_DEFAULT,
    ToolDefinition,
)
from perdure.schemas.errors import Reject, Retry
from perdure.schemas.values import Effect, ExecutorKind

P = ParamSpec("P")
R = TypeVar("R")

EffectName: TypeAlias = Literal["read_only", "idempotent_write", "non_idempotent"]

TOOL_TIMEOUT_S_DEFAULT: Final = TOOL_TIMEOUT_MS_DEFAULT / 1000
# What the Messages API takes as a tool's name.
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class EffectMissing(Reject):
    """A tool does not say what it may do to the world."""

    code = "tool_effect_missing"
    remedy = (
        "Write @tool(effect='read_only'), 'idempotent_write' (repeating it with the same idempotency key "
        "changes nothing) or 'non_idempotent': it decides what may be done after a crash."
    )


class UnusableTool(Reject):
    """A tool's declaration contradicts itself."""

    code = "tool_unusable"
    remedy = "Correct the arguments of @tool."


class NotExecuted(Retry):
    """Raised by a tool: definitely nothing happened, the call may be tried again."""

    code = "not_executed"
    remedy = "Nothing has to be done; perdure tries again within the tool's attempts_max."


@dataclass(frozen=True, slots=True)
class ToolError:
    """Returned by a tool: it ran, and this is its answer, an error; the model is told ``message``."""

    message: str


class ContentBlocks(tuple[Mapping[str, Any], ...]):
    """Returned by a tool: content blocks of the Messages API (text, image, document), sent as they are."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool function may know of its call: annotate a parameter with this type to get it.

    ``idempotency_key``: the same for every attempt of the call, different for every other call; hand it to
    the outside service, so that a reconciler finds the call again. ``attempt`` counts from 1. ``abort`` is
    set when the run is cancelled. ``deadline_boot_s``: when the attempt ends at the latest, on
    ``clock.boot_s()``.
    """

    run_id: str
    turn: int
    call_id: str
    attempt: int
    idempotency_key: str
    timeout_ms: int
    deadline_boot_s: float
    abort: AbortSignal
    clock: Clock

    def remaining_s(self) -> float:
        """Seconds until the attempt's deadline, never negative: a bound for the tool's own time-outs."""
        return max(0.0, self.deadline_boot_s - self.clock.boot_s())


class Service(Protocol):
    """What several tools have in common and hold open, such as the session with a server."""

    def close(self) -> None:
        """Let go of it; a later call of a tool opens it again."""
        ...


@dataclass(frozen=True, slots=True)
class Tool(Generic[P, R]):
    """A declared tool; calling it calls the function, so that it is tested like any function.

    ``service``: closed when the worker leaves.
    """

    name: str
    description: str
    effect: Effect
    function: Callable[P, R]
    signature: Signature
    timeout_s: float
    settle_s: float
    attempts_max: int
    needs_approval: bool | Mapping[str, Any]
    repeats_max: int
    cosmetic: tuple[str, ...]
    reconcile: Reconciler | None
    is_async: bool
    concurrency_max: int | None = None
    service: Service | None = field(default=None, compare=False)
    approval_timeout_s: float | None = None
    executor: ExecutorKind = ExecutorKind.FUNCTION
    server: str = ""
    server_schema: str = ""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def definition(self) -> ToolDefinition:
        return ToolDefinition(
            name=self.name,
            description=self.description,
            input_schema=self.signature.schema,
            effect=self.effect,
            timeout_ms=round(self.timeout_s * 1000),
            reconcile=self.reconcile.name if self.reconcile else None,
            settle_ms=round(self.settle_s * 1000),
            attempts_max=self.attempts_max,
            needs_approval=self.needs_approval is not False,
            repeats_max=self.repeats_max,
            cosmetic=self.cosmetic,
            approval_condition=None if isinstance(self.needs_approval, bool) else self.needs_approval,
            approval_timeout_ms=milliseconds(self.approval_timeout_s),
            executor=self.executor,
            server=self.server,
            server_schema=self.server_schema,
        )


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    effect: Effect | EffectName | None = None,
    reconcile: Reconciler | None = None,
    name: str | None = None,
    description: str | None = None,
    schema: Mapping[str, Any] | None = None,
    timeout_s: float = TOOL_TIMEOUT_S_DEFAULT,
    settle_s: float = 0.0,
    attempts_max: int = TOOL_ATTEMPTS_MAX_DEFAULT,
    needs_approval: bool | Mapping[str, Any] = False,
    approval_timeout_s: float | None = None,
    repeats_max: int = TOOL_REPEATS_MAX_DEFAULT,
    cosmetic: Sequence[str] = (),
    concurrency_max: int | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]:
    """Declare a function, sync (run in a thread) or async, as a tool of an agent.

    Args:
        function: only there to give a bare ``@tool`` an error that helps.
        effect: read_only, idempotent_write or non_idempotent. There is no default: the author has to know.
        reconcile: for non_idempotent tools, the ``@reconciler`` that finds out what became of a call.
            Without one a person is asked.
        name: what the model calls it; the function's name by default.
        description: what the model is told; the docstring up to its first section by default.
        schema: JSON Schema of the arguments; by default made from the type hints. With a schema of your
            own the arguments are passed by name as plain JSON values.
        timeout_s: an attempt's deadline, enforced.
        settle_s: how long the outside service may still work on what it received after an attempt is over.
        attempts_max: bound on attempts of a tool that is not non_idempotent.
        needs_approval: a person has to approve each call, or those whose arguments match a JSON Schema.
        approval_timeout_s: how long the person may take; by default what the agent says.
        repeats_max: the identical call, in vain, that is answered instead of made (0: none; it may poll).
        cosmetic: names of arguments that do not make a call another one, such as a display name.
        concurrency_max: how many calls of a tool of this name one worker makes at the same time; by default
            as many as it has slots. It is no part of the agent's definition: workers may differ.

    Raises:
        EffectMissing, UnusableTool, UnusableSignature, UnusableSchema.
    """
    if function is not None or effect is None:
        raise EffectMissing(f"It is {function.__name__}." if function is not None else None)
    kind = _effect(effect, reconcile)
    least = min(attempts_max, 1 if concurrency_max is None else concurrency_max)
    if timeout_s <= 0 or settle_s < 0 or least < 1 or repeats_max < 0:
        raise UnusableTool("timeout_s > 0, settle_s, repeats_max >= 0, attempts_max, concurrency_max >= 1.")

    def declare(function: Callable[P, R]) -> Tool[P, R]:
        return Tool(
            name=_name(name or function.__name__),
            description=description if description is not None else summary_of(function),
            effect=kind,
            function=function,
            signature=signature_of(function, ToolContext, schema),
            timeout_s=timeout_s,
            settle_s=settle_s,
            attempts_max=attempts_max,
            needs_approval=needs_approval,
            approval_timeout_s=approval_timeout_s,
            repeats_max=repeats_max,
            cosmetic=tuple(cosmetic),
            reconcile=reconcile,
            is_async=inspect.iscoroutinefunction(function),
            concurrency_max=concurrency_max,
        )

    return declare


def _name(called: str) -> str:
    if not _NAME.fullmatch(called):
        raise UnusableTool(f"Its name {called!r} is not 1-64 of letters, digits, underscore and hyphen.")
    return called


def milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _effect(effect: Effect | EffectName, given: object) -> Effect:
    """The effect, if the reconciler that is ``given`` goes with it."""
    try:
        kind = Effect(effect)
    except ValueError as error:
        raise EffectMissing(f"{effect!r} is none.") from error
    if given is not None and not isinstance(given, Reconciler):
        raise UnusableTool("reconcile= takes a function declared with @reconciler.")
    if given is not None and kind is not Effect.NON_IDEMPOTENT:
        raise UnusableTool(f"reconcile= is for non_idempotent tools; a {kind} one is simply tried again.")
    return kind
