"""The state of one run: what ``apply`` builds and ``decide`` reads. Small and bounded, whatever the run's
length.

Finished turns live in message and result rows, not here; this row holds the run's totals and its current
turn.
"""

from __future__ import annotations

from enum import StrEnum

from perdure.schemas.values import Budget, Effect, Parent, PendingKind, Provenance, RunState, Struct, Usage


class CallPhase(StrEnum):
    """Where one tool call of the current turn stands."""

    REQUESTED = "requested"  # durable, not dispatched
    DISPATCHED = "dispatched"  # an attempt is open
    RETRY_WAIT = "retry_wait"  # a timer will dispatch the next attempt
    AMBIGUOUS = "ambiguous"  # may have happened; not yet asked
    RECONCILING = "reconciling"  # the reconciliation tool is asked
    RECONCILE_WAIT = "reconcile_wait"  # a timer will ask it again
    AWAITING_DECISION = "awaiting_decision"  # a person is asked
    WITH_CHILD = "with_child"  # a child run answers it
    DONE = "done"


def agent_named(agent: str, version: str | None) -> str:
    """An agent as people are told what a run waits for."""
    return f"agent {agent} version {version}" if version else f"agent {agent}"


class Attempt(Struct, frozen=True):
    """The newest attempt of a call; ``started_ms`` is set once a claim was read."""

    number: int
    request_id: str
    opened_ms: int
    deadline_ms: int
    started_ms: int | None = None
    is_open: bool = True


class Reconciliation(Struct, frozen=True):
    """The newest question to a reconciliation tool."""

    ask: int
    request_id: str
    asked_ms: int
    deadline_ms: int
    is_open: bool = True


class Call(Struct, frozen=True):
    """One tool call of the current turn.

    ``due_ms``: when its timer fires, in the waiting phases. ``doubt``: why it is ambiguous. ``failures``:
    attempts that ended in a failure (declined ones do not count). ``late_content``: what the tool answered
    after its run had ended. ``child``: id of the run that answers it. ``waiting_for``: what no worker had,
    until it is asked for again. ``recipient``: digest of the one that was shown to a person, empty: none was.
    ``is_synthetic``: its result only says what is not known. ``may_have_run``: an attempt ended in a way that
    does not tell. ``is_given_up``: a person did not know either.
    """

    call_id: str
    index: int
    tool: str
    arguments: bytes
    effect: Effect
    idempotency_key: str
    phase: CallPhase = CallPhase.REQUESTED
    attempt: Attempt | None = None
    reconciliation: Reconciliation | None = None
    due_ms: int | None = None
    doubt: str | None = None
    failures: int = 0
    content: bytes | None = None
    is_error: bool = False
    late_content: bytes | None = None
    is_late_error: bool = False
    child: str | None = None
    waiting_for: str | None = None
    recipient: bytes = b""
    is_synthetic: bool = False
    may_have_run: bool = False
    is_given_up: bool = False

    @property
    def is_done(self) -> bool:
        return self.phase is CallPhase.DONE

    @property
    def awaits_decision(self) -> bool:
        return self.phase is CallPhase.AWAITING_DECISION


class LooseEnd(Struct, frozen=True):
    """A call whose turn is over, and of which more may be heard."""

    call_id: str
    tool: str
    request_id: str


class Pending(Struct, frozen=True):
    """What a person is asked about a call."""

    call_id: str
    kind: PendingKind
    token: str
    requested_ms: int
    deadline_ms: int | None


class ModelCall(Struct, frozen=True):
    """The pending model request of the current turn; ``retry_at_ms`` set: it waits for its next attempt.

    ``waiting_for``: what no worker had, until it is asked for again.
    """

    turn: int
    attempt: int
    request_id: str
    deadline_ms: int
    start_by_ms: int
    timeout_ms: int
    max_tokens: int
    allow_tools: bool
    reserved: Usage = Usage()
    retry_at_ms: int | None = None
    is_whole_sent: bool = False
    waiting_for: str | None = None


class Reserved(Struct, frozen=True):
    """An estimate that was charged for an attempt whose usage is not known."""

    request_id: str
    usage: Usage


