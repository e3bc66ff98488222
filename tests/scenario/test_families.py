"""Child runs, forks and continued runs, on the model log."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from perdure import Agent, agent_tool, tool
from perdure.processors.machine.inputs import MachineSettings
from perdure.schemas.events import ChildEnded, ChildStarted, RunCreated, ToolCompleted
from perdure.schemas.values import Budget, RunState, Usage
from perdure.testing import Asked, Reply, ScriptedModel, TestBed, calls, says
from perdure.testing.script import use

CHILD = "boss~c.1.0"


@tool(effect="read_only")
def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


@tool(effect="non_idempotent", needs_approval=True)
def pay(n: int) -> str:
    """Pay."""
    return f"paid {n}"


WORKER = Agent("worker", model="m", tools=[look, pay])


def boss(**options: Any) -> Agent:
    return Agent(
        "boss", model="m", tools=[look], agents=[agent_tool("worker", description="Works.", **options)]
    )


def bed(model: Any, *agents: Agent, **options: Any) -> TestBed:
    return TestBed(list(agents or (boss(), WORKER)), model=ScriptedModel(model), **options)


def test_an_agent_is_called_as_a_tool_and_its_outcome_is_the_calls_result() -> None:
    """The child is a run of its own in the parent's partition; its output comes back as the one result."""

    def model(asked: Asked) -> Reply:
        if asked.run_id == CHILD:
            return calls(use("look", n=3)) if asked.turn == 1 else says("It is three.")
        return calls(use("worker", input="How many?")) if asked.turn == 1 else says("Three.")

    with bed(model) as it:
        run = it.submit("Go.", agent="boss", run_id="boss")
        it.settle()
        child = it.run(CHILD)
        assert run.output == "Three."
        assert child.output == "It is three."
        assert child.messages[0]["content"] == "How many?"
        assert [result["content"] for result in run.results] == ["It is three."]
        assert child.outcome is not None
        assert child.outcome.parent == "boss"
        used = [body.usage for body in run.bodies(ChildEnded)]
        assert used == [child.usage]
        assert run.outcome is not None
        assert run.usage.input_tokens > child.usage.input_tokens


def test_results_of_children_are_matched_by_call_id_although_they_end_in_reverse_order() -> None:
    """Two children and a plain tool in one turn: each result stands under its own call, in call order."""

    def model(asked: Asked) -> Reply:
        match asked.run_id:
            case "boss":
                if asked.turn > 1:
                    return says("done")
                return calls(use("worker", input="first"), use("look", n=1), use("worker", input="second"))
            case "boss~c.1.0":  # this one has more to do, so it ends last
                return calls(use("look", n=asked.turn)) if asked.turn < 4 else says("the first")
            case _:
                return says("the second")

    with bed(model) as it:
        run = it.submit("Go.", agent="boss", run_id="boss")
        it.settle()
        ended = [body.child_id for body in run.bodies(ChildEnded)]
        assert ended == ["boss~c.1.2", "boss~c.1.0"]
        assert [result["content"] for result in run.results] == ["the first", "seen 1", "the second"]
        assert run.output == "done"


@pytest.mark.parametrize("how", ["cancel", "deadline", "resume"])
def test_every_end_of_a_parent_cancels_its_children(how: str) -> None:
    """However the parent ends, its child ends in the same transaction, grandchildren included."""
    deep = Agent("worker", model="m", tools=[pay], agents=[agent_tool("deep", description="Deeper.")])
    deepest = Agent("deep", model="m", tools=[pay])

    def model(asked: Asked) -> Reply:
        match asked.run_id:
            case "boss":
                return calls(use("worker", input="a")) if asked.turn == 1 else says("after")
            case "boss~c.1.0":
                return calls(use("deep", input="b"))
            case _:
                return calls(use("pay", n=1))

    with bed(model, boss(), deep, deepest) as it:
        run = it.submit("Go.", agent="boss", run_id="boss", deadline_s=600 if how == "deadline" else None)
        it.settle()
        grandchild = it.run("boss~c.1.0~c.1.0")
        assert grandchild.state is RunState.AWAITING_APPROVAL
        if how == "deadline":
            it.advance(601)
        else:
            run.cancel()
        it.settle()
        states = [each.state for each in (run, it.run("boss~c.1.0"))]
        assert states == [RunState.CANCELLED, RunState.CANCELLED]
        assert len(grandchild.outcomes) == 1
        assert not grandchild.pending
        if how == "resume":
            run.resume("Go on.")
            it.settle()
            assert run.output == "after"
            assert run.results[0]["is_error"]


