"""The view's fold: rows and counts, whatever comes in whatever order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure.connectors.runs_reader import RunsReader
from perdure.processors.clock import SystemClock
from perdure.processors.views.fold import Put, Removed, Unchanged, Why
from perdure.processors.views.index import Counts, Filter, Tally
from perdure.processors.views.row import UNREADABLE, Unread
from perdure.processors.views.run_view import CursorRefused, Heard, MemoryRunView
from perdure.schemas.codec import decode
from perdure.schemas.outputs import Status
from perdure.schemas.values import RunState
from perdure.topics.log import Outgoing
from perdure.topics.model_cluster import ModelCluster
from perdure.topics.model_log import ModelLog
from perdure.topics.partitioner import partition_of
from perdure.topics.table import RUN_STATUS, Namespace
from tests.unit.view_records import Fed, counted, fed, newest, status, tombstone

RUN_IDS = ("run-1", "run-2", "run-3", "run-2~a")

_STATUS = st.builds(
    status,
    st.sampled_from(RUN_IDS),
    st.integers(0, 9),
    st.sampled_from(list(RunState)),
    agent=st.sampled_from(["support", "billing"]),
    tenant=st.sampled_from([None, "acme", "globex"]),
    tokens=st.integers(0, 99),
    created_ms=st.integers(0, 5),
)
_FED = st.one_of(_STATUS.map(fed), st.sampled_from(RUN_IDS).map(tombstone))


def _told(counts: Counts) -> dict[str, Any]:
    """The view's counts in the form of ``counted``."""
    tallies: dict[tuple[str, str | None], Tally] = {
        ("all", ""): counts.total,
        **{("agent", name): each for name, each in counts.agents.items()},
        **{("tenant", name): each for name, each in counts.tenants.items()},
    }
    return {
        "runs": {
            (*key, state): runs
            for key, tally in tallies.items()
            for state, runs in tally.states.items()
            if runs
        },
        "tokens": {
            key: tally.usage.input_tokens for key, tally in tallies.items() if tally.usage.input_tokens
        },
    }


def _rows(view: MemoryRunView) -> dict[str, Status]:
    return {row.run_id: row for row in view.statuses()}


def _view(records: list[Fed]) -> MemoryRunView:
    view = MemoryRunView()
    for key, value in records:
        view.feed(key, value)
    return view


@given(st.lists(_FED))
def test_rows_and_counts_are_those_of_an_independent_fold(records: list[Fed]) -> None:
    """After any records, in any order of seq, rows and aggregates equal a fold done from scratch."""
    view = _view(records)
    expected = newest(records)
    assert _rows(view) == expected
    assert _told(view.counts()) == counted(expected.values())


@given(st.lists(_FED))
def test_diffing_and_counting_anew_agree(records: list[Fed]) -> None:
    """Aggregates kept by diffing are those that a rebuild from the rows would give."""
    view = _view(records)
    kept = view.counts()
    view.rebuild()
    assert view.counts() == kept


@given(st.lists(_FED))
def test_a_record_that_comes_twice_counts_once(records: list[Fed]) -> None:
    """A kill between row and aggregate makes the last record come again; nothing changes by it."""
    twice = [record for record in records for _ in range(2)]
    assert _rows(_view(twice)) == _rows(_view(records))
    assert _view(twice).counts() == _view(records).counts()


@given(st.lists(_FED))
def test_a_compacted_topic_gives_the_same_view(records: list[Fed]) -> None:
    """Of records whose seq does not fall, the newest of each key say all."""
    ascending = [
        (key, value) if value is None else fed(replace(decode(Status, value), seq=number))
        for number, (key, value) in enumerate(records)
    ]
    compacted = list(dict(ascending).items())
    assert _rows(_view(compacted)) == _rows(_view(ascending))
    assert _view(compacted).counts() == _view(ascending).counts()


def test_a_lower_seq_changes_nothing() -> None:
    """A status that was published again late does not set the run back."""
    view = _view([fed(status("run-1", 5, RunState.COMPLETED))])
    assert view.feed(*fed(status("run-1", 4))) == Unchanged(Why.STALE)
    assert _rows(view)["run-1"].state is RunState.COMPLETED


