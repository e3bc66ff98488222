"""Agents called as tools: their runs, limits, budgets, and what comes back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from perdure.processors.machine.children import held_for_children
from perdure.processors.machine.inputs import ChildEndedInput, ChildInput, MachineSettings, Tell
from perdure.processors.machine.schedule import holds_slot
from perdure.schemas.commands import Cancel, Resume
from perdure.schemas.values import Budget, Parent, Provenance, RunState, Usage
from tests.unit.machine.conftest import Driver, agent, use
from tests.unit.machine.families import Family, helper, parent_agent


def asked(family: Family, **arguments: Any) -> Any:
    """The root asks its helper; the child that came of it."""
    family.submit()
    family.root.reply(use("helper", "t10", **arguments))
    return family.child()


def result(family: Family) -> dict[str, Any]:
    """The result of the call that was the child's, as the model was told."""
    block: dict[str, Any] = family.root.last_message()["content"][0]
    return block


def test_a_call_of_an_agent_is_a_run_and_its_output_is_the_result() -> None:
    """The child begins in the same answer, is asked what the call says, and its text comes back."""
    family = Family()
    child = asked(family, input="how many?")
    assert family.root.kinds[-1] == "ChildStarted"
    assert family.root.run.state is RunState.AWAITING_TOOL
    assert child.run.parent == Parent("run-1", 0, 1, "t10", 1)
    assert json.loads(child.messages[0])["content"] == "how many?"
    child.say("three")
    assert result(family)["content"] == "three"
    assert "is_error" not in result(family)
    assert family.root.run.children == ()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"input": "plain"}, "plain"),
        ({"input": " "}, '{"input":" "}'),
        ({"input": 7}, '{"input":7}'),
        ({"n": 1, "input": "x"}, '{"input":"x","n":1}'),
        ({}, "{}"),
    ],
)
def test_a_child_is_asked_a_text_or_the_arguments(arguments: dict[str, Any], told: str) -> None:
    """An argument named input, alone and a text, is the question; anything else is put as JSON."""
    assert json.loads(asked(Family(), **arguments).messages[0])["content"] == told


def test_an_output_that_is_no_text_comes_back_as_its_json() -> None:
    """Structured output of a child is told as canonical JSON."""
    family = Family(parent_agent(output_schema={"type": "object"}))
    asked(family).say('{"b":1,"a":2}')
    assert result(family)["content"] == '{"a":2,"b":1}'


@pytest.mark.parametrize(("how", "told"), [("fail", "failed (refusal: "), ("cancel", "cancelled (enough)")])
def test_any_other_end_of_a_child_is_an_error_result(how: str, told: str) -> None:
    """The parent goes on and is told how the child ended, with its reason."""
    family = Family()
    child = asked(family)
    child.reply(stop_reason="refusal") if how == "fail" else child.command(Cancel("enough"))
    assert told in result(family)["content"]
    assert result(family)["is_error"] is True


def test_what_a_child_used_is_its_parents_use_too() -> None:
    """The usage of a child is added once, with its end."""
    family = Family()
    child = asked(family)
    before = family.root.run.usage
    child.say("x", usage=Usage(70, 7))
    assert family.root.run.usage == before + Usage(70, 7)


def test_arguments_that_do_not_fit_start_nothing() -> None:
    """The tool's schema is checked before a run is begun; the model is told what is wrong."""
    schema = {"type": "object", "required": ["n"]}
    family = Family(parent_agent(helper(schema)))
    family.submit()
    family.root.reply(use("helper", "t10", m=1))
    assert list(family.drivers) == ["run-1"]
    assert "'n' is a required property" in result(family)["content"]


def test_a_schema_that_can_not_be_applied_starts_nothing() -> None:
    """A definition that slipped through with an unresolvable reference is an error result, not a crash."""
    family = Family(parent_agent(helper({"type": "object", "$ref": "#/$defs/none"})))
    family.submit()
    family.root.reply(use("helper", "t10"))
    assert list(family.drivers) == ["run-1"]
    assert result(family)["is_error"] is True


