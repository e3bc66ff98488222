"""JSON Schemas of tool arguments: made from a function's type hints and docstring, and checked against.

The hints are turned into a record type by msgspec, which gives the schema and, at call time, the typed
values: a parameter hinted as a dataclass is given a dataclass. Descriptions come from ``Annotated[...,
"text"]`` or from the ``Args:`` section of a Google style docstring.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final, cast, get_args, get_origin, get_type_hints

import msgspec

from perdure.schemas.errors import Reject
from perdure.schemas.json_schema import CannotApply, Check, InvalidSchema, compile_check

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_ARGS_HEADING: Final = re.compile(r"^(Args|Arguments|Parameters):\s*$")
_ARG_LINE: Final = re.compile(r"^\s*\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")


class UnusableSignature(Reject):
    """No JSON Schema can be made from the function's signature."""

    code = "tool_signature_unusable"
    remedy = "Give every parameter a type hint that JSON can carry, or pass schema= yourself."


class UnusableSchema(Reject):
    """What was given as a JSON Schema is none."""

    code = "schema_unusable"
    remedy = "Pass a JSON Schema (draft 2020-12) whose type is object."


@dataclass(frozen=True, slots=True)
class Signature:
    """How a tool function is called from JSON.

    ``schema``: of the arguments object. ``arguments``: record type that turns checked arguments into typed
    values; None when the schema was given by hand: then values are passed as they are. ``context``: name of
    the parameter that takes the context, if there is one.
    """

    schema: Mapping[str, Any]
    arguments: type[msgspec.Struct] | None
    context: str | None

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments for the function. Raises ``msgspec.ValidationError``."""
        if self.arguments is None:
            return dict(arguments)
        typed = msgspec.convert(arguments, self.arguments)
        return {name: getattr(typed, name) for name in self.arguments.__struct_fields__}


def signature_of(
    function: Callable[..., Any], context_type: type, schema: Mapping[str, Any] | None = None
) -> Signature:
    """Read a function's signature; ``schema`` replaces the derived one.

    Raises :class:`UnusableSignature` or :class:`UnusableSchema`.
    """
    hints = _hints_of(function)
    context: str | None = None
    described = _described_arguments(inspect.getdoc(function) or "")
    fields: list[tuple[str, Any, Any]] = []
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name)
        if hint is context_type:
            context = parameter.name
        elif schema is None:
            fields.append(_field(function, parameter, hint, described.get(parameter.name)))
    if schema is not None:
        check_object_schema(schema)
        return Signature(schema, None, context)
    try:
        record = msgspec.defstruct(
            f"{function.__name__}_arguments", fields, kw_only=True, forbid_unknown_fields=True
        )
        return Signature(_schema_of(record), record, context)
    except TypeError as error:
        raise UnusableSignature(f"{function.__name__}: {error}.") from error


def summary_of(function: Callable[..., Any]) -> str:
    """The docstring up to its first section: what the model is told about the tool."""
    lines: list[str] = []
    for line in (inspect.getdoc(function) or "").splitlines():
        if re.match(r"^(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?|Notes?):\s*$", line):
            break
        lines.append(line)
    return "\n".join(lines).strip()


def check_object_schema(schema: Mapping[str, Any]) -> None:
    """Raise :class:`UnusableSchema` unless it describes an object; the full check is
    :func:`compile_schema`'s.
    """
    if schema.get("type") != "object":
        raise UnusableSchema(f"Its type is {schema.get('type')!r}.")
    try:
        msgspec.json.encode(schema)
    except (TypeError, ValueError) as error:
        raise UnusableSchema(f"It is no JSON: {error}.") from error


def compile_schema(schema: Mapping[str, Any]) -> Check:
    """A checker for one schema (draft 2020-12 unless ``$schema`` says otherwise). Raises
    :class:`UnusableSchema`. What it returns raises nothing: a schema that can not be applied is a fault.
    """
    try:
        check = compile_check(schema)
    except InvalidSchema as error:
        raise UnusableSchema(error.detail) from error

    def fault(value: object) -> str | None:
        try:
            return check(value)
        except CannotApply as error:  # the tool is not called on trust
            return f"the tool's schema cannot be applied: {error.detail}"

    return fault


def _hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    # Names a function was given by its enclosing scope are no globals of its module.
    closure: dict[str, Any] = {}
    if inspect.isfunction(function):
        names = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in names:
            with suppress(ValueError):  # a name that its scope has not bound yet
                closure[name] = cell.cell_contents
    try:
        return get_type_hints(function, localns=closure, include_extras=True)
    except (NameError, TypeError) as error:
        raise UnusableSignature(f"{function.__name__}: its type hints cannot be read: {error}.") from error


def _field(
    function: Callable[..., Any], parameter: inspect.Parameter, hint: Any, description: str | None
) -> tuple[str, Any, Any]:
    where = f"{function.__name__}({parameter.name})"
    if parameter.kind not in {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}:
        raise UnusableSignature(f"{where}: only parameters that can be passed by name are possible.")
    if hint is None:
        raise UnusableSignature(f"{where}: it has no type hint.")
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        texts = [note for note in notes if isinstance(note, str)]
        metas = [note for note in notes if isinstance(note, msgspec.Meta)]
        description = texts[0] if texts else description
        hint = inner
        for meta in metas:
            hint = Annotated[hint, meta]
    if description:
        hint = Annotated[hint, msgspec.Meta(description=description)]
    if parameter.default is inspect.Parameter.empty:
        return (parameter.name, hint, msgspec.NODEFAULT)
    if isinstance(parameter.default, list | dict | set):
        copied = cast("Any", parameter.default).copy()
        return (parameter.name, hint, msgspec.field(default_factory=copied.copy))
    return (parameter.name, hint, parameter.default)


def _schema_of(record: type[msgspec.Struct]) -> Mapping[str, Any]:
    (_,), components = msgspec.json.schema_components((record,), ref_template="#/$defs/{name}")
    root = dict(components.pop(record.__name__))
    root.pop("title", None)
    if components:
        root["$defs"] = components
    return cast("Mapping[str, Any]", msgspec.to_builtins(root, str_keys=True))


def _described_arguments(doc: str) -> dict[str, str]:
    """``name: text`` lines of the Args section; continuation lines are indented deeper."""
    found: dict[str, str] = {}
    name: str | None = None
    indent = 0
    lines = iter(doc.splitlines())
    if not any(_ARGS_HEADING.match(line) for line in lines):
        return found
    for line in lines:
        if not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        if depth == 0:
            break
        match = _ARG_LINE.match(line)
        if match and (name is None or depth <= indent):
            name, indent = str(match.group(1)), depth
            found[name] = match.group(2).strip()
        elif name is not None:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found
