"""How a struct is laid out in Avro: one writer and one reader per type, put together once.

fastavro goes through dictionaries, which nearly doubles the cost, and a record passes here several times in
every transaction. So :func:`shape_of` walks a schema and the struct it belongs to side by side and
returns the writer and the reader of exactly that pair; where the two disagree it raises :class:`SchemaDrift`,
so that they can not drift apart unseen. fastavro stays the judge in the tests, and resolves older schemas
(``schemas.codec``).

No input makes a reader build more than a small multiple of its own size: an array or map has at most
``ENTRIES_MAX`` entries of at least one byte each (``shape_of`` refuses others), and schemas do not recur.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard, Union, get_args, get_origin

import msgspec

from perdure.schemas.errors import Stop
from perdure.schemas.limits import ENTRIES_MAX
from perdure.schemas.values import Struct
from perdure.schemas.wire import (
    BadValue,
    Misread,
    Put,
    Read,
    Unencodable,
    Write,
    long_bytes,
    read_boolean,
    read_bytes,
    read_long,
    read_string,
    write_boolean,
    write_bytes,
    write_long,
    write_string,
)

AvroSchema: TypeAlias = str | Mapping[str, Any] | Sequence[Any]


class SchemaDrift(Stop):
    """A struct and its Avro schema disagree."""

    code = "schema_drift"
    remedy = "This is a defect in perdure; report it."


class Shape(NamedTuple):
    """How one type is written and read. ``bytes_min``: the least bytes its encoding takes."""

    write: Write
    read: Read
    bytes_min: int


def shape_of(schema: AvroSchema, kind: type[Struct]) -> Shape:
    """The shape of ``kind`` as ``schema`` lays it out. Raises :class:`SchemaDrift`."""
    return _Shaper().shape(schema, kind, kind.__name__)


_PRIMITIVES: Final[Sequence[tuple[str, type, Shape]]] = (
    ("long", int, Shape(write_long, read_long, 1)),
    ("string", str, Shape(write_string, read_string, 1)),
    ("bytes", bytes, Shape(write_bytes, read_bytes, 1)),
    ("boolean", bool, Shape(write_boolean, read_boolean, 1)),
)


class _Shaper:
    """Walks one schema and one type; remembers the named schemas it has passed."""

    def __init__(self) -> None:
        self._named: dict[str, Mapping[str, Any]] = {}

    def shape(self, schema: AvroSchema, kind: Any, where: str) -> Shape:
        if isinstance(schema, str) and schema in self._named:
            schema = self._named[schema]
        if isinstance(schema, str):
            return self._plain(schema, kind, where)
        if isinstance(schema, Mapping):
            return self._complex(schema, kind, where)
        if get_origin(kind) not in (Union, UnionType):
            raise _drift(where, schema, kind)
        options = get_args(kind)
        if NoneType in options:
            rest = [option for option in options if option is not NoneType]
            if len(schema) != 2 or schema[0] != "null" or len(rest) != 1:
                raise _drift(where, schema, kind)
            return _optional(self.shape(schema[1], rest[0], where), where)
        return self._union(schema, options, where)

    def _plain(self, schema: str, kind: Any, where: str) -> Shape:
        if schema == "string" and isinstance(kind, type) and issubclass(kind, StrEnum):
            return _enum(kind, where)
        for name, primitive, shape in _PRIMITIVES:
            if (schema, kind) == (name, primitive):
                return shape
        raise _drift(where, schema, kind)

    def _complex(self, schema: Mapping[str, Any], kind: Any, where: str) -> Shape:
        arguments = get_args(kind)
        match schema["type"]:
            case "record" if isinstance(kind, type) and issubclass(kind, Struct):
                return self._record(schema, kind, where)
            case "record" if get_origin(kind) is tuple and Ellipsis not in arguments:
                return self._pair(schema, arguments, where)
            case "array" if get_origin(kind) is tuple and arguments[1:] == (Ellipsis,):
                return _array(self.shape(schema["items"], arguments[0], f"{where}[]"), where)
            case "map" if kind == tuple[tuple[str, str], ...] and schema["values"] == "string":
                return _labels(where)
            case _:
                raise _drift(where, schema, kind)

    def _members(
        self, schema: Mapping[str, Any], kinds: Sequence[tuple[str, Any]], where: str
    ) -> list[Shape]:
        self._named[f"{schema['namespace']}.{schema['name']}"] = schema
        names = [field["name"] for field in schema["fields"]]
        if names != [name for name, _ in kinds]:
            raise _drift(where, names, [name for name, _ in kinds])
        return [
            self.shape(field["type"], kind, f"{where}.{name}")
            for field, (name, kind) in zip(schema["fields"], kinds, strict=True)
        ]

    def _record(self, schema: Mapping[str, Any], kind: type[Struct], where: str) -> Shape:
        if schema["name"] != kind.__name__:
            raise _drift(where, schema["name"], kind)
        kinds = [(field.name, field.type) for field in msgspec.structs.fields(kind)]
        members = self._members(schema, kinds, where)
        match kinds:
            case []:
                return _row(members, lambda _: (), kind, kind, where)
            case [(name, _)]:
                only = attrgetter(name)
                return _row(members, lambda value: (only(value),), kind, kind, where)
            case _:
                return _row(members, attrgetter(*(name for name, _ in kinds)), kind, kind, where)

    def _pair(self, schema: Mapping[str, Any], arguments: Sequence[Any], where: str) -> Shape:
        names = [field["name"] for field in schema["fields"]]
        if len(names) != len(arguments):
            raise _drift(where, names, arguments)
        members = self._members(schema, list(zip(names, arguments, strict=True)), where)
        return _row(members, tuple, lambda *values: values, tuple, where)

    def _union(self, schema: Sequence[Any], options: Sequence[Any], where: str) -> Shape:
        if [branch["name"] for branch in schema] != [option.__name__ for option in options]:
            raise _drift(where, [branch["name"] for branch in schema], options)
        pairs = zip(schema, options, strict=True)
        shapes = [self.shape(branch, option, f"{where}.{option.__name__}") for branch, option in pairs]
        by_type = {
            option: (long_bytes(index), shape.write)
            for index, (option, shape) in enumerate(zip(options, shapes, strict=True))
        }
        readers = [shape.read for shape in shapes]

        def write(put: Put, value: Any) -> None:
            branch = by_type.get(type(value))
            if branch is None:
                raise Unencodable(f"{where}: {type(value).__name__} is none of its kinds.")
            put(branch[0])
            branch[1](put, value)

        def read(data: bytes, at: int) -> tuple[Any, int]:
            index, at = read_long(data, at)
            if not 0 <= index < len(readers):
                raise Misread(f"{where}: it has no kind number {index}")
            return readers[index](data, at)

        return Shape(write, read, 1)


def _drift(where: str, schema: Any, kind: Any) -> SchemaDrift:
    return SchemaDrift(f"{where}: {schema!r:.200} does not fit {kind}.")


def _row(
    members: Sequence[Shape],
    values_of: Callable[[Any], Sequence[Any]],
    build: Callable[..., Any],
    kind: type,
    where: str,
) -> Shape:
    writers = tuple(member.write for member in members)
    readers = tuple(member.read for member in members)
    count = len(writers)

    def write(put: Put, value: Any) -> None:
        if not isinstance(value, kind):
            raise Unencodable(f"{where}: {kind.__name__} is wanted, not {type(value).__name__}.")
        values = values_of(value)
        if len(values) != count:
            raise Unencodable(f"{where}: {count} values are wanted, not {len(values)}.")
        for write_one, one in zip(writers, values):  # noqa: B905 - looked at above, and this is a hot loop
            write_one(put, one)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        values: list[Any] = []
        for read_one in readers:
            value, at = read_one(data, at)
            values.append(value)
        return build(*values), at

    return Shape(write, read, sum(member.bytes_min for member in members))


def _optional(shape: Shape, where: str) -> Shape:
    write_some, read_some, _ = shape

    def write(put: Put, value: Any) -> None:
        if value is None:
            put(b"\x00")
        else:
            put(b"\x02")
            write_some(put, value)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        branch = data[at]
        if branch == 0:
            return None, at + 1
        if branch == 2:
            return read_some(data, at + 1)
        raise Misread(f"{where}: neither null nor a value")

    return Shape(write, read, 1)


def _enum(kind: type[StrEnum], where: str) -> Shape:
    members: Mapping[Any, StrEnum] = {member.value: member for member in kind}
    encoded = {member: long_bytes(len(member.encode())) + member.encode() for member in kind}

    def write(put: Put, value: Any) -> None:
        try:
            put(encoded[value])
        except (KeyError, TypeError):
            raise Unencodable(f"{where}: {value!r:.80} is none of {', '.join(kind)}.") from None

    def read(data: bytes, at: int) -> tuple[StrEnum, int]:
        value, at = read_string(data, at)
        member = members.get(value)
        if member is None:
            raise BadValue(f"{where}: {value!r:.80} is none of {', '.join(kind)}.")
        return member, at

    return Shape(write, read, 1)


def _begin(put: Put, count: int, where: str) -> None:
    """All entries of an array or map go into one block."""
    if count > ENTRIES_MAX:
        raise Unencodable(f"{where}: it has {count} of at most {ENTRIES_MAX} entries.")
    if count:
        write_long(put, count)


def _read_blocks(data: bytes, at: int, read_entry: Callable[[int], int], where: str) -> int:
    """Reads the blocks of an array or map, entry by entry; ``read_entry`` returns where its entry ends.

    A block is a count and that many entries; a negative count is followed by the block's size in bytes, which
    only a reader that skips needs. A count of 0 ends them.
    """
    total = 0
    count, at = read_long(data, at)
    while count:
        if count < 0:
            count = -count
            _, at = read_long(data, at)
        total += count
        if total > ENTRIES_MAX:
            raise Misread(f"{where}: it has {total} of at most {ENTRIES_MAX} entries")
        for _ in range(count):
            at = read_entry(at)
        count, at = read_long(data, at)
    return at


def _is_tuple(value: object) -> TypeGuard[tuple[Any, ...]]:
    return isinstance(value, tuple)


def _array(item: Shape, where: str) -> Shape:
    if item.bytes_min < 1:
        raise SchemaDrift(f"{where}: entries without bytes could be claimed by the million.")
    write_item, read_item, _ = item

    def write(put: Put, value: Any) -> None:
        if not _is_tuple(value):
            raise Unencodable(f"{where}: a tuple is wanted, not {type(value).__name__}.")
        _begin(put, len(value), where)
        for one in value:
            write_item(put, one)
        put(b"\x00")

    def read(data: bytes, at: int) -> tuple[tuple[Any, ...], int]:
        items: list[Any] = []

        def read_entry(at: int) -> int:
            item, at = read_item(data, at)
            items.append(item)
            return at

        at = _read_blocks(data, at, read_entry, where)
        return tuple(items), at

    return Shape(write, read, 1)


def _labels(where: str) -> Shape:
    """A map of strings, in perdure a tuple of pairs sorted by name: equal maps are equal values."""

    def write(put: Put, value: Any) -> None:
        names = [name for name, _ in value]
        if names != sorted(set(names)):
            raise Unencodable(f"{where}: the names have to be sorted and to differ.")
        _begin(put, len(names), where)
        for name, text in value:
            write_string(put, name)
            write_string(put, text)
        put(b"\x00")

    def read(data: bytes, at: int) -> tuple[tuple[tuple[str, str], ...], int]:
        labels: dict[str, str] = {}

        def read_entry(at: int) -> int:
            name, at = read_string(data, at)
            labels[name], at = read_string(data, at)
            return at

        at = _read_blocks(data, at, read_entry, where)
        return tuple(sorted(labels.items())), at

    return Shape(write, read, 1)
