"""Random lives: everything that may go wrong, in any order. One seed is one life."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest

from perdure import Agent, ContentBlocks, ToolContext, ToolError, tool
from perdure.schemas.events import DecisionRecorded, ToolCompleted
from perdure.schemas.values import Budget, Verdict
from perdure.testing import Asked, Failure, Reply, ScriptedModel, TestBed, TestRun, calls, fails, says
from perdure.testing.script import Use
from perdure.topics.model_faults import Api, Fate

ROLES = ("orchestrator", "model-caller", "tool-executor")
RUNS = 4
REQUESTS = (
    (Api.END_TXN, "orchestrator.0"),
    (Api.TXN_OFFSETS, "orchestrator.0"),
    (Api.INIT, "orchestrator.0"),
    (Api.PRODUCE, "tool-executor.0.results"),
    (Api.PRODUCE, "model-caller.0.results"),
    (Api.OFFSET_COMMIT, "tool-executor.0.requests"),
    (Api.OFFSET_COMMIT, "model-caller.0.requests"),
    (Api.OFFSET_FETCH, "tool-executor.0.requests"),
)
"""Requests to the broker that may be lost, held, unanswered or sent twice."""
DISTURBANCES = 25


class Life:
    """One seed's world: what the tools did, what the model says, what befalls the workers."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.done: Counter[str] = Counter()
        self.bed = TestBed(self.agent(), model=ScriptedModel(self.answer), seed=seed)

    def agent(self) -> Agent:
        @tool(effect="read_only", attempts_max=2)
        async def look(n: int = 0) -> Any:
            return await self.outcome(f"look {n}")

        @tool(effect="non_idempotent")
        async def send(context: ToolContext, n: int = 0) -> Any:
            self.done[context.idempotency_key] += 1
            return await self.outcome(f"sent {n}")

        @tool(effect="non_idempotent", needs_approval=True)
        async def pay(context: ToolContext, n: int = 0) -> Any:
            self.done[context.idempotency_key] += 1
            return await self.outcome(f"paid {n}")

        return Agent("any", model="m", tools=[look, send, pay], max_turns=6)

    async def outcome(self, text: str) -> Any:
        if self.random.random() < 0.5:
            await asyncio.sleep(self.random.choice([0.01, 1, 5]))
        match self.random.randrange(9):
            case 0:
                raise ConnectionResetError(text)
            case 1:
                return ToolError("")
            case 2:
                return ContentBlocks([{"type": "text", "text": ""}, {"type": "text", "text": text}])
            case 3:
                return "\ud800\0 "
            case 4:
                self.bed.crash("tool-executor")
                await asyncio.sleep(1)
                return "never"
            case _:
                return text

    def answer(self, asked: Asked) -> Reply | Failure:
        match self.random.randrange(10):
            case 0:
                return fails(self.random.choice(["overloaded", "timeout"]), after="half")
            case 1:
                return says(
                    "", stop_reason=self.random.choice(["refusal", "new", "max_tokens", "pause_turn"])
                )
            case 2 | 3:
                return says(" ", "done")
            case _:
                return calls("\n", *(self.use() for _ in range(self.random.randrange(1, 4))))

    def use(self) -> Use:
        name = self.random.choice(["look", "send", "send", "pay", "none such", ""])
        arguments: Any = self.random.choice([{"n": self.random.randrange(50)}, {"n": "x"}, {}, "{", None])
        return Use(name, arguments, self.random.choice([None, None, "same", "", "a b"]))

    def disturb(self, runs: list[TestRun]) -> None:
        run = self.random.choice(runs)
        role = self.random.choice(ROLES)
        match self.random.randrange(11):
            case 8:
                self.pause(role)
            case 9:
                self.bed.add(role)
            case 10:
                api, who = self.random.choice(REQUESTS)
                self.bed.cluster.faults.inject(api, f"testbed.{who}", self.random.choice([*Fate]))
            case 0 | 1:
                self.bed.restart(role, keeps_disk=self.random.random() < 0.5)
            case 2:
                self.bed.crash(role)
            case 3:
                run.cancel()
            case 4:
                run.resume(self.random.choice([None, "go on", " "]), extra_turns=1)
            case 5:
                run.signal(self.random.choice(["listen", ""]))
            case _:
                self.decide(run)
        self.bed.advance(self.random.choice([0.05, 0.5, 3, 30]))

    def pause(self, role: str) -> None:
        """SIGSTOP for a moment, or for longer than the group waits."""
        stopped = [worker for worker in self.bed.workers if worker.role.value == role and worker.is_alive]
        for worker in stopped:
            worker.pause()
        self.bed.advance(self.random.choice([0.5, 8, 20]))
        for worker in stopped:
            if worker.is_alive:
                worker.go_on()

    def decide(self, run: TestRun) -> None:
        for question in run.pending:
            verdict = self.random.choice(question.verdicts)
            run.decide(question.call_id, verdict, result="decided")

    def heal(self, runs: list[TestRun]) -> None:
        self.bed.cluster.faults.clear()
        self.bed.cluster.faults.release()
        for role in ROLES:
            self.bed.restart(role)
        for _ in range(40):
            self.bed.settle()
            for role in ROLES:  # a tool may have taken its worker with it
                if not any(worker.role.value == role and worker.is_alive for worker in self.bed.workers):
                    self.bed.add(role)
            waiting = [run for run in runs if run.pending]
            if not waiting and all(run.outcome is not None for run in runs):
                return
            for run in waiting:
                self.decide(run)


@pytest.mark.parametrize("seed", range(12))
def test_a_random_life_ends_and_does_nothing_twice(seed: int) -> None:
    """Whatever befalls runs and workers, transcripts stay valid, calls have one result, and runs end."""
    life = Life(seed)
    with life.bed as bed:
        runs = [bed.submit(f"run {n}", budget=Budget(output_tokens=50_000)) for n in range(RUNS)]
        for _ in range(DISTURBANCES):
            life.disturb(runs)
        life.heal(runs)
        for run in runs:
            assert run.outcome is not None, run
            assert max(Counter(body.call_id for body in run.bodies(ToolCompleted)).values(), default=1) == 1
        dispatched = Counter(each.idempotency_key for run in runs for each in run.tool_requests)
        assert all(count <= dispatched[key] for key, count in life.done.items())
        allowed = licensed_again(runs)
        assert {key for key, count in life.done.items() if count > 1} <= allowed
        assert bed.dead_letters == []


def licensed_again(runs: list[TestRun]) -> set[str]:
    """Keys of calls that a person, and nobody else, let be made again."""
    found: set[str] = set()
    for run in runs:
        decisions = run.bodies(DecisionRecorded)
        said = {each.call_id for each in decisions if each.verdict is Verdict.DID_NOT_RUN}
        found |= {request.idempotency_key for request in run.tool_requests if request.call_id in said}
    return found
