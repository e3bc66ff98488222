"""run-events: the history of a run, keyed run_id/seq. State is the fold of these and of nothing else.

A message's content stands here once: the input in RunCreated, each assistant message in ModelResponded, each
call's result in ToolCompleted. ``turn`` counts model turns from 1, ``attempt`` from 1, ``index`` from 0.
"""

from __future__ import annotations

from typing import TypeAlias

from perdure.schemas.values import (
    Answer,
    BlobRef,
    Budget,
    Effect,
    ForkPoint,
    Parent,
    PendingKind,
    Provenance,
    Recipient,
    ResultSource,
    RunState,
    Struct,
    Usage,
    Verdict,
)


class RunCreated(Struct, frozen=True, tag="RunCreated"):
    """The run exists, queued. ``definition`` None: its agent is not known yet (see ``waiting_for``).

    ``parent``: it is the child of that call. ``fork``: it goes on from there, and ``input`` is what its first
    turn tells the model.
    """

    agent: str
    version: str | None
    definition: str | None
    input: bytes
    provenance: Provenance
    max_turns: int
    deadline_ms: int | None = None
    not_before_ms: int | None = None
    budget: Budget | None = None
    waiting_for: str | None = None
    retry_at_ms: int | None = None
    parent: Parent | None = None
    fork: ForkPoint | None = None


class AgentPinned(Struct, frozen=True, tag="AgentPinned"):
    """The agent's definition was found; the run is bound to it for good."""

    definition: str
    version: str
    max_turns: int
    budget: Budget | None = None


class RunWaiting(Struct, frozen=True, tag="RunWaiting"):
    """The run can not start yet; asked again at ``retry_at_ms`` (None: it starts when a slot is free)."""

    waiting_for: str
    retry_at_ms: int | None


class TurnStarted(Struct, frozen=True, tag="TurnStarted"):
    """The model is asked, for the ``attempt``-th time, for turn ``turn``.

    ``texts``: appended to the transcript after the tool results, in order (signals, a resume's message, the
    final notice). ``allow_tools`` False: the last turn. ``reserved``: the worst case of this attempt, held
    against the budget until its usage is known. ``is_repair``: the answer before violated the output schema,
    and the model is told how.
    """

    turn: int
    attempt: int
    request_id: str
    start_by_ms: int
    timeout_ms: int
    max_tokens: int
    texts: tuple[str, ...] = ()
    allow_tools: bool = True
    reserved: Usage = Usage()
    is_repair: bool = False


class TurnResumed(Struct, frozen=True, tag="TurnResumed"):
    """A resumed run takes up its last turn, whose calls do not all have their results."""

    turn: int


class SignalReceived(Struct, frozen=True, tag="SignalReceived"):
    """A message into the run; its next turn takes it."""

    message: str


class TranscriptSent(Struct, frozen=True, tag="TranscriptSent"):
    """The pending request was written again with the whole transcript."""

    request_id: str


class ModelResponded(Struct, frozen=True, tag="ModelResponded"):
    """The complete assistant message of a turn. ``message``: UTF-8 JSON, normalised, re-sent as it is."""

    turn: int
    attempt: int
    request_id: str
    invocation_id: str
    message: bytes
    stop_reason: str
    usage: Usage
    provider_message_id: str = ""


class ModelAttemptEnded(Struct, frozen=True, tag="ModelAttemptEnded"):
    """A model attempt ended without a message that counts. ``retry_at_ms`` None: it is not tried again.

    ``usage``: what it cost; ``is_estimated``: its worst case, until its result comes.
    """

    turn: int
    attempt: int
    request_id: str
    code: str
    message: str
    retry_at_ms: int | None
    usage: Usage = Usage()
    is_estimated: bool = False


class ToolCallRequested(Struct, frozen=True, tag="ToolCallRequested"):
    """The model asks for a call; durable before anything starts. ``arguments``: canonical JSON (RFC 8785).

    ``fingerprint``: of tool and arguments without the cosmetic ones; equal for identical calls.
    """

    turn: int
    index: int
    call_id: str
    tool: str
    arguments: bytes
    effect: Effect
    idempotency_key: str
    fingerprint: bytes = b""


class ToolDispatched(Struct, frozen=True, tag="ToolDispatched"):
    """An attempt of a call is handed to the executors. It is over, at the latest, at ``deadline_ms``."""

    turn: int
    call_id: str
    attempt: int
    request_id: str
    start_by_ms: int
    timeout_ms: int
    deadline_ms: int


class ToolStarted(Struct, frozen=True, tag="ToolStarted"):
    """An executor holds the claim for a non_idempotent attempt, over at ``deadline_ms`` at the latest."""

    turn: int
    call_id: str
    attempt: int
    deadline_ms: int
    worker: str


class ToolAttemptEnded(Struct, frozen=True, tag="ToolAttemptEnded"):
    """An attempt ended without a result that counts. ``retry_at_ms`` None: it is not tried again."""

    turn: int
    call_id: str
    attempt: int
    reason: str
    message: str
    retry_at_ms: int | None


class ToolAmbiguous(Struct, frozen=True, tag="ToolAmbiguous"):
    """A non_idempotent attempt may or may not have happened."""

    turn: int
    call_id: str
    attempt: int
    reason: str
    message: str


class ReconciliationAsked(Struct, frozen=True, tag="ReconciliationAsked"):
    """The reconciliation tool is asked, for the ``ask``-th time, about an attempt."""

    turn: int
    call_id: str
    attempt: int
    ask: int
    tool: str
    request_id: str
    start_by_ms: int
    timeout_ms: int
    deadline_ms: int


