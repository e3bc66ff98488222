"""Taking over: what a new owner of a partition repeats, tells as suspect, or leaves alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from perdure.processors.executor.engine import Exit, Phase
from perdure.processors.executor.settings import ExecutorSettings
from perdure.processors.headers import request_headers
from perdure.processors.offset_map import OffsetMap, encode
from perdure.schemas.codec import encode as encode_record
from perdure.schemas.results import Lost
from perdure.topics.log import GroupProtocol, Outgoing, Position, TopicPartition
from perdure.topics.model_faults import Api, Fate
from perdure.topics.table import TOOL_REQUESTS
from tests.scenario.executor_stage import NAMES, ONCE, READ, WRITE, Stage, counts, hang

AT = TopicPartition(NAMES.topic(TOOL_REQUESTS), 0)
SESSION_MS = 60_000


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    stage.provision()
    stage.behaviours["hang"] = hang
    yield stage
    stage.close()


@pytest.fixture
def fresh() -> Iterator[Stage]:
    """A stage whose group has committed nothing."""
    stage = Stage()
    stage.behaviours["hang"] = hang
    yield stage
    stage.close()


def test_calls_finish_out_of_order_and_done_ones_are_not_repeated(stage: Stage) -> None:
    """Behind a call that still runs, finished calls survive a kill: only what was not done runs again."""
    stage.ask("slow", READ, "hang")
    for number in range(5):
        stage.ask(f"fast{number}", READ)
    first = stage.worker("w1")
    stage.until(lambda: len(stage.results()) == 5)
    stage.run(500)
    assert stage.committed() == (0, OffsetMap(done=frozenset(range(1, 6))))
    first.kill()
    stage.worker("w2")
    stage.until(lambda: stage.begun("slow") == 2, limit_ms=2 * SESSION_MS)
    stage.run(1_000)
    assert [stage.begun(f"fast{number}") for number in range(5)] == [1] * 5


def test_a_log_without_a_map_makes_every_request_in_it_suspect(fresh: Stage) -> None:
    """Without a usable map nothing below the end is executed, whatever its effect; what comes later is."""
    fresh.ask("once", ONCE)
    fresh.ask("read", READ)
    fresh.ask("write", WRITE)
    fresh.worker()
    fresh.run(100)
    fresh.ask("later")
    fresh.settle()
    assert fresh.told("once") == fresh.told("read") == fresh.told("write") == ["Suspect"]
    assert fresh.told("later") == ["Started", "Completed"]


def test_an_empty_log_without_a_map_has_no_suspects(fresh: Stage) -> None:
    """On a partition that never held a request there is nothing to doubt, and a map is committed at once."""
    fresh.worker()
    fresh.run(500)
    fresh.ask("a")
    fresh.settle()
    assert fresh.told("a") == ["Started", "Completed"]


def test_doubt_outlives_the_owner_that_found_it() -> None:
    """A second owner finds a map, and still tells as suspect what the first owner had no time to tell."""
    stage = Stage(settings=ExecutorSettings(window_offsets=8, window_low_offsets=3, poll_records_max=4))
    for number in range(40):
        stage.ask(f"c{number}")
    first = stage.worker("w1")
    stage.until(lambda: len(stage.results()) >= 4)
    first.kill()
    told = len({each.call_id for each in stage.results()})
    assert told < 40, "the first owner told everything"
    assert stage.committed()[1].doubt_below == 40
    stage.worker("w2")
    stage.until(lambda: len({each.call_id for each in stage.results()}) == 40, limit_ms=10 * SESSION_MS)
    assert stage.truth == []
    assert set(counts(stage.results())) == {"Suspect"}
    stage.close()


@pytest.mark.parametrize("text", ["", "NO-MAP", "p1:another-topic:::"])
def test_a_foreign_map_is_not_believed(fresh: Stage, text: str) -> None:
    """An offset that another tool has set, or one of a topic that was re-created, proves nothing was
    untouched.
    """
    fresh.ask("a")
    fresh.ask("b")
    fresh.commit([(AT, 1, text)])
    fresh.worker()
    fresh.settle()
    # An offset of another topic is no place to start from; one without a map is where somebody wants us to
    # start.
    assert fresh.told("a") == (["Suspect"] if text.startswith("p1") else [])
    assert fresh.told("b") == ["Suspect"]


def test_a_base_beyond_the_end_makes_everything_suspect(fresh: Stage) -> None:
    """A log that was cut below the committed offset is read from its start, and nothing in it is executed."""
    topic_id = fresh.client.describe([AT.topic], 1)[AT.topic].topic_id
    fresh.commit([(AT, 9, encode(9, OffsetMap(), topic_id))])
    fresh.ask("a")
    fresh.worker()
    fresh.settle()
    assert fresh.told("a") == ["Suspect"]


def test_deleted_requests_are_told_lost_once_and_reading_goes_on(stage: Stage) -> None:
    """A base below the log's start is told as lost(base, low) before anything above it is committed."""
    for call in ("a", "b", "c"):
        stage.ask(call)
    stage.client.delete_records([Position(AT, 2)], 1)
    stage.worker()
    stage.settle()
    assert [each.body for each in stage.results() if isinstance(each.body, Lost)] == [Lost(0, 2)]
    assert stage.told("c") == ["Started", "Completed"]
    assert stage.committed() == (3, OffsetMap())


