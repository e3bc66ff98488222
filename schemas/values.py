"""Small values that several records share."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

import msgspec

from perdure.schemas.limits import RUN_ID_CHARS_MAX, RUN_ID_SUFFIX_CHARS_MAX

_CHARS: Final = r"[A-Za-z0-9._:\-]"
RUN_ID_PATTERN: Final = re.compile(
    rf"{_CHARS}{{1,{RUN_ID_CHARS_MAX}}}(~{_CHARS}{{1,{RUN_ID_SUFFIX_CHARS_MAX}}})*", re.ASCII
)
"""A run id; ``~`` joins the ids of children and forks to their root and is never chosen by a client."""


class Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every record: immutable, compared by value, built by keyword or position."""


class RunState(StrEnum):
    """The eight states of a run (docs/ARCHITECTURE.md, lifecycle)."""

    QUEUED = "queued"
    RUNNING = "running"
    AWAITING_TOOL = "awaiting_tool"
    AWAITING_APPROVAL = "awaiting_approval"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"

    @property
    def is_terminal(self) -> bool:
        return self in _TERMINAL


_TERMINAL: Final = frozenset((RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED, RunState.TIMED_OUT))


class Effect(StrEnum):
    """What a tool may do to the world; decides what may be done after a crash."""

    READ_ONLY = "read_only"
    IDEMPOTENT_WRITE = "idempotent_write"
    NON_IDEMPOTENT = "non_idempotent"


class Verdict(StrEnum):
    """What a person decided about a pending call.

    APPROVE and REJECT answer an approval; RAN, DID_NOT_RUN and GIVE_UP answer an ambiguity.
    """

    APPROVE = "approve"
    REJECT = "reject"
    RAN = "ran"
    DID_NOT_RUN = "did_not_run"
    GIVE_UP = "give_up"


class PendingKind(StrEnum):
    """Why a call waits for a person."""

    APPROVAL = "approval"  # policy: it has not been dispatched yet
    AMBIGUITY = "ambiguity"  # it may have run; nothing can tell


class ExecutorKind(StrEnum):
    """What carries out a tool's calls."""

    FUNCTION = "function"
    SUBPROCESS = "subprocess"
    HTTP = "http"
    MCP = "mcp"
    AGENT = "agent"


class Purpose(StrEnum):
    """What a tool request asks for."""

    CALL = "call"
    RECONCILE = "reconcile"


class Answer(StrEnum):
    """What a reconciliation tool found out."""

    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did_not_happen"
    UNKNOWN = "unknown"


class FailureKind(StrEnum):
    """How a tool call ended without a result of the tool's own."""

    NOT_EXECUTED = "not_executed"  # the tool raised NotExecuted: definitely nothing happened
    DEADLINE = "deadline"
    ABORTED = "aborted"
    CONNECTION = "connection"
    EXCEPTION = "exception"
    OUTPUT = "output"  # it returned something that is no JSON or over the limit


class DeclineReason(StrEnum):
    """Why an executor handed a request back without starting it."""

    LATE_CLAIM = "late_claim"
    EXPIRED = "expired"  # past start_by_ms
    UNAVAILABLE = "unavailable"  # unknown tool or agent version here
    CANCELLED = "cancelled"


class ResultSource(StrEnum):
    """Where a call's effective result came from."""

    EXECUTED = "executed"
    RECONCILED = "reconciled"
    DECIDED = "decided"
    SYNTHETIC = "synthetic"
    INTERCEPTED = "intercepted"


class Usage(Struct, frozen=True):
    """Tokens and money of one or more model invocations; tokens are counts, money is 1e-9 US dollars."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_tokens: int = 0
    cache_read_tokens: int = 0
    cost_nano_usd: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_creation_tokens + other.cache_creation_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cost_nano_usd + other.cost_nano_usd,
        )


class Budget(Struct, frozen=True):
    """The most a run may use; None: no bound. Tokens are counts, money is 1e-9 US dollars."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_tokens: int | None = None
    cache_read_tokens: int | None = None
    cost_nano_usd: int | None = None


class Recipient(Struct, frozen=True):
    """Who carries out a call: what a person who approves it lets act.

    ``server``: name or address of what is outside of the worker, empty for a function. ``schema_sha256``: of
    all that is said of the tool's input and output, lower-case hex.
    """

    executor: ExecutorKind
    server: str
    schema_sha256: str


class Provenance(Struct, frozen=True):
    """Who asked for a run and how its parts are found again; copied into every outcome.

    ``labels`` are sorted (name, value) pairs. ``trace_context`` is a W3C ``traceparent``.
    """

    correlation_id: str | None = None
    tenant: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    trace_context: str | None = None
    sender: str | None = None


class BlobRef(Struct, frozen=True):
    """Where something stands whole that is too large for a record. ``size`` in bytes, ``sha256`` of them.

    ``media_type``: ``text/plain; charset=utf-8`` or ``application/json``.
    """

    uri: str
    sha256: bytes
    size: int
    media_type: str


class LogPosition(Struct, frozen=True):
    """Where a record stands (or first stood) in the log."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


class Parent(Struct, frozen=True):
    """The tool call that a child run answers: of turn ``turn`` of run ``run_id``, in its ``execution``.

    ``depth``: 1 for the child of a run that has no parent.
    """

    run_id: str
    execution: int
    turn: int
    call_id: str
    depth: int


class KeptCall(Struct, frozen=True):
    """A call of the turn after which a fork begins, with its result. ``arguments``, ``content``: JSON."""

    call_id: str
    tool: str
    arguments: bytes
    content: bytes
    is_error: bool = False


class ForkPoint(Struct, frozen=True):
    """Where a fork leaves its source: after ``turn``, whose calls all have their results.

    The first ``message_count`` messages of the source are the fork's as well, by reference; ``digest`` is
    that of the transcript they make. ``call_id_hashes``: of all call ids in them. ``calls``: of ``turn``.
    ``input_tokens_max``: what the transcript may count at most.
    """

    source: str
    turn: int
    message_count: int
    digest: bytes
    call_id_hashes: bytes = b""
    calls: tuple[KeptCall, ...] = ()
    input_tokens_max: int = 0
