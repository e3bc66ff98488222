"""Budgets: before the model is asked, its worst case is reserved; what would breach is not asked at all.

Recorded + reserved never exceeds the budget. An attempt whose usage is not known is charged its reservation
until its result comes; then the estimate is replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from msgspec.structs import replace

from perdure.processors.machine.state import Reserved, Run
from perdure.schemas.definition import AgentDefinition
from perdure.schemas.values import Budget, Struct, Usage

USEFUL_TOKENS_MIN: Final = 256
"""A model that may say less than this is not asked."""
OVERHEAD_TOKENS: Final = 512
"""What the provider adds to a request beside its text: roles, tool framing."""
KINDS: Final = (
    "input_tokens",
    "output_tokens",
    "cache_creation_tokens",
    "cache_read_tokens",
    "cost_nano_usd",
)


class Price(Struct, frozen=True):
    """Prices of one token, 1e-9 US dollars, rounded up; the dearest that may apply."""

    input_nano_usd: int
    output_nano_usd: int
    cache_creation_nano_usd: int
    cache_read_nano_usd: int

    @property
    def dearest_input_nano_usd(self) -> int:
        return max(self.input_nano_usd, self.cache_creation_nano_usd, self.cache_read_nano_usd)


class Grant(Struct, frozen=True):
    """What one attempt may use: ``max_tokens`` of answer, ``reserved`` in all."""

    max_tokens: int
    reserved: Usage


class Refusal(Struct, frozen=True):
    """The budget does not allow an attempt; ``kind``: which part of it, ``message``: in numbers."""

    kind: str
    message: str


Answer: TypeAlias = Grant | Refusal


def worst_input_tokens(run: Run, definition: AgentDefinition, coming: int) -> int:
    """Upper bound of a request's input: what the last response counted, and one token per byte since.

    A token is at least one byte of UTF-8 text, so bytes bound tokens from above. ``coming``: bytes that
    this turn is about to add to the transcript.
    """
    new = coming + sum(len(message) for message in run.tail)
    if run.last_input_tokens:
        return run.last_input_tokens + new + OVERHEAD_TOKENS
    return new + len(definition.system.encode()) + _tool_bytes(definition) + OVERHEAD_TOKENS


def transcript_tokens_max(definition: AgentDefinition, messages: Sequence[bytes]) -> int:
    """Upper bound of what a transcript counts, with the system prompt and the tools."""
    size = sum(len(message) for message in messages)
    return size + len(definition.system.encode()) + _tool_bytes(definition) + OVERHEAD_TOKENS


def grant(run: Run, definition: AgentDefinition, price: Price | None, coming: int) -> Answer:
    """Reserve the worst case of one attempt; ``max_tokens`` shrinks as long as it stays useful."""
    input_tokens = worst_input_tokens(run, definition, coming)
    budget = run.budget
    max_tokens = definition.max_tokens
    if budget is None:
        return Grant(max_tokens, Usage())
    used = run.usage
    for kind, limit, spent in (
        ("input_tokens", budget.input_tokens, used.input_tokens),
        ("cache_creation_tokens", budget.cache_creation_tokens, used.cache_creation_tokens),
        ("cache_read_tokens", budget.cache_read_tokens, used.cache_read_tokens),
    ):
        if limit is not None and spent + input_tokens > limit:
            return _refusal(kind, spent, input_tokens, limit)
    if budget.output_tokens is not None:
        max_tokens = min(max_tokens, budget.output_tokens - used.output_tokens)
        if max_tokens < min(USEFUL_TOKENS_MIN, definition.max_tokens):
            return _refusal("output_tokens", used.output_tokens, definition.max_tokens, budget.output_tokens)
    input_cost = 0
    if budget.cost_nano_usd is not None:
        if price is None:
            return Refusal("cost_nano_usd", f"the price of {definition.model} is not known")
        input_cost = input_tokens * price.dearest_input_nano_usd
        left = budget.cost_nano_usd - used.cost_nano_usd - input_cost
        affordable = left // price.output_nano_usd if price.output_nano_usd else max_tokens
        max_tokens = min(max_tokens, affordable)
        if left < 0 or max_tokens < min(USEFUL_TOKENS_MIN, definition.max_tokens):
            worst = input_cost + definition.max_tokens * price.output_nano_usd
            return _refusal("cost_nano_usd", used.cost_nano_usd, worst, budget.cost_nano_usd)
    cost = input_cost + max_tokens * (price.output_nano_usd if price else 0)
    return Grant(max_tokens, Usage(input_tokens, max_tokens, input_tokens, input_tokens, cost))


def charge_estimate(run: Run, request_id: str, usage: Usage) -> Run:
    """Charge a reservation until the attempt's own usage is known."""
    return replace(run, usage=run.usage + usage, estimates=(*run.estimates, Reserved(request_id, usage)))


def replace_estimate(run: Run, request_id: str, usage: Usage) -> Run:
    """The attempt's usage is known by now."""
    charged = next((each for each in run.estimates if each.request_id == request_id), None)
    if charged is None:
        return replace(run, usage=run.usage + usage)
    rest = tuple(each for each in run.estimates if each is not charged)
    return replace(run, usage=_minus(run.usage, charged.usage) + usage, estimates=rest)


def narrowed(default: Budget | None, wanted: Budget | None) -> Budget | None:
    """The tighter of two budgets, kind by kind."""
    if default is None or wanted is None:
        return wanted or default
    pairs = {kind: (getattr(default, kind), getattr(wanted, kind)) for kind in KINDS}
    tight = {
        kind: min((each for each in pair if each is not None), default=None) for kind, pair in pairs.items()
    }
    return Budget(**tight)


def _minus(total: Usage, part: Usage) -> Usage:
    return Usage(*(getattr(total, kind) - getattr(part, kind) for kind in KINDS))


def _refusal(kind: str, spent: int, worst: int, limit: int) -> Refusal:
    return Refusal(kind, f"{kind}: {spent} used, the next turn may need {worst}, the budget is {limit}")


def _tool_bytes(definition: AgentDefinition) -> int:
    """Of all that is told beside system prompt and messages: the tools, and the form of the output."""
    return len(str(definition.output_schema or "")) + sum(
        len(str(tool.input_schema)) + len(tool.name) + len(tool.description.encode())
        for tool in definition.tools
    )
