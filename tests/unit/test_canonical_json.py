"""JSON in perdure's hands: one form per value, nothing lost in silence, nothing that stops the reader."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.schemas.canonical import (
    DuplicateName,
    JsonTooLarge,
    NotJson,
    TooDeep,
    canonical_json,
    dumps_verbatim,
    loads_json,
    normalise_json,
)
from perdure.schemas.limits import JSON_BYTES_MAX, JSON_DEPTH_MAX, JSON_DEPTH_STORED_MAX

quick = settings(max_examples=200, deadline=None)

strings = st.text(st.characters(), max_size=8)
"""Lone surrogates and NUL included."""
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | strings
    | st.integers(-(1 << 200), 1 << 200)
)


def nested(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(strings, inner, max_size=4),
        max_leaves=12,
    )


values = nested(scalars)
clean_values = nested(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
).map(normalise_json)


@given(value=values)
@quick
def test_verbatim_is_stable(value: Any) -> None:
    """Written, read and written again it is the same bytes."""
    once = dumps_verbatim(value)
    assert dumps_verbatim(loads_json(once)) == once


@given(value=values)
@quick
def test_canonical_is_stable(value: Any) -> None:
    """The canonical form of what was read from a canonical form is that form."""
    once = canonical_json(value)
    assert canonical_json(loads_json(once)) == once


@given(value=values)
@quick
def test_normalise_is_idempotent(value: Any) -> None:
    """Normalising again changes nothing, and both ways of writing agree with it."""
    once = normalise_json(value)
    assert normalise_json(once) == once
    assert dumps_verbatim(once) == dumps_verbatim(value)
    assert canonical_json(once) == canonical_json(value)


@given(value=clean_values)
@quick
def test_canonical_is_rfc8785(value: Any) -> None:
    """Where RFC 8785 says what the form is, it is that form."""
    assert canonical_json(value) == rfc8785.dumps(value)


@given(value=values, seed=st.randoms())
@quick
def test_canonical_ignores_order(value: Any, seed: Any) -> None:
    """The order in which an object's keys were given leaves no trace, in altered keys neither."""

    def shuffled(one: Any) -> Any:
        if isinstance(one, dict):
            members = [(name, shuffled(inner)) for name, inner in one.items()]
            seed.shuffle(members)
            return dict(members)
        return [shuffled(inner) for inner in one] if isinstance(one, list) else one

    assert canonical_json(shuffled(value)) == canonical_json(value)


@given(value=values)
@quick
def test_verbatim_keeps_order(value: Any) -> None:
    """The keys of an object stay in their order."""

    def shape(one: Any) -> Any:
        if isinstance(one, dict):
            return [shape(inner) for inner in one.values()]
        return [shape(inner) for inner in one] if isinstance(one, list) else normalise_json(one)

    assert shape(json.loads(dumps_verbatim(value))) == shape(value)


@given(data=st.binary(max_size=64) | st.text('[]{}:,"\\u0d8 -.eE019nultrfasN', max_size=40).map(str.encode))
@settings(max_examples=600, deadline=None)
def test_arbitrary_text(data: bytes) -> None:
    """Any bytes are a JSON value, which can be written, or a typed error and nothing else."""
    try:
        value = loads_json(data)
    except NotJson:
        return
    assert loads_json(dumps_verbatim(value)) == normalise_json(value)
    canonical_json(value)


def ieee(bits: str) -> float:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert isinstance(value, float)
    return value


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        ("0000000000000000", b"0"),
        ("8000000000000000", b"0"),
        ("0000000000000001", b"5e-324"),
        ("8000000000000001", b"-5e-324"),
        ("7fefffffffffffff", b"1.7976931348623157e+308"),
        ("4340000000000000", b"9007199254740992"),
        ("4430000000000000", b"295147905179352830000"),
        ("44b52d02c7e14af5", b"9.999999999999997e+22"),
        ("44b52d02c7e14af6", b"1e+23"),
        ("444b1ae4d6e2ef4e", b"999999999999999700000"),
        ("444b1ae4d6e2ef50", b"1e+21"),
        ("3eb0c6f7a0b5ed8c", b"9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", b"0.000001"),
        ("41b3de4355555555", b"333333333.3333333"),
        ("becbf647612f3696", b"-0.0000033333333333333333"),
        ("43143ff3c1cb0959", b"1424953923781206.2"),
    ],
)
def test_numbers(bits: str, text: bytes) -> None:
    """Numbers have the form of RFC 8785, appendix B."""
    assert canonical_json(ieee(bits)) == text


