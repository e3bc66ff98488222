"""The model port over the official SDK: real HTTP on loopback, against the scripted server and a bare one."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure.connectors.anthropic_model import BREAKPOINT
from perdure.connectors.anthropic_stream import scrub
from perdure.processors.abort import AbortSignal
from perdure.schemas.results import ModelFailed, ModelReplied
from perdure.schemas.values import Usage
from tests.unit.messages_api import (
    AGENT,
    ANSWERED,
    CALLED,
    DONE,
    ERROR_TYPES,
    STOP,
    TEXT,
    THOUGHT,
    USAGE,
    USER,
    WAIT_S,
    BareServer,
    ScriptedModel,
    answer_to,
    call,
    error_body,
    http_error,
    http_stream,
    ignore,
    message,
    run_against,
    sse,
    start_event,
    tool_use,
)

PATIENT_MS = 600_000  # far beyond WAIT_S: what ends sooner was ended by something else


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ScriptedModel]]:
    started: list[ScriptedModel] = []

    def start_one(*steps: dict[str, Any]) -> ScriptedModel:
        started.append(ScriptedModel(tmp_path, list(steps)))
        return started[-1]

    yield start_one
    for model in started:
        if model.process.poll() is None:
            model.end()


# -- what comes back -------------------------------------------------------------------------------


def test_content_comes_back_exactly_as_received(start: Callable[..., ScriptedModel]) -> None:
    """Thinking with its signature, text and the very bytes of a tool's input are in the reply, in order."""
    raw = '{"id": "c-1", "n": 1.0, "big": 12345678901234567890123, "e": 1E2}'
    model = start({"content": [THOUGHT, TEXT, tool_use(input_text=raw)]})
    reply = model.reply(call())
    assert json.loads(reply.content) == [THOUGHT, TEXT, tool_use(input=json.loads(raw))]
    assert raw.encode() in reply.content
    assert "\N{EM DASH}".encode() in reply.content
    assert (reply.stop_reason, reply.input_faults) == ("tool_use", ())
    assert (reply.invocation_id, reply.digest) == ("i-1", b"d" * 32)
    assert reply.provider_message_id.startswith("msg_")


def test_text_and_thinking_are_told_as_they_stream(start: Callable[..., ScriptedModel]) -> None:
    """The pieces told for a block join to the block's text, and tool input is not told."""
    told: list[tuple[int, str, str]] = []
    long = {"type": "text", "text": "word " * 50}
    model = start({"content": [THOUGHT, long, tool_use(input={"id": "c-1"})]})
    model.invoke(call(), lambda index, kind, text: told.append((index, kind, text)))
    assert {(index, kind) for index, kind, _ in told} == {(0, "thinking"), (1, "text")}
    assert "".join(text for index, _, text in told if index == 1) == long["text"]
    assert len(told) > 2


def test_usage_told_twice_is_counted_once(start: Callable[..., ScriptedModel]) -> None:
    """message_start and message_delta both tell usage; the total is that of the last word, cache included."""
    model = start({"content": [TEXT], "usage": USAGE})
    assert model.reply(call()).usage == Usage(100, 50, 7, 9)


@pytest.mark.parametrize("content", [[], [TEXT]], ids=["empty", "text"])
@pytest.mark.parametrize(
    "reason", ["refusal", "model_context_window_exceeded", "max_tokens", "pause_turn", "brand_new"]
)
def test_every_stop_reason_is_handed_on(content: list[dict[str, Any]], reason: str) -> None:
    """A complete message is a reply whatever its stop reason, known or not, empty or not."""
    blocks = [("content_block_start", {"index": 0, "content_block": block}) for block in content]
    stops = [("content_block_stop", {"index": 0}) for _ in content]
    end = ("message_delta", {"delta": {"stop_reason": reason}, "usage": {"output_tokens": 2}})
    reply = answer_to(http_stream(sse(DONE[0], *blocks, *stops, end, STOP)))
    assert isinstance(reply, ModelReplied)
    assert (reply.stop_reason, json.loads(reply.content)) == (reason, content)


