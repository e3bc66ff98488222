"""JSON Schemas of tool inputs and outputs: checked before a run is pinned to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from perdure.schemas.errors import Reject, Stop


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