def test_a_cancelled_child_is_an_error_result_for_its_parent() -> None:
    """Somebody cancels the child: the parent goes on and is told so."""

    def model(asked: Asked) -> Reply:
        if asked.run_id == CHILD:
            return calls(use("pay", n=1))
        return calls(use("worker", input="Pay.")) if asked.turn == 1 else says("Not paid.")

    with bed(model) as it:
        run = it.submit("Go.", agent="boss", run_id="boss")
        it.settle()
        it.run(CHILD).cancel("no")
        it.settle()
        assert run.output == "Not paid."
        assert "cancelled" in run.results[0]["content"]


def test_a_resumed_child_answers_nobody() -> None:
    """The parent took the first outcome; another execution of the child changes nothing for it."""

    def model(asked: Asked) -> Reply:
        if asked.run_id == CHILD:
            return calls(use("pay", n=1)) if asked.turn == 1 else says("paid after all")
        return calls(use("worker", input="Pay.")) if asked.turn == 1 else says("Not paid.")

    with bed(model) as it:
        run = it.submit("Go.", agent="boss", run_id="boss")
        it.settle()
        child = it.run(CHILD)
        child.cancel("no")
        it.settle()
        child.resume()
        it.settle()
        assert child.output == "paid after all"
        assert len(run.outcomes) == 1
        assert len(run.bodies(ChildEnded)) == 1


def test_nesting_and_number_of_children_are_bounded() -> None:
    """Beyond its depth or count a call of an agent is an error result, and no run is begun."""
    endless = Agent("worker", model="m", agents=[agent_tool("worker", description="Again.")])

    def model(asked: Asked) -> Reply:
        if asked.turn > 1:
            return says("enough")
        return calls(use("worker", input="a"), use("worker", input="b"))

    with bed(model, endless, machine=MachineSettings(child_depth_max=2, children_max=1)) as it:
        run = it.submit("Go.", run_id="boss")
        it.settle()
        assert sorted(it.history.runs) == ["boss", "boss~c.1.0", "boss~c.1.0~c.1.0"]
        assert run.results[1]["is_error"]
        assert all(each.state is RunState.COMPLETED for each in it.history.runs.values())


def test_arguments_that_do_not_fit_begin_no_child() -> None:
    """The schema is checked before: the model is told what is wrong."""

    def model(asked: Asked) -> Reply:
        return calls(use("worker", text="?")) if asked.turn == 1 else says("sorry")

    with bed(model) as it:
        run = it.submit("Go.", agent="boss", run_id="boss")
        it.settle()
        assert run.results[0]["is_error"]
        assert "input" in run.results[0]["content"]
        assert list(it.history.runs) == ["boss"]


def test_a_budget_reaches_the_children_and_what_they_leave_is_free_again() -> None:
    """The parent's budget is shared out, never exceeded, and the rest of a child's share comes back."""

    def model(asked: Asked) -> Reply:
        if asked.run_id != "boss":
            return says("cheap", usage=Usage(100, 10))
        if asked.turn == 1:
            return calls(use("worker", input="a"), use("worker", input="b"), usage=Usage(100, 10))
        return says("done", usage=Usage(100, 10))

    with bed(model) as it:
        budget = Budget(input_tokens=20_000)
        run = it.submit("Go.", agent="boss", run_id="boss", budget=budget)
        it.settle()
        held = [body.budget for body in run.bodies(ChildStarted)]
        assert [each.input_tokens for each in held if each is not None] == [9_950, 9_950]
        assert run.output == "done"
        assert run.usage.input_tokens == 400


def test_a_child_that_would_breach_its_share_fails_and_the_parent_goes_on() -> None:
    """The child's own budget, declared with the tool, halts it; the parent hears of it."""

    def model(asked: Asked) -> Reply:
        if asked.run_id != "boss":
            return calls(use("look", n=asked.turn), usage=Usage(3_000, 10))
        return calls(use("worker", input="a")) if asked.turn == 1 else says("done")

    with bed(model, boss(budget=Budget(input_tokens=10_000)), WORKER) as it:
        run = it.submit("Go.", agent="boss", run_id="boss")
        it.settle()
        assert it.run(CHILD).code == "budget_exceeded"
        assert it.run(CHILD).usage.input_tokens <= 10_000
        assert "budget_exceeded" in run.results[0]["content"]
        assert run.output == "done"


