"""The codec: what goes in comes out, the rest is told by name, and fastavro agrees about every byte."""

from __future__ import annotations

import io
import itertools
import tracemalloc
import types
from enum import StrEnum
from typing import Any, Union, get_args, get_origin

import fastavro
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.schemas import codec
from perdure.schemas.codec import Codec, Undecodable, Unencodable, codec_of, decode, encode, identify
from perdure.schemas.commands import Cancel, Command, Submit
from perdure.schemas.events import Event, ToolCompleted
from perdure.schemas.limits import ENTRIES_MAX, RECORD_BYTES_MAX
from perdure.schemas.outputs import Delta, RunSignal
from perdure.schemas.registry import BY_TYPE, RECORD_KINDS, RecordKind, current_schema, fingerprint_of
from perdure.schemas.results import ModelReplied, Result
from perdure.schemas.values import Effect, Provenance, ResultSource, Struct, Usage

KINDS = [pytest.param(kind, id=kind.name) for kind in RECORD_KINDS]
LABELS = tuple[tuple[str, str], ...]

CODES = frozenset(
    {
        "bad_value",
        "malformed",
        "not_single_object",
        "too_large",
        "tombstone",
        "trailing_bytes",
        "unknown_fingerprint",
    }
)

thorough = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Every value that a field of this type takes."""
    if kind is int:
        return st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-70, 70)
    if kind is str:
        return st.text(max_size=12)
    if kind is bytes:
        return st.binary(max_size=300)
    if kind is bool:
        return st.booleans()
    if kind is type(None):
        return st.none()
    if kind == LABELS:
        labels = st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=4)
        return labels.map(lambda found: tuple(sorted(found.items())))
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return st.sampled_from(list(kind))
    if isinstance(kind, type) and issubclass(kind, Struct):
        return st.builds(kind, *[values_of(field.type) for field in msgspec.structs.fields(kind)])
    arguments = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        return st.one_of([values_of(argument) for argument in arguments])
    if get_origin(kind) is tuple and arguments[1:] == (Ellipsis,):
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    return st.tuples(*[values_of(argument) for argument in arguments])


def decoded(reader: Codec, data: bytes) -> Struct | None:
    """The record, or None where the bytes are none and the error that says so is one of those promised."""
    try:
        return reader.decode(data)
    except Undecodable as error:
        if error.code not in CODES:
            raise
        return None


RECORDS = {kind.type: values_of(kind.type) for kind in RECORD_KINDS}


def plain(value: Any, kind: Any, schema: Any, named: dict[str, Any]) -> Any:
    """The value as fastavro wants it, worked out from the schema by another way than the codec's."""
    if isinstance(schema, str) and schema in named:
        schema = named[schema]
    if isinstance(schema, list):
        if value is None:
            return None
        branches = [branch for branch in schema if branch != "null"]
        if len(branches) == 1:
            return plain(value, kind, branches[0], named)
        for branch in branches:
            named[f"{branch['namespace']}.{branch['name']}"] = branch
        (branch,) = [branch for branch in branches if branch["name"] == type(value).__name__]
        return f"{branch['namespace']}.{branch['name']}", plain(value, kind, branch, named)
    if isinstance(schema, dict) and schema["type"] == "record":
        named[f"{schema['namespace']}.{schema['name']}"] = schema
        names = [field["name"] for field in schema["fields"]]
        values = value if isinstance(value, tuple) else [getattr(value, name) for name in names]
        pairs = zip(schema["fields"], values, strict=True)
        return {field["name"]: plain(one, None, field["type"], named) for field, one in pairs}
    if isinstance(schema, dict) and schema["type"] == "map":
        return dict(value)
    if isinstance(schema, dict) and schema["type"] == "array":
        return [plain(one, None, schema["items"], named) for one in value]
    return str(value) if isinstance(value, StrEnum) else value


def by_fastavro(kind: RecordKind, record: Struct) -> bytes:
    schema: Any = current_schema(kind)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, plain(record, None, schema, _all_named(schema)))
    return out.getvalue()


