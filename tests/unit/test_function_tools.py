"""Python functions as tools: what each way of ending becomes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from perdure.connectors.agent import Agent
from perdure.connectors.function_tools import FunctionTools
from perdure.connectors.reconciler import Question, did_not_happen, happened, reconciler, unknown
from perdure.connectors.tool import (
    ContentBlocks,
    NotExecuted,
    Tool,
    ToolContext,
    ToolError,
    UnusableTool,
    tool,
)
from perdure.processors.abort import AbortSignal
from perdure.processors.ports import ToolAnswer, ToolInvocation
from perdure.processors.tool_executor import Concurrency
from perdure.schemas.definition import AgentDefinition
from perdure.schemas.limits import PAYLOAD_BYTES_MAX
from perdure.schemas.results import Completed, Declined, Failed, Reconciled
from perdure.schemas.values import Answer, DeclineReason, Effect, FailureKind, Purpose

GRACE_S = 0.05  # of an abort; a deadline waits for no answer


@dataclass
class Point:
    x: int
    y: int = 0


class Harness:
    """One agent with one tool, called as an executor would."""

    def __init__(self, declared: Tool[Any, Any], *, threads_max: int = 4, timeout_ms: int = 5_000) -> None:
        self.agent = Agent("a", model="m", tools=[declared])
        self.tools = FunctionTools([self.agent], threads_max=threads_max, abort_grace_s=GRACE_S)
        self.declared = declared
        self.timeout_ms = timeout_ms

    async def call(
        self, arguments: Mapping[str, Any], abort: AbortSignal | None = None, **changes: Any
    ) -> ToolAnswer:
        fields: dict[str, Any] = {
            "run_id": "r",
            "turn": 1,
            "call_id": "c",
            "attempt": 2,
            "definition": self.agent.digest,
            "tool": self.declared.name,
            "arguments": arguments,
            "effect": self.declared.effect,
            "idempotency_key": "key",
            "purpose": Purpose.CALL,
            "timeout_ms": self.timeout_ms,
            **changes,
        }
        return await self.tools.call(ToolInvocation(**fields), abort or AbortSignal())

    def run(self, arguments: Mapping[str, Any], **changes: Any) -> ToolAnswer:
        return asyncio.run(self.call(arguments, **changes))


def declared(function: Callable[..., Any], **options: Any) -> Harness:
    return Harness(tool(effect="read_only", name="it", **options)(function))


def text(answer: ToolAnswer) -> str:
    assert isinstance(answer, Completed), answer
    value = json.loads(answer.content)
    assert isinstance(value, str)
    return value


def test_sync_and_async_functions_get_typed_arguments_and_the_context() -> None:
    """Records are built from JSON, defaults filled in, and the context carries the call's identity."""

    def plain(point: Point, ctx: ToolContext, note: str = "n") -> str:
        assert threading.current_thread() is not threading.main_thread()
        assert 0 < ctx.remaining_s() <= 5
        return f"{point.x + point.y} {note} {ctx.run_id} {ctx.call_id} {ctx.attempt} {ctx.idempotency_key}"

    async def waiting(point: Point, ctx: ToolContext, note: str = "n") -> str:
        await asyncio.sleep(0)
        return plain.__name__ + f" {point.x} {note} {ctx.turn}"

    assert text(declared(plain).run({"point": {"x": 3, "y": 4}})) == "7 n r c 2 key"
    assert text(declared(waiting).run({"point": {"x": 3}, "note": "z"})) == "plain 3 z 1"


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({}, "'x' is a required property"),
        ({"x": "1"}, "$.x: '1' is not of type 'integer'"),
        ({"x": 1, "more": 2}, "'more' was unexpected"),
        ({"x": 1, "y": {"$ref": "#"}}, "$.y"),
    ],
)
def test_a_tool_is_never_called_with_arguments_against_its_schema(
    arguments: dict[str, Any], fault: str
) -> None:
    """The model gets an error result that names the fault, and the function does not run."""
    called: list[object] = []

    def it(x: int, y: int = 0) -> None:
        called.append((x, y))

    answer = declared(it).run(arguments)
    assert isinstance(answer, Completed)
    assert answer.is_error
    assert fault in text(answer)
    assert called == []


