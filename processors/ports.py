"""What the executors need of the outside world; implemented in ``connectors``, faked in tests and the
simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from perdure.processors.abort import AbortSignal
from perdure.processors.machine.budget import Price
from perdure.schemas.definition import AgentDefinition
from perdure.schemas.results import Completed, Declined, Failed, ModelFailed, ModelReplied, Reconciled
from perdure.schemas.values import Effect, Purpose, Struct


class ModelInvocation(Struct, frozen=True):
    """One call of the model. ``messages``: UTF-8 JSON messages, the whole transcript, in order.

    ``invocation_id`` and ``digest`` are to be copied into the answer.
    """

    definition: AgentDefinition
    messages: tuple[bytes, ...]
    max_tokens: int
    allow_tools: bool
    timeout_ms: int
    invocation_id: str
    digest: bytes
    run_id: str = ""
    turn: int = 0


OnDelta: TypeAlias = Callable[[int, str, str], None]
"""(block index, kind "text" | "thinking", text) for each streamed piece."""


class ModelPort(Protocol):
    """A model provider. Never raises for what the provider does: that is a ModelFailed."""

    async def invoke(
        self, call: ModelInvocation, abort: AbortSignal, on_delta: OnDelta
    ) -> ModelReplied | ModelFailed: ...


class ToolInvocation(Struct, frozen=True):
    """One attempt of a tool call, or a question to a reconciliation tool about one.

    ``arguments``: the decoded JSON object; for RECONCILE those of the call in doubt. ``started_ms``:
    RECONCILE only. ``recipient``: digest of the recipient that a person approved; empty: nobody was asked.
    """

    run_id: str
    turn: int
    call_id: str
    attempt: int
    definition: str
    tool: str
    arguments: Mapping[str, Any]
    effect: Effect
    idempotency_key: str
    purpose: Purpose
    timeout_ms: int
    started_ms: int | None = None
    recipient: bytes = b""


ToolAnswer: TypeAlias = Completed | Failed | Declined | Reconciled


class ToolPort(Protocol):
    """The tools of this worker. ``call`` never raises for what a tool does; the engine enforces the
    deadline too.
    """

    def knows(self, definition: str, tool: str) -> bool: ...

    async def call(self, call: ToolInvocation, abort: AbortSignal) -> ToolAnswer: ...


class Prices(Protocol):
    """What models cost."""

    def price(self, model: str) -> Price | None:
        """Prices of one token of each kind, the dearest that may apply; None: not known."""
        ...


class NoPrices:
    """No model's price is known: budgets in money are refused."""

    def price(self, model: str) -> Price | None:  # noqa: ARG002 - the port's name
        return None


class DefinitionSource(Protocol):
    """Agent definitions by content hash, as far as this worker has read the topic."""

    def by_digest(self, digest: str) -> AgentDefinition | None: ...

    def newest(self, agent: str, version: str | None) -> tuple[str, AgentDefinition] | None:
        """(content hash, definition) of ``version``, or of the newest published one."""
        ...