def _all_named(schema: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def walk(node: Any) -> None:
        if isinstance(node, list):
            for one in node:
                walk(one)
        elif isinstance(node, dict):
            if node.get("type") == "record":
                found[f"{node['namespace']}.{node['name']}"] = node
                for field in node["fields"]:
                    walk(field["type"])
            elif isinstance(node.get("type"), str):
                walk(node.get("items", node.get("values")))

    walk(schema)
    return found


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@thorough
def test_round_trip(kind: RecordKind, data: st.DataObject) -> None:
    """Every record that can be built comes back equal, of the same types."""
    record = data.draw(RECORDS[kind.type])
    found = decode(kind.type, encode(record))
    assert found == record
    assert repr(found) == repr(record)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@thorough
def test_fastavro_agrees(kind: RecordKind, data: st.DataObject) -> None:
    """The bytes are those fastavro writes from the shipped schema, so that any Avro library reads them."""
    record = data.draw(RECORDS[kind.type])
    assert encode(record)[codec.HEADER_BYTES :] == by_fastavro(kind, record)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.binary(max_size=200), framed=st.booleans())
@thorough
def test_arbitrary_bytes(kind: RecordKind, data: bytes, framed: bool) -> None:
    """Any bytes, behind the right header too, are a record or a typed error and nothing else."""
    if framed:
        data = encode_header(kind) + data
    record = decoded(codec_of(kind.type), data)
    assert record is None or decode(kind.type, encode(record)) == record


def encode_header(kind: RecordKind) -> bytes:
    return codec.MARKER + fingerprint_of(current_schema(kind))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@thorough
def test_mutated_records(kind: RecordKind, data: st.DataObject) -> None:
    """A record with bytes changed, dropped or added is a record or a typed error and nothing else."""
    encoded = bytearray(encode(data.draw(RECORDS[kind.type])))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(len(encoded) - 1, 0)))
        change = data.draw(st.sampled_from(["set", "drop", "cut", "add"]))
        if change == "set" and encoded:
            encoded[at] = data.draw(st.integers(0, 255))
        elif change == "drop":
            del encoded[at : at + 1]
        elif change == "cut":
            del encoded[at:]
        else:
            encoded.insert(at, data.draw(st.integers(0, 255)))
    record = decoded(codec_of(kind.type), bytes(encoded))
    assert record is None or isinstance(record, kind.type)


EVENT = Event("run-1", 3, 1_780_000_000_000, ToolCompleted(1, "c1", 1, b'"ok"', False, ResultSource.EXECUTED))


@pytest.mark.parametrize("size", range(len(encode(EVENT))))
def test_truncated(size: int) -> None:
    """A record cut short anywhere is told as not framed or malformed."""
    with pytest.raises(Undecodable) as caught:
        decode(Event, encode(EVENT)[:size])
    assert caught.value.code == ("not_single_object" if size < codec.HEADER_BYTES else "malformed")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (None, "tombstone"),
        (b"", "not_single_object"),
        (b"{}", "not_single_object"),
        (b"\x00\x00\x00\x00\x01" + bytes(20), "not_single_object"),  # Confluent's framing
        (b"\xc3\x01" + bytes(20), "unknown_fingerprint"),
        (encode(RunSignal(0, "x")), "unknown_fingerprint"),
        (encode(EVENT) + b"\x00", "trailing_bytes"),
        (encode(EVENT)[:10] + b"\xff" * 20, "malformed"),
        (encode(EVENT).replace(b"executed", b"imagined"), "bad_value"),
        (encode(EVENT).replace(b"run-1", b"run-\xff"), "malformed"),
        (bytes(RECORD_BYTES_MAX + 1), "too_large"),
    ],
)
def test_codes(data: bytes | None, code: str) -> None:
    """Each way of not being an event has its own stable code."""
    with pytest.raises(Undecodable) as caught:
        decode(Event, data)
    assert caught.value.code == code
    assert code in str(caught.value)


EVENT_BODY = encode(EVENT)[codec.HEADER_BYTES :]
COMMAND_BODY = encode(Command(Cancel("x")))[codec.HEADER_BYTES :]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        pytest.param(RunSignal, b"\x06\x01stop", id="a negative length"),
        pytest.param(RunSignal, b"\x06\x0astop", id="a length beyond the end"),
        pytest.param(RunSignal, b"\xff" * 9 + b"\x02\x00", id="an integer of 65 bits"),
        pytest.param(RunSignal, b"\x80" * 10 + b"\x00\x00", id="an integer of 11 bytes"),
        pytest.param(Event, EVENT_BODY[:-1] + b"\x02", id="a boolean of 2"),
        pytest.param(Event, EVENT_BODY[:-2] + b"\x04\x00\x00", id="a third branch of two"),
        pytest.param(Command, b"\x01" + COMMAND_BODY[1:], id="a kind numbered -1"),
        pytest.param(Command, b"\x0a" + COMMAND_BODY[1:], id="a kind that is not there"),
    ],
)
def test_strict(kind: type[Struct], body: bytes) -> None:
    """What another reader might guess at is malformed here."""
    with pytest.raises(Undecodable) as caught:
        decode(kind, encode_header(BY_TYPE[kind]) + body)
    assert caught.value.code == "malformed"


