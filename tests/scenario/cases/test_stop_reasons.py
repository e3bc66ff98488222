"""Answers that are none: refusals, a full context, stop reasons nobody knows, blank content."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, tool
from perdure.testing import Reply, ScriptedModel, TestBed, says, use


@tool(effect="read_only")
def look(at: str) -> str:
    """Look."""
    return f"saw {at}"


AGENT = Agent("looker", model="m", tools=[look])
TEXT = {"type": "text", "text": "half an ans"}
EMPTY = {"type": "text", "text": ""}


@pytest.mark.parametrize("content", [(), (EMPTY,), (TEXT,), (use("look", at="x"),)], ids=len)
@pytest.mark.parametrize(
    ("stop_reason", "code"),
    [
        ("refusal", "refusal"),
        ("model_context_window_exceeded", "model_context_window_exceeded"),
        ("brand_new_reason", "unknown_stop_reason"),
        ("", "unknown_stop_reason"),
        ("\N{SNOWMAN}" * 1_000, "unknown_stop_reason"),
    ],
    ids=["refusal", "context", "new", "empty", "long"],
)
def test_a_stop_without_an_answer_ends_the_run_with_its_reason(
    stop_reason: str, code: str, content: tuple[Any, ...]
) -> None:
    """It is not retried as if it could pass; no empty turn is stored; the run can be resumed."""
    model = ScriptedModel([says(*content, stop_reason=stop_reason), "done after all"])
    with TestBed(AGENT, model=model) as bed:
        run = bed.submit("go")
        bed.settle()
        assert (run.state, run.code) == ("failed", code)
        assert len(bed.model.asked) == 1
        assert all(message["content"] for message in run.messages)
        run.resume("try again")
        bed.settle()
        assert run.output == "done after all"
        assert run.usage.input_tokens == 20


@pytest.mark.parametrize("stop_reason", ["end_turn", "max_tokens", "stop_sequence", "pause_turn"])
@pytest.mark.parametrize("text", ["", " ", "\n\n", None, "said"], ids=repr)
def test_blank_text_never_enters_the_transcript(stop_reason: str, text: str | None) -> None:
    """Blank blocks are left out before the first persist, beside a call and alone."""
    block = {"type": "text", "text": text}
    script = [says(block, use("look", at="x"), stop_reason="tool_use"), says(block, stop_reason=stop_reason)]
    with TestBed(AGENT, model=ScriptedModel([*script, "done"])) as bed:
        run = bed.submit("go")
        bed.settle()
        assert run.state == "completed"
        assert run.results[0]["content"] == "saw x"
        said = [block for message in run.messages[1:] for block in message["content"]]
        assert all(each["text"].strip() for each in said if each["type"] == "text")


@pytest.mark.parametrize(
    "raw", [b"{}", b"null", b'["text"]', b"[{}]", b'[{"type":7}]', b"[", b"\xff", b"[NaN]"]
)
def test_content_that_is_no_list_of_blocks_is_never_stored(raw: bytes) -> None:
    """Whatever a provider sends in place of content, the run ends with a code or goes on."""
    wrong = Reply((), "end_turn", raw=raw)
    with TestBed(AGENT, model=ScriptedModel([wrong, "done"])) as bed:
        run = bed.submit("go")
        bed.settle()
        if run.state == "failed":
            assert run.code == "output_unusable"
            run.resume()
            bed.settle()
        assert run.output == "done"
        assert len(run.messages) == 2
