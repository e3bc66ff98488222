"""A scripted model: what it says, in order, and everything it can do wrong.

::

    ScriptedModel([
        calls(use("look_up", customer_id="c-1")),
        fails("overloaded", after="Let me"),
        "The parcel has arrived.",
    ])

Each question takes the next entry; a retry is a question of its own. A function of :class:`Asked` may stand
in place of an entry, or of the whole list.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, assert_never, cast

from perdure.processors.abort import AbortSignal
from perdure.processors.ports import ModelInvocation, OnDelta
from perdure.schemas.definition import AgentDefinition
from perdure.schemas.results import ModelFailed, ModelReplied
from perdure.schemas.values import Usage
from perdure.testing.transcript import check_transcript

USAGE: Final = Usage(input_tokens=10, output_tokens=5)
"""What a reply costs that does not say."""


class ScriptExhausted(AssertionError):
    """The model was asked more often than the script has entries."""


@dataclass(frozen=True, slots=True)
class Use:
    """A tool_use block. ``call_id`` None: a fresh one. ``input`` is whatever the model sends, an object or
    not.
    """

    tool: str
    input: Any
    call_id: str | None = None

    def block(self, call_id: str) -> dict[str, Any]:
        own = call_id if self.call_id is None else self.call_id
        return {"type": "tool_use", "id": own, "name": self.tool, "input": self.input}


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete answer. ``content``: texts, uses and raw blocks, in order; ``raw``: the bytes of the content
    instead. ``input_faults``: (block index, raw text) of inputs that were no JSON object. ``after_s``:
    virtual seconds until it comes.
    """

    content: tuple[str | Use | Mapping[str, Any], ...]
    stop_reason: str
    usage: Usage = USAGE
    after_s: float = 0.0
    input_faults: tuple[tuple[int, str], ...] = ()
    raw: bytes | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure as a connector classifies it. ``after``: text that was streamed before. ``usage`` None: what
    it cost is not known.
    """

    code: str
    is_retryable: bool = True
    message: str = "scripted"
    retry_after_s: float | None = None
    usage: Usage | None = None
    after: str = ""
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Silence:
    """No answer ever comes, until the call is aborted."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One question to the model. ``messages``: decoded, the whole transcript; ``number`` counts from 1."""

    number: int
    messages: tuple[dict[str, Any], ...]
    allow_tools: bool
    max_tokens: int
    definition: AgentDefinition
    run_id: str
    turn: int

    @property
    def last(self) -> dict[str, Any]:
        return self.messages[-1]

    @property
    def results(self) -> list[dict[str, Any]]:
        """The tool results of the last message, in order."""
        content = self.last["content"]
        return [] if isinstance(content, str) else [b for b in content if b.get("type") == "tool_result"]

    @property
    def texts(self) -> list[str]:
        """The texts of the last message, in order."""
        content = self.last["content"]
        return [content] if isinstance(content, str) else [b["text"] for b in content if b["type"] == "text"]


Turn: TypeAlias = Reply | Failure | Silence | str
Entry: TypeAlias = Turn | Callable[[Asked], Turn]
Script: TypeAlias = Sequence[Entry] | Callable[[Asked], Turn]


def use(tool: str, call_id: str | None = None, /, **arguments: Any) -> Use:
    """A call of ``tool`` with these arguments, for :func:`calls`."""
    return Use(tool, arguments, call_id)


def calls(*uses: str | Use | Mapping[str, Any], usage: Usage = USAGE, after_s: float = 0.0) -> Reply:
    """The model asks for tools; texts between the calls are said as they are."""
    return Reply(uses, "tool_use", usage, after_s)


def says(
    *content: str | Use | Mapping[str, Any],
    stop_reason: str = "end_turn",
    usage: Usage = USAGE,
    after_s: float = 0.0,
) -> Reply:
    """The model answers with this content and stops for ``stop_reason``."""
    return Reply(content, stop_reason, usage, after_s)


def fails(
    code: str = "overloaded",
    *,
    is_retryable: bool = True,
    retry_after_s: float | None = None,
    usage: Usage | None = None,
    after: str = "",
    after_s: float = 0.0,
) -> Failure:
    """The call of the model fails, in the middle of its stream if ``after`` is not empty."""
    return Failure(code, is_retryable, "scripted", retry_after_s, usage, after, after_s)