@pytest.mark.parametrize("number", [0, -1, 63, 64, 4095, 4096, -(1 << 63), (1 << 63) - 1])
def test_integers(number: int) -> None:
    """Every 64-bit integer comes back, the outermost included."""
    assert decode(RunSignal, encode(RunSignal(number, ""))) == RunSignal(number, "")


def test_known_bytes() -> None:
    """The encoding of a small record is fixed to the byte."""
    data = encode(RunSignal(3, "stop"))
    assert (
        data == bytes.fromhex("c301") + fingerprint_of(current_schema(BY_TYPE[RunSignal])) + b"\x06\x08stop"
    )


def test_fingerprint_vector() -> None:
    """The fingerprint is CRC-64-AVRO, little-endian: 0x7275d51a3f395c8f for "int" (Avro's vectors)."""
    assert fingerprint_of("int") == 0x7275D51A3F395C8F.to_bytes(8, "little")


HOSTILE_LENGTHS = [(1 << 31), (1 << 40), (1 << 62), -1, -(1 << 62), -(1 << 63)]


@pytest.mark.parametrize("length", HOSTILE_LENGTHS)
@pytest.mark.parametrize("field", ["string", "array", "map"])
def test_hostile_lengths(length: int, field: str) -> None:
    """A length or count that claims the world costs no memory."""
    claimed = _long(length)
    head: dict[str, tuple[type[Struct], bytes]] = {
        "string": (Event, claimed),
        "array": (Result, encode(_replied())[codec.HEADER_BYTES :].removesuffix(b"\x00") + claimed),
        "map": (Command, encode(Command(Cancel("x")))[codec.HEADER_BYTES : -6] + claimed),
    }
    kind, body = head[field]
    data = encode_header(BY_TYPE[kind]) + body + b"\x02" * 1000
    decoded(codec_of(kind), data)  # what is cached on first use is no cost of this record
    tracemalloc.start()
    try:
        assert decoded(codec_of(kind), data) is None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def _replied(faults: tuple[tuple[int, str], ...] = ()) -> Result:
    body = ModelReplied("i", b"", b"[]", "end_turn", Usage(), input_faults=faults)
    return Result("r", "run", 1, "", 1, "q", "w", body)


def _long(value: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, "long", value)
    return out.getvalue()


@pytest.mark.parametrize("count", [ENTRIES_MAX, ENTRIES_MAX + 1])
def test_entries(count: int) -> None:
    """An array of empty entries is read up to the bound and refused beyond it, and written likewise."""
    faults = ((0, ""),) * count
    replied = _replied(faults)
    body = encode(_replied())[codec.HEADER_BYTES :].removesuffix(b"\x00")
    data = encode_header(BY_TYPE[Result]) + body + _long(count) + bytes(2 * count) + b"\x00"
    if count <= ENTRIES_MAX:
        assert encode(replied) == data
        assert decode(Result, data) == replied
    else:
        with pytest.raises(Unencodable):
            encode(replied)
        with pytest.raises(Undecodable):
            decode(Result, data)