def test_a_schema_of_ones_own_is_enforced_and_arguments_stay_plain() -> None:
    """With schema= the values arrive as JSON has them."""
    schema = {
        "type": "object",
        "properties": {"p": {"type": "object", "maxProperties": 1}},
        "required": ["p"],
    }
    it = declared(lambda p: list(p), schema=schema)  # noqa: PLW0108 - it is called by name
    assert text(it.run({"p": {"x": 1}})) == '["x"]'
    assert "too many properties" in text(it.run({"p": {"x": 1, "y": 2}}))


def test_a_schema_that_cannot_be_applied_does_not_let_a_call_through() -> None:
    """A reference to nowhere shows only when it is followed: the tool is not called on trust."""
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/nowhere"}}}
    it = declared(lambda x: x, schema=schema)  # pyright: ignore[reportUnknownLambdaType]
    assert "cannot be applied" in text(it.run({"x": 1}))


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("hello", '"hello"'),
        ("", '"(no output)"'),
        (" \n", '"(no output)"'),
        (None, '"(no output)"'),
        ({"b": 1, "a": [True, None]}, r'"{\"a\":[true,null],\"b\":1}"'),
        ([], '"[]"'),
        (Point(1), r'"{\"x\":1,\"y\":0}"'),
        (0, '"0"'),
        ("a\ud800b\0", '"a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"'),
        (ContentBlocks([{"type": "text", "text": "t"}]), '[{"text":"t","type":"text"}]'),
        (ContentBlocks(), '"(no output)"'),
    ],
)
def test_what_a_tool_returns_becomes_a_string_or_content_blocks(value: object, content: str) -> None:
    """Strings as they are, nothing as a notice, other JSON as canonical text, unclean text replaced."""
    assert declared(lambda: value, schema={"type": "object"}).run({}) == Completed(content.encode())


def test_a_result_over_the_limit_is_handed_on_whole() -> None:
    """What is kept of it and where is for the executor to say, which has the blob store."""
    long = "ä" * PAYLOAD_BYTES_MAX
    assert text(declared(lambda: long, schema={"type": "object"}).run({})) == long


def test_a_returned_tool_error_is_a_definite_error_result() -> None:
    """ToolError is an answer, not an unknown outcome."""
    answer = declared(lambda: ToolError("no such customer"), schema={"type": "object"}).run({})
    assert answer == Completed(b'"no such customer"', is_error=True)


class ForeignTransportError(Exception):
    """As httpx has it."""


ForeignTransportError.__name__ = "TransportError"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NotExecuted("the line was busy"), FailureKind.NOT_EXECUTED),
        (ConnectionResetError("gone"), FailureKind.CONNECTION),
        (TimeoutError(), FailureKind.CONNECTION),
        (ForeignTransportError("gone"), FailureKind.CONNECTION),
        (KeyError("x\ud800"), FailureKind.EXCEPTION),
        (StopIteration(), FailureKind.EXCEPTION),
        (SystemExit(3), FailureKind.EXCEPTION),
        (KeyboardInterrupt(), FailureKind.EXCEPTION),
        (asyncio.CancelledError(), FailureKind.EXCEPTION),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_whatever_a_tool_raises_becomes_a_failure_of_its_kind(
    error: BaseException, kind: FailureKind, is_async: bool
) -> None:
    """Nothing a function raises leaves the port, not even what would end a loop or hang a future."""

    def plain() -> None:
        raise error

    async def waiting() -> None:
        raise error

    answer = declared(waiting if is_async else plain).run({})
    assert isinstance(answer, Failed)
    assert answer.kind is kind
    answer.message.encode()


def test_a_value_that_is_no_json_is_told_as_such() -> None:
    """The tool ran, but its answer can not be kept: OUTPUT, which for a non_idempotent call is doubt."""
    for value in (object(), {1: object()}, ContentBlocks([{"text": "no type"}])):
        answer = declared(lambda value=value: value, schema={"type": "object"}).run({})
        assert isinstance(answer, Failed)
        assert answer.kind is FailureKind.OUTPUT


