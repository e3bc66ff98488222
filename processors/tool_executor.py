"""The tool-executor's role: what a ToolRequest means, and how it is executed."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from perdure.processors.abort import AbortSignal
from perdure.processors.blobs import BlobStore
from perdure.processors.executor.results import clipped
from perdure.processors.executor.work import Claim, Prepared, Request, Unreadable
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


@runtime_checkable
class CountsAbandoned(Protocol):
    """A ToolPort that gives up calls by itself and knows how many of them still run."""

    @property
    def abandoned(self) -> int: ...


class ToolExecutor:
    """See :class:`perdure.processors.executor.work.Work`."""

    def __init__(self, tools: ToolPort, blobs: BlobStore | None = None) -> None:
        """``blobs``: where large results are kept whole; None: nowhere."""
        self._tools = tools
        self._answers = Answers(blobs)
        # Found out once: a look at a protocol takes longer than all else in an idle step.
        self._counting = tools if isinstance(tools, CountsAbandoned) else None

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
        )

        async def run(abort: AbortSignal) -> ResultBody:
            answer = await self._tools.call(invocation, abort)
            return await self._answers.recordable(answer, invocation, abort)

        return Prepared(run, Failed)

    def forget(self, partition: int) -> None:
        """Every request is one record: nothing is pinned."""

    def tend(self) -> bool:
        return False

    def close(self) -> None: ...


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
