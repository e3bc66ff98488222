"""Who a client of the model is to the coordinators."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """What a transactional client proves itself with; ``epoch`` grows with each holder."""

    transactional_id: str
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Credentials:
    """As whom a commit is made. ``generation`` -1 and an empty ``member_id``: as nobody in particular."""

    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None