def test_depth_is_limited_at_the_limit_and_not_before() -> None:
    """child_depth_max generations below a run without a parent, no more."""
    family = Family(settings=MachineSettings(child_depth_max=2))
    child = asked(family)
    child.reply(use("helper", "t10"))
    grandchild = family.drivers["run-1~c.1.0~c.1.0"]
    assert grandchild.run.parent is not None
    assert grandchild.run.parent.depth == 2
    grandchild.reply(use("helper", "t10"))
    assert "nested 2 deep" in grandchild.last_message()["content"][0]["content"]
    assert len(family.drivers) == 3


def test_the_number_of_children_is_limited_at_the_limit_and_not_before() -> None:
    """children_max counts all that a run ever started, ended ones too."""
    family = Family(settings=MachineSettings(children_max=2))
    asked(family).say("x")
    family.root.reply(use("helper", "t20"), use("helper", "t21"))
    assert family.root.run.children_count == 2
    assert "may start 2 others" in json.loads(family.root.run.call("t21").content)
    assert family.root.run.state is RunState.AWAITING_TOOL


def test_a_child_has_to_end_within_its_tools_time_and_its_parents_deadline() -> None:
    """The deadline of a child is the nearer of the two."""
    family = Family()
    now_ms = family.root.now_ms
    assert asked(family).run.deadline_ms == now_ms + 60_000
    near = Family()
    near.submit(deadline_ms=now_ms + 5_000)
    near.root.reply(use("helper", "t10"))
    assert near.child().run.deadline_ms == now_ms + 5_000


def test_a_budget_is_shared_out_among_the_calls_that_may_start_a_child() -> None:
    """Each child of a turn gets an equal part of what is left; what it leaves is free again."""
    family = Family()
    family.submit(Budget(input_tokens=20_000, output_tokens=9_000))
    family.root.reply(use("helper", "t10"), use("look", "t11"), use("helper", "t12"), usage=Usage(100, 50))
    budgets = [child.budget for child in family.root.run.children]
    assert budgets == [Budget(9_950, 4_475), Budget(9_950, 4_475)]
    assert held_for_children(family.root.run, "input_tokens") == 19_900
    assert held_for_children(family.root.run, "cost_nano_usd") == 0
    family.child("1.0").say("x", usage=Usage(1_000, 10))
    assert held_for_children(family.root.run, "input_tokens") == 9_950
    assert family.root.run.usage == Usage(1_100, 60)


def test_a_call_that_waits_for_a_person_keeps_its_share() -> None:
    """A child that needs approval is started later; its part of the budget is not given to others."""
    family = Family(parent_agent(helper(), replace(helper(needs_approval=True), name="guarded")))
    family.submit(Budget(input_tokens=20_100))
    family.root.reply(use("guarded", "t10"), use("helper", "t11"), usage=Usage(100, 0))
    assert [child.budget for child in family.root.run.children] == [Budget(10_000)]


def test_the_tools_own_budget_narrows_the_share() -> None:
    """The tighter of the two holds, kind by kind."""
    family = Family(parent_agent(helper(budget=Budget(input_tokens=5_000))))
    family.submit(Budget(input_tokens=20_000, output_tokens=9_000))
    family.root.reply(use("helper", "t10"), usage=Usage(0, 0))
    assert family.child().run.budget == Budget(5_000, 9_000)


def test_a_parent_without_a_budget_holds_nothing() -> None:
    """No bound above, none below, unless the tool has one."""
    assert asked(Family()).run.budget is None


@pytest.mark.parametrize("end", [Cancel("enough"), None])
def test_every_end_of_a_parent_cancels_its_children(end: Cancel | None) -> None:
    """Cancelled or past its deadline: the child is cancelled with it, and its end is kept, not acted upon."""
    family = Family()
    family.submit(deadline_ms=family.root.now_ms + 5_000)
    family.root.reply(use("helper", "t10"), use("look", "t11"))
    if end is None:
        family.wait_until_ms(family.root.now_ms + 5_000)
        family.root.timer()
    else:
        family.root.command(end)
    assert family.root.run.state is RunState.CANCELLED
    assert family.child().run.state is RunState.CANCELLED
    assert family.child().run.closed.code == "parent_ended"
    assert family.root.run.children == ()
    assert b"parent_ended" in family.root.run.call("t10").late_content
    family.root.command(Resume())
    assert "parent_ended" in result(family)["content"]


