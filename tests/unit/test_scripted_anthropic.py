"""The scripted stand-in for the Messages API, asked over real HTTP, also by the official SDK."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "outside" / "scripted_anthropic.py"
WAIT_S = 20
HEADERS = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
USER = {"role": "user", "content": "hi"}
CALLS = {
    "content": [
        {"type": "thinking", "thinking": "let me see", "signature": "c2ln"},
        {"type": "text", "text": "I look both up — now."},
        {"type": "tool_use", "name": "lookup", "input": {"id": "c-1", "why": "x" * 100}},
        {"type": "tool_use", "name": "lookup", "input": {}},
    ]
}
DONE = {"content": [{"type": "text", "text": "done"}]}


def assistant(*ids: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": call, "name": "lookup", "input": {}} for call in ids],
    }


def result(call: str, content: str = "ok") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call, "content": content}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


class ScriptedModel:
    """A started server; ``port`` is read from the line it prints once it listens."""

    def __init__(self, folder: Path, steps: list[dict[str, Any]], *options: str) -> None:
        (folder / "script.json").write_text(json.dumps(steps))
        self.log = folder / "log.jsonl"
        files = ["--script", str(folder / "script.json"), "--log", str(self.log)]
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *files, "--port-file", str(folder / "port"), *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.url = self.line().split()[-1]
        self.port = int(self.url.rpartition(":")[2])

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)

    def ask(self, messages: list[Any], **others: Any) -> tuple[int, dict[str, str], bytes]:
        body = {"model": "m", "max_tokens": 10, "messages": messages, **others}
        return self.send(json.dumps(body).encode())

    def send(
        self, body: bytes, headers: dict[str, str] = HEADERS, path: str = "/v1/messages"
    ) -> tuple[int, dict[str, str], bytes]:
        connection = self.connect()
        try:
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        finally:
            connection.close()

    def logged(self, count: int = 0) -> list[dict[str, Any]]:
        """The log's lines, once there are ``count``: a request's line is written after its answer."""
        give_up_s = time.monotonic() + WAIT_S
        while len(lines := self.log.read_text().splitlines()) < count and time.monotonic() < give_up_s:
            time.sleep(0.005)
        return [json.loads(line) for line in lines]

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        code = self.process.wait(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ScriptedModel]]:
    started: list[ScriptedModel] = []

    def start_one(*steps: dict[str, Any], options: tuple[str, ...] = ()) -> ScriptedModel:
        started.append(ScriptedModel(tmp_path, list(steps), *options))
        return started[-1]

    yield start_one
    for model in started:
        if model.process.poll() is None:
            model.end(signal.SIGKILL)


def events(body: bytes) -> list[tuple[str, dict[str, Any]]]:
    parts = [part.split("\n", 1) for part in body.decode().split("\n\n") if part]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in parts]


def test_the_stream_has_the_events_of_the_messages_api_in_order(start: Callable[..., ScriptedModel]) -> None:
    """message_start, then each block opened, filled and closed, a ping, message_delta, message_stop."""
    status, headers, body = start(CALLS).ask([USER], stream=True)
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert headers["request-id"].startswith("req_")
    names = [name for name, _ in events(body)]
    assert names[:3] == ["message_start", "content_block_start", "ping"]
    assert names[-2:] == ["message_delta", "message_stop"]
    assert all(name == data["type"] for name, data in events(body))
    kinds = [data["delta"]["type"] for name, data in events(body) if name == "content_block_delta"]
    assert list(dict.fromkeys(kinds)) == [
        "thinking_delta",
        "signature_delta",
        "text_delta",
        "input_json_delta",
    ]
    started = dict(events(body))["message_start"]["message"]
    assert (started["content"], started["stop_reason"]) == ([], None)
    assert dict(events(body))["message_delta"]["delta"]["stop_reason"] == "tool_use"


def test_the_official_sdk_reads_the_same_message_with_and_without_stream(
    start: Callable[..., ScriptedModel],
) -> None:
    """The SDK's accumulated stream is the message that it gets without a stream."""
    model = start(CALLS)
    with anthropic.Anthropic(api_key="k", base_url=model.url, max_retries=0) as client:
        whole = client.messages.create(model="m", max_tokens=10, messages=[{"role": "user", "content": "hi"}])
        with client.messages.stream(
            model="m", max_tokens=10, messages=[{"role": "user", "content": "hi"}]
        ) as stream:
            streamed = stream.get_final_message()
    parsed = [block.to_dict() for block in streamed.content]
    assert [{k: v for k, v in block.items() if k != "parsed_output"} for block in parsed] == [
        block.to_dict() for block in whole.content
    ]
    assert (streamed.stop_reason, streamed.usage.output_tokens) == ("tool_use", whole.usage.output_tokens)


