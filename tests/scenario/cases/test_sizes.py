"""Results and transcripts larger than what a record, a message or a model takes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure import Agent, ContentBlocks, tool
from perdure.connectors.blob_folder import FolderBlobs
from perdure.processors.blobs import BlobUnreachable
from perdure.processors.tool_answers import HEAD_BYTES_MAX, KEPT_BYTES_MIN
from perdure.schemas.events import ToolAmbiguous, ToolAttemptEnded, ToolCompleted
from perdure.schemas.limits import PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX
from perdure.schemas.values import BlobRef
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


@tool(effect="read_only", attempts_max=3)
def read(size: int) -> str:
    """Read much."""
    RAN.append(size)
    return "x" * size


AGENT = Agent("dumper", model="m", tools=[dump, read], max_turns=40)
LARGE = 4_000_000


class Flaky:
    """A folder that is not reached so many times."""

    def __init__(self, folder: Path, refusals: float = float("inf")) -> None:
        self._store = FolderBlobs(folder)
        self.refusals = refusals

    def put(self, run_id: str, data: bytes, media_type: str) -> BlobRef:
        self.refusals -= 1
        if self.refusals >= 0:
            raise BlobUnreachable("connection refused")
        return self._store.put(run_id, data, media_type)

    def get(self, uri: str) -> bytes:
        return self._store.get(uri)

    def forget(self, run_id: str) -> None:
        self._store.forget(run_id)


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
        assert "[cut:" in text
        assert "whole is at" not in text
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


# ---- by reference


@pytest.mark.parametrize("size", [PAYLOAD_BYTES_MAX, LARGE, 6 * MIB, 20 * MIB])
def test_a_large_result_stands_whole_where_the_event_says(size: int, tmp_path: Path) -> None:
    """The model is told the head and where the rest is; the blob is the text as the tool returned it."""
    store = FolderBlobs(tmp_path)
    with TestBed(AGENT, model=ScriptedModel([calls(use("dump", size=size)), "done"]), blobs=store) as bed:
        run = bed.submit("go")
        bed.settle()
        assert run.output == "done"
        assert list(RAN) == [size]
        [done] = run.bodies(ToolCompleted)
        assert done.blob is not None
        assert store.get(done.blob.uri) == b"x" * size
        assert (done.blob.size, done.blob.sha256) == (size, hashlib.sha256(b"x" * size).digest())
        assert done.blob.media_type.startswith("text/plain")
        told = run.results[0]["content"]
        assert told.startswith("x" * 100_000)
        assert done.blob.uri in told[-1_000:]
        assert len(told) < HEAD_BYTES_MAX + 1_000
        assert bed.dead_letters == []


@pytest.mark.parametrize("kind", ["json", "blocks"])
def test_a_large_value_that_is_no_text_is_kept_as_json(kind: str, tmp_path: Path) -> None:
    """Whoever fetches the blob finds all of it, in a form that can be read."""
    store = FolderBlobs(tmp_path)
    asked = calls(use("dump", size=LARGE, kind=kind))
    with TestBed(AGENT, model=ScriptedModel([asked, "done"]), blobs=store) as bed:
        run = bed.submit("go")
        bed.settle()
        [done] = run.bodies(ToolCompleted)
        assert done.blob is not None
        value = json.loads(store.get(done.blob.uri))
    found = value["rows"] if isinstance(value, dict) else [block["text"] for block in value]
    assert sum(map(len, found)) == LARGE


def test_a_result_that_only_its_turn_has_no_room_for_is_not_lost(tmp_path: Path) -> None:
    """Eight results, each within its limit: those that are cut to share the room stand whole elsewhere."""
    store = FolderBlobs(tmp_path)
    asked = calls(*(use("dump", size=900_000 + n) for n in range(8)))
    with TestBed(AGENT, model=ScriptedModel([asked, "done"]), blobs=store) as bed:
        run = bed.submit("go")
        bed.settle()
        assert run.output == "done"
        for n, done in enumerate(run.bodies(ToolCompleted)):
            assert done.blob is not None
            assert store.get(done.blob.uri) == b"x" * done.blob.size
            text = json.loads(done.content)
            assert text == "x" * (900_000 + n) or done.blob.uri in text


def test_a_small_result_needs_no_blob(tmp_path: Path) -> None:
    """What every turn has room for is written once."""
    asked = calls(use("dump", size=KEPT_BYTES_MIN - 100))
    with TestBed(AGENT, model=ScriptedModel([asked, "done"]), blobs=FolderBlobs(tmp_path)) as bed:
        run = bed.submit("go")
        bed.settle()
        assert [each.blob for each in run.bodies(ToolCompleted)] == [None]
    assert list(tmp_path.iterdir()) == []


def test_a_call_that_ran_is_never_in_doubt_because_its_blob_was_not_taken(tmp_path: Path) -> None:
    """A non_idempotent tool whose result can not be stored is not run again, and nobody is asked: the model
    gets the head and is told that the rest is lost.
    """
    asked = calls(use("dump", size=LARGE))
    with TestBed(AGENT, model=ScriptedModel([asked, "done"]), blobs=Flaky(tmp_path)) as bed:
        run = bed.submit("go")
        bed.settle()
        assert run.output == "done"
        assert list(RAN) == [LARGE]
        assert "the rest is lost" in run.results[0]["content"]
        assert run.bodies(ToolAmbiguous) == []
        assert run.bodies(ToolAttemptEnded) == []


def test_a_read_whose_blob_was_not_taken_is_made_again(tmp_path: Path) -> None:
    """Within the tool's policy, until the whole can be kept."""
    asked = calls(use("read", size=LARGE))
    with TestBed(AGENT, model=ScriptedModel([asked, "done"]), blobs=Flaky(tmp_path, 2)) as bed:
        run = bed.submit("go")
        bed.settle()
        assert run.output == "done"
        assert list(RAN) == [LARGE] * 3
        [done] = run.bodies(ToolCompleted)
        assert done.blob is not None
        assert not done.is_error