class Seen(Struct, frozen=True):
    """A call in the repetition window. ``result``: hash of its result, empty until it has one.

    ``is_useless``: it failed, or had the same result as the identical call before it.
    """

    fingerprint: bytes
    call_id: str
    result: bytes = b""
    is_useless: bool = False


class Child(Struct, frozen=True):
    """A child run that has not ended. ``budget``: what is held for it out of its parent's."""

    run_id: str
    call_id: str
    deadline_ms: int
    budget: Budget | None = None


class Shared(Struct, frozen=True):
    """What a fork shares with its source: the messages up to the end of ``turn``."""

    source: str
    turn: int
    message_count: int


class Closed(Struct, frozen=True):
    """How the current execution ended."""

    at_ms: int
    output: bytes | None = None
    stop_reason: str | None = None
    code: str | None = None
    message: str | None = None
    phase: str | None = None
    checkpoint: int | None = None


class Run(Struct, frozen=True):
    """One run. ``seq``: of its last event. ``turn``: the turn last started (0: none).

    ``base_digest`` is the digest of the transcript as of the previous request, ``tail`` the messages since
    then, ``digest`` that of both together; ``message_count`` counts all messages ever appended. ``input``
    is kept until the first turn takes it. ``seen_call_ids``: CALL_ID_HASH_BYTES of each call id so far.
    ``failures``: model attempts of this execution that ended without a message. ``attempts``: of the current
    turn. ``usage`` holds ``estimates``, what was charged for attempts whose usage is not known yet.
    ``last_input_tokens``: of the last response, all kinds. ``texts``: what the next turn tells the model.
    ``loose``: the newest LOOSE_ENDS_MAX calls of earlier turns whose attempts were left open.
    ``repair_turn``: in which this execution's answer was to be mended, 0: none.
    ``window``: the newest calls, for repetition. ``interceptions``: calls answered instead of executed.
    ``parent``: the call that this run answers. ``shared``: what it has of the run it was forked from.
    ``children``: those that have not ended; ``children_count``: all it ever started.
    """

    run_id: str
    state: RunState
    seq: int
    execution: int
    agent: str
    version: str | None
    definition: str | None
    provenance: Provenance
    created_ms: int
    updated_ms: int
    max_turns: int
    deadline_ms: int | None = None
    not_before_ms: int | None = None
    budget: Budget | None = None
    waiting_for: str | None = None
    retry_at_ms: int | None = None
    input: bytes | None = None
    turn: int = 0
    turns_completed: int = 0
    model: ModelCall | None = None
    calls: tuple[Call, ...] = ()
    pending: tuple[Pending, ...] = ()
    base_digest: bytes = b""
    digest: bytes = b""
    tail: tuple[bytes, ...] = ()
    message_count: int = 0
    seen_call_ids: bytes = b""
    usage: Usage = Usage()
    estimates: tuple[Reserved, ...] = ()
    last_input_tokens: int = 0
    failures: int = 0
    attempts: int = 0
    texts: tuple[str, ...] = ()
    window: tuple[Seen, ...] = ()
    interceptions: int = 0
    closed: Closed | None = None
    repair_turn: int = 0
    loose: tuple[LooseEnd, ...] = ()
    is_purged: bool = False
    parent: Parent | None = None
    shared: Shared | None = None
    children: tuple[Child, ...] = ()
    children_count: int = 0

    @property
    def waits_for(self) -> str | None:
        """What the run can not go on without, for people; None: nothing but its own calls and their time."""
        if self.state.is_terminal:
            return None
        found = [self.waiting_for, self.model.waiting_for if self.model else None]
        found += [call.waiting_for for call in self.calls if not call.is_done]
        return "; ".join(dict.fromkeys(each for each in found if each)) or None

    @property
    def is_under_way(self) -> bool:
        """Whether an execution holds the run: it has not ended, and is not waiting to begin."""
        return self.state is not RunState.QUEUED and not self.state.is_terminal

    def call(self, call_id: str) -> Call | None:
        return next((call for call in self.calls if call.call_id == call_id), None)

    def pending_for(self, call_id: str) -> Pending | None:
        return next((pending for pending in self.pending if pending.call_id == call_id), None)
