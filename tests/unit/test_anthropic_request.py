"""What goes out to the Messages API, byte by byte, and what its answers ask to wait."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.connectors.anthropic_model import BREAKPOINT, request_body, retry_after_ms, with_breakpoint
from tests.unit.messages_api import AGENT, ANSWERED, CALLED, USER, call


def test_breakpoints_stand_on_system_last_tool_and_last_block_only() -> None:
    """Three breakpoints, at the wire only; off when caching is off; hidden tools are not offered."""
    invocation = call(USER, CALLED, ANSWERED)
    body = json.loads(request_body(invocation, is_caching=True))
    mark = {"type": "ephemeral"}
    assert body["system"] == [{"type": "text", "text": "You help.", "cache_control": mark}]
    assert [(tool["name"], tool.get("cache_control")) for tool in body["tools"]] == [
        ("lookup", None),
        ("send", mark),
    ]
    assert body["messages"][-1]["content"][-1] == {"type": "text", "text": "note", "cache_control": mark}
    assert request_body(invocation, is_caching=True).count(BREAKPOINT) == 3
    plain = request_body(invocation, is_caching=False)
    assert BREAKPOINT not in plain
    assert plain == request_body(invocation, is_caching=True).replace(b"," + BREAKPOINT, b"")
    assert all(BREAKPOINT not in message for message in invocation.messages)


def test_a_turn_without_tools_forbids_them_and_keeps_the_prefix() -> None:
    """tool_choice none, the tools still listed; the agent's own parameters go along."""
    definition = msgspec.structs.replace(
        AGENT,
        parameters={"temperature": 0.5, "tool_choice": {"type": "any"}, "thinking": {"type": "adaptive"}},
    )
    body = json.loads(request_body(call(definition=definition, allow_tools=False), is_caching=True))
    assert (body["tool_choice"], len(body["tools"])) == ({"type": "none"}, 2)
    assert (body["temperature"], body["thinking"]) == (0.5, {"type": "adaptive"})
    body = json.loads(request_body(call(definition=definition), is_caching=True))
    assert body["tool_choice"] == {"type": "any"}
    bare = msgspec.structs.replace(AGENT, tools=(), system="")
    body = json.loads(request_body(call(definition=bare, allow_tools=False), is_caching=True))
    assert body.keys() == {"model", "messages", "max_tokens", "stream"}


SCHEMA = {
    "type": "object",
    "properties": {"count": {"type": "integer", "minimum": 1}},
    "required": ["count"],
}
SENT = {
    "type": "json_schema",
    "schema": {
        "type": "object",
        "properties": {"count": {"type": "integer", "description": "{minimum: 1}"}},
        "required": ["count"],
        "additionalProperties": False,
    },
}


@pytest.mark.parametrize(
    ("schema", "parameters", "config"),
    [
        (None, {}, None),
        (SCHEMA, {}, {"format": SENT}),
        (SCHEMA, {"output_config": {"effort": "low"}}, {"effort": "low", "format": SENT}),
        (SCHEMA, {"output_config": {"format": None}}, None),
        (SCHEMA, {"output_config": {"format": {"type": "other"}}}, {"format": {"type": "other"}}),
        ({"minimum": 3}, {}, None),
        ({"$ref": "#/$defs/x", "$defs": {"x": 5}}, {}, None),
    ],
)
def test_an_output_schema_is_told_in_the_part_of_it_that_the_provider_takes(
    schema: dict[str, Any] | None, parameters: dict[str, Any], config: dict[str, Any] | None
) -> None:
    """The agent's own output_config stays; a format of its own, or none, is its business."""
    definition = msgspec.structs.replace(AGENT, output_schema=schema, parameters=parameters)
    body = json.loads(request_body(call(definition=definition), is_caching=True))
    assert body.get("output_config") == config


BLOCKS = st.lists(
    st.dictionaries(
        st.sampled_from(["type", "text", "x"]),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.just("thinking") | st.just('"}]'),
    ),
    max_size=3,
)


@given(BLOCKS, st.booleans(), st.booleans())
def test_a_breakpoint_changes_no_other_byte(
    blocks: list[dict[str, str]], is_spaced: bool, is_role_first: bool
) -> None:
    """Taken out again, the message is what it was; with it, only the last block has one more member."""
    members: list[tuple[str, Any]] = [("role", "user"), ("content", [{"type": "t", **b} for b in blocks])]
    message = dict(members if is_role_first else members[::-1])
    stored = json.dumps(message, separators=None if is_spaced else (",", ":")).encode()
    marked = with_breakpoint(stored)
    assert marked.replace(b"," + BREAKPOINT, b"") == stored
    allowed = bool(blocks) and message["content"][-1]["type"] != "thinking"
    assert marked.count(BREAKPOINT) == allowed
    if allowed:
        message["content"][-1]["cache_control"] = {"type": "ephemeral"}
    assert json.loads(marked) == message


@pytest.mark.parametrize(
    ("headers", "wait_ms"),
    [
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30_000),
        ({"retry-after": "Wed, 21 Oct 2026 07:27:00 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}, None),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({"retry-after": "0.5"}, 500),
        ({"retry-after": "-3"}, 0),
        ({"retry-after": "1e300"}, 24 * 60 * 60 * 1000),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_without_a_clock(headers: dict[str, str], wait_ms: int | None) -> None:
    """Seconds as they are; a date counts from the answer's own date; what is neither is no wait."""
    assert retry_after_ms(headers) == wait_ms
