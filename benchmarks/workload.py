"""The workload: an agent whose model and tools take no time, so that what is measured is the engine alone.

A run of T turns: in every turn but the last the model asks for two calls of ``lookup`` (arguments of about
80 bytes, a result of 500 bytes each), in the last it answers with 1,024 bytes. With T = 5 that is 13 durable
steps: 5 model calls and 8 tool calls, two of them in parallel a turn.
"""

from __future__ import annotations

from typing import Final

import msgspec

from perdure import Agent, App, tool
from perdure.processors.abort import AbortSignal
from perdure.processors.ports import ModelInvocation, OnDelta
from perdure.schemas.results import ModelReplied
from perdure.schemas.values import Effect, Usage

TURNS: Final = 5
CALLS_PER_TURN: Final = 2
ANSWER_BYTES: Final = 1024
RESULT_BYTES: Final = 500
_QUERY_BYTES_IN_RESULT: Final = 20

ANSWER: Final = ("final answer text. " * 60)[:ANSWER_BYTES]
_RESULT: Final = ("tool result payload; " * 30)[: RESULT_BYTES - _QUERY_BYTES_IN_RESULT]
AGENT: Final = "benchmark"
MODEL_PLACE: Final = "benchmarks.workload:ScriptedModel"
SAYING: Final = "I will call two tools now."


def tool_calls(turns: int = TURNS) -> int:
    """Tool calls of a run."""
    return CALLS_PER_TURN * (turns - 1)


def steps(turns: int = TURNS) -> int:
    """Durable steps of a run: its model calls and its tool calls."""
    return turns + tool_calls(turns)


def input_of(run_id: str) -> str:
    """What a run is asked."""
    return f"run {run_id}: please do the task, " + "x" * 100


def reply(turn: int, turns: int = TURNS) -> tuple[bytes, str]:
    """(content blocks as JSON, stop reason) of the model's answer in ``turn``, counted from 0."""
    if turn >= turns - 1:
        return msgspec.json.encode([{"type": "text", "text": ANSWER}]), "end_turn"
    calls = [
        {
            "type": "tool_use",
            "id": f"call_{turn}_{number}",
            "name": "lookup",
            "input": {"query": f"some query string for turn {turn} and tool {number}", "limit": 10},
        }
        for number in range(CALLS_PER_TURN)
    ]
    return msgspec.json.encode([{"type": "text", "text": SAYING}, *calls]), "tool_use"


class ScriptedModel:
    """A :class:`~perdure.processors.ports.ModelPort` that answers at once, without streaming anything.

    The turn is read off the transcript: a user message, then an assistant's and a user's for each turn.
    """

    async def invoke(
        self,
        call: ModelInvocation,
        abort: AbortSignal,  # noqa: ARG002 - it never takes long enough
        on_delta: OnDelta,  # noqa: ARG002 - nothing is streamed
    ) -> ModelReplied:
        content, stop_reason = reply(len(call.messages) // 2)
        return ModelReplied(
            invocation_id=call.invocation_id,
            digest=call.digest,
            content=content,
            stop_reason=stop_reason,
            usage=Usage(input_tokens=100, output_tokens=50),
        )


def look_up(query: str, limit: int) -> str:  # noqa: ARG001 - the model gives it
    """Look something up."""
    return _RESULT + query[-_QUERY_BYTES_IN_RESULT:]


def agent_of(effect: Effect) -> Agent:
    """The agent, its tool declared with ``effect``: a non_idempotent one pays for its claim."""
    lookup = tool(effect=effect, name="lookup")(look_up)
    return Agent(AGENT, model="scripted", system="You do tasks.", tools=[lookup])


# What ``--app`` names: one object for each effect.
read_only: Final = App([agent_of(Effect.READ_ONLY)])
idempotent_write: Final = App([agent_of(Effect.IDEMPOTENT_WRITE)])
non_idempotent: Final = App([agent_of(Effect.NON_IDEMPOTENT)])


def app_place(effect: Effect) -> str:
    """Where a worker finds the agent (module:object)."""
    return f"benchmarks.workload:{effect.value}"
