"""Keys: built and taken apart to the same parts, and any bytes are a key or a typed error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.schemas.keys import (
    NUMBER_MAX,
    ApprovalKey,
    DeadLetterKey,
    DefinitionKey,
    EventKey,
    InvalidKey,
    Key,
    ResultKey,
    parse_run_id,
    root_of,
)
from perdure.schemas.limits import CALL_ID_CHARS_MAX, KEY_BYTES_MAX
from perdure.schemas.values import LogPosition

CHARS = "abzAZ019._:-"
names = st.text("abzAZ019._-", min_size=1, max_size=20)
run_ids = st.lists(st.text(CHARS, min_size=1, max_size=20), min_size=1, max_size=3).map("~".join)
call_ids = st.text("ab/~_é ", min_size=1, max_size=20)
numbers = st.integers(0, NUMBER_MAX) | st.integers(0, 20)
digests = st.text("0123456789abcdef", min_size=64, max_size=64)

KEYS: dict[type[Key], st.SearchStrategy[Key]] = {
    EventKey: st.builds(EventKey, run_ids, numbers.filter(bool)),
    ResultKey: st.builds(ResultKey, run_ids, numbers, st.just("") | call_ids, numbers),
    ApprovalKey: st.builds(ApprovalKey, run_ids, call_ids),
    DefinitionKey: st.builds(DefinitionKey, names, names, digests),
    DeadLetterKey: st.builds(DeadLetterKey, names, numbers, numbers),
}
PARSERS: list[Callable[[bytes | None], object]] = [*(kind.parse for kind in KEYS), parse_run_id]


@given(key=st.one_of(list(KEYS.values())))
@settings(max_examples=400, deadline=None)
def test_round_trip(key: Key) -> None:
    """A key comes back with the parts it was built from, slashes in a call id included."""
    assert type(key).parse(bytes(key)) == key


@given(data=st.binary(max_size=24) | st.text("a/0~-:1é", max_size=24).map(str.encode))
@settings(max_examples=600, deadline=None)
def test_arbitrary_bytes(data: bytes) -> None:
    """Any bytes are a key in its one form, or a typed error and nothing else."""
    for kind in KEYS:
        try:
            key = kind.parse(data)
        except InvalidKey:
            continue
        assert bytes(key) == data


def test_forms() -> None:
    """The forms are those the topics are documented with."""
    assert bytes(EventKey("run~1", 7)) == b"run~1/7"
    assert bytes(ResultKey("run", 1, "toolu/1", 2)) == b"run/1/toolu/1/2"
    assert bytes(ResultKey("run", 3, "", 1)) == b"run/3//1"
    assert bytes(ApprovalKey("run", "c/1")) == b"run/c/1"
    assert bytes(DefinitionKey("mailer", "1.0", "ab" * 32)) == b"mailer/1.0/" + b"ab" * 32
    assert str(DeadLetterKey("ns.run-commands", 3, 9)) == str(LogPosition("ns.run-commands", 3, 9))


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("data", [None, b"", b"/", b"\xff", b"a b", b"r/", b"x" * (KEY_BYTES_MAX + 1)])
def test_refused(parse: Callable[[bytes | None], object], data: bytes | None) -> None:
    """No parser takes an absent, empty, ill-formed or overlong key for one of its own."""
    with pytest.raises(InvalidKey):
        parse(data)


@pytest.mark.parametrize(
    ("parse", "data"),
    [
        (EventKey.parse, b"run/0"),
        (EventKey.parse, b"run/01"),
        (EventKey.parse, b"run/-1"),
        (EventKey.parse, b"run/9223372036854775808"),
        (EventKey.parse, b"run/1/2"),
        (EventKey.parse, b"run/\xd9\xa1"),  # a digit, but not of ours
        (EventKey.parse, b"ru n/1"),
        (EventKey.parse, b"~x/1"),
        (ResultKey.parse, b"run/1/c"),
        (ResultKey.parse, b"run/1/c/x"),
        (ApprovalKey.parse, b"run/" + b"c" * (CALL_ID_CHARS_MAX + 1)),
        (DefinitionKey.parse, b"a/1/" + b"AB" * 32),
        (DefinitionKey.parse, b"a/1/" + b"ab" * 31),
        (DeadLetterKey.parse, b"t/1/2/3"),
        (parse_run_id, b"run/1"),
        (parse_run_id, b"r" * 129),
        (parse_run_id, b"run\n"),
    ],
)
def test_refused_each(parse: Callable[[bytes | None], object], data: bytes) -> None:
    """Each part of each key is checked."""
    with pytest.raises(InvalidKey):
        parse(data)


@pytest.mark.parametrize(
    ("key", "root"), [("r", "r"), ("r~c", "r"), ("r~c~d/7", "r"), ("r/c~1", "r"), ("", ""), ("~", "")]
)
def test_root_of(key: str, root: str) -> None:
    """Children, forks and composite keys go with their root run."""
    assert root_of(key) == root