@pytest.mark.parametrize(
    "raw", ['{"id": ', "[1]", '"c-1"', "null", '{"n": NaN}', '{"n": 1e999}', '{"a": 1} x', "\ud83d"]
)
def test_tool_input_that_is_no_json_object_is_reported_and_is_never_empty_arguments(raw: str) -> None:
    """The fault names the block and keeps the text; the content stays JSON, and its input is no object."""
    delta = {"type": "input_json_delta", "partial_json": raw}
    reply = answer_to(http_stream(message(tool_use(input={}), [delta], "tool_use")))
    assert isinstance(reply, ModelReplied)
    assert reply.input_faults == ((0, scrub(raw)),)
    (block,) = json.loads(reply.content)
    assert (block["input"], block["name"]) == (raw, "lookup")
    msgspec.json.encode(reply.input_faults)


def test_a_tool_call_without_arguments_is_no_fault() -> None:
    """An input that the model left empty is the empty object that the provider began the block with."""
    delta = {"type": "input_json_delta", "partial_json": ""}
    reply = answer_to(http_stream(message(tool_use(input={}), [delta], "tool_use")))
    assert isinstance(reply, ModelReplied)
    assert (json.loads(reply.content), reply.input_faults) == ([tool_use(input={})], ())


def test_a_call_cut_before_its_arguments_is_a_fault(start: Callable[..., ScriptedModel]) -> None:
    """With max_tokens, a last call that has no input yet is reported: its {} is not what the model meant."""
    step = {"content": [tool_use(input={"id": "c-1"}), tool_use(input_text="")], "stop_reason": "max_tokens"}
    reply = start(step).reply(call())
    assert reply.input_faults == ((1, ""),)
    assert [block["input"] for block in json.loads(reply.content)] == [{"id": "c-1"}, ""]


def test_lone_surrogates_are_carried_and_can_be_encoded(start: Callable[..., ScriptedModel]) -> None:
    """Content keeps them as the escapes they came as; what is told to viewers has them replaced."""
    told: list[str] = []
    model = start(
        {"content": [{"type": "text", "text": "a\ud83d\N{EM DASH}"}, tool_use(input={"x": "\udc00"})]}
    )
    reply = model.invoke(call(), lambda index, kind, text: told.append(text))
    assert isinstance(reply, ModelReplied)
    assert [b.get("text") for b in json.loads(reply.content)] == ["a\ud83d\N{EM DASH}", None]
    assert json.loads(reply.content)[1]["input"] == {"x": "\udc00"}
    assert "".join(told) == "a\N{REPLACEMENT CHARACTER}\N{EM DASH}"


# -- what fails ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "headers", "code", "is_retryable", "wait_ms"),
    [
        (429, {"retry-after": "7"}, "rate_limited", True, 7000),
        (429, {"retry-after": "7", "retry-after-ms": "1500"}, "rate_limited", True, 1500),
        (429, {}, "rate_limited", True, None),
        (500, {}, "provider_error", True, None),
        (503, {"retry-after": "1"}, "provider_error", True, 1000),
        (504, {}, "timeout", True, None),
        (529, {}, "overloaded", True, None),
        (400, {}, "invalid_request", False, None),
        (401, {}, "authentication", False, None),
        (402, {}, "billing", False, None),
        (403, {}, "permission", False, None),
        (404, {}, "not_found", False, None),
        (413, {}, "request_too_large", False, None),
        (422, {"retry-after": "1"}, "invalid_request", False, None),
    ],
)
@pytest.mark.parametrize("is_of_proxy", [False, True], ids=["provider", "proxy"])
def test_http_errors_are_classified_once_and_not_retried_here(
    status: int,
    headers: dict[str, str],
    code: str,
    is_retryable: bool,
    wait_ms: int | None,
    is_of_proxy: bool,
) -> None:
    """Each HTTP error has one code, says whether it may pass and how long to wait; one request was made."""
    types = {503: "api_error", 422: "invalid_request_error", **ERROR_TYPES}
    body = b"<html>busy</html>" if is_of_proxy else error_body(types[status], "busy")
    failure = answer_to(http_error(status, headers, body))
    assert isinstance(failure, ModelFailed)
    assert (failure.code, failure.is_retryable, failure.retry_after_ms) == (code, is_retryable, wait_ms)
    assert (failure.usage, failure.invocation_id) == (Usage(), "i-1")
    assert "busy" in failure.message