def test_a_tool_says_how_often_it_may_run_and_counts_who_still_does() -> None:
    """Calls that were given up are a part of what runs; a tool without a bound says nothing."""
    release = threading.Event()

    def stuck() -> None:
        release.wait(5)

    harness = declared(stuck, concurrency_max=2)
    digest = harness.agent.digest
    assert harness.tools.concurrency(digest, "it") == Concurrency("it", 2, 0)
    harness.run({}, timeout_ms=20)
    assert harness.tools.concurrency(digest, "it") == Concurrency("it", 2, 1)
    release.set()
    _until(lambda: harness.tools.concurrency(digest, "it") == Concurrency("it", 2, 0))
    assert declared(stuck).agent.digest == digest, "workers may differ in it"
    assert declared(stuck).tools.concurrency(digest, "it") is None
    assert harness.tools.concurrency(digest, "other") is None
    with pytest.raises(UnusableTool):
        declared(stuck, concurrency_max=0)


def test_a_deadline_ends_the_wait_and_tells_the_tool() -> None:
    """A coroutine is cancelled; a thread is abandoned, its signal set, and counted until it ends."""

    async def forever() -> None:
        await asyncio.Event().wait()

    answer = declared(forever).run({}, timeout_ms=20)
    assert answer == Failed(FailureKind.DEADLINE, "The tool did not end before its deadline.")

    release, told = threading.Event(), threading.Event()

    def stuck(ctx: ToolContext) -> None:
        ctx.abort.wait_blocking(5)
        assert ctx.abort.reason == "deadline"
        told.set()
        release.wait(5)

    harness = declared(stuck)
    answer = harness.run({}, timeout_ms=20)
    assert isinstance(answer, Failed)
    assert answer.kind is FailureKind.DEADLINE
    assert told.wait(5)
    assert harness.tools.abandoned == 1
    release.set()
    _until(lambda: harness.tools.abandoned == 0)


def test_a_call_that_never_got_a_thread_was_not_executed() -> None:
    """With every thread taken a call ends as NOT_EXECUTED at its deadline, and is never run later."""
    release, began = threading.Event(), threading.Event()
    ran: list[int] = []

    def hold(n: int) -> None:
        ran.append(n)
        began.set()
        release.wait(5)

    harness = Harness(tool(effect="read_only")(hold), threads_max=1)

    async def two() -> tuple[ToolAnswer, ToolAnswer]:
        first = asyncio.ensure_future(harness.call({"n": 1}))
        await asyncio.to_thread(began.wait, 5)
        second = await harness.call({"n": 2}, timeout_ms=20)
        release.set()
        return await first, second

    first, second = asyncio.run(two())
    assert isinstance(first, Completed)
    assert isinstance(second, Failed)
    assert second.kind is FailureKind.NOT_EXECUTED
    assert harness.run({"n": 3}) == first
    assert ran == [1, 3]


def test_an_abort_reaches_the_tool_and_an_answer_in_the_grace_period_counts() -> None:
    """What the tool still returns is definite; what does not return in time is ABORTED; unstarted is
    declined.
    """

    async def polite(ctx: ToolContext) -> str:
        return f"stopped: {await ctx.abort.wait()}"

    async def raising(ctx: ToolContext) -> None:
        await ctx.abort.wait()
        ctx.abort.raise_if_aborted()

    async def deaf() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(1)
            raise

    async def aborted(harness: Harness) -> ToolAnswer:
        abort = AbortSignal()
        running = asyncio.ensure_future(harness.call({}, abort))
        await asyncio.sleep(0)
        abort.abort("cancelled")
        return await running

    assert asyncio.run(aborted(declared(polite))) == Completed(b'"stopped: cancelled"')
    for function in (raising, deaf):
        answer = asyncio.run(aborted(declared(function)))
        assert isinstance(answer, Failed)
        assert answer.kind is FailureKind.ABORTED
    already = AbortSignal()
    already.abort("cancelled")
    assert declared(polite).run({}, abort=already) == Declined(DeclineReason.CANCELLED, "cancelled")