def test_the_step_is_chosen_by_the_request_alone(start: Callable[..., ScriptedModel]) -> None:
    """The number of assistant messages picks the step, and a repeated request gets the same answer."""
    model = start(CALLS, DONE)
    first = json.loads(model.ask([USER])[2])
    ids = [block["id"] for block in first["content"] if block["type"] == "tool_use"]
    assert len(set(ids)) == 2
    next_request = [USER, {"role": "assistant", "content": first["content"]}]
    next_request.append({"role": "user", "content": [result(call) for call in ids]})
    assert json.loads(model.ask(next_request)[2])["content"] == DONE["content"]
    assert json.loads(model.ask([USER])[2]) == first
    other = json.loads(model.ask([{"role": "user", "content": "another run"}])[2])
    assert other["content"][2]["id"] not in ids
    assert [line["turn"] for line in model.logged(4)] == [0, 1, 0, 0]


def test_a_request_beyond_the_script_is_refused(start: Callable[..., ScriptedModel]) -> None:
    """A turn without a step is an invalid request, so that a run cannot go on unnoticed."""
    status, _, body = start(DONE).ask([USER, {"role": "assistant", "content": "x"}, USER])
    assert (status, json.loads(body)["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([], "at least one message"),
        ([{"role": "assistant", "content": "x"}], "first message"),
        ([USER, USER], "roles must alternate"),
        ([{"role": "user", "content": ""}], "non-empty"),
        ([{"role": "user", "content": [text("")]}], "non-empty"),
        ([{"role": "user", "content": [text(" \n")]}], "non-whitespace"),
        ([{**USER, "run_id": "r"}], "Extra inputs"),
        ([USER, assistant("a")], "without `tool_result` blocks immediately after: a"),
        ([USER, assistant("a"), USER], "without `tool_result`"),
        ([USER, assistant("a", "b"), {"role": "user", "content": [result("a")]}], "immediately after: b"),
        ([USER, assistant("a"), {"role": "user", "content": [text("x"), result("a")]}], "immediately after"),
        ([USER, assistant("a"), {"role": "user", "content": [result("a"), result("a")]}], "single result"),
        ([USER, assistant("a"), {"role": "user", "content": [result("a"), result("z")]}], "unexpected"),
        ([USER, assistant("a", "a"), {"role": "user", "content": [result("a")]}], "unique"),
        ([USER, assistant(""), {"role": "user", "content": [result("")]}], "should match pattern"),
        (
            [
                USER,
                assistant("a"),
                {"role": "user", "content": [result("a")]},
                assistant("a"),
                {"role": "user", "content": [result("a")]},
            ],
            "unique",
        ),
        (
            [USER, assistant("a"), {"role": "user", "content": [{**result("a", ""), "is_error": True}]}],
            "cannot be empty",
        ),
        (
            [
                USER,
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "a", "name": "lookup", "input": "{"}],
                },
                {"role": "user", "content": [result("a")]},
            ],
            "valid dictionary",
        ),
        ([USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]}], "signature"),
    ],
)
def test_a_transcript_that_the_service_refuses_is_refused(
    start: Callable[..., ScriptedModel], messages: list[Any], fault: str
) -> None:
    """Each broken rule of the Messages API is a 400 invalid_request_error that names it."""
    model = start(DONE, DONE, DONE)
    status, _, body = model.ask(messages)
    answered = json.loads(body)
    assert (status, answered["type"], answered["error"]["type"]) == (400, "error", "invalid_request_error")
    assert fault in answered["error"]["message"]
    assert answered["request_id"].startswith("req_")
    assert [(line["turn"], line["status"], line["completed"]) for line in model.logged(1)] == [
        (None, 400, False)
    ]


@pytest.mark.parametrize(
    ("others", "fault"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "10"}, "max_tokens"),
        ({"system": [{"type": "text", "text": ""}]}, "non-empty"),
        ({"tools": [{"name": "a b", "input_schema": {"type": "object"}}]}, "pattern"),
        ({"tools": [{"name": "a", "input_schema": {}}]}, "input_schema"),
        ({"tools": [{"name": "a", "input_schema": {"type": "object"}}] * 2}, "unique"),
        ({"tool_choice": {"type": "none"}}, "while providing tools"),
        (
            {
                "system": [
                    {"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}} for _ in range(5)
                ]
            },
            "maximum of 4",
        ),
    ],
)
def test_parameters_that_the_service_refuses_are_refused(
    start: Callable[..., ScriptedModel], others: dict[str, Any], fault: str
) -> None:
    """Parameters out of their bounds are a 400 that names the parameter."""
    status, _, body = start(DONE).ask([USER], **others)
    assert status == 400
    assert fault in json.loads(body)["error"]["message"]


def test_a_body_that_is_no_json_and_a_missing_key_are_refused(start: Callable[..., ScriptedModel]) -> None:
    """Broken JSON and lone surrogates are a 400, a request without a key a 401, another path a 404."""
    model = start(DONE)
    lone = rb'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"\ud83d"}]}'
    assert model.send(b"{")[0] == 400
    assert "not valid JSON" in json.loads(model.send(lone)[2])["error"]["message"]
    status, _, body = model.send(b"{}", {"anthropic-version": "2023-06-01"})
    assert (status, json.loads(body)["error"]["type"]) == (401, "authentication_error")
    assert model.send(b"{}", path="/v1/other")[0] == 404
    assert model.send(b'{"max_tokens":1}')[2].count(b"model: Field required") == 1


