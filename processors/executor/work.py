"""What a role (model-caller, tool-executor) tells the engine about requests and how to execute them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeAlias

from perdure.processors.abort import AbortSignal
from perdure.processors.headers import RequestIdentity
from perdure.schemas.requests import ModelRequest, ToolRequest
from perdure.schemas.results import ResultBody
from perdure.schemas.values import FailureKind
from perdure.topics.log import Record
from perdure.topics.table import Role


class Claim(Enum):
    """What has to be durable before a call may be executed."""

    NONE = "none"  # read_only, idempotent_write: redelivered and not done, it runs again
    MARKED = "marked"  # model calls: the started bit, so that a lost one is charged
    LEASED = "leased"  # non_idempotent: started bit and Started record, acknowledged within the lease


@dataclass(frozen=True, slots=True)
class Request:
    """A request that was read. ``offsets``: the records it is made of, more than one for a chunked
    transcript.
    """

    identity: RequestIdentity
    claim: Claim
    execution: int
    start_by_ms: int
    timeout_ms: int
    partition: int
    offsets: tuple[int, ...]
    size: int
    value: ModelRequest | ToolRequest


@dataclass(frozen=True, slots=True)
class Lane:
    """What requests with a common limit are in. ``waiting_max``: beyond so many that wait here, a request is
    handed back, to come again later or elsewhere; None: all may wait.
    """

    key: str
    waiting_max: int | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Records that make no request. ``identity`` None: not even their headers say whom to answer."""

    identity: RequestIdentity | None
    offsets: tuple[int, ...]
    reason: str


Run: TypeAlias = Callable[[AbortSignal], Coroutine[Any, Any, ResultBody]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call that can be executed. ``failed`` words an ending without an answer: deadline, abort,
    exception.
    """

    run: Run
    failed: Callable[[FailureKind, str], ResultBody]


class Work(Protocol):
    """One role. All methods are called on the engine's thread; only ``Prepared.run`` runs elsewhere."""

    @property
    def role(self) -> Role: ...

    @property
    def abandoned(self) -> int:
        """Calls that the role itself gave up and that still run: their slots stay taken."""
        ...

    def read(self, record: Record) -> tuple[Request | Unreadable, ...]:
        """The requests that are complete with this record; none: it is a part of one, and stays pinned."""
        ...

    def refusal(self, request: Request) -> ResultBody | None:
        """Why this worker can not start the request, asked when it is read and again before it is started."""
        ...

    def lane(self, request: Request) -> Lane | None:
        """The lane of the request; None: it needs nothing but a slot."""
        ...

    def has_room(self, request: Request, running: int) -> bool:
        """Whether its lane lets the request start now, beside so many of it that run."""
        ...

    def hold(self, partitions: int) -> None:
        """So many partitions are owned by this worker."""
        ...

    def prepare(self, request: Request) -> Prepared | ResultBody:
        """The call, or an answer that needs none. Asked when a slot is free; may be asked again."""
        ...

    def forget(self, partition: int) -> None:
        """The partition is owned no more: drop parts of requests."""
        ...

    def tend(self) -> bool:
        """Do what is due on the engine's thread (live deltas); True if there was something."""
        ...

    def close(self) -> None: ...
