"""The tool-executor's role: what a ToolRequest means, and what a tool's answer must look like to be
recorded.
"""

from __future__ import annotations

from typing import Final, Protocol, cast, runtime_checkable

from perdure.processors.abort import AbortSignal
from perdure.processors.executor.results import clipped
from perdure.processors.executor.work import Claim, Prepared, Request, Unreadable
from perdure.processors.headers import identity_of, parse_headers
from perdure.processors.ports import ToolAnswer, ToolInvocation, ToolPort
from perdure.schemas import codec
from perdure.schemas.canonical import JsonValue, NotJson, dumps_verbatim, loads_json
from perdure.schemas.limits import JSON_BYTES_MAX, JSON_DEPTH_MAX, PAYLOAD_BYTES_MAX
from perdure.schemas.requests import ToolRequest
from perdure.schemas.results import Completed, Declined, Failed, Reconciled, ResultBody
from perdure.schemas.values import DeclineReason, Effect, FailureKind, Purpose
from perdure.topics.log import Record
from perdure.topics.table import Role

CONTENT_BYTES_MAX: Final = PAYLOAD_BYTES_MAX - (16 << 10)
"""What a result's content may take; the rest of the limit is for ids, messages and framing."""
NOTE_BYTES: Final = 256
QUOTES: Final = '""'
ESCAPE_BYTES_MAX: Final = 6  # JSON may write one character as \\u0000


@runtime_checkable
class CountsAbandoned(Protocol):
    """A ToolPort that gives up calls by itself and knows how many of them still run."""

    @property
    def abandoned(self) -> int: ...


class ToolExecutor:
    """See :class:`perdure.processors.executor.work.Work`."""

    def __init__(self, tools: ToolPort) -> None:
        self._tools = tools
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
            return recordable(await self._tools.call(invocation, abort), asked.purpose)

        return Prepared(run, Failed)

    def forget(self, partition: int) -> None:
        """Every request is one record: nothing is pinned."""

    def tend(self) -> bool:
        return False

    def close(self) -> None: ...


def recordable(answer: ToolAnswer, purpose: Purpose) -> ResultBody:
    """The answer as it may be written: of the kind that was asked for, JSON, and within the size limit.

    Too large content of a call is cut to its head with a note; the machine hands that to the model.
    """
    match answer:
        case Failed():
            return Failed(answer.kind, clipped(answer.message))
        case Declined():
            return Declined(answer.reason, clipped(answer.message))
        case Completed() if purpose is Purpose.CALL:
            content = fitting(answer.content)
            return content if isinstance(content, Failed) else Completed(content, answer.is_error)
        case Reconciled() if purpose is Purpose.RECONCILE:
            message = clipped(answer.message)
            if answer.content is None:
                return Reconciled(answer.answer, None, message)
            content = fitting(answer.content)
            return content if isinstance(content, Failed) else Reconciled(answer.answer, content, message)
        case Completed() | Reconciled():
            kind = type(answer).__name__
            return Failed(FailureKind.OUTPUT, f"the tool answered a {purpose.value} with {kind}")


def fitting(content: bytes) -> bytes | Failed:
    """``content`` itself, its head if it is too large, or Failed if it is no text and no list of blocks."""
    note = f"[cut: the tool returned {len(content)} bytes, of which at most {CONTENT_BYTES_MAX} are kept]"
    room = CONTENT_BYTES_MAX - NOTE_BYTES
    if len(content) > JSON_BYTES_MAX:  # too large to be looked at; its head is still worth more than nothing
        text = content[:room].decode("utf-8", "replace")
        return dumps_verbatim(f"{_head(text, room)}\n{note}")
    try:
        value = loads_json(content, depth_max=JSON_DEPTH_MAX)
    except NotJson as error:
        return Failed(FailureKind.OUTPUT, clipped(f"the tool's output can not be used: {error.detail}"))
    if not isinstance(value, str) and not _are_blocks(value):
        message = "the tool's output is neither a string nor a list of content blocks"
        return Failed(FailureKind.OUTPUT, message)
    if len(content) <= CONTENT_BYTES_MAX:
        return content
    if isinstance(value, str):
        return dumps_verbatim(f"{_head(value, room)}\n{note}")
    return _cut_blocks(cast("list[JsonValue]", value), room, note)


def _cut_blocks(blocks: list[JsonValue], room: int, note: str) -> bytes:
    """Whole blocks as long as they fit, the head of a text that does not, and the note."""
    kept: list[JsonValue] = []
    for block in blocks:
        size = len(dumps_verbatim(block)) + 1
        if size <= room:
            kept.append(block)
            room -= size
            continue
        text = block.get("text") if isinstance(block, dict) else None
        frame = len(dumps_verbatim({"type": "text", "text": ""})) + 1
        if isinstance(text, str) and room > frame:
            kept.append({"type": "text", "text": _head(text, room - frame)})
        break
    kept.append({"type": "text", "text": note})
    return dumps_verbatim(kept)


def _head(text: str, room: int) -> str:
    """As much of ``text`` as its JSON form leaves room for."""
    head = text[:room]
    while (excess := len(dumps_verbatim(head)) - len(QUOTES) - room) > 0:
        head = head[: max(0, len(head) - max(1, excess // ESCAPE_BYTES_MAX))]
    return head


def _are_blocks(value: JsonValue) -> bool:
    return isinstance(value, list) and all(
        isinstance(block, dict) and isinstance(block.get("type"), str) for block in value
    )


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
