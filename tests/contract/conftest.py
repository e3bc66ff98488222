"""The contract's two stages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.kafka_world import KafkaWorld
from tests.contract.model_world import ModelWorld
from tests.contract.world import World


@pytest.fixture(params=["model", pytest.param("kafka", marks=pytest.mark.kafka)])
def world(request: pytest.FixtureRequest, namespace: str) -> Iterator[World]:
    """Every test of the contract runs on each."""
    opened: World
    if request.param == "kafka":
        opened = KafkaWorld(namespace, request.getfixturevalue("kafka"))
    else:
        opened = ModelWorld(namespace)
    yield opened
    opened.close()
