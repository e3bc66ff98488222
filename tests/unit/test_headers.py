"""Headers of requests: enough to answer a request whose value can not be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.processors.headers import (
    EFFECT,
    NAMES,
    RUN,
    TURN,
    RequestIdentity,
    identity_of,
    parse_headers,
    request_headers,
)
from perdure.schemas.requests import ModelRequest, ToolRequest
from perdure.schemas.values import Effect
from perdure.topics.log import Headers
from perdure.topics.table import Role

TOOL = ToolRequest(
    run_id="customer:7~refund",
    turn=3,
    call_id="toolu_01/ä",
    attempt=2,
    request_id="r" * 32,
    execution=0,
    definition="d",
    tool="send",
    arguments=b"{}",
    effect=Effect.NON_IDEMPOTENT,
    idempotency_key="k",
    start_by_ms=1,
    timeout_ms=1,
)
MODEL = ModelRequest(
    run_id="run",
    turn=1,
    attempt=1,
    request_id="q",
    execution=0,
    definition="d",
    base_digest=b"",
    digest=b"",
    messages=(),
    max_tokens=1,
    start_by_ms=1,
    timeout_ms=1,
)


def test_a_tool_request_is_identified_by_its_headers() -> None:
    """The headers of a tool request name run, turn, call, attempt, request and effect."""
    expected = RequestIdentity(
        Role.TOOL_EXECUTOR, "customer:7~refund", 3, "toolu_01/ä", 2, "r" * 32, Effect.NON_IDEMPOTENT
    )
    assert parse_headers(request_headers(TOOL)) == expected == identity_of(TOOL)


def test_a_model_request_is_identified_without_call_and_effect() -> None:
    """The headers of a model request have an empty call id and no effect."""
    assert parse_headers(request_headers(MODEL)) == identity_of(MODEL)
    assert identity_of(MODEL).call_id == ""
    assert identity_of(MODEL).effect is None


def test_foreign_headers_are_ignored() -> None:
    """Headers that tracing tools add do not hide the identity."""
    headers = (("traceparent", b"\xff\xfe"), *request_headers(TOOL), ("traceparent", b""))
    assert parse_headers(headers) == identity_of(TOOL)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_missing_or_repeated_header_leaves_no_identity(name: str) -> None:
    """An identity that is not whole, or said twice, is none."""
    headers = request_headers(TOOL)
    without = tuple(each for each in headers if each[0] != name)
    twice = (*headers, *(each for each in headers if each[0] == name))
    assert parse_headers(without) is None
    assert parse_headers(twice) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (TURN, b"-1"),
        (TURN, b" 1"),
        (TURN, "१".encode()),
        (TURN, b"9" * 11),
        (RUN, b"a/b"),
        (RUN, b""),
        (RUN, b"\xff"),
        (EFFECT, b""),
        (EFFECT, b"harmless"),
    ],
)
def test_an_ill_formed_header_leaves_no_identity(name: str, value: bytes) -> None:
    """A value that no request can have is not repaired."""
    headers = tuple((each, value if each == name else said) for each, said in request_headers(TOOL))
    assert parse_headers(headers) is None


@given(
    st.lists(
        st.tuples(st.one_of(st.sampled_from(sorted(NAMES)), st.text(max_size=8)), st.binary(max_size=40)),
        max_size=12,
    ).map(tuple)
)
def test_no_headers_whatever_raise(headers: Headers) -> None:
    """Anybody can write headers; parsing them answers with an identity or None."""
    found = parse_headers(headers)
    assert found is None or found.run_id