def test_the_error_type_counts_before_the_status() -> None:
    """What the provider calls overloaded is overloaded, whatever status a gateway gives it."""
    failure = answer_to(http_error(400, {}, error_body("overloaded_error", "busy")))
    assert isinstance(failure, ModelFailed)
    assert (failure.code, failure.is_retryable) == ("overloaded", True)


@pytest.mark.parametrize(
    ("error_type", "code", "is_retryable"),
    [
        ("overloaded_error", "overloaded", True),
        ("api_error", "provider_error", True),
        ("rate_limit_error", "rate_limited", True),
        ("invalid_request_error", "invalid_request", False),
        ("brand_new_error", "provider_error", True),
    ],
)
def test_an_error_in_mid_stream_leaves_nothing_but_its_usage(
    error_type: str, code: str, is_retryable: bool
) -> None:
    """HTTP 200, half a tool call, an error event: classified by its type, with the tokens told so far."""
    half = {"type": "input_json_delta", "partial_json": '{"id": '}
    body = sse(
        start_event(**USAGE),
        ("content_block_start", {"index": 0, "content_block": tool_use(input={})}),
        ("content_block_delta", {"index": 0, "delta": half}),
        ("error", {"error": {"type": error_type, "message": "busy"}}),
    )
    failure = answer_to(http_stream(body))
    assert isinstance(failure, ModelFailed)
    assert (failure.code, failure.is_retryable, failure.usage) == (code, is_retryable, Usage(100, 50, 7, 9))


def test_a_stream_cut_anywhere_is_retryable_and_never_a_reply(start: Callable[..., ScriptedModel]) -> None:
    """Wherever the connection ends before message_stop, the answer is cut_stream; then the whole works."""
    step = {"content": [TEXT, tool_use(input={"id": "c-1"})], "usage": USAGE}
    faults = [{"kind": "cut", "after_bytes": after} for after in range(0, 1600, 97)]
    model = start({**step, "faults": faults})
    answers = [model.invoke(call()) for _ in faults]
    failures = [answer for answer in answers if isinstance(answer, ModelFailed)]
    assert {(failure.code, failure.is_retryable) for failure in failures} == {("cut_stream", True)}
    assert failures[0].usage is None
    assert failures[-1].usage in {Usage(100, 1, 7, 9), Usage(100, 50, 7, 9)}
    # what came after message_stop was cut behind a whole message, of which nothing is missing
    replies = answers[len(failures) :]
    assert {reply.content for reply in replies if isinstance(reply, ModelReplied)} == {
        model.reply(call()).content
    }


def test_a_stream_that_ends_in_order_without_message_stop_is_cut() -> None:
    """A body that is properly closed before message_stop is a cut stream too."""
    failure = answer_to(http_stream(sse(*DONE[:-1])))
    assert isinstance(failure, ModelFailed)
    assert (failure.code, failure.is_retryable, failure.usage) == ("cut_stream", True, Usage(3, 2))


def test_a_stalled_stream_times_out_and_may_be_asked_again(start: Callable[..., ScriptedModel]) -> None:
    """No complete reply within the call's timeout: retryable, with the usage told so far."""
    model = start({"content": [TEXT], "usage": USAGE, "faults": [{"kind": "stall", "after_events": 3}]})
    failure = model.failure(call(timeout_ms=300))
    assert (failure.code, failure.is_retryable, failure.usage) == ("timeout", True, Usage(100, 1, 7, 9))


def test_no_server_is_a_connection_failure() -> None:
    """A refused connection may pass, and nothing is known to have been used."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        failure = run_against(url, lambda model: model.invoke(call(), AbortSignal(), ignore))
    assert isinstance(failure, ModelFailed)
    assert (failure.code, failure.is_retryable, failure.usage) == ("connection", True, None)


def test_a_stream_that_is_no_text_is_malformed() -> None:
    """Bytes that are no UTF-8 end in a classified failure."""
    failure = answer_to(http_stream(sse(DONE[0]) + b"event: \xff\ndata: \xff\n\n"))
    assert isinstance(failure, ModelFailed)
    assert (failure.code, failure.is_retryable) == ("malformed_stream", True)


def test_parameters_may_not_replace_what_the_run_decides() -> None:
    """An agent's parameters that name the transcript or the limits are refused before any request."""
    definition = msgspec.structs.replace(AGENT, parameters={"messages": [], "stream": False})
    failure = run_against(
        "http://127.0.0.1:9", lambda model: model.invoke(call(definition=definition), AbortSignal(), ignore)
    )
    assert isinstance(failure, ModelFailed)
    assert (failure.code, failure.is_retryable) == ("invalid_parameters", False)


