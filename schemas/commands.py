"""run-commands: what clients ask of a run. The key is the plain run id, so the value does not repeat it."""

from __future__ import annotations

from typing import TypeAlias

from perdure.schemas.values import Budget, LogPosition, Provenance, Struct, Verdict


class Submit(Struct, frozen=True, tag="Submit"):
    """Start a run of ``agent``.

    ``version``: a released version of the agent, None for the newest known. ``input``: UTF-8 JSON, a string
    or a list of content blocks. ``deadline_ms`` and ``not_before_ms``: instants. ``max_turns`` and ``budget``
    narrow what the definition allows.
    """

    agent: str
    input: bytes
    version: str | None = None
    deadline_ms: int | None = None
    not_before_ms: int | None = None
    max_turns: int | None = None
    budget: Budget | None = None


class Decide(Struct, frozen=True, tag="Decide"):
    """A person's decision about a pending call.

    ``token``: the resume token shown with it. ``result``: UTF-8 JSON for RAN. ``arguments``: edited arguments
    for APPROVE. ``message``: told to the model with REJECT and GIVE_UP.
    """

    call_id: str
    verdict: Verdict
    token: str
    decided_by: str
    result: bytes | None = None
    arguments: bytes | None = None
    message: str | None = None


class Cancel(Struct, frozen=True, tag="Cancel"):
    """End the run now; the state turns cancelled at once."""

    reason: str


class Resume(Struct, frozen=True, tag="Resume"):
    """Start a failed, cancelled or timed out run again, as its next execution."""

    message: str | None = None
    extra_turns: int | None = None
    budget: Budget | None = None


class Signal(Struct, frozen=True, tag="Signal"):
    """A message into a running run, taken at its next turn."""

    message: str


class Fork(Struct, frozen=True, tag="Fork"):
    """Start a new run where another one stood after ``turn`` (None: at its end). The record's key is the new
    run's id: the source's id, ``~`` and a suffix.

    ``message``: told to the model with the fork's first turn; needed where the source's turn asked for
    nothing. ``max_turns``: of the fork's own turns. ``deadline_ms``: an instant. Usage begins at nothing.
    """

    turn: int | None = None
    message: str | None = None
    max_turns: int | None = None
    budget: Budget | None = None
    deadline_ms: int | None = None


CommandBody: TypeAlias = Submit | Decide | Cancel | Resume | Signal | Fork


class Command(Struct, frozen=True):
    """One command. ``command_id`` makes it idempotent; absent, its first log position identifies it.

    ``origin`` is set only by perdure, when it forwards a command from the wrong partition to the right one.
    """

    body: CommandBody
    command_id: str | None = None
    provenance: Provenance = Provenance()
    origin: LogPosition | None = None