@reconciler
def find(question: Question) -> Any:
    match question.arguments["text"]:
        case "sent":
            return happened({"id": question.idempotency_key, "started": question.started_ms})
        case "not":
            return did_not_happen("nothing there")
        case "wrong":
            return "yes"
        case "error":
            return happened(ToolError("x"))
        case "down":
            raise ConnectionError("refused")
        case _:
            return unknown()


@tool(effect="non_idempotent", reconcile=find)
def send(text: str) -> str:
    return text


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ("sent", Reconciled(Answer.HAPPENED, rb'"{\"id\":\"key\",\"started\":7}"')),
        ("not", Reconciled(Answer.DID_NOT_HAPPEN, None, "nothing there")),
        ("?", Reconciled(Answer.UNKNOWN)),
        ("down", FailureKind.CONNECTION),
        ("wrong", FailureKind.OUTPUT),
        ("error", FailureKind.OUTPUT),
    ],
)
def test_a_reconciler_answers_one_of_three_things_or_fails(asked: str, wanted: object) -> None:
    """Happened carries the call's result; what is no answer is a failure, to be asked again."""
    answer = Harness(send).run(
        {"text": asked}, tool="find", purpose=Purpose.RECONCILE, effect=Effect.READ_ONLY, started_ms=7
    )
    assert (answer.kind if isinstance(answer, Failed) else answer) == wanted


def test_a_reconciler_cannot_be_called_as_a_tool_nor_a_tool_asked_as_a_reconciler() -> None:
    """The purpose of a request has to fit what it names; unknown names are declined too."""
    harness = Harness(send)
    answers = [
        harness.run({"text": "sent"}, tool="find"),
        harness.run({"text": "sent"}, purpose=Purpose.RECONCILE),
        harness.run({"text": "sent"}, tool="other"),
        harness.run({"text": "sent"}, definition="0" * 64),
    ]
    assert {answer.reason for answer in answers if isinstance(answer, Declined)} == {
        DeclineReason.UNAVAILABLE
    }
    assert all(isinstance(answer, Declined) for answer in answers)


class Published:
    """Definitions as a worker has read them."""

    def __init__(self, *agents: Agent) -> None:
        self._by_digest = {agent.digest: agent.definition() for agent in agents}

    def by_digest(self, digest: str) -> AgentDefinition | None:
        return self._by_digest.get(digest)

    def newest(self, agent: str, version: str | None) -> tuple[str, AgentDefinition] | None:
        raise AssertionError((agent, version))


def test_runs_pinned_to_an_older_prompt_keep_their_tools() -> None:
    """An unchanged tool is known under an older definition; a changed tool, or another agent's, is not."""

    @reconciler(name="find", timeout_s=1)
    def find_otherwise(question: Question) -> Any:
        return unknown(question.call_id)

    @tool(effect="non_idempotent", reconcile=find_otherwise, name="send")
    def send_otherwise(text: str) -> str:
        return text

    now = Agent("a", model="m", tools=[send], system="new")
    prompt = Agent("a", model="m", tools=[send], system="old")
    changed = Agent("a", model="m", tools=[send_otherwise])
    foreign = Agent("b", model="m", tools=[send])
    tools = FunctionTools([now], definitions=Published(prompt, changed, foreign))
    assert [tools.knows(each.digest, "send") for each in (now, prompt, changed, foreign)] == [
        True,
        True,
        False,
        False,
    ]
    assert tools.knows(prompt.digest, "find")
    assert not tools.knows(changed.digest, "find")


def _until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(500):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it never came true")


@pytest.fixture(autouse=True)
def _no_thread_dies_of_an_error() -> Iterator[None]:
    faults: list[object] = []
    before, threading.excepthook = threading.excepthook, faults.append
    yield
    threading.excepthook = before
    assert faults == []