def test_keys_sort_by_utf16() -> None:
    """Keys are sorted by their UTF-16 code units, in which an emoji comes before U+FB33 (RFC 8785, 3.2.3)."""
    names = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    found = list(json.loads(canonical_json(dict.fromkeys(names))))
    assert found == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    with_large = list(json.loads(canonical_json({**dict.fromkeys(names), "z": 1 << 80})))
    assert with_large == ["\r", "1", "z", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


@pytest.mark.parametrize(
    "number",
    [2**53, -(2**53), 2**53 + 1, 10**40, -(10**4299), 10**5000],
    ids=lambda number: f"{number:#x}"[:8],
)
@pytest.mark.parametrize("write", [canonical_json, dumps_verbatim])
def test_large_integers(number: int, write: Callable[[object], bytes]) -> None:
    """An integer too large for RFC 8785 is written exactly, and the rest of its object as always."""
    digits = write(number)
    sign, digits_only = (-1, digits[1:]) if digits.startswith(b"-") else (1, digits)
    value = 0
    for start in range(0, len(digits_only), 4000):
        piece = digits_only[start : start + 4000]
        value = value * 10 ** len(piece) + int(piece)
    assert sign * value == number
    assert write({"b": [1.5, "é\n", None, True], "c": number}) == (
        b'{"b":[1.5,"\xc3\xa9\\n",null,true],"c":' + digits + b"}"
    )


@pytest.mark.parametrize(
    ("number", "text"), [(math.nan, b'"NaN"'), (math.inf, b'"Infinity"'), (-math.inf, b'"-Infinity"')]
)
def test_non_finite(number: float, text: bytes) -> None:
    """NaN and the infinities, which JSON does not have, become strings in the canonical form only."""
    assert canonical_json([number]) == b"[" + text + b"]"
    with pytest.raises(NotJson):
        normalise_json([number])
    with pytest.raises(NotJson):
        dumps_verbatim([number])


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("a\0b", "a\ufffdb"),
        ("\ud800", "\ufffd"),
        ("\udfff\ud800x", "\ufffd\ufffdx"),
        ("x\ud83d", "x\ufffd"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\0\ud83d\ude00\0", "\ufffd\U0001f600\ufffd"),
        ("plain é \U0001f600", "plain é \U0001f600"),
    ],
)
def test_strings(text: str, clean: str) -> None:
    """NUL and lone surrogates become U+FFFD, one each, and a pair its character; in keys as well."""
    assert normalise_json(text) == clean
    assert normalise_json({text: 1}) == {clean: 1}
    assert loads_json(dumps_verbatim(text)) == clean
    assert loads_json(canonical_json(text)) == clean


def test_colliding_keys() -> None:
    """Keys that become the same are told apart, whatever their order, and no value is lost."""
    value = dict(zip(["k\0", "k\ud800", "k\ufffd", "k", "k\ufffd\ufffd"], [1, 2, 3, 4, 5], strict=True))
    expected = {"k": 4} | {
        "k" + "\ufffd" * times: number for times, number in [(1, 3), (2, 5), (3, 1), (4, 2)]
    }
    assert normalise_json(value) == expected
    assert normalise_json(dict(reversed(value.items()))) == expected
    assert list(json.loads(dumps_verbatim(value)).values()) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nul",
        b"NaN",
        b"[Infinity]",
        b"-Infinity",
        b"1e999",
        b"[-1e400]",
        b"1" * 5000,
        b"01",
        b"[1,]",
        b"{} {}",
        b"{'a':1}",
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"a\nb"',
        b'"a\x00b"',
        b"\xef\xbb\xbf1",
        '"a"'.encode("utf-16"),
    ],
)
def test_not_json(data: bytes) -> None:
    """What RFC 8259 does not have is refused, with a typed error."""
    with pytest.raises(NotJson):
        loads_json(data)


@pytest.mark.parametrize("data", [b'{"a":1,"a":2}', b'[{"x":{"a":1,"b":2,"\\u0061":1}}]'])
def test_duplicate_names(data: bytes) -> None:
    """An object that says two things under one name is refused rather than half forgotten."""
    with pytest.raises(DuplicateName):
        loads_json(data)


def test_too_large() -> None:
    """A text over the limit is refused unread."""
    assert loads_json(b" " * (JSON_BYTES_MAX - 1) + b"1") == 1
    with pytest.raises(JsonTooLarge):
        loads_json(b" " * JSON_BYTES_MAX + b"1")


def arrays(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize("depth", [JSON_DEPTH_STORED_MAX + 1, 5_000, 2_000_000])
def test_too_deep_to_read(depth: int) -> None:
    """Depth over the bound is refused by name, however deep."""
    for data in (arrays(depth), b'{"a":' * min(depth, 100_000) + b"1" + b"}" * min(depth, 100_000)):
        with pytest.raises(TooDeep):
            loads_json(data)


def test_depth_bounds() -> None:
    """Outside input has a lower bound than what is kept, so that a message around it can be read back."""
    value = loads_json(arrays(JSON_DEPTH_MAX), depth_max=JSON_DEPTH_MAX)
    with pytest.raises(TooDeep):
        loads_json(arrays(JSON_DEPTH_MAX + 1), depth_max=JSON_DEPTH_MAX)
    message = dumps_verbatim({"role": "assistant", "content": [{"type": "tool_use", "input": value}]})
    assert dumps_verbatim(loads_json(message)) == message
    broad = b"[" + b",".join([b"[[]]"] * 200) + b"]"
    assert loads_json(broad, depth_max=3) == json.loads(broad)


def test_too_deep_to_write() -> None:
    """What would not be read back is not written; what is read can always be written, in both ways."""
    deepest = loads_json(arrays(JSON_DEPTH_STORED_MAX))
    assert canonical_json(deepest) == dumps_verbatim(deepest) == arrays(JSON_DEPTH_STORED_MAX)
    for write in (canonical_json, dumps_verbatim, normalise_json):
        with pytest.raises(TooDeep):
            write([deepest])


@pytest.mark.parametrize("value", [b"x", {1: 2}, {None: 1}, {1, 2}, object(), [1, {"a": 2j}]])
@pytest.mark.parametrize("write", [canonical_json, dumps_verbatim, normalise_json])
def test_no_json_value(value: object, write: Callable[[object], object]) -> None:
    """What JSON has no word for is refused, not guessed at."""
    with pytest.raises(NotJson):
        write(value)


def test_tuples_are_arrays() -> None:
    """Tuples are written as arrays and become plain lists."""
    assert normalise_json((1, ("a",))) == [1, ["a"]]
    assert canonical_json((1, ("a",))) == dumps_verbatim((1, ("a",))) == b'[1,["a"]]'
