"""Arguments that a tool must not be called with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from perdure import Agent, tool
from perdure.schemas.events import ToolCallRequested
from perdure.testing import ScriptedModel, TestBed, calls
from perdure.testing.script import Use

CALLED: list[Mapping[str, Any]] = []
SCHEMA = {
    "type": "object",
    "properties": {"to": {"type": "string", "minLength": 1}, "amount": {"type": "integer", "minimum": 1}},
    "required": ["to", "amount"],
    "additionalProperties": False,
}


@tool(effect="non_idempotent", schema=SCHEMA)
def pay(**arguments: Any) -> str:
    """Pay."""
    CALLED.append(arguments)
    return "paid"


@tool(effect="read_only", schema={"type": "object"})
def anything(**arguments: Any) -> str:
    """Take anything."""
    CALLED.append(arguments)
    return "taken"


AGENT = Agent("payer", model="m", tools=[pay, anything])


@pytest.fixture(autouse=True)
def fresh() -> None:
    CALLED.clear()


@pytest.mark.parametrize(
    "wrong", ["[]", [], "text", 7, None, True, [{"to": "Ada"}], '{"to": "Ada"}'], ids=repr
)
@pytest.mark.parametrize("name", ["pay", "anything"])
def test_input_that_is_no_object_is_never_taken_for_an_empty_one(wrong: Any, name: str) -> None:
    """The tool is not called, not even with {}, and the model is told what was wrong."""
    with TestBed(AGENT, model=ScriptedModel([calls(Use(name, wrong)), "done"])) as bed:
        run = bed.submit("go")
        bed.settle()
        assert run.state == "completed"
        assert list(CALLED) == []
        [result] = run.results
        assert result["is_error"]
        assert "not a JSON object" in result["content"]


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"to": "Ada"},
        {"to": "", "amount": 1},
        {"to": "Ada", "amount": 0},
        {"to": "Ada", "amount": "1"},
        {"to": "Ada", "amount": 1.5},
        {"to": "Ada", "amount": None},
        {"to": "Ada", "amount": 1, "note": "x"},
        {"to": ["Ada"], "amount": 1},
    ],
    ids=repr,
)
def test_arguments_outside_the_schema_are_refused_with_the_fault_named(wrong: dict[str, Any]) -> None:
    """Non-idempotent or not, nothing runs; the next turn can mend it and is executed."""
    right = {"to": "Ada", "amount": 1}
    with TestBed(
        AGENT, model=ScriptedModel([calls(Use("pay", wrong)), calls(Use("pay", right)), "done"])
    ) as bed:
        run = bed.submit("go")
        bed.settle()
        assert run.state == "completed"
        assert list(CALLED) == [right]
        refused, paid = run.results
        assert refused["is_error"]
        assert "invalid" in refused["content"]
        assert paid["content"] == "paid"


@pytest.mark.parametrize(
    "value", [2**53 + 1, 10**400, 1e308, -0.0, 1e-300, "x" * 100_000, ["a"] * 5_000], ids=type
)
def test_unusual_values_reach_the_tool_as_the_model_sent_them(value: Any) -> None:
    """Large integers, long texts: the stored message, the arguments and what the tool sees agree."""
    with TestBed(AGENT, model=ScriptedModel([calls(Use("anything", {"value": value})), "done"])) as bed:
        run = bed.submit("go")
        bed.settle()
        assert run.state == "completed"
        assert list(CALLED) == [{"value": value}]
        assert run.messages[1]["content"][0]["input"] == {"value": value}


@pytest.mark.parametrize(("depth", "is_executed"), [(100, True), (150, False), (200, False)])
def test_arguments_nested_too_deeply_are_refused_without_wedging_the_run(
    depth: int, is_executed: bool
) -> None:
    """Depth has a bound wherever JSON comes in; nothing beyond it is stored, and the run can go on."""
    deep: Any = "x"
    for _ in range(depth):
        deep = [deep]
    with TestBed(AGENT, model=ScriptedModel([calls(Use("anything", {"value": deep})), "done"])) as bed:
        run = bed.submit("go")
        bed.settle()
        if run.state == "failed":
            assert run.code == "output_unusable"
            run.resume()
            bed.settle()
        assert run.output == "done"
        assert len(CALLED) == len(run.bodies(ToolCallRequested)) == is_executed
