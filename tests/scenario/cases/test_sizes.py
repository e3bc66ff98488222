"""Results and transcripts larger than what a record, a message or a model takes."""

from __future__ import annotations

import pytest

from perdure import Agent, ContentBlocks, tool
from perdure.schemas.limits import PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX
from perdure.testing import ScriptedModel, TestBed, calls, use

MIB = 1 << 20
RAN: list[int] = []


@tool(effect="non_idempotent")
def dump(size: int, kind: str = "text") -> object:
    """Return much."""
    RAN.append(size)
    if kind == "json":
        return {"rows": ["x" * 100] * (size // 100)}
    if kind == "blocks":
        return ContentBlocks([{"type": "text", "text": "x" * (size // 8)} for _ in range(8)])
    return "x" * size


AGENT = Agent("dumper", model="m", tools=[dump], max_turns=40)


@pytest.fixture(autouse=True)
def fresh() -> None:
    RAN.clear()


@pytest.mark.parametrize("kind", ["text", "json", "blocks"])
@pytest.mark.parametrize("size", [PAYLOAD_BYTES_MAX - 100, PAYLOAD_BYTES_MAX, 4 * MIB, 6 * MIB])
def test_a_result_over_the_limit_is_cut_and_the_run_goes_on(size: int, kind: str) -> None:
    """The call happened and is not repeated; the model is told that its result was cut."""
    with TestBed(AGENT, model=ScriptedModel([calls(use("dump", size=size, kind=kind)), "done"])) as bed:
        run = bed.submit("go")
        bed.settle()
        assert run.state == "completed"
        assert list(RAN) == [size]
        content = run.results[0]["content"]
        text = content if isinstance(content, str) else content[-1]["text"]
        assert "[cut:" in text or "[left out:" in text
        assert bed.dead_letters == []
        stored = [len(record.value or b"") for record in bed.history.records("run-events")]
        assert max(stored) < RECORD_BYTES_MAX


@pytest.mark.parametrize("crashed", [None, "model-caller"])
def test_a_transcript_larger_than_any_record_is_asked_about_in_pieces(crashed: str | None) -> None:
    """Beyond the record limit requests carry only what is new; a caller that lost the rest is sent the whole
    in chunks.
    """
    turns = [calls(use("dump", size=900_000 + n)) for n in range(7)]
    with TestBed(AGENT, model=ScriptedModel([*turns, "done"])) as bed:
        run = bed.submit("go")
        bed.until(lambda: len(bed.model.asked) == 6)
        if crashed:
            bed.restart(crashed)
        bed.settle()
        assert run.output == "done"
        assert len(RAN) == 7
        assert sum(len(str(message)) for message in run.messages) > RECORD_BYTES_MAX
        whole = {request.chunks for request in run.model_requests if request.is_whole}
        assert bool(whole) is (crashed is not None)
        assert all(chunks > 1 for chunks in whole)


@pytest.mark.parametrize("kind", ["text", "blocks"])
def test_results_that_together_exceed_a_record_share_its_room(kind: str) -> None:
    """Eight results of a megabyte each, all within their limit: later ones are cut, and the run goes on."""
    asked = calls(*(use("dump", size=1_000_000 + n, kind=kind) for n in range(8)))
    with TestBed(AGENT, model=ScriptedModel([asked, "done"])) as bed:
        run = bed.submit("go")
        bed.settle()
        assert run.output == "done"
        assert len(RAN) == len(run.results) == 8
        sizes = [len(str(result["content"])) for result in run.results]
        assert sum(sizes) < RECORD_BYTES_MAX - PAYLOAD_BYTES_MAX
        assert min(sizes) > 2_000
        assert sum("[cut:" in str(result["content"]) for result in run.results) == 6
        assert bed.dead_letters == []


def test_messages_of_people_beyond_the_room_are_refused_with_a_reason() -> None:
    """Signals pile up while a run waits; what no request could carry is rejected, and nothing is wedged."""
    with TestBed(AGENT, model=ScriptedModel([calls(use("dump", size=900_000)), "done"])) as bed:
        bed.crash("tool-executor")
        run = bed.submit("go")
        bed.settle()
        for _ in range(8):
            run.signal("m" * 100_000)
        run.signal("short")
        bed.settle()
        bed.add("tool-executor")
        bed.settle()
        assert run.output == "done"
        assert run.rejections == ["message_too_large"] * 6
        assert [len(text) for text in bed.model.asked[-1].texts] == [100_000, 100_000, 5]
