"""Putting a streamed reply together from its events, without a network."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.connectors.anthropic_stream import MalformedStream, StreamedReply, UnknownContent
from perdure.schemas.values import Usage
from tests.unit.messages_api import DONE, STOP, ignore, start_event


def taken(*events: tuple[str, dict[str, Any]]) -> StreamedReply:
    reply = StreamedReply(ignore)
    for name, data in events:
        reply.take(name, json.dumps({"type": name, **data}))
    return reply


def test_usage_that_the_end_leaves_out_comes_from_the_start() -> None:
    """Fields that message_delta lacks or has as null keep the figure of message_start."""
    usage = {"output_tokens": 40, "cache_read_input_tokens": None}
    reply = taken(
        start_event(input_tokens=100, output_tokens=1, cache_read_input_tokens=9),
        ("message_delta", {"delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 20}}),
        ("message_delta", {"delta": {}, "usage": usage}),
    )
    assert (reply.usage, reply.stop_reason) == (Usage(100, 40, 0, 9), "end_turn")


@pytest.mark.parametrize(
    "events",
    [
        (DONE[0], DONE[2]),
        (*DONE[:4], DONE[2]),
        (*DONE[:2], DONE[1]),
        (*DONE[:3], *DONE[4:]),
        (*DONE[:4], STOP),
        (("content_block_start", {"index": "0", "content_block": {}}),),
        (("content_block_start", {"index": 0}),),
        (*DONE[:2], ("content_block_delta", {"index": 0, "delta": {"type": "text_delta"}})),
        (("message_start", {"message": {"id": "m", "usage": []}}),),
    ],
    ids=[
        "delta of no block",
        "delta after stop",
        "block begun twice",
        "stop with an open block",
        "stop without a reason",
        "index no number",
        "no block",
        "delta without text",
        "usage no object",
    ],
)
def test_a_stream_against_the_rules_is_malformed(events: tuple[tuple[str, dict[str, Any]], ...]) -> None:
    """An event that cannot stand where it stands is refused, not guessed at."""
    with pytest.raises(MalformedStream):
        taken(*events)


def test_unknown_events_are_passed_over_and_unknown_deltas_are_refused() -> None:
    """New kinds of events change nothing; a delta that cannot be kept verbatim fails for good."""
    reply = taken(DONE[0], ("ping", {}), ("brand_new", {"x": 1}), *DONE[1:])
    assert reply.content() == (b'[{"type":"text","text":"done"}]', ())
    with pytest.raises(UnknownContent):
        taken(*DONE[:2], ("content_block_delta", {"index": 0, "delta": {"type": "brand_new"}}))


@given(
    st.lists(
        st.tuples(
            st.sampled_from([name for name, _ in DONE] + ["error", "ping"]),
            st.one_of(
                st.text(),
                st.recursive(
                    st.none() | st.booleans() | st.integers(0, 3) | st.floats() | st.text(max_size=3),
                    lambda inner: (
                        st.lists(inner, max_size=2)
                        | st.dictionaries(
                            st.sampled_from(["index", "delta", "type", "text", "message", "usage", "error"]),
                            inner,
                            max_size=4,
                        )
                    ),
                ).map(json.dumps),
            ),
        ),
        max_size=6,
    )
)
def test_no_event_breaks_the_reader(events: list[tuple[str, str]]) -> None:
    """Whatever the events hold, the reader takes them or raises an error of the tree."""
    reply = StreamedReply(ignore)
    try:
        for name, data in events:
            reply.take(name, data)
    except (MalformedStream, UnknownContent):
        return
    assert reply.usage is None or reply.usage.input_tokens >= 0
