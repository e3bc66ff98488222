"""Text that UTF-8 or a store cannot carry: lone surrogates, NUL, emoji cut in the middle."""

from __future__ import annotations

import json

import pytest

from perdure import Agent, ContentBlocks, ToolError, tool
from perdure.schemas.commands import Decide, Signal, Submit
from perdure.schemas.events import ToolCallRequested
from perdure.schemas.values import Verdict
from perdure.testing import ScriptedModel, TestBed, TestRun, calls, says, use
from perdure.testing.script import Use

EMOJI = "\N{ROCKET}"
HALF = EMOJI.encode("utf-16-le")[:2].decode("utf-16-le", "surrogatepass")
OTHER_HALF = EMOJI.encode("utf-16-le")[2:].decode("utf-16-le", "surrogatepass")
TEXTS = [
    HALF,
    OTHER_HALF,
    "a\0b",
    f"a{HALF}b{OTHER_HALF}",
    HALF + OTHER_HALF,
    "\uffff\ufffe",
    "\u2028",
    "\x1b[0m",
]
SEEN: list[str] = []
ANSWER: list[object] = [""]


@tool(effect="read_only", schema={"type": "object"})
def echo(**arguments: str) -> object:
    """Answer what the test says."""
    SEEN.extend(arguments.values())
    if isinstance(ANSWER[0], Exception):
        raise ANSWER[0]
    return ANSWER[0]


@tool(effect="non_idempotent")
def post() -> str:
    """Take effect, perhaps."""
    raise ConnectionResetError


AGENT = Agent("echoer", model="m", tools=[echo])
DOUBTFUL = Agent("doubtful", model="m", tools=[post])


def is_clean(text: str) -> bool:
    return "\0" not in text and text == text.encode("utf-8", "replace").decode()


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
@pytest.mark.parametrize("way", ["text", "blocks", "json", "key", "error", "exception"])
def test_a_tool_may_answer_any_text(text: str, way: str) -> None:
    """Replaced where it comes in; the run goes on, and what is stored can be encoded everywhere."""
    ANSWER[0] = {
        "text": text,
        "blocks": ContentBlocks([{"type": "text", "text": text}]),
        "json": {"value": [text]},
        "key": {text: 1},
        "error": ToolError(text),
        "exception": RuntimeError(text),
    }[way]
    with TestBed(AGENT, model=ScriptedModel([calls(use("echo")), "done"])) as bed:
        run = bed.submit("go")
        bed.settle()
        assert run.state == "completed"
        assert is_clean(str(run.messages))
        assert bool(run.results[0].get("is_error")) is (way in {"error", "exception"})


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_a_model_may_say_any_text_and_its_arguments_hash_alike_every_time(text: str) -> None:
    """What the tool sees is what is stored, and the same arguments are the same call in the next turn."""
    SEEN.clear()
    ANSWER[0] = "seen"
    asks = calls(f"say {text}", Use("echo", {"text": text, f"k{text}": text}))
    with TestBed(AGENT, model=ScriptedModel([asks, asks, says(text + "end")])) as bed:
        run = bed.submit("go")
        bed.settle()
        assert run.state == "completed"
        assert all(is_clean(each) for each in SEEN)
        assert is_clean(str(run.messages))
        first, second = run.bodies(ToolCallRequested)
        assert first.arguments == second.arguments
        assert first.fingerprint == second.fingerprint
        assert run.messages[1]["content"][1]["input"] == run.messages[3]["content"][1]["input"]
        assert SEEN[:2] == SEEN[2:]


def test_text_cut_in_the_middle_of_an_emoji_stays_text() -> None:
    """A head that is cut to a limit ends in whole characters."""
    ANSWER[0] = EMOJI * 2_000_000
    with TestBed(AGENT, model=ScriptedModel([calls(use("echo")), "done"])) as bed:
        run = bed.submit("go")
        bed.settle()
        assert run.state == "completed"
        content = run.results[0]["content"]
        assert content.startswith(EMOJI)
        assert is_clean(content)


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_people_may_send_any_text(text: str) -> None:
    """Input, signal, resume and a decision's result, escaped as JSON allows: all are stored clean."""
    ANSWER[0] = RuntimeError("down")
    escaped = json.dumps(text + "!").encode()
    with TestBed(DOUBTFUL, model=ScriptedModel([calls(use("post")), "never", "done"])) as bed:
        run = TestRun("run-1", bed.history, bed.client, bed.send)
        run.send(Submit("doubtful", escaped))
        bed.settle()
        run.send(Signal("plain \0"))
        bed.settle()
        [question] = run.pending
        run.send(Decide(question.call_id, Verdict.RAN, question.token, "somebody", result=escaped))
        bed.until(lambda: len(bed.model.asked) == 2)
        bed.settle()
        assert run.state == "completed"
        assert run.messages[0]["content"].endswith("!")
        assert run.results[0]["content"].endswith("!")
        assert is_clean(str(run.messages))


@pytest.mark.parametrize(
    "raw",
    [
        b'""',
        b'" \\n"',
        b"[]",
        b"[{}]",
        b'[{"type":"text","text":" "}]',
        b"7",
        b"null",
        b"{}",
        b"\xff",
        b"",
        b'"a',
    ],
)
def test_an_input_without_anything_in_it_is_refused_with_a_reason(raw: bytes) -> None:
    """A submit that could only lead to a request which the provider refuses starts no run."""
    with TestBed(AGENT, model=ScriptedModel([])) as bed:
        run = TestRun("run-1", bed.history, bed.client, bed.send)
        run.send(Submit("echoer", raw))
        bed.settle()
        assert run.state is None
        [letter] = bed.dead_letters
        assert letter.code == "invalid_input"
