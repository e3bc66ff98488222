"""The tool-executor's role: what a ToolRequest means, and how it is executed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from perdure.processors.abort import AbortSignal
from perdure.processors.blobs import BlobStore
from perdure.processors.executor.results import clipped
from perdure.processors.executor.work import Claim, Lane, Prepared, Request, Unreadable
from perdure.processors.headers import identity_of, parse_headers
from perdure.processors.ports import ToolInvocation, ToolPort
from perdure.processors.tool_answers import Answers
from perdure.schemas import codec
from perdure.schemas.canonical import JsonValue, NotJson, loads_json
from perdure.schemas.requests import ToolRequest
from perdure.schemas.results import Declined, Failed, ResultBody
from perdure.schemas.values import DeclineReason, Effect, Purpose
from perdure.topics.log import Record
from perdure.topics.table import Role

WAITING_MAX: Final = 100
"""Calls of one tool that wait here for others of it to end; more are handed back, to come again later."""


@runtime_checkable
class CountsAbandoned(Protocol):
    """A ToolPort that gives up calls by itself and knows how many of them still run."""

    @property
    def abandoned(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Concurrency:
    """How many calls a worker makes of a tool at the same time. ``overdue``: given up, and still running."""

    key: str
    calls_max: int
    overdue: int


@runtime_checkable
class LimitsCalls(Protocol):
    """A ToolPort of which some tools may not run as often at once as there are slots."""

    def concurrency(self, definition: str, tool: str) -> Concurrency | None:
        """None: as many as there are slots."""
        ...


@runtime_checkable
class Closable(Protocol):
    """A ToolPort that holds something open."""

    def close(self) -> None: ...


class ToolExecutor:
    """See :class:`perdure.processors.executor.work.Work`."""

    def __init__(self, tools: ToolPort, blobs: BlobStore | None = None) -> None:
        """``blobs``: where large results are kept whole; None: nowhere."""
        self._tools = tools
        self._answers = Answers(blobs)
        # Found out once: a look at a protocol takes longer than all else in an idle step.
        self._counting = tools if isinstance(tools, CountsAbandoned) else None
        self._limiting = tools if isinstance(tools, LimitsCalls) else None

    @property
    def role(self) -> Role:
        return Role.TOOL_EXECUTOR

    @property
    def abandoned(self) -> int:
        return self._counting.abandoned if self._counting is not None else 0

    def read(self, record: Record) -> tuple[Request | Unreadable, ...]:
        offsets = (record.offset,)
        try:
            asked = codec.decode(ToolRequest, record.value)
        except codec.Undecodable as error:
            return (Unreadable(parse_headers(record.headers), offsets, str(error)),)
        identity = identity_of(asked)
        fault = _fault(asked)
        if fault is not None:
            return (Unreadable(identity, offsets, fault),)
        # A question about a call changes nothing, whatever the call it asks about may do.
        is_claimed = asked.purpose is Purpose.CALL and asked.effect is Effect.NON_IDEMPOTENT
        claim = Claim.LEASED if is_claimed else Claim.NONE
        return (
            Request(
                identity=identity,
                claim=claim,
                execution=asked.execution,
                start_by_ms=asked.start_by_ms,
                timeout_ms=asked.timeout_ms,
                partition=record.partition,
                offsets=offsets,
                size=len(record.value or b""),
                value=asked,
            ),
        )

    def refusal(self, request: Request) -> ResultBody | None:
        asked = _asked(request)
        if self._tools.knows(asked.definition, asked.tool):
            return None
        return Declined(DeclineReason.UNAVAILABLE, clipped(f"this worker has no tool {asked.tool!r}"))

    def lane(self, request: Request) -> Lane | None:
        limit = self._limit(request)
        return None if limit is None else Lane(f"tool {limit.key}", WAITING_MAX)

    def has_room(self, request: Request, running: int) -> bool:
        limit = self._limit(request)
        return limit is None or running + limit.overdue < limit.calls_max

    def hold(self, partitions: int) -> None:
        """A tool's limit is one of the worker, however much it owns."""

    def _limit(self, request: Request) -> Concurrency | None:
        asked = _asked(request)
        if self._limiting is None or asked.purpose is not Purpose.CALL:
            return None
        return self._limiting.concurrency(asked.definition, asked.tool)

    def prepare(self, request: Request) -> Prepared | ResultBody:
        asked = _asked(request)
        arguments = _object(asked.arguments)
        assert arguments is not None, "checked when it was read"
        invocation = ToolInvocation(
            run_id=asked.run_id,
            turn=asked.turn,
            call_id=asked.call_id,
            attempt=asked.attempt,
            definition=asked.definition,
            tool=asked.tool,
            arguments=arguments,
            effect=asked.effect,
            idempotency_key=asked.idempotency_key,
            purpose=asked.purpose,
            timeout_ms=asked.timeout_ms,
            started_ms=asked.started_ms,
            recipient=asked.recipient,
        )

        async def run(abort: AbortSignal) -> ResultBody:
            answer = await self._tools.call(invocation, abort)
            return await self._answers.recordable(answer, invocation, abort)

        return Prepared(run, Failed)

    def forget(self, partition: int) -> None:
        """Every request is one record: nothing is pinned."""

    def tend(self) -> bool:
        return False

    def close(self) -> None:
        """Let go of what the tools hold open, such as sessions with servers."""
        if isinstance(self._tools, Closable):
            self._tools.close()


def _fault(asked: ToolRequest) -> str | None:
    if _object(asked.arguments) is None:
        return "the arguments are no JSON object"
    return None if asked.timeout_ms > 0 else f"the deadline of {asked.timeout_ms} ms is not positive"


def _object(arguments: bytes) -> dict[str, JsonValue] | None:
    try:
        value = loads_json(arguments)
    except NotJson:
        return None
    return value if isinstance(value, dict) else None


def _asked(request: Request) -> ToolRequest:
    assert isinstance(request.value, ToolRequest)
    return request.value
