"""What the model's coordinators need of the cluster they are part of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from perdure.topics.log import TopicPartition
from perdure.topics.model_codes import Code
from perdure.topics.model_faults import Faults, MarkerTarget
from perdure.topics.model_identity import ProducerIdentity
from perdure.topics.model_partition import Marker, ModelPartition


class Broker(Protocol):
    """A clock, the storage, and the way from one coordinator to another."""

    now_ms: int
    faults: Faults
    offsets_retention_ms: int

    def schedule(self, delay_ms: int, action: Callable[[], None]) -> None: ...

    def next_producer_id(self) -> int: ...

    def next_member_id(self, client_id: str) -> str: ...

    def partition_count(self, name: str) -> int: ...

    def find(self, at: TopicPartition) -> ModelPartition | None: ...

    def add_offsets_partition(self) -> ModelPartition: ...

    def write_marker(self, target: MarkerTarget, producer_id: int, marker: Marker) -> None: ...

    def verify(self, who: ProducerIdentity, target: MarkerTarget) -> Code: ...