@dataclass(slots=True)
class ScriptedModel:
    """See :class:`perdure.processors.ports.ModelPort`. ``asked``: every question, in order.

    Refuses, with :class:`~perdure.testing.transcript.InvalidTranscript`, what the Messages API would refuse.
    """

    script: Script
    asked: list[Asked] = field(default_factory=list[Asked])
    _next: int = 0
    _uses: int = 0
    _unanswered: dict[str, int] = field(default_factory=dict[str, int])
    fault: AssertionError | None = None
    """What a test has to hear of, though it came up inside a worker."""

    @property
    def left(self) -> int:
        """Entries not taken yet (0 for a function)."""
        return 0 if callable(self.script) else len(self.script) - self._next

    async def invoke(
        self, call: ModelInvocation, abort: AbortSignal, on_delta: OnDelta
    ) -> ModelReplied | ModelFailed:
        try:
            check_transcript(call.messages)
            turn = self._take(call)
        except AssertionError as error:
            self.fault = self.fault or error
            raise
        answer = await self._answer(turn, call, abort, on_delta)
        self._unanswered.pop(call.invocation_id, None)
        return answer

    def forget_unanswered(self) -> None:
        """The worker that asked is gone: what it was about to hear is said to the next one."""
        if self._unanswered:
            self._next = min(self._unanswered.values())
            self._unanswered.clear()

    def _take(self, call: ModelInvocation) -> Turn:
        messages = tuple(cast("dict[str, Any]", json.loads(message)) for message in call.messages)
        asked = Asked(
            len(self.asked) + 1, messages, call.allow_tools, call.max_tokens, call.definition,
            call.run_id, call.turn,
        )  # fmt: skip
        self.asked.append(asked)
        if callable(self.script):
            return self.script(asked)
        if self._next >= len(self.script):
            raise ScriptExhausted(f"question {asked.number}, after {asked.last}")
        self._unanswered[call.invocation_id] = self._next
        entry = self.script[self._next]
        self._next += 1
        return entry(asked) if callable(entry) else entry

    async def _answer(
        self, turn: Turn, call: ModelInvocation, abort: AbortSignal, on_delta: OnDelta
    ) -> ModelReplied | ModelFailed:
        match turn:
            case str():
                return await self._answer(says(turn), call, abort, on_delta)
            case Silence():
                return await _aborted(call, abort)
            case Failure():
                if turn.after:
                    on_delta(0, "text", turn.after)
                if await _passed(turn.after_s, abort):
                    return await _aborted(call, abort)
                wait_ms = None if turn.retry_after_s is None else round(turn.retry_after_s * 1000)
                return ModelFailed(
                    call.invocation_id, turn.code, turn.is_retryable, turn.message, wait_ms, turn.usage
                )
            case Reply():
                for index, part in enumerate(turn.content):
                    if isinstance(part, str):
                        on_delta(index, "text", part)
                if await _passed(turn.after_s, abort):
                    return await _aborted(call, abort)
                return self._replied(turn, call)
        assert_never(turn)

    def _replied(self, turn: Reply, call: ModelInvocation) -> ModelReplied:
        blocks = [self._block(part) for part in turn.content]
        # ensure_ascii: a lone surrogate travels as its escape, as it does from the provider
        content = json.dumps(blocks, ensure_ascii=True).encode() if turn.raw is None else turn.raw
        return ModelReplied(
            call.invocation_id, call.digest, content, turn.stop_reason, turn.usage,
            f"msg_{len(self.asked)}", turn.input_faults,
        )  # fmt: skip

    def _block(self, part: str | Use | Mapping[str, Any]) -> dict[str, Any]:
        match part:
            case str():
                return {"type": "text", "text": part}
            case Use():
                self._uses += 1
                return part.block(f"toolu_{self._uses}")
            case _:
                return dict(part)


async def _passed(seconds: float, abort: AbortSignal) -> bool:
    """Let virtual time pass; whether the call was aborted meanwhile."""
    if seconds > 0:
        waiting = asyncio.ensure_future(abort.wait())
        await asyncio.wait({waiting}, timeout=seconds)
        waiting.cancel()
    return abort.aborted


async def _aborted(call: ModelInvocation, abort: AbortSignal) -> ModelFailed:
    reason = await abort.wait()
    return ModelFailed(call.invocation_id, "aborted", is_retryable=False, message=reason)
