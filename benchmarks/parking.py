"""The workload of parked runs: a run asks for one call that a person has to approve, and waits for it."""

from __future__ import annotations

from typing import Final

import msgspec

from perdure import Agent, App, tool
from perdure.processors.abort import AbortSignal
from perdure.processors.ports import ModelInvocation, OnDelta
from perdure.schemas.results import ModelReplied
from perdure.schemas.values import Usage

AGENT: Final = "parking"
APP_PLACE: Final = "benchmarks.parking:app"
MODEL_PLACE: Final = "benchmarks.parking:AskingModel"
CALL: Final = "call_0"
INPUT_BYTES: Final = 150
ANSWER: Final = "The refund is on its way."


def input_of(run_id: str) -> str:
    """What a run is asked."""
    return f"run {run_id}: refund order 4711, please. ".ljust(INPUT_BYTES, "x")


class AskingModel:
    """A ModelPort that asks for the one call, and answers when it has the result. It takes no time."""

    async def invoke(
        self,
        call: ModelInvocation,
        abort: AbortSignal,  # noqa: ARG002 - it never takes long enough
        on_delta: OnDelta,  # noqa: ARG002 - nothing is streamed
    ) -> ModelReplied:
        is_first = len(call.messages) == 1
        refund = {"order": "4711", "amount": 1200}
        block = {"type": "tool_use", "id": CALL, "name": "refund", "input": refund}
        content = [block] if is_first else [{"type": "text", "text": ANSWER}]
        return ModelReplied(
            invocation_id=call.invocation_id,
            digest=call.digest,
            content=msgspec.json.encode(content),
            stop_reason="tool_use" if is_first else "end_turn",
            usage=Usage(input_tokens=100, output_tokens=50),
        )


@tool(effect="non_idempotent", needs_approval=True)
def refund(order: str, amount: int) -> str:
    """Pay an amount back."""
    return f"{amount} paid back for {order}"


app: Final = App([Agent(AGENT, model="scripted", system="You pay back.", tools=[refund])])
