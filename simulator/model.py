"""The model: what it says, what goes wrong on the way, and what it bills whether anybody hears it or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from perdure.processors.abort import AbortSignal
from perdure.processors.executor.running import DEADLINE
from perdure.processors.machine.budget import Price
from perdure.processors.ports import ModelInvocation, OnDelta
from perdure.schemas.results import ModelFailed, ModelReplied
from perdure.schemas.values import Usage
from perdure.testing.script import Asked, Reply, ScriptedModel, Silence, Turn, Use, fails, says
from simulator.marks import Marks
from simulator.plan import pick
from simulator.violation import Fault, Violated

BYTES_PER_TOKEN: Final = 4
LARGE_CHARS: Final = 1_100_000
TOOLS: Final = ("look", "look", "send", "pay", "pay", "put", "sign", "ship", "helper")
PRICE: Final = Price(3, 15, 4, 1)


class OnePrice:
    """See :class:`perdure.processors.ports.Prices`."""

    def price(self, model: str) -> Price | None:
        return PRICE if model == "m" else None


@dataclass(slots=True)
class Bill:
    """What one invocation costs in the end."""

    run_id: str
    usage: Usage


class Model:
    """See :class:`perdure.processors.ports.ModelPort`."""

    def __init__(self, random: Random, replies: Mapping[str, float], marks: Marks) -> None:
        self._random = random
        self._replies = replies
        self._marks = marks
        self._script = ScriptedModel(self._turn)
        self._bill = Bill("", Usage())
        self._sent: dict[str, tuple[bytes, ...]] = {}
        self._fault: AssertionError | None = None
        self.is_kind = False
        """No more failures: it answers and ends its turn."""
        self.bills: dict[str, Bill] = {}

    async def invoke(
        self, call: ModelInvocation, abort: AbortSignal, on_delta: OnDelta
    ) -> ModelReplied | ModelFailed:
        run_id = call.run_id
        self._check_prefix(run_id, call.messages)
        input_tokens = sum(map(len, call.messages)) // BYTES_PER_TOKEN + 1
        assert call.invocation_id not in self.bills, "an invocation is made once"
        self._bill = self.bills[call.invocation_id] = Bill(run_id, Usage(input_tokens=input_tokens))
        answer = await self._script.invoke(call, abort, on_delta)
        if isinstance(answer, ModelFailed) and answer.code == "aborted" and abort.reason == DEADLINE:
            return ModelFailed(answer.invocation_id, "timeout", is_retryable=True, message=answer.message)
        return answer

    def _check_prefix(self, run_id: str, messages: tuple[bytes, ...]) -> None:
        """What was sent for a run once is sent so ever after, byte for byte."""
        known = self._sent.get(run_id, ())
        shared = min(len(known), len(messages))
        if known[:shared] != messages[:shared] and self._fault is None:
            self._fault = Violated(Fault.PREFIX_CHANGED, f"{run_id}: {known[:shared]!r} then {messages!r}")
        if len(messages) > len(known):
            self._sent[run_id] = messages

    @property
    def fault(self) -> AssertionError | None:
        """What came up inside a worker."""
        return self._fault or self._script.fault

    # ---- what it says --------------------------------------------------------------------------------------

    def _turn(self, asked: Asked) -> Turn:
        kind = pick(self._random, self._replies)
        if self.is_kind:
            kind = "end" if self._random.random() < 0.7 or not asked.allow_tools else "calls"
        self._marks.add(f"model_{kind}")
        usage = self._spent(asked)
        after_s = self._random.choice((0.0, 0.05, 0.5, 2.0, 6.0))
        match kind:
            case "silent":
                return Silence()
            case "cut" | "failed":
                heard = "half a wo" if kind == "cut" else ""
                known = usage if self._random.random() < 0.5 else None
                code = self._random.choice(
                    ("overloaded", "timeout", "connection", "rate_limited", "api_error")
                )
                wait_s = self._random.choice((None, 0.5, 20.0))
                return fails(code, usage=known, after=heard, after_s=after_s, retry_after_s=wait_s)
            case "permanent":
                return fails("invalid_request", is_retryable=False, usage=usage, after_s=after_s)
            case "odd_stop":
                stops = ("refusal", "new", "max_tokens", "pause_turn", "stop_sequence", "tool_use",
                         "model_context_window_exceeded")  # fmt: skip
                return says("so", stop_reason=self._random.choice(stops), usage=usage, after_s=after_s)
            case "odd_content":
                raw = self._random.choice(
                    (b"{", b"[]", b"null", b'[{"type":"text","text":""}]', b'[{"a":1}]')
                )
                return Reply((), self._random.choice(("end_turn", "tool_use")), usage, after_s, raw=raw)
            case "large":
                return says("x" * LARGE_CHARS, usage=usage)
            case "end":
                return says(self._random.choice(("done", " ")), "\n", usage=usage, after_s=after_s)
            case "slow":
                after_s = self._random.uniform(5.0, 20.0)
            case _:
                pass
        return self._calls(kind, usage, after_s)

    def _calls(self, kind: str, usage: Usage, after_s: float) -> Reply:
        if kind == "calls_in_vain":
            return Reply((Use("look", {"n": 0}), Use("send", {"n": 0})), "tool_use", usage, after_s)
        uses: list[str | Use | Mapping[str, Any]] = ["thinking"]
        for _ in range(self._random.choice((1, 1, 2, 3))):
            arguments: Any = {"n": self._random.randrange(1000)}
            call_id: str | None = None
            name = self._random.choice(TOOLS)
            if name == "helper":
                arguments = {"input": f"Help with {self._random.randrange(1000)}."}
            if kind == "odd_arguments":
                arguments = self._random.choice(({"n": "x"}, {}, "{", None, {"n": 1, "more": 2}))
                name = self._random.choice((name, "none such", "", "no_such"))
            if kind == "odd_ids":
                call_id = self._random.choice(("same", "", "a b", "x" * 70))
            uses.append(Use(name, arguments, call_id))
        return Reply(tuple(uses), "tool_use", usage, after_s)

    def _spent(self, asked: Asked) -> Usage:
        """What this answer costs: it is billed now, and told if somebody listens to the end."""
        output = self._random.randint(1, max(1, min(asked.max_tokens, 400)))
        whole = self._bill.usage.input_tokens
        cached = whole // 2 if self._random.random() < 0.5 else 0
        cost = (
            (whole - cached) * PRICE.input_nano_usd
            + cached * PRICE.cache_read_nano_usd
            + output * PRICE.output_nano_usd
        )
        usage = Usage(
            input_tokens=whole - cached, output_tokens=output, cache_read_tokens=cached, cost_nano_usd=cost
        )
        self._bill.usage = usage
        return usage
