"""How far an executor reads, and what it keeps: back-pressure, the map's window, commits of an idle group."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import pytest

from perdure.processors.executor.exits import Exit, Phase
from perdure.processors.executor.settings import ExecutorSettings
from perdure.processors.headers import request_headers
from perdure.processors.offset_map import OffsetMap
from perdure.schemas.codec import encode
from perdure.topics.log import CommitOutcome, CommittedOffset, Isolation, Outgoing, TopicPartition
from perdure.topics.table import TOOL_REQUESTS
from tests.scenario.executor_stage import NAMES, READ, Stage, hang

AT = TopicPartition(NAMES.topic(TOOL_REQUESTS), 0)
DAY_S = 86_400
SESSION_MS = 60_000


def test_reading_pauses_while_too_many_calls_wait() -> None:
    """However many requests there are, about backlog_max of them are held in memory, and all are
    executed once.
    """
    stage = Stage(settings=ExecutorSettings(slots=2, backlog_max=10, poll_records_max=5))
    stage.provision()
    for number in range(100):
        stage.ask(f"c{number}", READ, "sleep:20")
    worker = stage.worker()
    most = 0
    while len(stage.results()) < 100:
        stage.run(5)
        most = max(most, worker.executor.backlog)
    assert 10 <= most <= 10 + 5
    assert [stage.begun(f"c{number}") for number in range(100)] == [1] * 100
    stage.close()


def test_a_call_that_never_ends_stops_reading_at_the_end_of_the_window() -> None:
    """The map can not cover more than its window: what lies beyond waits until the base moves, then is
    executed.
    """
    stage = Stage(settings=ExecutorSettings(window_offsets=50, window_low_offsets=20, poll_records_max=10))
    stage.provision()
    stage.ask("slow", READ, "sleep:5000")
    for number in range(200):
        stage.ask(f"c{number}", READ)
    stage.worker()
    stage.run(4_000)
    assert 30 <= len(stage.results()) < 50
    assert stage.committed() == (0, OffsetMap(done=frozenset(range(1, len(stage.results()) + 1))))
    stage.settle()
    assert [stage.begun(f"c{number}") for number in range(200)] == [1] * 200
    assert stage.committed() == (201, OffsetMap())
    stage.close()


def test_a_gap_wider_than_the_window_is_no_obstacle() -> None:
    """A request behind many aborted ones waits for the call before it, and then is read."""
    stage = Stage(settings=ExecutorSettings(window_offsets=50, window_low_offsets=20, poll_records_max=10))
    stage.provision()
    stage.ask("slow", READ, "sleep:3000")
    writer = stage.client.transactional("orchestrator", 60_000)
    writer.init(5)
    for number in range(100):
        request = stage.request(f"aborted{number}")
        writer.begin()
        writer.produce(Outgoing(AT.topic, 0, b"run", encode(request), request_headers(request)))
        writer.abort(5)
    stage.ask("far", READ)
    stage.worker()
    stage.run(1_000)
    assert stage.told("far") == []
    stage.settle()
    assert stage.begun("far") == 1
    assert stage.committed() == (202, OffsetMap())
    stage.close()


def test_the_window_is_handed_over_full() -> None:
    """A successor of a worker that read to the end of the window repeats nothing that was done."""
    stage = Stage(settings=ExecutorSettings(window_offsets=50, window_low_offsets=20, poll_records_max=10))
    stage.provision()
    stage.behaviours["hang"] = hang
    stage.ask("slow", READ, "hang")
    for number in range(200):
        stage.ask(f"c{number}", READ)
    first = stage.worker("w1")
    stage.run(1_000)
    first.kill()
    del stage.behaviours["hang"]
    stage.worker("w2")
    stage.until(lambda: len({each.call_id for each in stage.results()}) == 201, limit_ms=4 * SESSION_MS)
    assert [stage.begun(f"c{number}") for number in range(200)] == [1] * 200
    stage.close()


def test_an_idle_group_commits_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group without requests commits again and again, so that the broker does not forget its map."""
    stage = Stage(settings=ExecutorSettings(idle_commit_s=20.0))
    stage.provision()
    worker = stage.worker()
    stage.ask("a")
    stage.settle()
    commits: list[Sequence[CommittedOffset]] = []
    commit = worker.executor._consumer.commit

    def noted(offsets: Sequence[CommittedOffset]) -> CommitOutcome:
        commits.append(offsets)
        return commit(offsets)

    monkeypatch.setattr(worker.executor._consumer, "commit", noted)
    stage.run(65_000)
    assert [[each.offset for each in offsets] for offsets in commits] == [[1]] * 3
    assert ExecutorSettings().idle_commit_s <= DAY_S
    stage.close()


def test_done_requests_are_deleted_when_they_are_old() -> None:
    """A request older than kept_days is deleted if it is done, whoever did it; one that is open never is."""
    stage = Stage(settings=ExecutorSettings(kept_days=3, delete_interval_s=1.0))
    stage.cluster.offsets_retention_ms = 30 * DAY_S * 1_000
    stage.provision()
    stage.behaviours["hang"] = hang

    def low() -> int:
        return stage.client.watermarks(AT, Isolation.COMMITTED, 1).low

    for number in range(6):
        first = stage.worker(f"w{number}")
        stage.ask(f"done{number}", READ)
        stage.settle(first)
        first.executor.close()
        first.is_alive = False
        stage.cluster.advance(DAY_S * 1_000)
    stage.ask("open", READ, "hang", timeout_ms=10**9)
    last = stage.worker("last")
    stage.until(lambda: stage.begun("open") == 1)
    stage.run(3_000)
    assert low() == 3
    stage.cluster.advance(9 * DAY_S * 1_000)
    last.log.go_on()
    stage.ask("later", READ)
    stage.run(3_000)
    assert stage.told("later") == ["Completed"]
    assert low() == 6
    stage.close()


class SpyWatchdog:
    """Notes what is guarded, and for how long at most."""

    def __init__(self) -> None:
        self.guarded: list[tuple[str, float]] = []

    @contextmanager
    def guard(self, name: str, limit_s: float) -> Generator[None]:
        self.guarded.append((name, limit_s))
        yield


@pytest.mark.parametrize("exit_", [Exit.ASKED, Exit.BROKEN, Exit.UNREADY])
def test_a_close_that_may_never_return_is_watched(exit_: Exit) -> None:
    """Leaving is bounded: shortly where the client is broken, else longer than a drain may take."""
    stage = Stage()
    stage.provision()
    executor = stage.worker().executor
    stage.run(1_000)
    watchdog = executor._watchdog = SpyWatchdog()
    if exit_ is Exit.ASKED:
        executor.drain()
    else:
        executor._end(exit_)
    stage.until(lambda: executor.phase is Phase.STOPPED)
    settings = stage.settings
    limit_s = settings.hang_s if exit_ is Exit.ASKED else settings.broken_close_s
    assert watchdog.guarded == [("close", limit_s)]
    assert settings.broken_close_s < settings.revoke_drain_s < settings.hang_s
    stage.close()
