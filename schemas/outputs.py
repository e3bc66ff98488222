"""What the orchestrator tells others: outcomes, status, approvals, signals, dead letters; and live deltas."""

from __future__ import annotations

from perdure.schemas.values import (
    Effect,
    LogPosition,
    PendingKind,
    Provenance,
    Recipient,
    RunState,
    Struct,
    Usage,
    Verdict,
)


class Outcome(Struct, frozen=True):
    """run-outcomes, keyed run_id: how one execution of a run ended. Exactly one per (run_id, execution).

    ``output``: UTF-8 JSON when completed. ``code``, ``message``, ``phase``: when failed, cancelled or timed
    out. ``seq``: the event that ended it. ``parent``: the run that it is a child of. ``source``: the run it
    was forked from.
    """

    run_id: str
    execution: int
    state: RunState
    agent: str
    definition: str | None
    seq: int
    output: bytes | None
    stop_reason: str | None
    code: str | None
    message: str | None
    phase: str | None
    usage: Usage
    turns: int
    created_ms: int
    ended_ms: int
    provenance: Provenance
    parent: str | None = None
    source: str | None = None


class Status(Struct, frozen=True):
    """run-status, keyed run_id: the newest state, conflated; readers ignore a lower ``seq``."""

    run_id: str
    seq: int
    execution: int
    state: RunState
    agent: str
    turn: int
    usage: Usage
    created_ms: int
    updated_ms: int
    pending_approvals: int
    waiting_for: str | None
    code: str | None
    provenance: Provenance
    parent: str | None = None
    source: str | None = None


class Approval(Struct, frozen=True):
    """run-approvals, keyed run_id/call_id: a person is asked. Removed (tombstone) when nobody need answer it.

    ``known``: UTF-8 JSON object that says what is known of an ambiguous call. ``verdicts``: the decisions it
    takes. ``recipient``: who would carry the call out.
    """

    run_id: str
    turn: int
    call_id: str
    kind: PendingKind
    tool: str
    arguments: bytes
    effect: Effect
    known: bytes
    verdicts: tuple[Verdict, ...]
    token: str
    requested_ms: int
    deadline_ms: int | None
    provenance: Provenance
    recipient: Recipient | None = None


class RunSignal(Struct, frozen=True):
    """run-signals, keyed run_id: this execution was cancelled."""

    execution: int
    reason: str


class Delta(Struct, frozen=True):
    """run-deltas, keyed run_id: a piece of a streamed answer, for live viewers only.

    A viewer resets when ``invocation_id`` changes. ``kind``: text or thinking.
    """

    run_id: str
    turn: int
    attempt: int
    invocation_id: str
    index: int
    kind: str
    text: str


class DeadLetter(Struct, frozen=True):
    """dead-letters, keyed source topic/partition/offset: an input that could not be handled, and why.

    ``head``: first bytes of the value; ``sha256`` and ``size`` (bytes) are of the whole.
    """

    source: LogPosition
    code: str
    reason: str
    key: bytes | None
    head: bytes
    sha256: bytes
    size: int
    at_ms: int


class DefinitionRecord(Struct, frozen=True):
    """agent-definitions, keyed agent/version/digest. ``body``: RFC 8785 JSON (``schemas.definition``)."""

    agent: str
    version: str
    digest: str
    body: bytes
    published_ms: int
