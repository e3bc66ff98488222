"""model-requests and tool-requests: work handed to the executors. Keyed by run id.

Every request carries a random ``request_id`` that its results echo, and ``start_by_ms``, after which no
executor may start it: with ``timeout_ms`` that bounds the instant after which an attempt is known to be over.
The headers of a request repeat what is needed to answer one whose value can not be decoded
(``processors.headers``).
"""

from __future__ import annotations

from perdure.schemas.values import Effect, Purpose, Struct


class ModelRequest(Struct, frozen=True):
    """Ask the model for one turn.

    ``messages``: only what is new since the run's previous request, each a UTF-8 JSON message, in order.
    ``base_digest``: digest of the transcript they extend; ``digest``: of the whole (``machine.transcript``).
    ``is_whole``: messages are the whole transcript (answer to NeedTranscript), in ``chunks`` records of one
    transaction, this being number ``chunk`` from 0.
    ``definition``: content hash of the agent definition. ``allow_tools`` False forbids tool use in this turn.
    """

    run_id: str
    turn: int
    attempt: int
    request_id: str
    execution: int
    definition: str
    base_digest: bytes
    digest: bytes
    messages: tuple[bytes, ...]
    max_tokens: int
    start_by_ms: int
    timeout_ms: int
    allow_tools: bool = True
    is_whole: bool = False
    chunk: int = 0
    chunks: int = 1
    trace_context: str | None = None


class ToolRequest(Struct, frozen=True):
    """Ask for one attempt of a tool call, or (``purpose`` RECONCILE) what became of one.

    For RECONCILE, ``tool`` names the reconciliation tool, ``effect`` is read_only, ``attempt`` is the attempt
    in doubt and ``started_ms`` when it was started (None: not known). ``recipient``: digest of the recipient
    that a person approved (``schemas.recipient``); empty: nobody was asked.
    """

    run_id: str
    turn: int
    call_id: str
    attempt: int
    request_id: str
    execution: int
    definition: str
    tool: str
    arguments: bytes
    effect: Effect
    idempotency_key: str
    start_by_ms: int
    timeout_ms: int
    purpose: Purpose = Purpose.CALL
    started_ms: int | None = None
    trace_context: str | None = None
    recipient: bytes = b""
