"""Every kind of record: its type, its name in Avro and the topics it stands on.

Used by the codec, by ``perdure schemas`` and by doctor. Released schemas never change (a test holds their
hashes); a new version of a record is a new file beside them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final, cast

from perdure.schemas.commands import Command
from perdure.schemas.events import Event
from perdure.schemas.outputs import Approval, DeadLetter, DefinitionRecord, Delta, Outcome, RunSignal, Status
from perdure.schemas.requests import ModelRequest, ToolRequest
from perdure.schemas.results import Result
from perdure.schemas.shape import AvroSchema
from perdure.schemas.values import Struct

AVRO_NAMESPACE: Final = "dev.perdure"


@dataclass(frozen=True, slots=True)
class RecordKind:
    """One kind of record. ``topic``: base name, without namespace prefix. ``key``: layout of its keys."""

    type: type[Struct]
    topic: str
    key: str

    @property
    def name(self) -> str:
        return self.type.__name__

    @property
    def avro_name(self) -> str:
        return f"{AVRO_NAMESPACE}.{self.name}"


RECORD_KINDS: Final = (
    RecordKind(Command, "run-commands", "run_id"),
    RecordKind(Result, "run-results", "run_id/turn/call_id/attempt"),
    RecordKind(Event, "run-events", "run_id/seq"),
    RecordKind(ModelRequest, "model-requests", "run_id"),
    RecordKind(ToolRequest, "tool-requests", "run_id"),
    RecordKind(Status, "run-status", "run_id"),
    RecordKind(Outcome, "run-outcomes", "run_id"),
    RecordKind(Approval, "run-approvals", "run_id/call_id"),
    RecordKind(RunSignal, "run-signals", "run_id"),
    RecordKind(Delta, "run-deltas", "run_id"),
    RecordKind(DefinitionRecord, "agent-definitions", "agent/version/digest"),
    RecordKind(DeadLetter, "dead-letters", "topic/partition/offset"),
)

BY_TYPE: Final[Mapping[type[Struct], RecordKind]] = {kind.type: kind for kind in RECORD_KINDS}
BY_TOPIC: Final[Mapping[str, RecordKind]] = {kind.topic: kind for kind in RECORD_KINDS}


@dataclass(frozen=True, slots=True)
class Released:
    """One released schema of a record. ``version`` counts from 1; ``fingerprint`` is 8 bytes."""

    version: int
    fingerprint: bytes
    schema: Mapping[str, Any]


def _folder() -> Traversable:
    return files("perdure.schemas") / "avro"


def _parse(file: Traversable) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return schema


@cache
def current_schema(kind: RecordKind) -> Mapping[str, Any]:
    """The Avro schema that records of this kind are written with, as in ``schemas/avro``."""
    return _parse(_folder() / f"{kind.name}.avsc")


@cache
def released_schemas(kind: RecordKind) -> tuple[Released, ...]:
    """Every schema that records of this kind were ever written with, oldest first."""
    versions: list[Released] = []
    for file in (_folder() / "released" / kind.name).iterdir():
        if file.name.endswith(".avsc"):
            schema = _parse(file)
            version = int(file.name.removeprefix("v").removesuffix(".avsc"))
            versions.append(Released(version, fingerprint_of(schema), schema))
    return tuple(sorted(versions, key=lambda released: released.version))


def fingerprint_of(schema: AvroSchema) -> bytes:
    """CRC-64-AVRO of the parsing canonical form: 8 bytes, little-endian, as they stand in the encoding."""
    from fastavro.schema import fingerprint, to_parsing_canonical_form

    return bytes.fromhex(fingerprint(to_parsing_canonical_form(cast("Any", schema)), "CRC-64-AVRO"))
