"""run-results: what executors tell the orchestrator. Keyed run_id/turn/call/attempt, partitioned by run id.

``call_id`` is empty for model calls. Results are told apart by ``result_id``, random per record produced: one
that was seen changes nothing again, whatever re-reads it.
"""

from __future__ import annotations

from typing import TypeAlias

from perdure.schemas.values import Answer, BlobRef, DeclineReason, FailureKind, Struct, Usage


class Started(Struct, frozen=True, tag="Started"):
    """A claim: a non_idempotent attempt may be executing from now until ``deadline_ms``, not after."""

    deadline_ms: int


class Declined(Struct, frozen=True, tag="Declined"):
    """The attempt was not and will not be executed by this request."""

    reason: DeclineReason
    message: str = ""


class Suspect(Struct, frozen=True, tag="Suspect"):
    """A new owner found the request begun and not done; told no sooner than lease + margin later."""


class Lost(Struct, frozen=True, tag="Lost"):
    """Requests of this partition from ``base`` to below ``low`` were deleted before anybody answered them."""

    base: int
    low: int


class Completed(Struct, frozen=True, tag="Completed"):
    """The tool's own answer: definite, also when ``is_error``. ``content``: UTF-8 JSON string or blocks.

    ``blob``: where it stands whole, if it may be more than what a record or a turn has room for.
    """

    content: bytes
    is_error: bool = False
    blob: BlobRef | None = None


class Failed(Struct, frozen=True, tag="Failed"):
    """The call ended without an answer of the tool; for a non_idempotent one the outcome is unknown."""

    kind: FailureKind
    message: str


class Undecodable(Struct, frozen=True, tag="Undecodable"):
    """The request could not be read; answered from its headers."""

    reason: str


class Reconciled(Struct, frozen=True, tag="Reconciled"):
    """What the reconciliation tool answered; ``content`` is the call's result when it happened.

    ``blob``: where that stands whole, as of Completed.
    """

    answer: Answer
    content: bytes | None = None
    message: str = ""
    blob: BlobRef | None = None


class ModelReplied(Struct, frozen=True, tag="ModelReplied"):
    """A complete assistant message. ``content``: UTF-8 JSON list of blocks exactly as received.

    ``input_faults``: (block index, raw text) of each tool_use whose input was no JSON object.
    ``digest``: of the transcript that was sent.
    """

    invocation_id: str
    digest: bytes
    content: bytes
    stop_reason: str
    usage: Usage
    provider_message_id: str = ""
    input_faults: tuple[tuple[int, str], ...] = ()


class ModelFailed(Struct, frozen=True, tag="ModelFailed"):
    """A classified failure. ``usage`` None: nothing is known of what it cost."""

    invocation_id: str
    code: str
    is_retryable: bool
    message: str
    retry_after_ms: int | None = None
    usage: Usage | None = None


class NeedTranscript(Struct, frozen=True, tag="NeedTranscript"):
    """The model-caller has no transcript with the request's base digest."""


ResultBody: TypeAlias = (
    Started
    | Declined
    | Suspect
    | Lost
    | Completed
    | Failed
    | Undecodable
    | Reconciled
    | ModelReplied
    | ModelFailed
    | NeedTranscript
)


class Result(Struct, frozen=True):
    """One result. For Lost, run_id, call_id and request_id are empty."""

    result_id: str
    run_id: str
    turn: int
    call_id: str
    attempt: int
    request_id: str
    worker: str
    body: ResultBody