def test_status_faults_come_in_order_and_end(start: Callable[..., ScriptedModel]) -> None:
    """Faults of a step answer the same request one after another; then comes the step's own answer."""
    faults = [
        {"kind": "status", "status": 429, "headers": {"retry-after": "7"}},
        {"kind": "status", "status": 529, "times": 2},
    ]
    model = start({**DONE, "faults": faults})
    answers = [model.ask([USER]) for _ in range(4)]
    assert [status for status, _, _ in answers] == [429, 529, 529, 200]
    assert answers[0][1]["retry-after"] == "7"
    assert [json.loads(body)["error"]["type"] for _, _, body in answers[:3]] == [
        "rate_limit_error",
        "overloaded_error",
        "overloaded_error",
    ]
    assert [line["fault"] for line in model.logged(4)] == ["status", "status", "status", None]


def test_an_error_event_ends_the_stream_in_its_middle(start: Callable[..., ScriptedModel]) -> None:
    """HTTP 200, part of a message, an error event, and no message_stop."""
    model = start({**CALLS, "faults": [{"kind": "error_event", "type": "overloaded_error"}]})
    status, _, body = model.ask([USER], stream=True)
    got = events(body)
    assert (status, got[-1][0], got[-1][1]["error"]["type"]) == (200, "error", "overloaded_error")
    assert got[0][0] == "message_start"
    assert "message_stop" not in [name for name, _ in got]
    assert [line["completed"] for line in model.logged(1)] == [False]


def test_a_cut_stream_ends_after_the_given_bytes(start: Callable[..., ScriptedModel]) -> None:
    """The connection closes after exactly the scripted bytes of the body, without the end of the body."""
    model = start({**CALLS, "faults": [{"kind": "cut", "after_bytes": 700}]})
    with pytest.raises(http.client.IncompleteRead) as cut:
        model.ask([USER], stream=True)
    assert len(cut.value.partial) == 700


def test_broken_tool_input_and_repeated_ids_are_sent_as_scripted(
    start: Callable[..., ScriptedModel],
) -> None:
    """input_text goes over the wire verbatim, and ids are not mended."""
    block = {"type": "tool_use", "id": "same", "name": "lookup", "input_text": '{"a": '}
    model = start({"content": [block, block], "stop_reason": "brand_new"})
    got = events(model.ask([USER], stream=True)[2])
    pieces = [data["delta"]["partial_json"] for name, data in got if name == "content_block_delta"]
    assert "".join(pieces) == '{"a": ' * 2
    assert [data["content_block"]["id"] for name, data in got if name == "content_block_start"] == [
        "same"
    ] * 2
    assert dict(got)["message_delta"]["delta"]["stop_reason"] == "brand_new"


def test_a_hold_in_mid_stream_has_sent_half_and_is_logged_as_not_completed_when_the_caller_dies(
    start: Callable[..., ScriptedModel], tmp_path: Path
) -> None:
    """A caller that goes away while held is logged as not completed; only one request per start is held."""
    model = start(DONE, options=("--hold-mid-stream", "0", str(tmp_path / "held")))
    connection = model.connect()
    body = {"model": "m", "max_tokens": 10, "messages": [USER], "stream": True}
    connection.request("POST", "/v1/messages", json.dumps(body), HEADERS)
    response = connection.getresponse()
    assert model.line() == f"held: {tmp_path / 'held'}"
    assert response.readline() == b"event: message_start\n"
    response.close()
    connection.close()
    assert model.ask([USER], stream=True)[2].endswith(b'{"type":"message_stop"}\n\n')
    assert model.end() == 0
    assert sorted(line["completed"] for line in model.logged(2)) == [False, True]


def test_a_held_stream_goes_on_when_its_marker_is_removed(
    start: Callable[..., ScriptedModel], tmp_path: Path
) -> None:
    """Removing the marker lets the rest of the very same message through."""
    marker = tmp_path / "held"
    model = start(DONE, options=("--hold-mid-stream", "0", str(marker)))
    connection = model.connect()
    body = {"model": "m", "max_tokens": 10, "messages": [USER], "stream": True}
    connection.request("POST", "/v1/messages", json.dumps(body), HEADERS)
    response = connection.getresponse()
    model.line()
    marker.unlink()
    held = response.read()
    connection.close()
    assert held == model.ask([USER], stream=True)[2]


def test_sigterm_ends_it_and_logs_what_it_was_answering(
    start: Callable[..., ScriptedModel], tmp_path: Path
) -> None:
    """SIGTERM ends the server with exit code 0; a stalled request is in the log as not completed."""
    model = start({**DONE, "faults": [{"kind": "stall", "after_events": 2}]})
    connection = model.connect()
    body = {"model": "m", "max_tokens": 10, "messages": [USER], "stream": True}
    connection.request("POST", "/v1/messages", json.dumps(body), HEADERS)
    response = connection.getresponse()
    assert response.readline() == b"event: message_start\n"
    assert model.end() == 0
    response.close()
    connection.close()
    assert [line["completed"] for line in model.logged()] == [False]
    assert not (tmp_path / "port").exists()
