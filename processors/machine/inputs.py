"""What ``decide`` is given and what it answers."""

from __future__ import annotations

from typing import Final, TypeAlias

from perdure.processors.machine.budget import Price
from perdure.processors.machine.state import Run
from perdure.processors.machine.tokens import TokenKeys
from perdure.schemas.commands import Command
from perdure.schemas.definition import AgentDefinition
from perdure.schemas.events import Event
from perdure.schemas.results import Result
from perdure.schemas.values import Budget, Parent, Provenance, RunState, Struct, Usage

ENTROPY_BYTES: Final = 16


class CommandInput(Struct, frozen=True):
    """A command for ``run_id``; ``command_id`` is already resolved (the sender's, or its first log
    position).
    """

    run_id: str
    command_id: str
    command: Command


class ResultInput(Struct, frozen=True):
    """A result of an executor."""

    result: Result


class TimerInput(Struct, frozen=True):
    """``next_due_ms(run)`` has passed."""

    run_id: str


class StartInput(Struct, frozen=True):
    """A slot is free and this queued run is the next one (``wants_slot``)."""

    run_id: str


class PurgeInput(Struct, frozen=True):
    """Whether this ended run is to be forgotten (``schedule.purgeable_ms``)."""

    run_id: str


class ChildInput(Struct, frozen=True):
    """A parent asks for ``run_id``, in the transaction that makes its call durable. ``input``: UTF-8 JSON."""

    run_id: str
    parent: Parent
    agent: str
    version: str | None
    input: bytes
    deadline_ms: int
    budget: Budget | None
    provenance: Provenance


class ChildEndedInput(Struct, frozen=True):
    """A child of ``run_id`` has ended, or was never begun; in the same transaction.

    ``content``: what the call is answered, UTF-8 JSON string.
    """

    run_id: str
    call_id: str
    child_id: str
    execution: int
    state: RunState
    usage: Usage
    content: bytes
    is_error: bool


class ParentEndedInput(Struct, frozen=True):
    """The parent of ``run_id`` has ended, in the same transaction."""

    run_id: str


FamilyInput: TypeAlias = ChildInput | ChildEndedInput | ParentEndedInput

Input: TypeAlias = CommandInput | ResultInput | TimerInput | StartInput | PurgeInput | FamilyInput


class MachineSettings(Struct, frozen=True):
    """Limits of the machine; instants and spans in milliseconds.

    ``dispatch_wait_ms_max``: how long a request may lie unstarted before it expires. ``clock_skew_ms_max``:
    how far the wall clocks of two workers may differ; added wherever an executor's instant is believed.
    ``finished_runs_retention_ms``: how long a run is kept after its last end.
    ``child_depth_max``: generations below a run without a parent. ``children_max``: that one run may start.
    ``unavailable_delay_ms``: until what no worker had is asked for again, doubled each time up to ``_max``;
    ``agent_wait_ms`` likewise for an agent that nobody has published.
    """

    dispatch_wait_ms_max: int = 3_600_000
    clock_skew_ms_max: int = 2_000
    retry_delay_ms_min: int = 250
    retry_delay_ms_max: int = 60_000
    unavailable_delay_ms: int = 2_000
    model_failures_max: int = 20
    reconcile_asks_max: int = 5
    agent_wait_ms: int = 2_000
    unavailable_delay_ms_max: int = 60_000
    approval_timeout_ms: int | None = None
    finished_runs_retention_ms: int = 14 * 86_400_000
    child_depth_max: int = 4
    children_max: int = 64


class Source(Struct, frozen=True):
    """The run that a fork is to be made of. ``messages``: its transcript up to the end of the turn asked for,
    ``following``: the message after it, if there is one. ``messages`` None: no such turn was completed.
    """

    run: Run
    messages: tuple[bytes, ...] | None
    following: bytes | None


class Context(Struct, frozen=True):
    """Everything ``decide`` may know beside the run and the input.

    ``now_ms``: max(wall clock, time of the partition's last event). ``entropy``: ENTROPY_BYTES random
    bytes, fresh for every call, from which ids are derived. ``definition``: the run's pinned definition, or
    for a run without one the definition its command or its ``waiting_for`` asks for; None: not known on
    this worker. ``definition_digest``: its content hash. ``may_start``: a slot is free in this partition.
    ``token_keys``: secrets of the resume tokens. ``price``: of the agent's model, None: not known.
    ``source``: for a Fork, the run its id names; None: there is none.
    """

    now_ms: int
    entropy: bytes
    definition: AgentDefinition | None
    definition_digest: str | None
    may_start: bool
    settings: MachineSettings = MachineSettings()
    token_keys: TokenKeys = TokenKeys()
    price: Price | None = None
    source: Source | None = None


class SendTranscript(Struct, frozen=True):
    """Write the pending model request again with the whole transcript (``transcript.whole_requests``)."""

    run_id: str


class RefuseInput(Struct, frozen=True):
    """The input can not be answered by an event of its run: dead-letter it."""

    code: str
    reason: str


class Tell(Struct, frozen=True):
    """Feed this to another run of the family, in the same transaction."""

    input: FamilyInput


Output: TypeAlias = SendTranscript | RefuseInput | Tell


class Decided(Struct, frozen=True):
    """The answer to an input: events to be applied in order, and outputs that are no state.

    ``runs``: the run after each event, as ``apply`` made it; whoever folds the events need not do it again.
    """

    events: tuple[Event, ...] = ()
    outputs: tuple[Output, ...] = ()
    runs: tuple[Run, ...] = ()
