"""Budgets on the command line."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Final

import typer

from perdure.schemas.values import Budget

NANO: Final = Decimal(1_000_000_000)

InputTokens = Annotated[int | None, typer.Option(min=1, help="Most tokens in, cached ones left out.")]
OutputTokens = Annotated[int | None, typer.Option(min=1, help="Most tokens out.")]
CacheCreationTokens = Annotated[int | None, typer.Option(min=1, help="Most tokens written to a cache.")]
CacheReadTokens = Annotated[int | None, typer.Option(min=1, help="Most tokens read from a cache.")]
Usd = Annotated[str | None, typer.Option(metavar="DOLLARS", help="Most money, such as 0.50.")]


def budget_of(
    input_tokens: int | None,
    output_tokens: int | None,
    cache_creation_tokens: int | None,
    cache_read_tokens: int | None,
    usd: str | None,
) -> Budget | None:
    """None: nothing is bounded."""
    wanted = Budget(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cache_creation_tokens=cache_creation_tokens,
        cache_read_tokens=cache_read_tokens,
        cost_nano_usd=None if usd is None else _nano(usd),
    )
    return None if wanted == Budget() else wanted


def _nano(usd: str) -> int:
    try:
        nano = Decimal(usd) * NANO
        if nano.is_finite() and nano == nano.to_integral_value() and nano > 0:
            return int(nano)
    except ArithmeticError:
        pass
    raise typer.BadParameter(f"{usd!r} is no amount of dollars", param_hint="--budget-usd")
