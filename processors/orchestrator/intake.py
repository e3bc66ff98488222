"""What a record of run-commands or run-results is: an input, or something to set aside, pass on or skip.

These topics are written by others, so nothing about a record is taken on trust: any bytes, any key, any
partition.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec.structs import replace

from perdure.processors.dead_letter import position_of
from perdure.processors.machine.inputs import CommandInput, ResultInput
from perdure.processors.orchestrator.settings import OrchestratorSettings
from perdure.schemas.codec import Undecodable, decode, encode
from perdure.schemas.commands import Command
from perdure.schemas.keys import root_of
from perdure.schemas.limits import KEY_BYTES_MAX, RUN_ID_CHARS_MAX
from perdure.schemas.results import Lost, Result
from perdure.schemas.values import RUN_ID_PATTERN, Struct
from perdure.topics.log import Outgoing, Record
from perdure.topics.partitioner import partition_of
from perdure.topics.table import RUN_COMMANDS, RUN_RESULTS

CAUSE_CHARS_MAX: Final = 256
"""Longest command id or result id; it becomes part of a row's key."""


class Given(Struct, frozen=True):
    """An input for the machine. ``cause``: what it is known by if it comes again."""

    run_id: str
    cause: str
    is_command: bool
    input: CommandInput | ResultInput


class Forward(Struct, frozen=True):
    """A command on the wrong partition, to be written to the right one."""

    out: Outgoing


class SetAside(Struct, frozen=True):
    """To be dead-lettered."""

    code: str
    reason: str


class Skip(Struct, frozen=True):
    """Nothing to do; counted."""

    why: str


Taken: TypeAlias = Given | Forward | SetAside | Skip


def take(record: Record, settings: OrchestratorSettings) -> Taken:
    """What ``record`` is. Never raises for anything a record may hold."""
    if record.value is None:
        return Skip("tombstone")
    size = len(record.value) + len(record.key or b"")
    if size > settings.input_bytes_max:
        return SetAside("too_large", f"it takes {size} of at most {settings.input_bytes_max} bytes")
    match settings.namespace.name(record.topic):
        case name if name == RUN_COMMANDS:
            return _command(record, settings)
        case name if name == RUN_RESULTS:
            return _result(record, settings)
        case name:
            raise AssertionError(f"{name} is no input of the orchestrator")


def _command(record: Record, settings: OrchestratorSettings) -> Taken:
    run_id = _run_id(record.key)
    if run_id is None:
        return SetAside("bad_key", "the key of a command is the run id: 1-128 of A-Z a-z 0-9 . _ : -")
    try:
        command = decode(Command, record.value)
    except Undecodable as error:
        return SetAside(error.code, str(error))
    own = partition_of(run_id, settings.partitions)
    if own != record.partition:
        return _misplaced(record, command, own)
    command_id = command.command_id
    if command_id is None:
        command_id = str(command.origin or position_of(record))
    if not _is_cause(command_id):
        return SetAside("bad_command_id", f"a command id has 1 to {CAUSE_CHARS_MAX} characters")
    return Given(run_id, command_id, is_command=True, input=CommandInput(run_id, command_id, command))


def _misplaced(record: Record, command: Command, own: int) -> Taken:
    """Pass it on, once. Its first position goes with it: it is the same command wherever it stands."""
    if command.origin is not None:
        return SetAside(
            "misplaced", f"it was forwarded from {command.origin}, and belongs to partition {own}"
        )
    moved = encode(replace(command, origin=position_of(record)))
    return Forward(Outgoing(record.topic, own, record.key, moved, record.headers))


def _result(record: Record, settings: OrchestratorSettings) -> Taken:
    try:
        result = decode(Result, record.value)
    except Undecodable as error:
        return SetAside(error.code, str(error))
    if isinstance(result.body, Lost):
        return SetAside(
            "requests_lost",
            f"worker {result.worker}: requests {result.body.base} to below {result.body.low} of this"
            " partition were deleted unanswered; the deadlines of their attempts resolve them",
        )
    if _run_id(result.run_id.encode()) is None:
        return SetAside("bad_run_id", "a result names the run it is for")
    if partition_of(result.run_id, settings.partitions) != record.partition:
        return SetAside("misplaced", f"run {result.run_id} is not of this partition")
    if not _is_cause(result.result_id):
        return SetAside("bad_result_id", f"a result id has 1 to {CAUSE_CHARS_MAX} characters")
    return Given(result.run_id, result.result_id, is_command=False, input=ResultInput(result))


def _run_id(key: bytes | None) -> str | None:
    if key is None or len(key) > KEY_BYTES_MAX:
        return None
    try:
        run_id = key.decode()
    except UnicodeDecodeError:
        return None
    is_one = RUN_ID_PATTERN.fullmatch(run_id) is not None and len(root_of(run_id)) <= RUN_ID_CHARS_MAX
    return run_id if is_one else None


def _is_cause(cause: str) -> bool:
    return 0 < len(cause) <= CAUSE_CHARS_MAX