def test_a_tombstone_takes_the_run_out_of_rows_and_counts() -> None:
    """A purged run is gone, its usage too; what comes of it later is a run that was not there."""
    view = _view([fed(status("run-1", 5)), tombstone("run-1")])
    assert view.get("run-1") is None
    assert view.counts() == MemoryRunView().counts()
    assert view.feed(*tombstone("run-1")) == Unchanged(Why.ABSENT)
    assert isinstance(view.feed(*fed(status("run-1", 1))), Put)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (b"", "not_single_object"),
        (b"\xc3\x01" + bytes(8), "unknown_fingerprint"),
        (fed(status("another", 1))[1], "key_mismatch"),
    ],
)
def test_a_record_that_can_not_be_read_is_shown_as_such(value: bytes, code: str) -> None:
    """The run neither keeps a state that may be old nor vanishes; the next good record mends it."""
    view = _view([fed(status("run-1", 5)), (b"run-1", value)])
    row = view.get("run-1")
    assert isinstance(row, Unread)
    assert row.code == code
    assert view.counts().total.states[UNREADABLE] == 1
    assert view.page(Filter(state=UNREADABLE), 10).rows == (row,)
    view.feed(*fed(status("run-1", 6)))
    assert _told(view.counts()) == counted([status("run-1", 6)])


@pytest.mark.parametrize("key", [None, b"", b"__faust\x00offset__", b"\xff", b"a/b"])
def test_a_key_that_is_no_run_id_is_left_out_and_counted(key: bytes | None) -> None:
    """What strangers write beside the runs does not become a run."""
    view = MemoryRunView()
    assert view.feed(key, fed(status("run-1", 1))[1]) == Unchanged(Why.NO_RUN_ID)
    assert (view.records, view.unnamed) == (1, 1)
    assert view.page(Filter(), 10).rows == ()


@given(st.lists(_STATUS.map(fed)), st.integers(1, 3), st.sampled_from([None, "acme", ""]))
def test_pages_are_the_list_in_pieces(records: list[Fed], limit: int, tenant: str | None) -> None:
    """Following `next` gives every run of the filter once, newest first."""
    view = _view(records)
    wanted = Filter(tenant=tenant)
    seen: list[tuple[int, str]] = []
    after: str | None = None
    while True:
        page = view.page(wanted, limit, after)
        assert len(page.rows) <= limit
        seen.extend((row.created_ms, row.run_id) for row in page.rows)
        after = page.next
        if after is None:
            break
    expected = [
        (row.created_ms, row.run_id)
        for row in newest(records).values()
        if tenant is None or (row.provenance.tenant or "") == tenant
    ]
    assert seen == sorted(expected, reverse=True)


def test_a_page_goes_on_after_a_run_that_is_gone() -> None:
    """The cursor names a place, not a run: purging the run it ends at loses none."""
    view = _view([fed(status(run_id, 1, created_ms=number)) for number, run_id in enumerate(RUN_IDS)])
    first = view.page(Filter(), 2)
    view.feed(*tombstone(first.rows[-1].run_id))
    second = view.page(Filter(), 2, first.next)
    assert [row.run_id for row in (*first.rows, *second.rows)] == list(reversed(RUN_IDS))


@pytest.mark.parametrize("cursor", ["", "x", "1/", "/run-1", "1/a/b", "9" * 5_000 + "/run-1", "\uff11/run-1"])
def test_a_cursor_of_nobody_is_refused(cursor: str) -> None:
    """Only what a page named is taken."""
    with pytest.raises(CursorRefused):
        MemoryRunView().page(Filter(), 1, cursor)


def test_listeners_hear_each_change_once() -> None:
    """Changes reach whoever listens, stale records do not, and a rebuild says so."""
    view = MemoryRunView()
    heard: list[Heard] = []
    leave = view.listen(heard.append)
    first = view.feed(*fed(status("run-1", 2)))
    view.feed(*fed(status("run-1", 1)))
    last = view.feed(*tombstone("run-1"))
    view.rebuild()
    leave()
    view.feed(*fed(status("run-1", 3)))
    assert isinstance(last, Removed)
    assert heard == [first, last, None]


def test_the_plain_reader_folds_what_is_committed() -> None:
    """Without Faust the same fold over a log: aborted transactions leave nothing, later records are taken."""
    cluster = ModelCluster()
    names = Namespace("shop")
    topic = names.topic(RUN_STATUS)
    cluster.create_topic(topic, 4)
    log = ModelLog(cluster)
    producer = log.transactional("slot", 10_000)
    producer.init(5)

    def write(*records: Fed, commit: bool = True) -> None:
        producer.begin()
        for key, value in records:
            assert key is not None
            producer.produce(Outgoing(topic, partition_of(key.decode(), 4), key, value))
        if commit:
            producer.commit(5)
        else:
            producer.abort(5)

    first = [fed(status("run-1", 1)), fed(status("run-2", 1))]
    write(*first)
    write(fed(status("run-1", 9, RunState.FAILED)), fed(status("run-9", 1)), commit=False)
    with RunsReader(log, SystemClock(), names, "reader") as reader:
        assert _rows(reader.to_end()) == newest(first)
        write(tombstone("run-2"))
        assert reader.more(0) == 1
        assert _rows(reader.view) == newest(first[:1])