# -- abort -----------------------------------------------------------------------------------------


def test_an_abort_closes_the_stream() -> None:
    """Aborted in mid-stream, the call returns what was used, and the provider sees the connection end."""

    async def main() -> None:
        server = BareServer(http_stream(sse(*DONE[:3]), end=b""), stays_silent=True)
        abort = AbortSignal()
        async with server as model:
            failure = await asyncio.wait_for(
                model.invoke(
                    call(timeout_ms=PATIENT_MS), abort, lambda index, kind, text: abort.abort("cancelled")
                ),
                WAIT_S,
            )
            await asyncio.wait_for(server.is_left.wait(), WAIT_S)
        assert isinstance(failure, ModelFailed)
        assert (failure.code, failure.is_retryable) == ("aborted", False)
        assert "cancelled" in failure.message
        assert failure.usage == Usage(3, 1)

    asyncio.run(main())


def test_an_abort_before_the_call_makes_no_request() -> None:
    """A call that is already aborted reaches nobody."""

    async def main() -> None:
        server = BareServer(b"")
        abort = AbortSignal()
        abort.abort("cancelled")
        async with server as model:
            failure = await model.invoke(call(), abort, ignore)
        assert isinstance(failure, ModelFailed)
        assert (failure.code, server.connections) == ("aborted", 0)

    asyncio.run(main())


def test_cancelling_the_caller_closes_the_stream() -> None:
    """A cancelled task leaves no open connection behind."""

    async def main() -> None:
        server = BareServer(http_stream(sse(*DONE[:3]), end=b""), stays_silent=True)
        begun = asyncio.Event()
        async with server as model:
            task = asyncio.ensure_future(
                model.invoke(
                    call(timeout_ms=PATIENT_MS), AbortSignal(), lambda index, kind, text: begun.set()
                )
            )
            await asyncio.wait_for(begun.wait(), WAIT_S)
            task.cancel()
            await asyncio.wait({task}, timeout=WAIT_S)
            assert task.cancelled()
            await asyncio.wait_for(server.is_left.wait(), WAIT_S)

    asyncio.run(main())


# -- what goes out ---------------------------------------------------------------------------------

TRANSCRIPT = (
    USER,
    CALLED,
    ANSWERED,
    b'{"role":"assistant","content":[{"type":"text","text":"and \xe2\x80\x94 so on"}]}',
    b'{"role":"user","content":"a plain string"}',
)


def test_each_request_is_a_byte_prefix_of_the_next_at_the_wire() -> None:
    """As received, without breakpoints: request n up to the end of its messages begins request n+1."""

    async def main() -> list[bytes]:
        server = BareServer(http_stream(sse(*DONE)))
        async with server as model:
            for count in (1, 3, 5):
                invocation = call(*TRANSCRIPT[:count], allow_tools=count < 5, max_tokens=1000 - count)
                assert isinstance(await model.invoke(invocation, AbortSignal(), ignore), ModelReplied)
        assert server.connections == 1  # read to its end, a connection serves the next call
        return server.bodies

    bodies = asyncio.run(main())
    assert all(json.loads(body)["stream"] is True for body in bodies)
    bare = [body.replace(b"," + BREAKPOINT, b"") for body in bodies]
    for shorter, longer, count in zip(bare, bare[1:], (1, 3), strict=False):
        end = shorter.index(TRANSCRIPT[count - 1]) + len(TRANSCRIPT[count - 1])
        assert longer.startswith(shorter[:end])
    assert b'"messages":[' + b",".join(TRANSCRIPT) + b"]" in bare[-1]


def test_a_conversation_passes_the_rules_of_the_service(start: Callable[..., ScriptedModel]) -> None:
    """A transcript of a tool turn, with breakpoints, thinking and a string as last content, is accepted."""
    model = start({"content": []}, {"content": []}, {"content": [TEXT]})
    assert json.loads(model.reply(call(*TRANSCRIPT)).content) == [TEXT]
    assert [(line["turn"], line["status"]) for line in model.end()] == [(2, 200)]
