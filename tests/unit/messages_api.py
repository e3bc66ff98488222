"""What the tests of the model port share: an agent, a transcript, and two servers of the Messages API."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from perdure.connectors.anthropic_model import AnthropicModel
from perdure.processors.abort import AbortSignal
from perdure.processors.ports import ModelInvocation
from perdure.schemas.definition import AgentDefinition, ToolDefinition
from perdure.schemas.results import ModelFailed, ModelReplied
from perdure.schemas.values import Effect

SCRIPT = Path(__file__).parents[2] / "examples" / "outside" / "scripted_anthropic.py"
WAIT_S = 20
SCHEMA = {"type": "object", "properties": {"id": {"type": "string"}}}
AGENT = AgentDefinition(
    agent="helper",
    version="1",
    model="scripted",
    system="You help.",
    tools=(
        ToolDefinition("lookup", "Looks a customer up.", SCHEMA, Effect.READ_ONLY),
        ToolDefinition("find", "Finds a message.", SCHEMA, Effect.READ_ONLY, is_hidden=True),
        ToolDefinition("send", "Sends a message.", SCHEMA, Effect.NON_IDEMPOTENT),
    ),
)
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
USER = b'{"role":"user","content":[{"type":"text","text":"hello"}]}'
# Stored messages with everything that a decode and encode would change: spaces, number forms, escapes, order.
CALLED = (
    b'{"role":"assistant", "content":[{"signature":"c2ln","type":"thinking","thinking":"a\\u0062c"}, {"type":'
    b'"tool_use","id":"t1","name":"lookup","input":{"n":1E2,"f":1.0,"big":123456789012345678901}}]}'
)
ANSWERED = (
    b'{"content":[{"type":"tool_result","tool_use_id":"t1","content":"\\u2014 ok"},'
    b'{"type":"text","text":"note"}],"role":"user"}'
)
TEXT = {"type": "text", "text": "I look it up \N{EM DASH} now."}
THOUGHT = {"type": "thinking", "thinking": "let me see", "signature": "c2lnbmF0dXJl"}
USAGE = {
    "input_tokens": 100,
    "output_tokens": 50,
    "cache_creation_input_tokens": 7,
    "cache_read_input_tokens": 9,
}


def call(*messages: bytes, definition: AgentDefinition = AGENT, **others: Any) -> ModelInvocation:
    usual: dict[str, Any] = {"max_tokens": 1000, "allow_tools": True, "timeout_ms": WAIT_S * 1000}
    return ModelInvocation(
        definition=definition,
        messages=messages or (USER,),
        invocation_id="i-1",
        digest=b"d" * 32,
        **{**usual, **others},
    )


def ignore(index: int, kind: str, text: str) -> None:
    """An on_delta for tests that look at the end only."""


def tool_use(**others: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": "toolu_1", "name": "lookup", **others}


class ScriptedModel:
    """The scripted server as a process, and its log."""

    def __init__(self, folder: Path, steps: list[dict[str, Any]]) -> None:
        script, self.log = folder / "script.json", folder / "log.jsonl"
        script.write_text(json.dumps(steps))
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), "--script", str(script), "--log", str(self.log)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1]

    def invoke(
        self, invocation: ModelInvocation, on_delta: Callable[[int, str, str], None] = ignore
    ) -> ModelReplied | ModelFailed:
        return run_against(self.url, lambda model: model.invoke(invocation, AbortSignal(), on_delta))

    def reply(self, invocation: ModelInvocation) -> ModelReplied:
        answer = self.invoke(invocation)
        assert isinstance(answer, ModelReplied), answer
        return answer

    def failure(self, invocation: ModelInvocation) -> ModelFailed:
        answer = self.invoke(invocation)
        assert isinstance(answer, ModelFailed)
        return answer

    def end(self) -> list[dict[str, Any]]:
        """Ends it; the lines of its log."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return [json.loads(line) for line in self.log.read_text().splitlines()]


def run_against(
    url: str, use: Callable[[AnthropicModel], Awaitable[ModelReplied | ModelFailed]], **options: Any
) -> ModelReplied | ModelFailed:
    async def main() -> ModelReplied | ModelFailed:
        model = AnthropicModel("key", url, **options)
        try:
            return await use(model)
        finally:
            await model.close()

    return asyncio.run(main())


class BareServer:
    """Keeps the body of each request as it came, counts connections, answers with ``answer``."""

    def __init__(self, answer: bytes, *, stays_silent: bool = False) -> None:
        self.answer = answer
        self.stays_silent = stays_silent
        self.bodies: list[bytes] = []
        self.connections = 0
        self.is_left = asyncio.Event()
        self._tasks: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> AnthropicModel:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self._model = AnthropicModel("key", f"http://127.0.0.1:{port}")
        return self._model

    async def __aexit__(self, *exc: object) -> None:
        await self._model.close()
        await asyncio.wait_for(asyncio.gather(*self._tasks), WAIT_S)
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    int(line[15:])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length:")
                )
                self.bodies.append(await reader.readexactly(length))
                writer.write(self.answer)
                if self.stays_silent:
                    assert await reader.read() == b""
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the caller is gone
        self.is_left.set()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def sse(*events: tuple[str, dict[str, Any]]) -> bytes:
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (n.encode(), json.dumps({"type": n, **d}).encode()) for n, d in events
    )


def http_stream(body: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%s\r\n" % (len(body), body) + end


def http_error(status: int, headers: dict[str, str], body: bytes) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} Error\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode() + body


def error_body(error_type: str, message: str) -> bytes:
    return json.dumps({"type": "error", "error": {"type": error_type, "message": message}}).encode()


def start_event(**usage: Any) -> tuple[str, dict[str, Any]]:
    return "message_start", {"message": {"id": "msg_1", "content": [], "usage": usage}}


STOP: tuple[str, dict[str, Any]] = ("message_stop", {})
DONE = (
    start_event(input_tokens=3, output_tokens=1),
    ("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
    ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "done"}}),
    ("content_block_stop", {"index": 0}),
    ("message_delta", {"delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}),
    STOP,
)


def message(block: dict[str, Any], deltas: list[dict[str, Any]], stop_reason: str) -> bytes:
    """The stream of a message of one block."""
    return sse(
        start_event(input_tokens=3, output_tokens=1),
        ("content_block_start", {"index": 0, "content_block": block}),
        *(("content_block_delta", {"index": 0, "delta": delta}) for delta in deltas),
        ("content_block_stop", {"index": 0}),
        ("message_delta", {"delta": {"stop_reason": stop_reason}, "usage": {"output_tokens": 2}}),
        STOP,
    )


def answer_to(response: bytes) -> ModelReplied | ModelFailed:
    """What the connector makes of ``response``, from a server that is asked exactly once."""

    async def main() -> ModelReplied | ModelFailed:
        server = BareServer(response)
        async with server as model:
            answer = await model.invoke(call(), AbortSignal(), ignore)
        assert len(server.bodies) == 1
        return answer

    return asyncio.run(main())
