"""JSON Schemas: checked before a run is pinned to them, then applied to what tools and models say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol, cast

from perdure.schemas.canonical import canonical_json, loads_json
from perdure.schemas.errors import Reject, Stop

FAULTS_SHOWN_MAX: Final = 5
FAULT_CHARS_MAX: Final = 300
COMPILED_MAX: Final = 256


class InvalidSchema(Reject):
    """This is no usable JSON Schema."""

    code = "invalid_schema"
    remedy = "Correct the schema."


class ValidatorMissing(Stop):
    """JSON Schemas can not be checked here: the package jsonschema is not installed."""

    code = "validator_missing"
    remedy = "Install perdure[worker] where agents are published."


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raise :class:`InvalidSchema` unless this is a JSON Schema that refers to nothing outside itself.

    The dialect is what ``$schema`` names, else 2020-12. Raises :class:`ValidatorMissing` without jsonschema.
    """
    try:
        from jsonschema import Draft202012Validator, SchemaError
        from jsonschema.validators import validator_for
    except ImportError as error:
        raise ValidatorMissing from error
    try:
        validator_for(schema, default=Draft202012Validator).check_schema(dict(schema))
    except SchemaError as error:
        raise InvalidSchema(f"{error.message:.200}.") from error
    foreign = _foreign_reference(schema)
    if foreign is not None:
        raise InvalidSchema(f"It refers to {foreign:.200}, outside itself.")


class CannotApply(Reject):
    """The schema turns out to be none only with this value."""

    code = "schema_cannot_be_applied"
    remedy = "Correct the schema."


class Check(Protocol):
    """``check(value)``: what is wrong with it, in words for the model; None if nothing is.

    Raises :class:`CannotApply`, and nothing else.
    """

    def __call__(self, value: object, /) -> str | None: ...


def compile_check(schema: Mapping[str, Any]) -> Check:
    """A checker for one schema, in the dialect as of :func:`check_schema`.

    References are resolved inside the schema only; nothing is ever fetched. Raises :class:`InvalidSchema` or
    :class:`ValidatorMissing`.
    """
    try:
        import referencing
        import referencing.exceptions
        from jsonschema.validators import Draft202012Validator, validator_for
    except ImportError as error:
        raise ValidatorMissing from error
    check_schema(schema)
    untyped: Any = validator_for(dict(schema), default=Draft202012Validator)
    validator: Any = untyped(schema, registry=cast("Any", referencing).Registry())

    def check(value: object) -> str | None:
        faults: list[str] = []
        try:
            for fault in validator.iter_errors(value):
                if len(faults) == FAULTS_SHOWN_MAX:
                    faults.append("and more")
                    break
                faults.append(f"{fault.json_path[:FAULT_CHARS_MAX]}: {fault.message[:FAULT_CHARS_MAX]}")
        except (referencing.exceptions.Unresolvable, RecursionError, re.error, ArithmeticError) as error:
            raise CannotApply(f"{error!r:.200}") from error
        return "; ".join(faults) or None

    return check


def fault_in(schema: Mapping[str, Any], value: object) -> str | None:
    """What ``schema`` finds wrong with ``value``; None: nothing. Compiled schemas are remembered.

    Raises :class:`InvalidSchema`, :class:`CannotApply` or :class:`ValidatorMissing`.
    """
    return _compiled(canonical_json(schema))(value)


@lru_cache(COMPILED_MAX)
def _compiled(schema: bytes) -> Check:
    return compile_check(cast("Mapping[str, Any]", loads_json(schema)))


def _foreign_reference(schema: object) -> str | None:
    """A reference that would have to be fetched: what a run is pinned to would change with it."""
    left = [schema]
    while left:
        node = left.pop()
        if isinstance(node, Mapping):
            members = cast("Mapping[str, object]", node)
            for name in ("$ref", "$dynamicRef"):
                reference = members.get(name)
                if isinstance(reference, str) and not reference.startswith("#"):
                    return reference
            left.extend(members.values())
        elif isinstance(node, list | tuple):
            left.extend(cast("Sequence[object]", node))
    return None