def test_an_agent_that_nobody_published_keeps_its_parent_waiting_until_the_deadline() -> None:
    """The child waits for its agent, and says so; at the tool's time limit the parent goes on."""

    def model(asked: Asked) -> Reply:
        return calls(use("worker", input="a")) if asked.turn == 1 else says("done")

    with bed(model, boss(timeout_s=30.0)) as it:
        run = it.submit("Go.", run_id="boss")
        it.advance(5)
        assert it.client.status(CHILD).waiting_for == "agent worker"
        it.advance(40)
        it.settle()
        assert it.run(CHILD).code == "deadline"
        assert run.output == "done"


def test_children_need_no_slot_of_their_own() -> None:
    """With one slot in all, a parent and its child both come to their end: nobody waits for the other's."""

    def model(asked: Asked) -> Reply:
        if asked.run_id.endswith("~c.1.0"):
            return says("child")
        return calls(use("worker", input="a")) if asked.turn == 1 else says("done")

    with bed(model, partitions=1, running_runs_max=1) as it:
        runs = [it.submit("Go.", agent="boss", run_id=f"boss{n}") for n in range(3)]
        it.settle()
        assert [run.output for run in runs] == ["done"] * 3


def test_a_fork_goes_on_from_a_turn_without_repeating_a_call() -> None:
    """History is shared up to the turn, the fork's own follows; the source's tools are not called again."""
    made: list[int] = []

    @tool(effect="non_idempotent")
    def count(n: int) -> str:
        """Count."""
        made.append(n)
        return f"counted {n}"

    def model(asked: Asked) -> Reply:
        if "~" in asked.run_id:
            return says("the fork's end")
        return calls(use("count", n=asked.turn)) if asked.turn < 4 else says("the end")

    with bed(model, Agent("a", model="m", tools=[count])) as it:
        run = it.submit("Go.", run_id="r")
        it.settle()
        assert made == [1, 2, 3]
        fork = run.fork(2, "What if?", fork_id="x")
        it.settle()
        assert fork.run_id == "r~x"
        assert made == [1, 2, 3]
        assert fork.output == "the fork's end"
        assert run.output == "the end"
        assert fork.messages[:4] == run.messages[:4]
        told = fork.messages[4]["content"]
        assert [block["type"] for block in told] == ["tool_result", "text"]
        assert told[0] == run.messages[4]["content"][0]
        assert told[1]["text"] == "What if?"
        assert fork.outcome is not None
        assert fork.outcome.source == "r"
        assert fork.usage.input_tokens < run.usage.input_tokens


def test_a_completed_run_is_continued_by_a_fork_at_its_end() -> None:
    """Even much later, after crashes and with every store lost, the fork knows all of the source."""
    with bed(lambda asked: says(f"answer {asked.run_id} {len(asked.messages)}"), Agent("a", model="m")) as it:
        run = it.submit("Go.", run_id="r")
        it.settle()
        fork = run.fork(message="And then?", fork_id="1")
        it.restart("orchestrator", keeps_disk=False)
        it.restart("model-caller")
        it.settle()
        again = fork.fork(message="And then again?", fork_id="1")
        it.settle()
        assert fork.output == "answer r~1 3"
        assert again.output == "answer r~1~1 5"
        assert again.messages[:2] == run.messages


def test_a_fork_of_a_fork_at_a_turn_they_share_begins_at_the_root() -> None:
    """The turn asked for may lie in the part that the fork itself has from its source."""

    def model(asked: Asked) -> Reply:
        last = 3 if "~" not in asked.run_id else 4
        return calls(use("look", n=asked.turn)) if asked.turn < last else says(f"end {asked.run_id}")

    with bed(model, WORKER) as it:
        root = it.submit("Go.", run_id="r")
        it.settle()
        first = root.fork(2, fork_id="a")
        it.settle()
        second = first.fork(1, "Otherwise.", fork_id="b")
        it.settle()
        assert second.output == "end r~a~b"
        assert second.messages[:2] == root.messages[:2]
        assert second.messages[2]["content"][-1]["text"] == "Otherwise."


