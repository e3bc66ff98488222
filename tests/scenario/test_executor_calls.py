"""Calls: how they end, how they are stopped, and what is answered when none is made."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random

import pytest

from perdure.processors.abort import AbortSignal
from perdure.processors.executor.engine import Exit, Phase
from perdure.processors.executor.settings import ExecutorSettings
from perdure.processors.headers import request_headers
from perdure.processors.offset_map import OffsetMap
from perdure.processors.ports import ToolAnswer, ToolInvocation
from perdure.schemas.canonical import loads_json
from perdure.schemas.codec import decode, encode
from perdure.schemas.outputs import DeadLetter
from perdure.schemas.results import Completed, Declined, Failed, Reconciled, Suspect, Undecodable
from perdure.schemas.values import Answer, DeclineReason, FailureKind, Purpose
from perdure.topics.model_faults import Api, Fate
from perdure.topics.table import DEAD_LETTERS, TOOL_REQUESTS
from tests.scenario.executor_stage import NAMES, ONCE, READ, Stage, hang

MIB = 1 << 20


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    stage.provision()
    stage.behaviours["hang"] = hang
    yield stage
    stage.close()


# ---- endings
# -------------------------------------------------------------------------------------------------


def test_a_call_past_its_deadline_has_an_unknown_outcome(stage: Stage) -> None:
    """The engine ends a call that does not end by itself, and says deadline, not error."""
    stage.ask("a", ONCE, "hang", timeout_ms=3_000)
    stage.worker()
    stage.until(lambda: "Failed" in stage.told("a"))
    assert stage.body("a", Failed).kind is FailureKind.DEADLINE
    stage.settle()
    assert stage.begun("a") == 1


def test_an_answer_within_the_grace_period_is_definite(stage: Stage) -> None:
    """A tool that still answers after its deadline has answered; nothing is in doubt."""

    async def late(call: ToolInvocation, abort: AbortSignal) -> ToolAnswer:
        while not abort.aborted:  # noqa: ASYNC110 - virtual time has no events
            await asyncio.sleep(0)
        return Completed(b'"sent as number 7"')

    stage.behaviours["late"] = late
    stage.ask("a", ONCE, "late", timeout_ms=1_000)
    stage.worker()
    stage.settle()
    assert stage.told("a") == ["Started", "Completed"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionResetError("the peer went away"), FailureKind.CONNECTION),
        (ValueError("a defect"), FailureKind.EXCEPTION),
        (asyncio.CancelledError(), FailureKind.ABORTED),
        (RuntimeError("\ud800" * 5_000), FailureKind.EXCEPTION),
    ],
)
def test_a_tool_that_raises_ends_in_a_failure_of_its_kind(
    stage: Stage, error: BaseException, kind: FailureKind
) -> None:
    """No exception of a tool stops the worker or is taken for an answer, whatever its text."""

    async def fail(call: ToolInvocation, abort: AbortSignal) -> ToolAnswer:
        raise error

    stage.behaviours["fail"] = fail
    stage.ask("a", ONCE, "fail")
    stage.ask("b", ONCE)
    stage.worker()
    stage.settle()
    assert stage.body("a", Failed).kind is kind
    assert stage.told("b") == ["Started", "Completed"]


def test_a_call_that_ignores_everything_is_given_up_and_keeps_its_slot() -> None:
    """Beyond the limit of such calls the worker leaves, for only a new process gets rid of them."""
    stage = Stage(settings=ExecutorSettings(slots=4, abandoned_max=2))
    stage.provision()
    released: set[str] = set()

    async def deaf(call: ToolInvocation, abort: AbortSignal) -> ToolAnswer:
        while call.call_id not in released:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                continue
        return Completed(b'"after all"')

    stage.behaviours["deaf"] = deaf
    worker = stage.worker()
    stage.ask("a", ONCE, "deaf", timeout_ms=100)
    stage.ask("b", ONCE, "deaf", timeout_ms=100)
    stage.until(lambda: worker.executor.abandoned == 2)
    assert stage.body("a", Failed).kind is FailureKind.DEADLINE
    for number in range(3):
        stage.ask(f"c{number}", READ, "sleep:500")
    stage.until(lambda: stage.begun("c1") == 1)
    assert stage.begun("c2") == 0, "the slots of given-up calls were used again"
    stage.settle()
    released.add("a")
    stage.settle()
    assert worker.executor.abandoned == 1
    assert stage.told("a") == ["Started", "Failed", "Completed"], (
        "what it answered in the end is told as well"
    )
    for number in range(2):
        stage.ask(f"d{number}", ONCE, "deaf", timeout_ms=100)
    stage.until(lambda: worker.executor.phase is Phase.STOPPED)
    assert worker.executor.exit is Exit.ABANDONED
    assert stage.committed() == (7, OffsetMap())


# ---- cancellation
# --------------------------------------------------------------------------------------------


def test_a_signal_cancels_the_execution_it_names_and_no_other(stage: Stage) -> None:
    """Of two running calls of one run, only that of the cancelled execution is aborted."""
    stage.ask("old", ONCE, "sleep:5000", execution=0)
    stage.ask("new", ONCE, "sleep:5000", execution=1)
    stage.worker()
    stage.until(lambda: len(stage.truth) == 2)
    stage.signal("run-old", 0)
    stage.signal("run-new", 0)
    stage.settle()
    assert stage.body("old", Failed).kind is FailureKind.ABORTED
    assert stage.told("new") == ["Started", "Completed"]


def test_signals_are_read_before_the_first_call(stage: Stage) -> None:
    """A worker that starts after a cancel never starts what was cancelled."""
    stage.signal("run-a", 0)
    stage.signal("run-b", 0)
    stage.put("run-signals", 0, "run-b", None)  # resumed
    stage.ask("a")
    stage.ask("b", execution=1)
    stage.worker()
    stage.settle()
    assert stage.body("a", Declined).reason is DeclineReason.CANCELLED
    assert stage.told("b") == ["Started", "Completed"]


def test_a_waiting_call_is_handed_back_as_soon_as_it_is_cancelled() -> None:
    """A request that waits for a slot is declined when the signal comes, not when a slot is free."""
    stage = Stage(settings=ExecutorSettings(slots=1))
    stage.provision()
    stage.ask("long", READ, "sleep:30000")
    stage.ask("a")
    stage.worker()
    stage.until(lambda: stage.begun("long") == 1)
    stage.signal("run-a", 0)
    stage.run(200)
    assert stage.body("a", Declined).reason is DeclineReason.CANCELLED
    assert stage.told("long") == []
    stage.close()


def test_garbage_on_run_signals_stops_nobody(stage: Stage) -> None:
    """Signals that can not be read are skipped."""
    stage.put("run-signals", 0, "run-a", b"garbage")
    stage.put("run-signals", 0, "run-a", b"")
    stage.ask("a")
    stage.worker()
    stage.settle()
    assert stage.told("a") == ["Started", "Completed"]


# ---- what is not executed
# ------------------------------------------------------------------------------------


def test_a_tool_that_is_not_here_is_declined_at_once(stage: Stage) -> None:
    """An executor never holds what it can not start."""
    stage.ask("a", ONCE, "gone")
    stage.worker()
    stage.settle()
    assert stage.body("a", Declined).reason is DeclineReason.UNAVAILABLE
    assert stage.told("a") == ["Declined"]


def test_a_request_past_its_start_limit_is_declined(stage: Stage) -> None:
    """What lay too long is handed back."""
    stage.ask("a", READ, start_in_ms=1_000)
    stage.cluster.advance(2_000)
    stage.worker()
    stage.settle()
    assert stage.body("a", Declined).reason is DeclineReason.EXPIRED
    assert stage.truth == []


def test_an_unreadable_request_is_answered_from_its_headers(stage: Stage) -> None:
    """A value that no schema fits still gets its run an answer, and the partition moves on."""
    request = stage.request("a")
    stage.put(TOOL_REQUESTS, 0, request.run_id, b"garbage", request_headers(request))
    stage.ask("list", arguments=b"[1]")
    stage.ask("broken", arguments=b"{")
    stage.ask("c")
    stage.worker()
    stage.settle()
    for call in ("a", "list", "broken"):
        assert isinstance(stage.body(call, Undecodable), Undecodable)
    [first] = [each for each in stage.results() if each.call_id == "a"]
    assert (first.run_id, first.turn, first.attempt, first.request_id) == ("run-a", 1, 1, "a/1")
    assert stage.told("c") == ["Started", "Completed"]
    assert stage.committed() == (4, OffsetMap())


def test_random_bytes_and_tombstones_do_not_stop_a_partition(stage: Stage) -> None:
    """A record that names nobody is dead-lettered with its position; a tombstone is passed over."""
    random = Random(7)
    for _ in range(20):
        stage.put(TOOL_REQUESTS, 0, "run-x", random.randbytes(random.randrange(60)))
    stage.put(TOOL_REQUESTS, 0, "run-x", None)
    stage.ask("a")
    stage.worker()
    stage.settle()
    letters = [decode(DeadLetter, each.value) for each in stage.cluster.visible(NAMES.topic(DEAD_LETTERS), 0)]
    assert [each.source.offset for each in letters] == list(range(20))
    assert {each.code for each in letters} == {"undecodable"}
    assert stage.told("a") == ["Started", "Completed"]
    assert stage.committed() == (22, OffsetMap())


def test_an_unreadable_suspect_stays_a_suspect(stage: Stage) -> None:
    """What this version can not read an other version may have executed: it is never said not to have run."""
    request = stage.request("a")
    stage.put(TOOL_REQUESTS, 0, request.run_id, b"garbage", request_headers(request))
    stage.cluster.groups.topic_deleted(NAMES.topic(TOOL_REQUESTS))  # the group's offsets are gone
    stage.worker()
    stage.settle()
    assert isinstance(stage.body("a", Suspect), Suspect)
    assert stage.told("a") == ["Suspect"]


# ---- answers
# -------------------------------------------------------------------------------------------------


def test_a_reconciliation_is_a_question_without_a_claim(stage: Stage) -> None:
    """Asking what became of a non_idempotent call is itself read_only."""

    async def find(call: ToolInvocation, abort: AbortSignal) -> ToolAnswer:
        assert call.purpose is Purpose.RECONCILE
        return Reconciled(Answer.HAPPENED, b'"number 7"')

    stage.behaviours["find"] = find
    stage.ask("a", READ, "find", purpose=Purpose.RECONCILE)
    stage.worker()
    stage.settle()
    assert stage.told("a") == ["Reconciled"]
    assert stage.body("a", Reconciled).content == b'"number 7"'


def _answering(stage: Stage, content: bytes) -> Completed | Failed:
    async def answer(call: ToolInvocation, abort: AbortSignal) -> ToolAnswer:
        return Completed(content)

    stage.behaviours["answer"] = answer
    stage.ask("a", ONCE, "answer")
    stage.worker()
    stage.settle()
    [found] = [each.body for each in stage.results() if isinstance(each.body, Completed | Failed)]
    return found


@pytest.mark.parametrize("content", [b"no json", b"{}", b"7", b"[1]", b'"\xff"', b'[{"text": "x"}]', b""])
def test_output_that_is_no_content_is_a_failure_of_output(stage: Stage, content: bytes) -> None:
    """Only a JSON string or a list of content blocks can be shown to a model."""
    found = _answering(stage, content)
    assert isinstance(found, Failed)
    assert found.kind is FailureKind.OUTPUT


@pytest.mark.parametrize("size", [MIB, 3 * MIB])
def test_text_over_the_limit_is_cut_to_its_head_with_a_note(stage: Stage, size: int) -> None:
    """Megabytes of text become less than one, and the model is told so."""
    found = _answering(stage, b'"' + "é\\n".encode() * (size // 4) + b'"')
    assert isinstance(found, Completed)
    assert len(found.content) < MIB
    text = loads_json(found.content)
    assert isinstance(text, str)
    assert text.startswith("é\né\n")
    assert "[cut: the tool returned" in text[-120:]


def test_output_too_large_to_be_parsed_is_shown_as_it_begins(stage: Stage) -> None:
    """Beyond what is parsed at all, the raw head is kept, whatever it is."""
    found = _answering(stage, b'[{"type": "text", "text": "' + b"\\" * (5 * MIB))
    assert isinstance(found, Completed)
    assert len(found.content) < MIB
    text = loads_json(found.content)
    assert isinstance(text, str)
    assert text.startswith('[{"type": "text"')
    assert "[cut: the tool returned" in text[-120:]


def test_blocks_over_the_limit_keep_what_fits_whole(stage: Stage) -> None:
    """Blocks are kept whole while there is room, the text that has none is cut, and a note stands last."""
    size = 50_000
    block = b'{"type": "text", "text": "' + b"x" * size + b'"}'
    found = _answering(stage, b"[" + b", ".join([block] * 25) + b"]")
    assert isinstance(found, Completed)
    blocks = loads_json(found.content)
    assert isinstance(blocks, list)
    sizes = [len(str(each["text"])) for each in blocks if isinstance(each, dict)]
    assert len(found.content) < MIB
    assert sizes[:2] == [size, size]
    assert 0 < sizes[2] < size
    assert sizes[3] < 200
    assert len(sizes) == 4


# ---- writing
# -------------------------------------------------------------------------------------------------


def test_a_result_that_can_not_be_written_leaves_the_call_undone(stage: Stage) -> None:
    """Without a delivery report nothing is done: the worker leaves and its successor sees the claim."""
    worker = stage.worker()
    stage.ask("a", ONCE, "sleep:100")
    stage.until(lambda: stage.begun("a") == 1)
    stage.cluster.faults.inject(Api.PRODUCE, worker.results_id, Fate.LOST)
    stage.until(lambda: worker.executor.phase is Phase.STOPPED)
    assert worker.executor.exit is Exit.UNWRITABLE
    assert stage.committed() == (0, OffsetMap(started=frozenset({0})))


def test_a_request_written_twice_is_executed_once(stage: Stage) -> None:
    """A second record with the id of a running request adds no execution."""
    request = stage.ask("a", ONCE, "sleep:300")
    stage.put(TOOL_REQUESTS, 0, request.run_id, encode(request), request_headers(request))
    stage.worker()
    stage.settle()
    assert stage.begun("a") == 1
    assert stage.committed() == (2, OffsetMap())
