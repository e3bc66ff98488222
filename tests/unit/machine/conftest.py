"""A driver for the pure machine: feeds inputs, keeps the run, checks after each that fold equals state."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from perdure.processors.machine.apply import appended, apply, fold
from perdure.processors.machine.budget import Price
from perdure.processors.machine.decide import decide
from perdure.processors.machine.inputs import (
    CommandInput,
    Context,
    Decided,
    Input,
    MachineSettings,
    ResultInput,
    Source,
    StartInput,
    Tell,
    TimerInput,
)
from perdure.processors.machine.project import Projected, project
from perdure.processors.machine.schedule import next_due_ms
from perdure.processors.machine.state import Run
from perdure.processors.machine.tokens import TokenKeys
from perdure.schemas import results as rs
from perdure.schemas.commands import Command, CommandBody, Decide, Submit
from perdure.schemas.definition import AgentDefinition, ToolDefinition
from perdure.schemas.events import CommandRejected, Event
from perdure.schemas.requests import ModelRequest, ToolRequest
from perdure.schemas.values import Effect, Usage, Verdict

RUN_ID = "run-1"
DIGEST = "d" * 64
OBJECT: dict[str, Any] = {"type": "object"}


def agent(**changes: Any) -> AgentDefinition:
    """An agent with a tool of each effect class, and one of each way to find out what became of a call."""
    tools = (
        ToolDefinition("look", "reads", OBJECT, Effect.READ_ONLY, timeout_ms=1_000),
        ToolDefinition("put", "writes by key", OBJECT, Effect.IDEMPOTENT_WRITE, timeout_ms=1_000),
        ToolDefinition(
            "send", "sends", OBJECT, Effect.NON_IDEMPOTENT, timeout_ms=1_000, reconcile="find", settle_ms=500
        ),
        ToolDefinition("wire", "sends, untraceable", OBJECT, Effect.NON_IDEMPOTENT, timeout_ms=1_000),
        ToolDefinition(
            "buy", "needs approval", OBJECT, Effect.NON_IDEMPOTENT, timeout_ms=1_000, needs_approval=True
        ),
        ToolDefinition("find", "reconciles send", OBJECT, Effect.READ_ONLY, timeout_ms=1_000, is_hidden=True),
    )
    settings: dict[str, Any] = {"agent": "a", "version": "1", "model": "m", "tools": tools, "max_turns": 5}
    return AgentDefinition(**(settings | changes))


class Driver:
    """One run, driven by inputs under virtual time."""

    def __init__(
        self, definition: AgentDefinition | None = None, settings: MachineSettings | None = None
    ) -> None:
        self.definition: AgentDefinition | None = definition or agent()
        self.settings = settings or MachineSettings()
        self.now_ms = 1_000_000
        self.may_start = True
        self.token_keys = TokenKeys(b"key")
        self.price: Price | None = None
        self.source: Source | None = None
        self.run_id = RUN_ID
        self.tell: Callable[[Tell], None] | None = None
        self.run_or_none: Run | None = None
        self.events: list[Event] = []
        self.records: list[Projected] = []
        self.messages: list[bytes] = []
        self.last = Decided()
        self._count = 0

    @property
    def run(self) -> Run:
        assert self.run_or_none is not None
        return self.run_or_none

    @property
    def kinds(self) -> list[str]:
        """Names of the events that answered the last input."""
        return [type(event.body).__name__ for event in self.last.events]

    @property
    def rejections(self) -> list[str]:
        """The reasons with which the last input was rejected."""
        bodies = (event.body for event in self.last.events)
        return [body.reason for body in bodies if isinstance(body, CommandRejected)]

    def feed(self, given: Input) -> Decided:
        """Give the machine one input, apply and project its answer."""
        self._count += 1
        context = Context(
            now_ms=self.now_ms,
            entropy=self._count.to_bytes(16, "big"),
            definition=self.definition,
            definition_digest=DIGEST if self.definition else None,
            may_start=self.may_start,
            settings=self.settings,
            token_keys=self.token_keys,
            price=self.price,
            source=self.source,
        )
        self.last = decide(self.run_or_none, given, context)
        self.records = []
        for event, told in zip(self.last.events, self.last.runs, strict=True):
            before = self.run_or_none
            self.messages += appended(before, event)
            self.run_or_none = apply(before, event)
            assert told == self.run_or_none
            self.events.append(event)
            self.records += project(before, event, self.run_or_none)
        if self.events:
            assert fold(self.events) == self.run_or_none
            shared = self.run.shared.message_count if self.run.shared else 0
            assert shared + len(self.messages) == self.run.message_count
        for output in self.last.outputs:
            if self.tell is not None and isinstance(output, Tell):
                self.tell(output)
        return self.last

    def command(self, body: CommandBody, command_id: str | None = None, run_id: str | None = None) -> Decided:
        self._count += 1
        return self.feed(CommandInput(run_id or self.run_id, command_id or f"c{self._count}", Command(body)))

    def submit(self, text: str = "hello", **changes: Any) -> Decided:
        return self.command(Submit("a", json.dumps(text).encode(), **changes))

    def verdict(self, call_id: str, verdict: Verdict, *, token: str | None = None, **changes: Any) -> Decided:
        """Decide about a call, with the token that was shown unless another is given."""
        pending = self.run.pending_for(call_id)
        shown = token if token is not None else pending.token if pending else "none"
        return self.command(Decide(call_id, verdict, shown, decided_by="someone", **changes))

    def timer(self) -> Decided:
        """Let time pass until the run's next timer, and fire it."""
        due_ms = next_due_ms(self.run)
        assert due_ms is not None
        self.now_ms = max(self.now_ms, due_ms)
        return self.feed(TimerInput(self.run_id))

    def start(self) -> Decided:
        return self.feed(StartInput(self.run_id))

    def model_result(self, body: rs.ResultBody, **changes: Any) -> Decided:
        """A result for the pending model request."""
        model = self.run.model
        self._count += 1
        fields: dict[str, Any] = {
            "result_id": f"r{self._count}",
            "run_id": self.run_id,
            "turn": model.turn if model else self.run.turn,
            "call_id": "",
            "attempt": model.attempt if model else 1,
            "request_id": model.request_id if model else "none",
            "worker": "w",
            "body": body,
        }
        return self.feed(ResultInput(rs.Result(**(fields | changes))))

    def reply(
        self,
        *blocks: dict[str, Any],
        stop_reason: str | None = None,
        usage: Usage | None = None,
        **changes: Any,
    ) -> Decided:
        """The model answers the pending request with these blocks."""
        calls = any(block.get("type") == "tool_use" for block in blocks)
        body = rs.ModelReplied(
            invocation_id=f"i{self._count}",
            digest=self.run.digest,
            content=json.dumps(blocks).encode(),
            stop_reason=stop_reason or ("tool_use" if calls else "end_turn"),
            usage=usage or Usage(10, 5),
            **changes,
        )
        return self.model_result(body)

    def say(self, text: str, **changes: Any) -> Decided:
        return self.reply({"type": "text", "text": text}, **changes)

    def ask_tools(self, *tools: str, **changes: Any) -> Decided:
        """The model asks for these tools; call ids are t<turn><index>."""
        return self.reply(*(use(tool, f"t{self.run.turn}{n}") for n, tool in enumerate(tools)), **changes)

    def tool_result(self, call_id: str, body: rs.ResultBody, **changes: Any) -> Decided:
        """A result for the newest attempt of a call."""
        call = self.run.call(call_id)
        assert call is not None
        attempt = call.attempt
        self._count += 1
        fields: dict[str, Any] = {
            "result_id": f"r{self._count}",
            "run_id": self.run_id,
            "turn": self.run.turn,
            "call_id": call_id,
            "attempt": attempt.number if attempt else 1,
            "request_id": attempt.request_id if attempt else "none",
            "worker": "w",
            "body": body,
        }
        return self.feed(ResultInput(rs.Result(**(fields | changes))))

    def answered(self, call_id: str, body: rs.ResultBody, **changes: Any) -> Decided:
        """A result for the newest question to a reconciliation tool."""
        call = self.run.call(call_id)
        assert call is not None
        assert call.reconciliation is not None
        return self.tool_result(call_id, body, **({"request_id": call.reconciliation.request_id} | changes))

    def claim(self, call_id: str) -> Decided:
        """An executor claims the call: it may run until a second after its timeout."""
        return self.tool_result(call_id, rs.Started(self.now_ms + 2_000))

    def requests(self, kind: type[ToolRequest | ModelRequest]) -> Sequence[Any]:
        return [record.record for record in self.records if isinstance(record.record, kind)]

    def last_message(self) -> dict[str, Any]:
        decoded: dict[str, Any] = json.loads(self.messages[-1])
        return decoded


def use(tool: str, call_id: str, **arguments: Any) -> dict[str, Any]:
    """A tool_use block."""
    return {"type": "tool_use", "id": call_id, "name": tool, "input": arguments}


@pytest.fixture
def driver() -> Driver:
    """A run that is not there yet."""
    return Driver()


@pytest.fixture
def running(driver: Driver) -> Driver:
    """A run in its first turn."""
    driver.submit()
    return driver


@pytest.fixture
def make_driver() -> Callable[..., Driver]:
    return Driver


@pytest.fixture
def make_agent() -> Callable[..., AgentDefinition]:
    return agent
