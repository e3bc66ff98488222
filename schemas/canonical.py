"""JSON in perdure's hands: read strictly, normalised once, written the same way every time.

Two ways of writing. :func:`canonical_json` is RFC 8785 (sorted, one form per value): hashed, compared, handed
to tools. :func:`dumps_verbatim` keeps the order of keys: message content, which is sent again byte for byte.

Both first normalise, and so does :func:`normalise_json` for values that are kept: lone surrogates, which
UTF-8 can not carry, and NUL, which many stores downstream refuse, become U+FFFD, in keys as well. Nothing is
lost where two keys of an object become one by that: see :func:`normalise_json`.

Depth is counted as nested arrays and objects; a scalar has depth 0. What comes from outside is read with
``depth_max=JSON_DEPTH_MAX``; perdure nests it in messages of its own and reads those back, hence the larger
default.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, TypeAlias, cast

import rfc8785

from perdure.schemas.errors import Reject
from perdure.schemas.limits import JSON_BYTES_MAX, JSON_DEPTH_STORED_MAX

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

REPLACEMENT: Final = "\ufffd"


class NotJson(Reject):
    """This is no JSON."""

    code = "not_json"
    remedy = "Send JSON as RFC 8259 has it, in UTF-8, without NaN and Infinity."


class DuplicateName(NotJson):
    """A name stands twice in a JSON object; which value is meant can not be known."""

    code = "json_duplicate_name"
    remedy = "Give each name of an object once."


class TooDeep(NotJson):
    """The JSON is nested too deeply."""

    code = "json_too_deep"
    remedy = "Flatten the value."


class JsonTooLarge(NotJson):
    """The JSON text is too large."""

    code = "json_too_large"
    remedy = "Send less, or a reference to it."


def loads_json(data: bytes, *, depth_max: int = JSON_DEPTH_STORED_MAX) -> JsonValue:
    """The value of a JSON text in UTF-8. Integers are exact, strings as they are written, lone surrogates
    included.

    Raises :class:`NotJson` (also for NaN, Infinity, numbers beyond a double, a byte order mark and integers
    of more than 4300 digits), :class:`DuplicateName`, :class:`TooDeep`, :class:`JsonTooLarge`; nothing else.
    """
    if len(data) > JSON_BYTES_MAX:
        raise JsonTooLarge(f"It takes {len(data)} of at most {JSON_BYTES_MAX} bytes.")
    try:
        value: JsonValue = _DECODER.decode(data.decode())
    except RecursionError as error:
        raise TooDeep(f"At most {depth_max} levels are read.") from error
    except ValueError as error:  # of the decoder, of UTF-8 and of int()
        raise NotJson(f"{error}.") from error
    if data.count(b"[") + data.count(b"{") > depth_max and _depth(value) > depth_max:
        raise TooDeep(f"At most {depth_max} levels are read.")
    return value


def normalise_json(value: object) -> JsonValue:
    """The value as perdure keeps it: plain lists and dictionaries, order of keys kept, strings that UTF-8 can
    carry.

    Two surrogates that are a pair become their character; lone ones and NUL become U+FFFD, one each. Where an
    altered key meets another key of its object, U+FFFD is appended until it is free; altered keys are taken
    in sorted order, so that the result does not depend on theirs. Doing it again changes nothing.

    Raises :class:`NotJson` for what JSON does not have (keys that are no strings, NaN, other types) and
    :class:`TooDeep` beyond ``JSON_DEPTH_STORED_MAX``.
    """
    return _normal(value, JSON_DEPTH_STORED_MAX, has_non_finite=False)


def dumps_verbatim(value: object) -> bytes:
    """The normalised value as compact JSON in UTF-8, in the order of its keys. Raises as
    :func:`normalise_json`.

    Stable: written, read and written again it is the same bytes.
    """
    return _text(normalise_json(value))


def canonical_json(value: object) -> bytes:
    """The normalised value in RFC 8785 form; integers beyond 2**53 - 1, which that refuses, exactly as they
    are.

    Raises for nothing that :func:`loads_json` returns, nor for NaN and the infinities, which become strings.
    Otherwise as :func:`normalise_json`.
    """
    normal = _normal(value, JSON_DEPTH_STORED_MAX, has_non_finite=True)
    try:
        return rfc8785.dumps(cast("Any", normal))
    except ValueError:
        return _exact(normal)


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise DuplicateName(f"{repeated!r:.80}.")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise NotJson(f"{text:.80} is beyond a double.")
    return number


def _refuse(text: str) -> float:
    raise NotJson(f"{text} is none of its numbers.")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object, parse_float=_finite, parse_constant=_refuse)


def _depth(value: JsonValue) -> int:
    depth = 0
    level: list[JsonValue] = [value]
    while True:
        inner: list[JsonValue] = []
        has_containers = False
        for one in level:
            if isinstance(one, dict):
                inner.extend(one.values())
                has_containers = True
            elif isinstance(one, list):
                inner.extend(one)
                has_containers = True
        if not has_containers:
            return depth
        depth += 1
        level = inner


def _normal(value: object, depth_left: int, *, has_non_finite: bool) -> JsonValue:
    match value:
        case None | bool() | int():
            return value
        case str():
            return _clean(value)
        case float():
            if math.isfinite(value):
                return value
            if has_non_finite:
                return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
            raise NotJson(f"{value} is none of its numbers.")
        case list() | tuple():
            _check_depth(depth_left)
            items = cast("list[object] | tuple[object, ...]", value)
            return [_normal(one, depth_left - 1, has_non_finite=has_non_finite) for one in items]
        case Mapping():
            _check_depth(depth_left)
            members = cast("Mapping[object, object]", value)
            names = _names(members)
            return {
                names[name]: _normal(one, depth_left - 1, has_non_finite=has_non_finite)
                for name, one in members.items()
            }
        case _:
            raise NotJson(f"It has no {type(value).__name__}.")


def _check_depth(depth_left: int) -> None:
    if depth_left <= 0:
        raise TooDeep(f"At most {JSON_DEPTH_STORED_MAX} levels are kept.")


def _clean(text: str) -> str:
    if "\0" in text:
        text = text.replace("\0", REPLACEMENT)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        # Through UTF-16, where a pair of surrogates is a character and a lone one an error.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _names(members: Mapping[object, object]) -> dict[object, str]:
    """Each key of an object and what becomes of it; no two become the same."""
    names: dict[object, str] = {}
    altered: list[str] = []
    for name in members:
        if not isinstance(name, str):
            raise NotJson(f"A name of an object is a string, not {type(name).__name__}.")
        clean = _clean(name)
        if clean == name:
            names[name] = name
        else:
            altered.append(name)
    if altered:
        taken = set(names.values())
        for name in sorted(altered):
            clean = _clean(name)
            while clean in taken:
                clean += REPLACEMENT
            taken.add(clean)
            names[name] = clean
    return names


def _text(value: object) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:  # an integer too long for str()
        return _exact(value, is_sorted=False)


def _exact(value: object, *, is_sorted: bool = True) -> bytes:
    """As RFC 8785 but for integers, which are written in full however large; for normalised values."""
    match value:
        case bool():
            return rfc8785.dumps(value)
        case int():
            return _integer(value)
        case list():
            items = cast("list[object]", value)
            return b"[" + b",".join(_exact(one, is_sorted=is_sorted) for one in items) + b"]"
        case dict():
            members = list(cast("dict[str, object]", value).items())
            if is_sorted:
                members.sort(key=lambda member: member[0].encode("utf-16-be"))
            pairs = [
                _scalar(name, is_sorted) + b":" + _exact(one, is_sorted=is_sorted) for name, one in members
            ]
            return b"{" + b",".join(pairs) + b"}"
        case _:
            return _scalar(value, is_sorted)


def _scalar(value: object, is_canonical: bool) -> bytes:
    return rfc8785.dumps(cast("Any", value)) if is_canonical else _text(value)


def _integer(value: int) -> bytes:
    # Decimal knows no bound on digits and stays fast where str() would take quadratic time.
    return format(Decimal(value), "f").encode()