def test_requests_deleted_under_a_reader_are_told_lost_by_its_successor(stage: Stage) -> None:
    """A worker whose next record has vanished commits what it did and leaves; the next one tells what
    was lost.
    """
    first = stage.worker("w1")
    stage.ask("a")
    stage.settle()
    first.executor._consumer.pause([AT])
    for call in ("b", "c", "d"):
        stage.ask(call)
    stage.client.delete_records([Position(AT, 3)], 1)
    first.executor._consumer.resume([AT])
    stage.until(lambda: first.executor.phase is Phase.STOPPED)
    assert first.executor.exit is Exit.OUT_OF_RANGE
    stage.worker("w2")
    stage.until(lambda: stage.told("d") == ["Started", "Completed"])
    assert [each.body for each in stage.results() if isinstance(each.body, Lost)] == [Lost(1, 3)]


def test_suspects_are_told_no_earlier_than_lease_and_margin(stage: Stage) -> None:
    """Whoever takes over waits until no claim of the predecessor can license anything any more."""
    topic_id = stage.client.describe([AT.topic], 1)[AT.topic].topic_id
    stage.ask("a")
    stage.commit([(AT, 0, encode(0, OffsetMap(started=frozenset({0})), topic_id))])
    worker = stage.worker()
    stage.until(lambda: bool(worker.executor.assigned))
    settings = stage.settings
    stage.run(round((settings.lease_s + settings.margin_s) * 1000) - 50)
    assert stage.told("a") == []
    stage.run(100)
    assert stage.told("a") == ["Suspect"]


def test_a_request_in_a_transaction_open_at_take_over_is_no_suspect(fresh: Stage) -> None:
    """Nobody could read, so nobody could start, what lies beyond the last stable offset at assignment."""
    writer = fresh.client.transactional("orchestrator", 60_000)
    writer.init(5)
    writer.begin()
    request = fresh.request("a")
    writer.produce(Outgoing(AT.topic, 0, b"run", encode_record(request), request_headers(request)))
    fresh.worker()
    fresh.run(500)
    writer.commit(5)
    fresh.settle()
    assert fresh.told("a") == ["Started", "Completed"]


def test_markers_and_aborted_requests_use_offsets_and_nothing_else(stage: Stage) -> None:
    """Requests written in transactions, aborted ones among them, are executed once if committed and
    never if not.
    """
    writer = stage.client.transactional("orchestrator", 60_000)
    writer.init(5)
    for number in range(6):
        request = stage.request(f"t{number}")
        writer.begin()
        writer.produce(Outgoing(AT.topic, 0, b"run", encode_record(request), request_headers(request)))
        writer.abort(5) if number % 2 else writer.commit(5)
    stage.worker()
    stage.settle()
    assert [stage.begun(f"t{number}") for number in range(6)] == [1, 0, 1, 0, 1, 0]
    base, known = stage.committed()
    assert known == OffsetMap()
    assert base is not None
    assert base > 6


@pytest.mark.parametrize("protocol", [GroupProtocol.CONSUMER, GroupProtocol.COOPERATIVE, GroupProtocol.RANGE])
def test_a_member_that_joins_gets_finished_work_handed_over(protocol: GroupProtocol) -> None:
    """When another member joins, running calls end first: each runs once and no suspect is told."""
    stage = Stage(partitions=2, protocol=protocol)
    stage.provision()
    for number in range(20):
        stage.ask(f"c{number}", ONCE, "sleep:800", partition=number % 2)
    stage.worker("w1")
    stage.until(lambda: len(stage.truth) == 20)
    second = stage.worker("w2")
    stage.until(lambda: bool(second.executor.assigned), limit_ms=2 * SESSION_MS)
    stage.settle()
    assert [stage.begun(f"c{number}") for number in range(20)] == [1] * 20
    assert counts(stage.results()) == {"Started": 20, "Completed": 20}
    stage.close()


