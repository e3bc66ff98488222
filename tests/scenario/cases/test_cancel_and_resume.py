"""A run is ended in the middle and taken up again a day later."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from perdure import Agent, tool
from perdure.schemas.events import ToolCompleted
from perdure.schemas.values import ResultSource
from perdure.testing import ScriptedModel, Silence, TestBed, calls, use

DAY_S = 86_400


def agent_of(effect: Any, ran: Counter[str], **more: Any) -> Agent:
    @tool(effect=effect, **more)
    async def act(name: str) -> str:
        ran[name] += 1
        await asyncio.sleep(2)
        return f"{name} acted"

    return Agent("actor", model="m", tools=[act])


@pytest.mark.parametrize("effect", ["read_only", "idempotent_write", "non_idempotent"])
@pytest.mark.parametrize("message", [None, "go on"])
def test_calls_that_never_started_get_a_result_each_before_the_model_is_asked_again(
    effect: Any, message: str | None
) -> None:
    """Cancelled after the assistant message is persisted and before a tool starts: the resume is valid."""
    ran: Counter[str] = Counter()
    script = ScriptedModel([calls(use("act", name="a"), use("act", name="b")), "done"])
    with TestBed(agent_of(effect, ran), model=script) as bed:
        # given two calls that no executor has seen
        bed.crash("tool-executor")
        run = bed.submit("go")
        bed.settle()
        assert run.state == "awaiting_tool"
        # when the run is cancelled, and resumed a day later, with executors again
        run.cancel()
        bed.settle()
        assert run.state == "cancelled"
        bed.advance(DAY_S)
        bed.add("tool-executor")
        bed.settle()
        run.resume(message)
        bed.settle()
        # then nothing ran, each call has a result, and the model went on
        assert run.state == "completed"
        assert ran == {}
        assert [result.get("is_error") for result in run.results] == [True, True]
        assert {body.source for body in run.bodies(ToolCompleted)} == {ResultSource.SYNTHETIC}
        assert [each.state for each in run.outcomes] == ["cancelled", "completed"]
        assert bed.model.asked[-1].texts == ([] if message is None else [message])


@pytest.mark.parametrize("crashed", [None, "orchestrator", "tool-executor", "model-caller"])
@pytest.mark.parametrize(
    "moment",
    ["before the first answer", "before a claim", "while a tool runs", "while a person is asked"],
)
def test_a_run_cancelled_at_any_moment_resumes_with_a_valid_transcript(
    moment: str, crashed: str | None
) -> None:
    """Whenever the cancel lands, a resume leads to a request that the provider takes, and to an end."""
    ran: Counter[str] = Counter()
    needs_approval = moment == "while a person is asked"
    agent = agent_of("non_idempotent", ran, needs_approval=needs_approval)
    first = Silence() if moment == "before the first answer" else calls(use("act", name="a"))
    script = {1: first, 2: calls(use("act", name="b"))}
    with TestBed(agent, model=ScriptedModel(lambda asked: script.get(asked.number, "done"))) as bed:
        reached: dict[str, Callable[[], object]] = {
            "before the first answer": lambda: bed.model.asked,
            "before a claim": lambda: run.kinds.count("ToolDispatched"),
            "while a tool runs": lambda: ran["a"],
            "while a person is asked": lambda: run.pending,
        }
        run = bed.submit("go")
        bed.until(reached[moment])
        if crashed:
            bed.crash(crashed)
        run.cancel()
        if crashed:
            bed.add(crashed)
        bed.settle()
        assert run.state == "cancelled"
        bed.advance(60)
        run.resume("please")
        bed.settle()
        for _ in range(3):
            if run.pending:
                question = run.pending[0]
                verdict = "approve" if question.kind == "approval" else "give_up"
                run.decide(question.call_id, verdict)
                bed.settle()
        assert run.state == "completed"
        assert ran["a"] <= 1
        assert ran["b"] <= 1
        assert len(run.outcomes) == 2


@pytest.mark.parametrize("texts", [("",), (" \n",), ("", "fine")])
def test_blank_messages_to_a_run_are_refused_and_harm_nothing(texts: tuple[str, ...]) -> None:
    """A text without anything in it, which the provider would refuse for ever, never enters a transcript."""
    ran: Counter[str] = Counter()
    with TestBed(
        agent_of("read_only", ran), model=ScriptedModel([calls(use("act", name="a")), "done"])
    ) as bed:
        run = bed.submit("go")
        bed.until(lambda: ran["a"])
        for text in texts:
            run.signal(text)
        run.cancel()
        bed.settle()
        for text in texts:
            run.resume(text)
        bed.settle()
        if "fine" not in texts:
            assert run.state == "cancelled"
            run.resume()
            bed.settle()
        assert run.state == "completed"
        assert set(run.rejections) <= {"empty_message", "run_not_ended"}