def test_map_in_any_order() -> None:
    """Labels are sorted whatever order and blocks an outside producer wrote them in."""
    command = Command(Cancel("x"), "id", Provenance(labels=(("a", "1"), ("b", "2"))))
    data = encode(command)
    ordered = b"\x04\x02a\x021\x02b\x022\x00"
    assert ordered in data
    for pieces in itertools.permutations([b"\x02a\x021", b"\x02b\x022"]):
        one_block = (
            b"\x03\x10" + b"".join(pieces) + b"\x00"
        )  # a negative count, then the block's size in bytes
        two_blocks = b"\x02" + pieces[0] + b"\x02" + pieces[1] + b"\x00"
        for other in (one_block, two_blocks):
            assert decode(Command, data.replace(ordered, other)) == command


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(Delta("r", 1, 1, "i", 0, "text", "\ud800"), id="a lone surrogate"),
        pytest.param(Delta("r", 1 << 63, 1, "i", 0, "text", ""), id="an integer beyond 64 bits"),
        pytest.param(
            Command(Cancel("x"), provenance=Provenance(labels=(("b", ""), ("a", "")))), id="unsorted"
        ),
        pytest.param(
            Command(Cancel("x"), provenance=Provenance(labels=(("a", ""), ("a", "")))), id="repeated"
        ),
        pytest.param(Command(Submit("a", b"x" * RECORD_BYTES_MAX)), id="too large"),
        pytest.param(Command(Submit("a", "text")), id="text for bytes"),  # type: ignore[arg-type]
        pytest.param(RunSignal(1.0, "x"), id="a float for an integer"),  # type: ignore[arg-type]
        pytest.param(RunSignal(1, b"x"), id="bytes for text"),  # type: ignore[arg-type]
        pytest.param(RunSignal(1, None), id="nothing for text"),  # type: ignore[arg-type]
        pytest.param(Command(Usage()), id="no kind of the union"),  # type: ignore[arg-type]
        pytest.param(Command(Cancel("x"), provenance=Usage()), id="another struct"),  # type: ignore[arg-type]
        pytest.param(Command(Cancel("x"), provenance=Provenance(labels=(1,))), id="odd labels"),  # type: ignore[arg-type]
        pytest.param(
            Event("r", 1, 1, ToolCompleted(1, "c", 1, b"", False, "imagined")),  # type: ignore[arg-type]
            id="no member of the enumeration",
        ),
        pytest.param(
            Event("r", 1, 1, ToolCompleted(1, "c", 1, b"", "yes", ResultSource.EXECUTED)),  # type: ignore[arg-type]
            id="text for a boolean",
        ),
    ],
)
def test_unencodable(record: Struct) -> None:
    """What would not come back equal is refused before it is written."""
    with pytest.raises(Unencodable):
        encode(record)


class Old(Struct, frozen=True):
    """A record as it first was."""

    name: str
    size: int


class Grown(Struct, frozen=True):
    """The same record, later: a field more, and a union."""

    name: str
    size: int
    effect: Effect = Effect.READ_ONLY
    usage: Usage | None = None


def _old_schema(name: str) -> dict[str, Any]:
    fields = [{"name": "name", "type": "string"}, {"name": "size", "type": "long"}]
    return {"type": "record", "name": name, "namespace": "dev.perdure", "fields": fields}


def _grown() -> Codec:
    """The codec of Grown, which was once released without its last two fields."""
    schema = _old_schema("Grown")
    usage = next(one for one in _all_named(current_schema(BY_TYPE[Event])).values() if one["name"] == "Usage")
    schema["fields"] += [
        {"name": "effect", "type": "string", "default": "read_only"},
        {"name": "usage", "type": ["null", usage], "default": None},
    ]
    return Codec(Grown, schema, (_old_schema("Grown"), schema))


def _written_by_old(record: Old) -> bytes:
    data = Codec(Old, _old_schema("Old")).encode(record)
    return codec.MARKER + fingerprint_of(_old_schema("Grown")) + data[codec.HEADER_BYTES :]


def test_older_version_is_read() -> None:
    """A record that an older version wrote is read with the defaults of what it did not know."""
    assert _grown().decode(_written_by_old(Old("x", 7))) == Grown("x", 7, Effect.READ_ONLY, None)


@given(body=st.binary(max_size=40))
@settings(max_examples=200, deadline=None)
def test_older_version_arbitrary_bytes(body: bytes) -> None:
    """Any bytes behind an older version's fingerprint are a record or a typed error too."""
    record = decoded(_grown(), _written_by_old(Old("", 0))[: codec.HEADER_BYTES] + body)
    assert record is None or isinstance(record, Grown)


def test_older_version_trailing_bytes() -> None:
    """Bytes behind an older version's record are told as such."""
    with pytest.raises(Undecodable) as caught:
        _grown().decode(_written_by_old(Old("x", 7)) + b"\x00")
    assert caught.value.code == "trailing_bytes"


def test_codec_is_kept() -> None:
    """The codec of a type is put together once."""
    assert codec_of(Event) is codec_of(Event)


@pytest.mark.parametrize("kind", KINDS)
def test_identify(kind: RecordKind) -> None:
    """What bytes claim to be can be told without reading them, and that they claim nothing as well."""
    header = encode_header(kind)
    found = identify(header + b"anything")
    assert found is not None
    assert found[0] is kind
    assert found[1].version >= 1
    for other in (b"", header[:-1], b"\x00" + header, header[:-1] + bytes([header[-1] ^ 1])):
        assert identify(other) is None
