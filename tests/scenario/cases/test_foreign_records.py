"""Records on input topics that nobody should have written."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from perdure import Agent, tool
from perdure.schemas.outputs import DeadLetter
from perdure.testing import ScriptedModel, TestBed, calls, use
from perdure.topics.table import (
    AGENT_DEFINITIONS,
    MODEL_REQUESTS,
    RUN_COMMANDS,
    RUN_RESULTS,
    RUN_SIGNALS,
    TOOL_REQUESTS,
)

RAN: list[str] = []
INPUTS = [RUN_COMMANDS, RUN_RESULTS, MODEL_REQUESTS, TOOL_REQUESTS, RUN_SIGNALS, AGENT_DEFINITIONS]
VALUES = {
    "tombstone": None,
    "empty": b"",
    "noise": bytes(range(256)),
    "half a header": b"\xc3\x01\x00",
    "json": b'{"type": "Submit"}',
    "megabytes": b"\xff" * (2 << 20),
}


@tool(effect="non_idempotent")
def send(text: str) -> str:
    """Send it."""
    RAN.append(text)
    return "sent"


AGENT = Agent("sender", model="m", tools=[send])


@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("topic", INPUTS)
def test_what_cannot_be_read_is_passed_over_and_what_stands_behind_it_is_done(topic: str, value: str) -> None:
    """A tombstone is nothing; anything else goes to dead-letters with its place; nobody stops."""
    RAN.clear()
    with TestBed(AGENT, model=ScriptedModel([calls(use("send", text="a")), "done"]), partitions=1) as bed:
        for key in (b"run-1", b"", b"\xff/\xfe", b"run-1/1//1"):
            bed.write(topic, 0, key, VALUES[value])
        run = bed.submit("go")
        bed.settle()
        assert run.state == "completed"
        assert RAN == ["a"]
        letters = dead_letters_of(bed.dead_letters, bed.names.topic(topic))
        is_told = value != "tombstone" and topic not in {RUN_SIGNALS, AGENT_DEFINITIONS}
        if topic in {RUN_COMMANDS, RUN_RESULTS} or is_told:
            assert [each.source.offset for each in letters] == ([0, 1, 2, 3] if is_told else [])
        assert all(each.code and each.reason for each in letters)
        # a restart reads none of it again
        count = len(bed.dead_letters)
        for role in ("orchestrator", "tool-executor", "model-caller"):
            bed.restart(role, keeps_disk=False)
        bed.advance(20)
        assert len(bed.dead_letters) == count
        assert RAN == ["a"]


def dead_letters_of(letters: Iterable[DeadLetter], topic: str) -> list[DeadLetter]:
    found = [each for each in letters if each.source.topic == topic]
    return sorted(found, key=lambda each: each.source.offset)