@pytest.mark.parametrize(
    ("run_id", "turn", "message", "code"),
    [
        ("r~a", 9, "x", "no_such_turn"),
        ("r~a", None, None, "message_needed"),
        ("r~a", 1, " ", "empty_message"),
        ("r~c.1.0", 1, "x", "invalid_run_id"),
        ("q~a", 1, "x", "unknown_source"),
        ("p~a", None, "x", "turn_not_finished"),
    ],
)
def test_forks_that_can_not_be_are_refused(
    run_id: str, turn: int | None, message: str | None, code: str
) -> None:
    """Each has its own reason, in a dead letter, since there is no run that could answer."""

    def model(asked: Asked) -> Reply:
        if asked.run_id == "p":
            return calls(use("pay", n=1))
        return calls(use("look", n=asked.turn)) if asked.turn < 2 else says("end")

    with bed(model, WORKER) as it:
        it.submit("Go.", run_id="r")
        it.submit("Go.", run_id="p")
        it.settle()
        source, _, suffix = run_id.rpartition("~")
        it.client.fork(source, turn=turn, message=message, fork_id=suffix)
        it.settle()
        assert [letter.code for letter in it.dead_letters] == [code]


def test_asking_for_the_same_fork_again_changes_nothing() -> None:
    """A client that is not sure may send it again; another fork under the same id is refused."""
    with bed(lambda asked: says("end"), WORKER) as it:
        run = it.submit("Go.", run_id="r")
        it.settle()
        fork = run.fork(message="x", fork_id="a")
        it.settle()
        run.fork(message="x", fork_id="a")
        it.settle()
        assert fork.rejections == []
        run.fork(message="y", fork_id="a")
        it.settle()
        assert fork.rejections == ["run_exists"]
        assert len(fork.bodies(RunCreated)) == 1


def test_a_fork_of_a_running_run_leaves_it_alone() -> None:
    """The source waits for a person; its fork at an earlier turn goes its own way."""

    def model(asked: Asked) -> Reply:
        if "~" in asked.run_id:
            return says("fork")
        return calls(use("look", n=1)) if asked.turn == 1 else calls(use("pay", n=1))

    with bed(model, WORKER) as it:
        run = it.submit("Go.", run_id="r")
        it.settle()
        fork = run.fork(1, fork_id="a")
        it.settle()
        assert fork.output == "fork"
        assert run.state is RunState.AWAITING_APPROVAL
        assert json.dumps(fork.messages[2]) == json.dumps(run.messages[2])


@pytest.mark.parametrize("seed", range(12))
def test_crashes_between_any_steps_leave_families_whole(seed: int) -> None:
    """Workers die again and again, disks are lost: each child has one outcome and its parent one result."""

    def model(asked: Asked) -> Reply:
        if asked.run_id != "boss":
            return calls(use("look", n=asked.turn)) if asked.turn < 3 else says(f"child {asked.run_id}")
        if asked.turn < 3:
            return calls(use("worker", input="a"), use("worker", input="b"))
        return says("done")

    random = Random(seed)
    with bed(model, seed=seed) as it:
        run = it.submit("Go.", agent="boss", run_id="boss")
        for _ in range(8):
            it.advance(random.random() * 0.4)
            role = random.choice(["orchestrator", "orchestrator", "model-caller", "tool-executor"])
            it.restart(role, keeps_disk=random.random() < 0.5)
        it.settle()
        assert run.output == "done"
        children = [name for name in it.history.runs if name != "boss"]
        assert len(children) == 4
        assert all(len(it.run(name).outcomes) == 1 for name in children)
        assert [body.source for body in run.bodies(ToolCompleted)] == ["executed"] * 4


def test_a_run_is_purged_only_after_its_forks() -> None:
    """The source's time has come long ago, but its fork reads its messages; without the fork it goes too."""
    kept = MachineSettings(finished_runs_retention_ms=3_600_000)
    with bed(lambda asked: says("end"), WORKER, machine=kept) as it:
        run = it.submit("Go.", run_id="r")
        it.settle()
        it.advance(3_000)
        fork = run.fork(message="x", fork_id="a")
        it.settle()
        it.advance(3_000)
        assert "RunPurged" not in run.kinds
        late = fork.fork(message="y", fork_id="b")
        it.settle()
        assert late.messages[0] == run.messages[0]
        it.advance(20_000)
        assert [each.kinds[-1] for each in (run, fork, late)] == ["RunPurged"] * 3
