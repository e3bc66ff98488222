"""A row of the run view: what one run-status record says, or that it can not be read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from perdure.schemas.codec import Undecodable, decode
from perdure.schemas.outputs import Status
from perdure.schemas.values import RUN_ID_PATTERN, RunState, Usage

UNREADABLE: Final = "unreadable"
"""Stands where a state stands, for runs whose newest record can not be read."""
VIEW_STATES: Final = (*(state.value for state in RunState), UNREADABLE)

# A run's new row is its old one a moment later; those of runs that are active are not read twice.
REMEMBERED_MAX: Final = 4_096

_NOTHING_USED: Final = Usage()


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that are counted together. ``state``: one of :data:`VIEW_STATES`."""

    state: str
    agent: str | None
    tenant: str | None


_UNREADABLE_GROUP: Final = Group(UNREADABLE, None, None)


@dataclass(frozen=True, slots=True)
class Read:
    """A run whose record was read."""

    status: Status

    @property
    def run_id(self) -> str:
        return self.status.run_id

    @property
    def group(self) -> Group:
        return Group(self.status.state.value, self.status.agent, self.status.provenance.tenant)

    @property
    def created_ms(self) -> int:
        return self.status.created_ms

    @property
    def usage(self) -> Usage:
        return self.status.usage


@dataclass(frozen=True, slots=True)
class Unread:
    """A run whose newest record this version can not read. ``code``, ``message``: why.

    It is shown instead of the record before it, which would pass for the run's state. The bytes are kept, so
    a newer version reads them without going back to the log.
    """

    run_id: str
    code: str
    message: str

    @property
    def group(self) -> Group:
        return _UNREADABLE_GROUP

    @property
    def created_ms(self) -> int:
        return 0

    @property
    def usage(self) -> Usage:
        return _NOTHING_USED


Row: TypeAlias = Read | Unread


def run_id_of(key: bytes | None) -> str | None:
    """The run a record's key names, or None for a key that is no run id."""
    if key is None:
        return None
    try:
        text = key.decode("ascii")
    except UnicodeDecodeError:
        return None
    return text if RUN_ID_PATTERN.fullmatch(text) else None


@lru_cache(maxsize=REMEMBERED_MAX)
def row_of(run_id: str, value: bytes) -> Row:
    """What ``value`` says of the run; never raises."""
    try:
        status = decode(Status, value)
    except Undecodable as error:
        return Unread(run_id, error.code, str(error.args[0]))
    if status.run_id != run_id:
        return Unread(run_id, "key_mismatch", f"The record is of {status.run_id}.")
    return Read(status)
