"""A model behind the real connector: scripted bytes of the Messages API's stream, no network."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2
from anthropic import AsyncAnthropic

from perdure.connectors.anthropic_model import AnthropicModel
from perdure.processors.abort import AbortSignal
from perdure.processors.ports import ModelInvocation, OnDelta
from perdure.schemas.results import ModelFailed, ModelReplied
from perdure.testing import ScriptedModel, check_transcript

START_USAGE = {
    "input_tokens": 100,
    "output_tokens": 1,
    "cache_creation_input_tokens": 40,
    "cache_read_input_tokens": 60,
}


def stream(*blocks: dict[str, Any], stop_reason: str = "end_turn", output_tokens: int = 25) -> list[bytes]:
    """The events of one reply. A tool_use whose input is a text is sent as that raw text."""
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "msg", "role": "assistant", "usage": START_USAGE}}
    ]
    for index, block in enumerate(blocks):
        if block["type"] == "tool_use":
            raw = block["input"] if isinstance(block["input"], str) else json.dumps(block["input"])
            begun, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": raw}
        else:
            begun, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": block["text"]}
        events += [
            {"type": "content_block_start", "index": index, "content_block": begun},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    told = {**START_USAGE, "output_tokens": output_tokens}
    events += [
        {"type": "message_delta", "delta": {"stop_reason": stop_reason}, "usage": told},
        {"type": "message_stop"},
    ]
    return [event(each) for each in events]


def event(value: dict[str, Any]) -> bytes:
    return f"event: {value['type']}\ndata: {json.dumps(value)}\n\n".encode()


OVERLOADED = event({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})


class _Body(httpx2.AsyncByteStream):
    def __init__(self, chunks: Sequence[bytes]) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk


@dataclass(slots=True)
class WireModel(ScriptedModel):
    """``streams``: what comes back, request by request, with HTTP 200. ``requests``: the decoded bodies."""

    streams: list[list[bytes]] = field(default_factory=list[list[bytes]])
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    async def invoke(
        self, call: ModelInvocation, abort: AbortSignal, on_delta: OnDelta
    ) -> ModelReplied | ModelFailed:
        def answer(request: httpx2.Request) -> httpx2.Response:
            body = self.streams[len(self.requests)]
            self.requests.append(json.loads(request.content))
            return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=_Body(body))

        check_transcript(call.messages)
        model = AnthropicModel("key")
        transport = httpx2.MockTransport(answer)
        model._client = AsyncAnthropic(
            api_key="key", max_retries=0, http_client=httpx2.AsyncClient(transport=transport)
        )
        try:
            return await model.invoke(call, abort, on_delta)
        finally:
            await model.close()