class ReconciliationAnswered(Struct, frozen=True, tag="ReconciliationAnswered"):
    """Its answer; asked again at ``retry_at_ms`` when that is set."""

    turn: int
    call_id: str
    attempt: int
    ask: int
    answer: Answer
    message: str
    retry_at_ms: int | None


class ToolCompleted(Struct, frozen=True, tag="ToolCompleted"):
    """The call's one effective result. ``content``: UTF-8 JSON string or list of content blocks.

    ``blob``: where the result stands whole, if it was large; ``content`` may be its head only.
    """

    turn: int
    call_id: str
    attempt: int
    content: bytes
    is_error: bool
    source: ResultSource
    blob: BlobRef | None = None


class ChildStarted(Struct, frozen=True, tag="ChildStarted"):
    """A call of an agent became a run of its own. ``budget``: held for it out of this run's until it ends."""

    turn: int
    call_id: str
    child_id: str
    deadline_ms: int
    budget: Budget | None = None


class ChildEnded(Struct, frozen=True, tag="ChildEnded"):
    """The child has ended; what it used is counted here too, and what was held for it beyond that is free.

    ``content``: kept as the call's result where this run has ended meanwhile.
    """

    turn: int
    call_id: str
    child_id: str
    execution: int
    state: RunState
    usage: Usage
    content: bytes | None = None
    is_error: bool = False


class ApprovalRequested(Struct, frozen=True, tag="ApprovalRequested"):
    """A person has to decide about a call. ``known``: UTF-8 JSON object that says exactly what is known.

    Asked again about the same call, it takes the place of the earlier question. ``recipient``: who would
    carry the call out; it is checked again before anybody does.
    """

    turn: int
    call_id: str
    kind: PendingKind
    known: bytes
    verdicts: tuple[Verdict, ...]
    token: str
    deadline_ms: int | None
    recipient: Recipient | None = None


class DecisionRecorded(Struct, frozen=True, tag="DecisionRecorded"):
    """The first valid decision about a pending call.

    ``arguments``: what a person put in place of the model's arguments, canonical JSON (RFC 8785).
    ``arguments_sha256``: of the arguments that the decision is about, edited or not. ``told``: what the next
    turn tells the model of them.
    """

    turn: int
    call_id: str
    verdict: Verdict
    decided_by: str
    message: str | None = None
    arguments: bytes | None = None
    arguments_sha256: bytes = b""
    told: str | None = None


class CommandRejected(Struct, frozen=True, tag="CommandRejected"):
    """A command changed nothing; ``reason`` is stable, ``message`` says more to people."""

    kind: str
    reason: str
    message: str = ""


class SurplusRecorded(Struct, frozen=True, tag="SurplusRecorded"):
    """A result that changes no state: late, of another attempt, or a second one. Its usage still counts.

    ``corrects_estimate``: the usage replaces the estimate that was charged for this request id.
    ``content``: what a tool answered after its run had ended, or after a synthetic result had been put in its
    place: it becomes the call's result, for no model has seen another yet.
    ``closes_attempt``: the attempt is known to be over, one way or the other.
    ``told``: what the next turn tells the model of it, where that has seen another result.
    """

    turn: int
    call_id: str
    attempt: int
    request_id: str
    kind: str
    reason: str
    usage: Usage = Usage()
    content_sha256: bytes = b""
    corrects_estimate: bool = False
    content: bytes | None = None
    is_error: bool = False
    closes_attempt: bool = False
    told: str | None = None


class RunCompleted(Struct, frozen=True, tag="RunCompleted"):
    """Terminal. ``output``: UTF-8 JSON."""

    output: bytes
    stop_reason: str


class RunFailed(Struct, frozen=True, tag="RunFailed"):
    """Terminal until resumed. ``checkpoint``: seq of the last event whose effects stand."""

    code: str
    message: str
    phase: str
    checkpoint: int


class RunCancelled(Struct, frozen=True, tag="RunCancelled"):
    """Terminal until resumed."""

    reason: str


class RunTimedOut(Struct, frozen=True, tag="RunTimedOut"):
    """Terminal until resumed."""

    reason: str


class RunResumed(Struct, frozen=True, tag="RunResumed"):
    """A next execution begins, queued."""

    execution: int
    message: str | None
    max_turns: int
    budget: Budget | None


class RunPurged(Struct, frozen=True, tag="RunPurged"):
    """A run that has ended is forgotten: its other events are deleted after this one, from the last to the
    first. This one stays, so that the run's id is never used again. It may stand alone.
    """


EventBody: TypeAlias = (
    RunCreated
    | AgentPinned
    | RunWaiting
    | TurnStarted
    | TurnResumed
    | SignalReceived
    | TranscriptSent
    | ModelResponded
    | ModelAttemptEnded
    | ToolCallRequested
    | ToolDispatched
    | ToolStarted
    | ToolAttemptEnded
    | ToolAmbiguous
    | ReconciliationAsked
    | ReconciliationAnswered
    | ToolCompleted
    | ChildStarted
    | ChildEnded
    | ApprovalRequested
    | DecisionRecorded
    | CommandRejected
    | SurplusRecorded
    | RunCompleted
    | RunFailed
    | RunCancelled
    | RunTimedOut
    | RunResumed
    | RunPurged
)


class Event(Struct, frozen=True):
    """One event. ``seq`` counts from 1 without gaps; ``at_ms`` never falls within a partition.

    ``cause``: command id or result id of the input that the event answers; set on the first event of each
    input, so that an input read again is known. ``answers_command`` tells the two kinds of cause apart.
    """

    run_id: str
    seq: int
    at_ms: int
    body: EventBody
    cause: str | None = None
    answers_command: bool = False