def test_a_member_that_leaves_commits_what_it_did(stage: Stage) -> None:
    """SIGTERM is no cancel: running calls end, their results are told, everything is committed, nothing
    new starts.
    """
    worker = stage.worker()
    stage.ask("a", ONCE, "sleep:3000")
    stage.until(lambda: stage.begun("a") == 1)
    worker.executor.drain()
    stage.ask("b")
    stage.until(lambda: worker.executor.phase is Phase.STOPPED)
    assert stage.told("a") == ["Started", "Completed"]
    assert stage.told("b") == []
    assert stage.committed() == (1, OffsetMap())


def test_a_stopped_process_claims_nothing_when_it_wakes(stage: Stage) -> None:
    """A member that slept through its session has lost its partitions; what it then tells is late, not
    a second run.
    """
    first = stage.worker("w1")
    stage.ask("a", ONCE, "sleep:100")
    stage.until(lambda: stage.begun("a") == 1)
    first.log.stop()
    stage.cluster.advance(SESSION_MS)
    second = stage.worker("w2")
    stage.until(lambda: stage.told("a") == ["Started", "Suspect"], second, limit_ms=2 * SESSION_MS)
    stage.ask("b")
    first.log.go_on()
    stage.settle()
    assert stage.told("a") == ["Started", "Suspect", "Completed"]
    assert stage.begun("a") == stage.begun("b") == 1
    assert stage.committed() == (2, OffsetMap())


def test_a_call_goes_on_in_a_new_ownership_of_the_same_process(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """A member that loses a partition and gets it back while a call runs neither repeats nor doubts
    that call.
    """
    caplog.set_level("INFO", logger="perdure")
    worker = stage.worker("w1")
    for call, effect in (("once", ONCE), ("read", READ)):
        stage.ask(call, effect, "sleep:90000", timeout_ms=200_000)
    stage.until(lambda: len(stage.truth) == 2)
    worker.log.stop()
    stage.cluster.advance(SESSION_MS)
    worker.log.go_on()
    stage.settle()
    actions = [getattr(line, "action", "") for line in caplog.records]
    assert actions.count("executor_partitions_lost") == 1
    assert actions.count("executor_call_adopted") == 2
    assert stage.begun("once") == stage.begun("read") == 1
    assert stage.told("once") == ["Started", "Completed"]
    assert stage.told("read") == ["Completed"]
    assert stage.committed() == (2, OffsetMap())


def test_a_call_longer_than_a_rebalance_waits_is_told_by_both(stage: Stage) -> None:
    """A call that outlasts the hand-over is suspect to the next owner, runs on, and its result is told
    late.
    """
    settings = ExecutorSettings(revoke_drain_s=1.0)
    stage = Stage(settings=settings, protocol=GroupProtocol.RANGE)
    stage.provision()
    stage.worker("second by name")
    stage.ask("a", ONCE, "sleep:20000")
    stage.until(lambda: stage.begun("a") == 1)
    taker = stage.worker("first by name")
    stage.settle()
    assert taker.executor.assigned == (AT,)
    assert stage.begun("a") == 1
    assert stage.told("a") == ["Started", "Suspect", "Completed"]
    assert stage.committed() == (1, OffsetMap())
    stage.close()


def test_a_worker_that_gets_no_answer_at_take_over_leaves(stage: Stage) -> None:
    """Without knowing what is done nothing is read, let alone executed; a new process may have more luck."""
    stage.settings = ExecutorSettings(asks_max=3)
    stage.ask("a")
    worker = stage.worker()
    stage.cluster.faults.inject(Api.OFFSET_FETCH, worker.client_id, Fate.LOST, 3)
    stage.until(lambda: worker.executor.phase is Phase.STOPPED)
    assert worker.executor.exit is Exit.UNREADY
    assert stage.results() == []
    stage.worker("w2")
    stage.until(lambda: stage.told("a") == ["Started", "Completed"])


def test_a_question_at_take_over_is_asked_until_it_is_answered(stage: Stage) -> None:
    """A coordinator that is away for a moment costs time and nothing else."""
    stage.ask("a")
    worker = stage.worker()
    stage.cluster.faults.inject(Api.OFFSET_FETCH, worker.client_id, Fate.LOST, 3)
    stage.settle()
    assert stage.told("a") == ["Started", "Completed"]
