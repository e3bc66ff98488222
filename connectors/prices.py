"""What models cost: the price snapshot that genai-prices ships; never fetched, pinned by the lock."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from typing import Final

from perdure.processors.machine.budget import Price
from perdure.schemas.values import Usage

PROVIDER: Final = "anthropic"
NANO_USD_PER_MTOK: Final = Decimal(1_000)  # 1 US dollar a million tokens is 1,000 nano-dollars a token
NANO: Final = Decimal(1_000_000_000)
MODELS_REMEMBERED_MAX: Final = 256


class SnapshotPrices:
    """Prices by model name; None for a model that the snapshot does not know."""

    def price(self, model: str) -> Price | None:
        """The dearest that may apply, of all tiers: budgets are reserved with it."""
        return _price(model)

    def cost_nano_usd(self, model: str, usage: Usage) -> int:
        """What this usage costs, 1e-9 US dollars, rounded up; 0 if the model's price is not known."""
        from genai_prices import Usage as Tokens
        from genai_prices import calc_price

        tokens = Tokens(
            # The snapshot counts cached tokens as a part of the input.
            input_tokens=usage.input_tokens + usage.cache_creation_tokens + usage.cache_read_tokens,
            cache_write_tokens=usage.cache_creation_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            output_tokens=usage.output_tokens,
        )
        try:
            total = calc_price(tokens, model_ref=model, provider_id=PROVIDER).total_price
        except LookupError:
            return 0
        return _rounded_up(total * NANO)


@lru_cache(maxsize=MODELS_REMEMBERED_MAX)
def _price(model: str) -> Price | None:
    from genai_prices import Usage as Tokens
    from genai_prices import calc_price

    try:
        found = calc_price(Tokens(input_tokens=1), model_ref=model, provider_id=PROVIDER).model_price
    except LookupError:
        return None
    input_ = _dearest(found.input_mtok)
    return Price(
        input_nano_usd=input_,
        output_nano_usd=_dearest(found.output_mtok),
        cache_creation_nano_usd=_dearest(found.cache_write_mtok) or input_,
        cache_read_nano_usd=_dearest(found.cache_read_mtok) or input_,
    )


def _dearest(price: object) -> int:
    """Nano-dollars a token of the dearest tier; 0: the snapshot has no such price."""
    if price is None:
        return 0
    tiers = [getattr(price, "base", price), *(tier.price for tier in getattr(price, "tiers", ()))]
    return max(_rounded_up(Decimal(str(each)) * NANO_USD_PER_MTOK) for each in tiers)


def _rounded_up(value: Decimal) -> int:
    return int(value.to_integral_value(ROUND_CEILING))