def test_a_read_whose_blob_is_never_taken_ends_in_an_error_result(tmp_path: Path) -> None:
    """After attempts_max the model is told why; nothing goes round for ever."""
    asked = calls(use("read", size=LARGE))
    with TestBed(AGENT, model=ScriptedModel([asked, "done"]), blobs=Flaky(tmp_path)) as bed:
        run = bed.submit("go")
        bed.settle()
        assert run.output == "done"
        assert list(RAN) == [LARGE] * 3
        [done] = run.bodies(ToolCompleted)
        assert done.is_error
        assert b"could not be stored" in done.content


def test_a_result_that_fits_needs_no_blob_store_that_answers(tmp_path: Path) -> None:
    """Below the limit the blob is a convenience: without it the result stands in the log all the same."""
    asked = calls(use("read", size=PAYLOAD_BYTES_MAX // 2))
    with TestBed(AGENT, model=ScriptedModel([asked, "done"]), blobs=Flaky(tmp_path)) as bed:
        run = bed.submit("go")
        bed.settle()
        assert list(RAN) == [PAYLOAD_BYTES_MAX // 2]
        assert run.results[0]["content"] == "x" * (PAYLOAD_BYTES_MAX // 2)


@pytest.mark.parametrize("point", ["executor.after_call", "executor.after_result"])
def test_a_crash_around_a_stored_result_leaves_one_effect(
    point: str, tmp_path: Path, die_at: Callable[..., None]
) -> None:
    """The blob is written before the result: a crash in between leaves a blob nobody names, and the usual
    doubt.
    """
    asked = calls(use("dump", size=LARGE))
    with TestBed(AGENT, model=ScriptedModel([asked, "done"]), blobs=FolderBlobs(tmp_path)) as bed:
        die_at(point)
        run = bed.submit("go")
        bed.settle()
        bed.restart("tool-executor")
        bed.settle()
        assert list(RAN) == [LARGE]
        assert run.state in {"awaiting_approval", "completed"}
