"""Tool call ids that a provider should not send."""

from __future__ import annotations

import pytest

from perdure import Agent, tool
from perdure.schemas.events import ToolCallRequested
from perdure.testing import ScriptedModel, TestBed, calls, use
from perdure.topics.table import RUN_RESULTS


@tool(effect="read_only")
def echo(text: str) -> str:
    """Say it back."""
    return text


AGENT = Agent("echoer", model="m", tools=[echo])


@pytest.mark.parametrize(
    "ids",
    [
        ("a", "a"),
        ("", ""),
        ("", "call_1_1"),  # the name that an empty one would be given
        ("call_1_2", ""),
        ("a b", "a/b"),
        ("x" * 300, "x" * 300),
        ("\ud800", "\0"),
        (None, 7),
        ("a", "A"),
        ("\N{FULLWIDTH LATIN SMALL LETTER A}", "a"),
    ],
    ids=repr,
)
def test_ids_are_made_unique_before_they_are_persisted(ids: tuple[str, str]) -> None:
    """Repeated, empty and malformed ids within a turn, and the same in the next one, wedge nothing."""
    turn = [use("echo", None, text=f"{n}") for n in range(2)]
    blocks = [
        {"type": "tool_use", "id": own, "name": "echo", "input": each.input}
        for own, each in zip(ids, turn, strict=True)
    ]
    with TestBed(AGENT, model=ScriptedModel([calls(*blocks), calls(*blocks[::-1]), "done"])) as bed:
        run = bed.submit("go")
        bed.settle()
        assert run.state == "completed"
        requested = [body.call_id for body in run.bodies(ToolCallRequested)]
        assert len(set(requested)) == 4
        keys = {record.key for record in bed.history.records(RUN_RESULTS) if b"call" in (record.key or b"")}
        assert len({body.idempotency_key for body in run.bodies(ToolCallRequested)}) == 4
        assert all(key is not None for key in keys)
        assert [result["content"] for result in run.results] == ["0", "1", "1", "0"]


def test_results_of_a_reused_id_have_keys_of_their_own() -> None:
    """A call with an id of an earlier turn is another call: its result cannot be taken for the old one."""
    with TestBed(
        AGENT,
        model=ScriptedModel(
            [calls(use("echo", "same", text="first")), calls(use("echo", "same", text="second")), "done"]
        ),
    ) as bed:
        run = bed.submit("go")
        bed.settle()
        keys = [record.key for record in bed.history.records(RUN_RESULTS)]
        assert len(keys) == len(set(keys)) == 5
        assert [result["content"] for result in run.results] == ["first", "second"]


@pytest.mark.parametrize(
    "name", ["", "no such tool", "a" * 129, "a" * 5_000, "\N{SNOWMAN}", "\ud800", None, 7], ids=ascii
)
def test_a_tool_name_that_is_none_gets_an_error_and_the_run_goes_on(name: object) -> None:
    """What the provider would refuse to be sent back is not sent back."""
    block = {"type": "tool_use", "id": "a", "name": name, "input": {}}
    with TestBed(AGENT, model=ScriptedModel([calls(block, use("echo", text="fine")), "done"])) as bed:
        run = bed.submit("go")
        bed.settle()
        assert run.state == "completed"
        wrong, right = run.results
        assert wrong["is_error"]
        assert right["content"] == "fine"
