"""The model-caller's role: transcripts put together, the model asked, its answer and its deltas told."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import msgspec

from perdure.processors.abort import AbortSignal
from perdure.processors.clock import Entropy, new_id
from perdure.processors.crash_points import crash_point
from perdure.processors.executor.actions import Action, extra
from perdure.processors.executor.results import OUTPUT_UNUSABLE, clipped
from perdure.processors.executor.work import Claim, Lane, Prepared, Request, Unreadable
from perdure.processors.headers import RequestIdentity, identity_of, parse_headers
from perdure.processors.machine.transcript import extend_digest, start_digest
from perdure.processors.ports import DefinitionSource, ModelInvocation, ModelPort
from perdure.processors.rate_limits import (
    BYTES_PER_TOKEN,
    PAUSE_S_DEFAULT,
    RATE_LIMITED,
    Cost,
    RateLimiter,
)
from perdure.processors.transcripts import Transcripts
from perdure.schemas import codec
from perdure.schemas.canonical import NotJson, loads_json
from perdure.schemas.errors import PerdureError
from perdure.schemas.limits import PAYLOAD_BYTES_MAX
from perdure.schemas.outputs import Delta
from perdure.schemas.requests import ModelRequest
from perdure.schemas.results import Declined, ModelFailed, ModelReplied, NeedTranscript, ResultBody
from perdure.schemas.values import DeclineReason, FailureKind
from perdure.topics.log import Outgoing, Producer, Record
from perdure.topics.table import Role

logger: Final = logging.getLogger(__name__)

REPLY_BYTES_MAX: Final = PAYLOAD_BYTES_MAX - (16 << 10)
DELTAS_MAX: Final = 10_000
"""Pieces that wait to be written; beyond that the oldest are dropped: viewers only."""
DELTAS_FLUSH_S: Final = 1.0
SIZES_MAX: Final = 1_000
CHUNKS_MAX: Final = 4_096
LANE: Final = Lane("the provider's key")
TRANSCRIPT_MISMATCH: Final = "transcript_mismatch"


@dataclass(slots=True)
class _Assembly:
    """A whole transcript of which some chunks were read. ``offsets``: their records, in order."""

    first: ModelRequest
    identity: RequestIdentity
    offsets: list[int]
    messages: list[bytes]

    def awaits(self, asked: ModelRequest) -> bool:
        """Whether ``asked`` is the next chunk of this very transcript."""
        first = self.first
        return (
            asked.is_whole
            and (asked.request_id, asked.turn, asked.attempt) == (first.request_id, first.turn, first.attempt)
            and asked.chunks == first.chunks
            and asked.chunk == len(self.offsets)
        )


@dataclass(frozen=True, slots=True)
class _Piece:
    """One streamed piece, on its way from the call's loop to the engine's thread."""

    asked: ModelRequest
    partition: int
    invocation_id: str
    index: int
    kind: str
    text: str

    @property
    def stream(self) -> tuple[str, int, str]:
        return self.invocation_id, self.index, self.kind


class ModelCaller:
    """See :class:`perdure.processors.executor.work.Work`.

    ``deltas``: a producer of its own, and ``deltas_topic`` the full name of run-deltas. A delta that can
    not be written is dropped: it is never state. ``limiter``: of the provider's key.
    """

    def __init__(
        self,
        model: ModelPort,
        definitions: DefinitionSource,
        transcripts: Transcripts,
        entropy: Entropy,
        deltas: Producer,
        deltas_topic: str,
        limiter: RateLimiter | None = None,
    ) -> None:
        self._model = model
        self._definitions = definitions
        self._transcripts = transcripts
        self._entropy = entropy
        self._deltas = deltas
        self._deltas_topic = deltas_topic
        self._limiter = limiter
        self._sizes: dict[str, int] = {}
        self._pieces: deque[_Piece] = deque(maxlen=DELTAS_MAX)
        self._assemblies: dict[int, dict[str, _Assembly]] = {}

    @property
    def role(self) -> Role:
        return Role.MODEL_CALLER

    @property
    def abandoned(self) -> int:
        return 0

    # ---- reading -------------------------------------------------------------------------------------------

    def read(self, record: Record) -> tuple[Request | Unreadable, ...]:
        try:
            asked = codec.decode(ModelRequest, record.value)
        except codec.Undecodable as error:
            return (Unreadable(parse_headers(record.headers), (record.offset,), str(error)),)
        open_ = self._assemblies.setdefault(record.partition, {})
        found: list[Request | Unreadable] = []
        pending = open_.get(asked.run_id)
        if pending is not None and not pending.awaits(asked):
            # The chunks of a transcript are one transaction: what is missing now will not come.
            del open_[asked.run_id]
            reason = "chunks of the transcript are missing"
            found.append(Unreadable(pending.identity, tuple(pending.offsets), reason))
            pending = None
        found += self._read_next(record, asked, open_, pending)
        return tuple(found)

    def _read_next(
        self, record: Record, asked: ModelRequest, open_: dict[str, _Assembly], pending: _Assembly | None
    ) -> Iterable[Request | Unreadable]:
        identity = identity_of(asked)
        if asked.timeout_ms <= 0 or not 0 < asked.chunks <= CHUNKS_MAX:
            reason = "its deadline or its number of chunks is impossible"
            return [Unreadable(identity, (record.offset,), reason)]
        if not asked.is_whole:
            return [_request(record, identity, asked, (record.offset,))]
        if pending is None:
            if asked.chunk != 0:
                reason = f"chunk {asked.chunk} of the transcript comes without its predecessors"
                return [Unreadable(identity, (record.offset,), reason)]
            pending = open_[asked.run_id] = _Assembly(asked, identity, [], [])
        pending.offsets.append(record.offset)
        pending.messages += asked.messages
        if len(pending.offsets) < asked.chunks:
            return []
        del open_[asked.run_id]
        whole = msgspec.structs.replace(asked, messages=tuple(pending.messages))
        return [_request(record, identity, whole, tuple(pending.offsets))]

    def forget(self, partition: int) -> None:
        self._assemblies.pop(partition, None)

    # ---- calling -------------------------------------------------------------------------------------------

    def refusal(self, request: Request) -> ResultBody | None:
        asked = _asked(request)
        if self._definitions.by_digest(asked.definition) is not None:
            return None
        message = clipped(f"this worker has not read agent definition {asked.definition}")
        return Declined(DeclineReason.UNAVAILABLE, message)

    def lane(self, request: Request) -> Lane | None:  # noqa: ARG002 - one key, one lane
        return None if self._limiter is None else LANE

    def has_room(self, request: Request, running: int) -> bool:  # noqa: ARG002 - slots bound that
        return self._limiter is None or self._limiter.has_room(self._cost(request))

    def hold(self, partitions: int) -> None:
        if self._limiter is not None:
            self._limiter.hold(partitions)

    def _cost(self, request: Request) -> Cost:
        """The estimate: what is new in the transcript, for the rest is read from the provider's cache."""
        asked = _asked(request)
        size = sum(map(len, asked.messages))
        if asked.is_whole or asked.base_digest == start_digest(asked.definition):
            size += self._prefix_size(asked.definition)
        return Cost(size // BYTES_PER_TOKEN + 1, asked.max_tokens)

    def _prefix_size(self, digest: str) -> int:
        """Roughly the bytes of what stands before the transcript: asked often, so it is counted once."""
        known = self._sizes.get(digest)
        if known is None:
            definition = self._definitions.by_digest(digest)
            known = 0 if definition is None else len(definition.system) + len(str(definition.tools))
            if len(self._sizes) >= SIZES_MAX:
                self._sizes.clear()
            self._sizes[digest] = known
        return known

    def _tell(self, cost: Cost, answer: ModelReplied | ModelFailed) -> None:
        if self._limiter is None:
            return
        pause_s: float | None = None
        if isinstance(answer, ModelFailed) and answer.code == RATE_LIMITED:
            wanted_ms = answer.retry_after_ms
            pause_s = PAUSE_S_DEFAULT if wanted_ms is None else wanted_ms / 1000
        self._limiter.tell(cost, answer.usage, pause_s)

    def prepare(self, request: Request) -> Prepared | ResultBody:
        asked = _asked(request)
        definition = self._definitions.by_digest(asked.definition)
        assert definition is not None, "refused before"
        messages = self._transcript(asked)
        invocation_id = new_id(self._entropy)
        if messages is None:
            if not asked.is_whole:
                return NeedTranscript()
            message = "the whole transcript that was sent has another digest than the run's"
            return ModelFailed(invocation_id, TRANSCRIPT_MISMATCH, is_retryable=False, message=message)
        invocation = ModelInvocation(
            definition=definition,
            messages=messages,
            max_tokens=asked.max_tokens,
            allow_tools=asked.allow_tools,
            timeout_ms=asked.timeout_ms,
            invocation_id=invocation_id,
            digest=asked.digest,
            run_id=asked.run_id,
            turn=asked.turn,
        )
        on_delta = self._listener(asked, request.partition, invocation_id)

        cost = self._cost(request)
        if self._limiter is not None:
            self._limiter.take(cost)

        async def run(abort: AbortSignal) -> ResultBody:
            answer = await self._model.invoke(invocation, abort, on_delta)
            self._tell(cost, answer)
            return recordable(answer)

        def failed(kind: FailureKind, message: str) -> ResultBody:
            # Nobody waits for the answer to a cancelled execution; all else may be tried again.
            is_retryable = kind is not FailureKind.ABORTED
            return ModelFailed(invocation_id, f"call_{kind.value}", is_retryable, message)

        return Prepared(run, failed)

    def _transcript(self, asked: ModelRequest) -> tuple[bytes, ...] | None:
        """The whole transcript of a request, if it can be put together and has the digest it should have."""
        empty = start_digest(asked.definition)
        base_digest = empty if asked.is_whole else asked.base_digest
        base = () if base_digest == empty else self._transcripts.get(asked.run_id, base_digest)
        # A cache may hold anything; only the digest says that these are the run's messages, byte for byte.
        if base is None or extend_digest(empty, *base) != base_digest:
            return None
        if extend_digest(base_digest, *asked.messages) != asked.digest:
            return None
        known = None if base_digest == empty else base_digest
        self._transcripts.extend(asked.run_id, known, asked.digest, asked.messages)
        return base + asked.messages

    # ---- live deltas ---------------------------------------------------------------------------------------

    def _listener(
        self, asked: ModelRequest, partition: int, invocation_id: str
    ) -> Callable[[int, str, str], None]:
        has_begun = False

        def on_delta(index: int, kind: str, text: str) -> None:
            nonlocal has_begun
            if not has_begun:
                has_begun = True
                crash_point("model.mid_stream")
            self._pieces.append(_Piece(asked, partition, invocation_id, index, kind, text))

        return on_delta

    def tend(self) -> bool:
        """Write what was streamed since the last look, pieces of one block together."""
        pieces: list[_Piece] = []
        while self._pieces:
            pieces.append(self._pieces.popleft())
        for _, group in groupby(pieces, key=lambda piece: piece.stream):
            self._write_delta(list(group))
        self._deltas.poll(0.0)
        return bool(pieces)

    def _write_delta(self, pieces: list[_Piece]) -> None:
        first = pieces[0]
        asked = first.asked
        text = "".join(piece.text for piece in pieces).encode("utf-8", "replace").decode()
        delta = Delta(
            asked.run_id, asked.turn, asked.attempt, first.invocation_id, first.index, first.kind, text
        )
        try:
            value = codec.encode(delta)
            self._deltas.produce(Outgoing(self._deltas_topic, first.partition, asked.run_id.encode(), value))
        except PerdureError as error:
            logger.info("delta dropped: %s", error, extra=extra(Action.DELTA_DROPPED))

    def close(self) -> None:
        self.tend()
        self._deltas.flush(DELTAS_FLUSH_S)
        self._deltas.close()
        self._transcripts.close()


def recordable(answer: ModelReplied | ModelFailed) -> ResultBody:
    """The answer as it may be written: a list of blocks within the size limit."""
    match answer:
        case ModelFailed():
            return ModelFailed(
                answer.invocation_id,
                answer.code,
                answer.is_retryable,
                clipped(answer.message),
                answer.retry_after_ms,
                answer.usage,
            )
        case ModelReplied():
            fault = _fault(answer)
            if fault is None:
                return answer
            return ModelFailed(
                answer.invocation_id, OUTPUT_UNUSABLE, is_retryable=False, message=fault, usage=answer.usage
            )


def _fault(answer: ModelReplied) -> str | None:
    size = len(answer.content) + sum(len(raw.encode("utf-8", "replace")) for _, raw in answer.input_faults)
    if size > REPLY_BYTES_MAX:
        return f"the reply takes {size} of at most {REPLY_BYTES_MAX} bytes"
    try:
        blocks = loads_json(answer.content)
    except NotJson as error:
        return clipped(f"the reply is no JSON: {error.detail}")
    return None if isinstance(blocks, list) else "the reply is no list of content blocks"


def _request(
    record: Record, identity: RequestIdentity, asked: ModelRequest, offsets: tuple[int, ...]
) -> Request:
    return Request(
        identity=identity,
        claim=Claim.MARKED,
        execution=asked.execution,
        start_by_ms=asked.start_by_ms,
        timeout_ms=asked.timeout_ms,
        partition=record.partition,
        offsets=offsets,
        size=sum(map(len, asked.messages)),
        value=asked,
    )


def _asked(request: Request) -> ModelRequest:
    assert isinstance(request.value, ModelRequest)
    return request.value
