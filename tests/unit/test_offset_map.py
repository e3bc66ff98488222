"""The map of started and done offsets beside a committed offset."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.processors.offset_map import (
    AGES_MAX,
    METADATA_CHARS_MAX,
    WINDOW_OFFSETS,
    OffsetMap,
    Unusable,
    decode,
    empty_map,
    encode,
)

TOPIC_ID = "bG9uZy1lbm91Z2gtYXMtaWQ"

bases = st.integers(min_value=0, max_value=2**62)
states = st.lists(st.sampled_from("usd"), max_size=400)


def _map(base: int, states: list[str]) -> OffsetMap:
    return OffsetMap(
        frozenset(base + index for index, state in enumerate(states) if state == "s"),
        frozenset(base + index for index, state in enumerate(states) if state == "d"),
    )


@given(bases, states)
def test_a_map_comes_back_as_it_was_written(base: int, states: list[str]) -> None:
    """Whatever is started and done within the window survives the way through the broker."""
    offsets = _map(base, states)
    assert decode(base, encode(base, offsets, TOPIC_ID), TOPIC_ID) == offsets


@pytest.mark.parametrize("state", ["started", "done"])
def test_a_full_window_fits_the_broker(state: str) -> None:
    """A map over the whole window takes no more characters than the broker accepts."""
    window = frozenset(range(7, 7 + WINDOW_OFFSETS))
    offsets = OffsetMap(started=window) if state == "started" else OffsetMap(done=window)
    text = encode(7, offsets, TOPIC_ID)
    assert len(text) <= METADATA_CHARS_MAX
    assert text.isascii()
    assert decode(7, text, TOPIC_ID) == offsets


@given(bases, st.lists(st.tuples(st.integers(1, 10**5), st.integers(0, 10**9)), max_size=40))
def test_the_newest_ages_come_back(base: int, steps: list[tuple[int, int]]) -> None:
    """Which offset began a day is remembered for the last days."""
    ages: list[tuple[int, int]] = []
    for days, offsets in steps:
        day, offset = ages[-1] if ages else (0, 0)
        ages.append((day + days, offset + offsets))
    found = decode(base, encode(base, OffsetMap(ages=tuple(ages)), TOPIC_ID), TOPIC_ID)
    assert found == OffsetMap(ages=tuple(ages[-AGES_MAX:]))


def test_the_largest_map_fits_the_broker() -> None:
    """Window, doubt and ages together, all with the largest offsets, take no more than the broker accepts."""
    top = 2**63 - 1
    base = top - WINDOW_OFFSETS
    known = OffsetMap(
        done=frozenset(range(base, base + WINDOW_OFFSETS)),
        doubt_below=top,
        ages=tuple((10**6 + day, base - AGES_MAX + day) for day in range(AGES_MAX)),
    )
    assert decode(base, encode(base, known, TOPIC_ID), TOPIC_ID) == known


def test_doubt_is_carried_on_until_the_base_has_passed_it() -> None:
    """An owner that found no map hands its successor the bound below which nothing is known."""
    text = encode(5, OffsetMap(done=frozenset({6}), doubt_below=40_000), TOPIC_ID)
    assert decode(5, text, TOPIC_ID) == OffsetMap(done=frozenset({6}), doubt_below=40_000)
    assert decode(9, encode(9, OffsetMap(doubt_below=9), TOPIC_ID), TOPIC_ID) == OffsetMap()


def test_the_empty_map_is_usable_and_says_nothing() -> None:
    """A provisioned partition is known to be untouched, unlike one without a map."""
    assert decode(0, empty_map(TOPIC_ID), TOPIC_ID) == OffsetMap()
    assert decode(0, "", TOPIC_ID) is Unusable.MISSING


def test_a_map_of_a_re_created_topic_is_unusable() -> None:
    """Offsets of another incarnation of the topic mean other requests."""
    text = encode(5, OffsetMap(started=frozenset({6})), "another-topic-id")
    assert decode(5, text, TOPIC_ID) is Unusable.TOPIC


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("NO-MAP", Unusable.FOREIGN),
        ("lag exporter", Unusable.FOREIGN),
        ("p2:" + TOPIC_ID + "::", Unusable.VERSION),
        ("p1", Unusable.FOREIGN),
        ("p1:" + TOPIC_ID, Unusable.MALFORMED),
        ("p1:" + TOPIC_ID + ":", Unusable.MALFORMED),
        ("p1:" + TOPIC_ID + "::", Unusable.MALFORMED),
        ("p1:" + TOPIC_ID + "::1.2,1.3:", Unusable.MALFORMED),  # a day twice
        ("p1:" + TOPIC_ID + "::1:", Unusable.MALFORMED),
        ("p1:" + TOPIC_ID + "::" + ",".join(f"{day}.0" for day in range(1, 9)) + ",:", Unusable.MALFORMED),
        ("p1:" + TOPIC_ID + ":-1::", Unusable.MALFORMED),
        ("p1:" + TOPIC_ID + ":१::", Unusable.MALFORMED),
        ("p1:" + TOPIC_ID + ":" + "9" * 20 + "::", Unusable.MALFORMED),
        ("p1:" + TOPIC_ID + "::: ", Unusable.MALFORMED),
        ("p1:" + TOPIC_ID + ":::~~~~~", Unusable.MALFORMED),  # a group of five above 32 bits
        ("p1:" + TOPIC_ID + ":::\ud800", Unusable.MALFORMED),
        ("p1:" + TOPIC_ID + ":::{{", Unusable.MALFORMED),  # both bits of an offset are set
        ("p1:" + TOPIC_ID + ":::" + "0" * 4000, Unusable.MALFORMED),  # spans more than a window
    ],
)
def test_an_unusable_map_says_why(text: str, reason: Unusable) -> None:
    """Each way in which a text can fail to be a map of this topic has its own reason."""
    assert decode(0, text, TOPIC_ID) is reason


@given(bases, st.text())
def test_any_text_is_a_map_or_unusable(base: int, text: str) -> None:
    """Another tool may have written anything; decoding never raises."""
    assert isinstance(decode(base, text, TOPIC_ID), OffsetMap | Unusable)


@given(bases, st.text(alphabet=st.characters(max_codepoint=0x7F), max_size=300))
def test_any_body_behind_the_tag_is_a_map_or_malformed(base: int, body: str) -> None:
    """Damage behind the right tag and topic id does not raise either."""
    found = decode(base, f"p1:{TOPIC_ID}:::{body}", TOPIC_ID)
    assert isinstance(found, OffsetMap) or found is Unusable.MALFORMED


@given(states, st.integers(min_value=0), st.integers(min_value=0, max_value=7))
def test_a_flipped_bit_never_raises(states: list[str], place: int, bit: int) -> None:
    """A map with one damaged character decodes to something or to a reason."""
    text = encode(3, _map(3, states), TOPIC_ID)
    index = place % len(text)
    damaged = text[:index] + chr(ord(text[index]) ^ 1 << bit) + text[index + 1 :]
    assert isinstance(decode(3, damaged, TOPIC_ID), OffsetMap | Unusable)


@pytest.mark.parametrize("offset", [9, 10 + WINDOW_OFFSETS])
def test_an_offset_outside_of_the_window_is_a_defect(offset: int) -> None:
    """The engine must never read so far that its map could not be stored."""
    with pytest.raises(AssertionError):
        encode(10, OffsetMap(done=frozenset({offset})), TOPIC_ID)