def test_a_parent_that_ended_before_has_nothing_to_cancel() -> None:
    """The end of a child that has ended is not cancelled again."""
    family = Family()
    child = asked(family)
    child.say("x")
    before = child.run
    family.root.command(Cancel("enough"))
    assert child.run == before


def test_a_resumed_child_answers_nobody() -> None:
    """A parent takes the end of the first execution only."""
    family = Family()
    child = asked(family)
    child.command(Cancel("enough"))
    before = family.root.run
    child.command(Resume("go on"))
    child.say("after all")
    assert child.run.state is RunState.COMPLETED
    assert family.root.run == before


def test_an_end_that_the_parent_no_longer_waits_for_changes_nothing(running: Any) -> None:
    """A child that was given up, or was never this run's, is not heard."""
    running.feed(ChildEndedInput("run-1", "t10", "who", 0, RunState.COMPLETED, Usage(), b'"x"', False))
    assert running.last.events == ()


def test_a_child_of_which_nothing_is_heard_is_given_up_at_the_cost_of_its_budget() -> None:
    """Its deadline long past, the call is an error result, and what was held for it is charged."""
    family = Family()
    family.submit(Budget(input_tokens=20_000))
    family.root.tell = None  # its history is damaged: nothing reaches it, and nothing comes back
    family.root.reply(use("helper", "t10"), usage=Usage(0, 0))
    deadline_ms = family.root.run.children[0].deadline_ms
    family.root.timer()
    assert family.root.now_ms == deadline_ms + 60_000
    assert family.root.kinds[:2] == ["ChildEnded", "ToolCompleted"]
    assert family.root.run.usage.input_tokens == 20_000
    assert family.root.run.closed.code == "budget_exceeded"


def test_a_child_without_a_budget_is_given_up_at_no_cost() -> None:
    """Nothing was held, so nothing is charged."""
    family = Family()
    family.submit()
    family.root.tell = None
    family.root.reply(use("helper", "t10"), usage=Usage(0, 0))
    family.root.timer()
    assert family.root.run.usage == Usage()
    assert family.root.kinds == ["ChildEnded", "ToolCompleted", "TurnStarted"]
    assert "not known" in result(family)["content"]


def test_a_child_that_can_not_begin_is_an_error_result() -> None:
    """There is a run of its id, or its budget in money has no price: the parent is told which."""
    family = Family(parent_agent(helper(budget=Budget(cost_nano_usd=10))))
    family.submit()
    family.root.reply(use("helper", "t10"))
    assert "price_unknown" in result(family)["content"]
    driver = Driver()
    driver.submit()
    given = ChildInput("run-1", Parent("p", 0, 1, "c", 1), "a", None, b'"x"', 9, None, Provenance())
    driver.feed(given)
    (told,) = driver.last.outputs
    assert isinstance(told, Tell)
    assert isinstance(told.input, ChildEndedInput)
    assert (told.input.run_id, told.input.call_id, told.input.is_error) == ("p", "c", True)
    assert b"run_exists" in told.input.content


def test_a_child_holds_no_slot_and_needs_none() -> None:
    """It runs in its parent's: with no slot free it starts all the same."""
    family = Family()
    family.submit()
    driver = family.root
    driver.reply(use("helper", "t10"))
    assert holds_slot(driver.run)
    assert not holds_slot(family.child().run)
    alone = Driver(agent())
    alone.may_start = False
    alone.feed(
        ChildInput("run-1", Parent("p", 0, 1, "c", 1), "a", None, b'"x"', 2_000_000, None, Provenance())
    )
    assert alone.run.state is RunState.RUNNING


def test_a_resumed_child_with_a_budget_needs_a_new_one() -> None:
    """What was held for it went back to its parent when it ended."""
    family = Family()
    family.submit(Budget(input_tokens=20_000))
    family.root.reply(use("helper", "t10"), usage=Usage(0, 0))
    child = family.child()
    child.command(Cancel("enough"))
    child.command(Resume())
    assert child.rejections == ["budget_returned"]
    child.command(Resume(budget=Budget(input_tokens=9_000)))
    assert child.run.state is RunState.RUNNING
