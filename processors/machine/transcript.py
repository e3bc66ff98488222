"""Transcripts: how a run's messages grow, and the digest that pins their prefix.

The digest is a chain: ``start_digest(definition)``, then ``extend_digest(digest, message)`` per message.
Model-caller and machine compute it alike, so equal digests mean byte-identical transcripts under the same
definition.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from perdure.processors.machine.state import Run
from perdure.schemas.requests import ModelRequest

DIGEST_BYTES: Final = 32
CHUNK_BYTES_MAX: Final = 1 << 20
"""Payload bytes of messages per transcript chunk; a single larger message gets a chunk of its own."""


def start_digest(definition: str) -> bytes:
    """Digest of the empty transcript under the agent definition with this content hash."""
    return hashlib.sha256(b"perdure/1 " + definition.encode()).digest()


def extend_digest(digest: bytes, *messages: bytes) -> bytes:
    """Digest of the transcript ``digest`` stands for, followed by ``messages``."""
    for message in messages:
        digest = hashlib.sha256(digest + hashlib.sha256(message).digest()).digest()
    return digest


def request_of(run: Run) -> ModelRequest:
    """The pending model request of ``run``, with what is new since the previous one."""
    return _request(run, base_digest=run.base_digest, messages=run.tail)


def whole_requests(run: Run, messages: Sequence[bytes]) -> tuple[ModelRequest, ...]:
    """The pending request with the whole transcript ``messages``, in chunks to be written in one
    transaction.
    """
    assert run.definition is not None
    chunks = tuple(_chunks(messages))
    base = start_digest(run.definition)
    return tuple(
        _request(run, base_digest=base, messages=chunk, is_whole=True, chunk=number, chunks=len(chunks))
        for number, chunk in enumerate(chunks)
    )


def _request(
    run: Run,
    *,
    base_digest: bytes,
    messages: tuple[bytes, ...],
    is_whole: bool = False,
    chunk: int = 0,
    chunks: int = 1,
) -> ModelRequest:
    assert run.model is not None
    assert run.definition is not None
    return ModelRequest(
        run_id=run.run_id,
        turn=run.model.turn,
        attempt=run.model.attempt,
        request_id=run.model.request_id,
        execution=run.execution,
        definition=run.definition,
        base_digest=base_digest,
        digest=run.digest,
        messages=messages,
        max_tokens=run.model.max_tokens,
        start_by_ms=run.model.start_by_ms,
        timeout_ms=run.model.timeout_ms,
        allow_tools=run.model.allow_tools,
        is_whole=is_whole,
        chunk=chunk,
        chunks=chunks,
        trace_context=run.provenance.trace_context,
    )


def _chunks(messages: Iterable[bytes]) -> Iterable[tuple[bytes, ...]]:
    chunk: list[bytes] = []
    size = 0
    for message in messages:
        if chunk and size + len(message) > CHUNK_BYTES_MAX:
            yield tuple(chunk)
            chunk, size = [], 0
        chunk.append(message)
        size += len(message)
    yield tuple(chunk)
