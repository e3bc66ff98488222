"""Prices come from a pinned snapshot, and doubt is resolved upwards."""

from __future__ import annotations

import pytest

from perdure.connectors.prices import SnapshotPrices
from perdure.schemas.values import Usage

MODEL = "claude-sonnet-4-5"


def test_a_known_model_has_the_dearest_price_of_its_tiers() -> None:
    """3 and 6 dollars a million input tokens, by length: 6 are reserved, and so for every kind."""
    price = SnapshotPrices().price(MODEL)
    assert price is not None
    assert (price.input_nano_usd, price.output_nano_usd) == (6_000, 22_500)
    assert (price.cache_creation_nano_usd, price.cache_read_nano_usd) == (7_500, 600)


def test_an_unknown_model_has_no_price_and_costs_nothing() -> None:
    """A budget in money needs a price; tokens are counted without one."""
    prices = SnapshotPrices()
    assert prices.price("no-such-model") is None
    assert prices.cost_nano_usd("no-such-model", Usage(10, 10)) == 0


@pytest.mark.parametrize(
    ("usage", "nano_usd"),
    [
        (Usage(1_000, 0, 0, 0), 3_000_000),
        (Usage(0, 100, 0, 0), 1_500_000),
        (Usage(0, 0, 1_000, 0), 3_750_000),
        (Usage(0, 0, 0, 1_000), 300_000),
        (Usage(1_000, 100, 1_000, 1_000), 8_550_000),
    ],
)
def test_each_kind_of_token_costs_its_own_price(usage: Usage, nano_usd: int) -> None:
    """Tokens written to and read from the cache are not charged as input once more."""
    assert SnapshotPrices().cost_nano_usd(MODEL, usage) == nano_usd
