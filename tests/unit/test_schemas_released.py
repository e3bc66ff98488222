"""The shipped schemas: they fit the structs, they say what they hold, and released ones never change."""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import fastavro
import msgspec
import pytest

from perdure.schemas.events import Event
from perdure.schemas.registry import (
    BY_TOPIC,
    BY_TYPE,
    RECORD_KINDS,
    RecordKind,
    current_schema,
    fingerprint_of,
    released_schemas,
)
from perdure.schemas.shape import SchemaDrift, shape_of
from perdure.schemas.values import Struct
from perdure.topics.table import TOPICS

AVRO = Path(__file__).parents[2] / "schemas" / "avro"
RELEASED = AVRO / "released"
KINDS = [pytest.param(kind, id=kind.name) for kind in RECORD_KINDS]
PRIMITIVES = {int: "long", str: "string", bytes: "bytes", bool: "boolean"}


def expected(kind: Any, seen: set[str]) -> Any:
    """The Avro type a field of this type has to have, names only where a record was laid out before."""
    if kind in PRIMITIVES:
        return PRIMITIVES[kind]
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return "string"
    if isinstance(kind, type) and issubclass(kind, Struct):
        return expected_record(kind, seen)
    arguments = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        if NoneType in arguments:
            (some,) = [argument for argument in arguments if argument is not NoneType]
            return ["null", expected(some, seen)]
        return [expected(argument, seen) for argument in arguments]
    if kind == tuple[tuple[str, str], ...]:
        return {"type": "map", "values": "string"}
    if kind == tuple[tuple[int, str], ...]:
        pair = [{"name": "index", "type": "long"}, {"name": "text", "type": "string"}]
        record = {"type": "record", "name": "InputFault", "namespace": "dev.perdure", "fields": pair}
        return {"type": "array", "items": record}
    assert get_origin(kind) is tuple
    return {"type": "array", "items": expected(arguments[0], seen)}


def expected_record(kind: type[Struct], seen: set[str]) -> Any:
    if kind.__name__ in seen:
        return f"dev.perdure.{kind.__name__}"
    seen.add(kind.__name__)
    fields: list[Any] = []
    for field in msgspec.structs.fields(kind):
        avro: dict[str, Any] = {"name": field.name, "type": expected(field.type, seen)}
        if isinstance(avro["type"], list) and avro["type"][0] == "null":
            avro["default"] = None
        elif field.default is not msgspec.NODEFAULT:
            avro["default"] = default_of(field.default, avro["type"])
        fields.append(avro)
    return {"type": "record", "name": kind.__name__, "namespace": "dev.perdure", "fields": fields}


def default_of(value: Any, avro: Any) -> Any:
    if isinstance(value, Struct):
        return {
            field.name: default_of(getattr(value, field.name), field.type)
            for field in msgspec.structs.fields(value)
        }
    if value == ():
        return {} if avro in ({"type": "map", "values": "string"}, tuple[tuple[str, str], ...]) else []
    return value.decode("latin-1") if isinstance(value, bytes) else value


def without_docs(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {name: without_docs(value) for name, value in schema.items() if name != "doc"}
    if isinstance(schema, list):
        return [without_docs(value) for value in schema]
    return schema


@pytest.mark.parametrize("kind", KINDS)
def test_no_drift(kind: RecordKind) -> None:
    """Struct and schema agree: every field, in order, its type, its default, in every record inside."""
    assert without_docs(current_schema(kind)) == expected_record(kind.type, set())


@pytest.mark.parametrize("kind", KINDS)
def test_docs(kind: RecordKind) -> None:
    """Every record and every field says what it holds; every time says its unit."""

    def check(node: Any) -> None:
        if isinstance(node, list):
            for one in node:
                check(one)
        elif isinstance(node, dict):
            if node.get("type") == "record":
                assert node["doc"].endswith((".", ")")), node["name"]
                for field in node["fields"]:
                    assert field["doc"].endswith("."), field
                    if field["name"].endswith("_ms"):
                        assert ", ms" in field["doc"], field
            for value in node.values():
                check(value)

    check(current_schema(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_schema_is_valid(kind: RecordKind) -> None:
    """Another Avro library takes the schema, and its file is named after it."""
    schema: Any = current_schema(kind)
    assert fastavro.parse_schema(schema)
    assert kind.avro_name == f"{schema['namespace']}.{schema['name']}"


@pytest.mark.parametrize("kind", KINDS)
def test_current_is_released(kind: RecordKind) -> None:
    """What is written today is among the released schemas, as the newest: a later version has to read it."""
    newest = released_schemas(kind)[-1]
    assert newest.fingerprint == fingerprint_of(current_schema(kind)), (
        f"{kind.name}.avsc changed: release it as v{newest.version + 1}.avsc and list that in SHA256SUMS."
    )


@pytest.mark.parametrize("kind", KINDS)
def test_released_versions(kind: RecordKind) -> None:
    """Released versions count from 1, and the current schema reads each by Avro's rules."""
    versions = released_schemas(kind)
    assert [one.version for one in versions] == list(range(1, len(versions) + 1))
    for one in versions:
        assert_readable(one.schema, current_schema(kind))


def assert_readable(writer: Any, reader: Any) -> None:
    """A field the writer did not know has a default; one that both know keeps its type."""
    if isinstance(writer, dict) and writer.get("type") == "record":
        known = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            if field["name"] in known:
                assert_readable(known[field["name"]]["type"], field["type"])
            else:
                assert "default" in field, field
    elif isinstance(writer, list):
        by_name = {branch if isinstance(branch, str) else branch["name"]: branch for branch in reader}
        for branch in writer:
            name = branch if isinstance(branch, str) else branch["name"]
            assert name in by_name, name
            assert_readable(branch, by_name[name])
    else:
        assert without_docs(writer) == without_docs(reader)


def test_released_never_changes() -> None:
    """Every released file is the one that was released, none is gone, and none is unlisted."""
    lines = (RELEASED / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    listed = {name: digest for digest, name in (line.split("  ", maxsplit=1) for line in lines)}
    found = {
        str(path.relative_to(RELEASED)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in RELEASED.glob("*/*.avsc")
    }
    assert found == listed


def test_every_file_is_registered() -> None:
    """No schema lies about that belongs to no record."""
    names = {kind.name for kind in RECORD_KINDS}
    assert {path.stem for path in AVRO.glob("*.avsc")} == names
    assert {path.name for path in RELEASED.iterdir() if path.is_dir()} == names


def test_topics() -> None:
    """Every topic carries one kind of record, and every kind has its topic."""
    assert {kind.topic for kind in RECORD_KINDS} == {topic.name for topic in TOPICS}
    assert len(BY_TOPIC) == len(BY_TYPE) == len(RECORD_KINDS)


def test_fingerprints_differ() -> None:
    """A fingerprint names one record: no two released schemas share it, whatever their kind."""
    found = [one.fingerprint for kind in RECORD_KINDS for one in released_schemas(kind)]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    "change",
    [
        lambda schema: schema["fields"].pop(),
        lambda schema: schema["fields"].reverse(),
        lambda schema: schema["fields"][0].update(type="bytes"),
        lambda schema: schema["fields"][3]["type"].pop(),
        lambda schema: schema["fields"][4].update(type="string"),
        lambda schema: schema.update(name="Other"),
    ],
)
def test_drift_is_refused(change: Any) -> None:
    """A codec is not put together over a schema that does not fit its struct."""
    schema = json.loads(json.dumps(current_schema(BY_TYPE[Event])))
    change(schema)
    with pytest.raises(SchemaDrift):
        shape_of(schema, Event)
