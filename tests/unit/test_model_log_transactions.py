"""What the model's transaction coordinator does when its markers and its clients take their time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.topics.errors import Fenced, OutcomeUnknown, TransactionAbortable, Unavailable
from perdure.topics.log import (
    ConsumerSpec,
    GroupMetadata,
    Isolation,
    Outgoing,
    Position,
    TopicPartition,
)
from perdure.topics.model_cluster import OFFSETS_TOPIC, ModelCluster
from perdure.topics.model_faults import Api, Fate, GroupLog
from perdure.topics.model_log import ModelLog
from perdure.topics.model_transaction import TransactionState
from perdure.topics.model_transactional import ModelTransactionalProducer

EVENTS, REQUESTS = TopicPartition("run-events", 0), TopicPartition("tool-requests", 0)
INPUT = TopicPartition("run-commands", 0)
GROUP = GroupMetadata("orchestrator", -1, "")
TIMEOUT_S = 5.0
SLOT = "slot-0"


@pytest.fixture
def cluster() -> ModelCluster:
    made = ModelCluster()
    for topic in ("run-commands", "run-events", "tool-requests"):
        made.create_topic(topic, 2)
    return made


@pytest.fixture
def log(cluster: ModelCluster) -> ModelLog:
    return ModelLog(cluster)


def ready(
    log: ModelLog, transactional_id: str = SLOT, timeout_ms: int = 10_000
) -> ModelTransactionalProducer:
    producer = log.transactional(transactional_id, timeout_ms)
    producer.init(TIMEOUT_S)
    return producer


def out(at: TopicPartition, value: bytes) -> Outgoing:
    return Outgoing(at.topic, at.partition, b"run", value)


def transact(producer: ModelTransactionalProducer, value: bytes, offset: int) -> None:
    """One batch of an orchestrator: an event, a request, and the input's offset."""
    producer.begin()
    producer.produce(out(EVENTS, value))
    producer.produce(out(REQUESTS, value))
    producer.send_offsets([Position(INPUT, offset)], GROUP, TIMEOUT_S)
    producer.commit(TIMEOUT_S)


def visible(cluster: ModelCluster, at: TopicPartition) -> list[bytes | None]:
    return [record.value for record in cluster.visible(at.topic, at.partition)]


def committed(log: ModelLog, timeout_s: float = 0.0) -> int | None:
    consumer = log.consumer(ConsumerSpec("asking", "orchestrator"))
    return consumer.committed([INPUT], timeout_s)[0].offset


def test_commit_returns_before_its_markers_arrive(cluster: ModelCluster, log: ModelLog) -> None:
    """An acknowledged commit is not visible yet: partitions and offsets wait for their markers."""
    cluster.faults.marker_delay_ms = None
    transact(ready(log), b"a", 1)
    assert cluster.transactions.state_of(SLOT) is TransactionState.PREPARE_COMMIT
    assert visible(cluster, EVENTS) == visible(cluster, REQUESTS) == []
    with pytest.raises(Unavailable):
        committed(log)


def test_markers_arrive_one_by_one(cluster: ModelCluster, log: ModelLog) -> None:
    """A transaction can be visible in one partition, not in another, and neither in the group's offsets."""
    cluster.faults.marker_delay_ms = None
    transact(ready(log), b"a", 1)
    assert cluster.release_markers(target=EVENTS) == 1
    assert (visible(cluster, EVENTS), visible(cluster, REQUESTS)) == ([b"a"], [])
    assert cluster.release_markers(target=GroupLog("orchestrator")) == 1
    assert committed(log) == 1
    assert visible(cluster, REQUESTS) == []
    assert cluster.release_markers() == 1
    assert visible(cluster, REQUESTS) == [b"a"]
    assert cluster.transactions.state_of(SLOT) is TransactionState.COMPLETE_COMMIT


def test_delayed_markers_arrive_in_virtual_time(cluster: ModelCluster, log: ModelLog) -> None:
    """A marker's delay is kept to the millisecond, each target having its own."""
    cluster.faults.marker_delays_ms = {EVENTS: 10, REQUESTS: 30, GroupLog("orchestrator"): 20}
    transact(ready(log), b"a", 1)
    seen: list[tuple[bool, bool, bool]] = []
    for _ in range(4):
        seen.append((bool(visible(cluster, EVENTS)), bool(visible(cluster, REQUESTS)), is_stable(log)))
        cluster.advance(10)
    assert seen == [(False,) * 3, (True, False, False), (True, False, True), (True,) * 3]


def is_stable(log: ModelLog) -> bool:
    try:
        return committed(log) == 1
    except Unavailable:
        return False


def test_question_for_offsets_waits_for_the_marker(cluster: ModelCluster, log: ModelLog) -> None:
    """A require-stable question moves the clock up to the marker's arrival and not beyond."""
    cluster.faults.marker_delay_ms = 700
    transact(ready(log), b"a", 1)
    before_ms = cluster.now_ms
    assert committed(log, timeout_s=5.0) == 1
    assert cluster.now_ms - before_ms == 700


def test_next_transaction_waits_for_the_markers_of_the_last(cluster: ModelCluster, log: ModelLog) -> None:
    """While markers are under way the same producer's next records stay in its queue; its commit waits."""
    cluster.faults.marker_delay_ms = 40
    producer = ready(log)
    transact(producer, b"a", 1)
    producer.begin()
    producer.produce(out(EVENTS, b"b"))
    assert cluster.partition(EVENTS).end == 1
    producer.commit(TIMEOUT_S)
    cluster.advance(40)
    assert visible(cluster, EVENTS) == [b"a", b"b"]


def test_offsets_give_up_when_the_markers_do_not_come(cluster: ModelCluster, log: ModelLog) -> None:
    """A producer whose predecessor transaction hangs gets OutcomeUnknown, not an endless wait."""
    cluster.faults.marker_delay_ms = None
    producer = ready(log)
    transact(producer, b"a", 1)
    producer.begin()
    with pytest.raises(OutcomeUnknown):
        producer.send_offsets([Position(INPUT, 2)], GROUP, 1.0)


def test_init_completes_a_prepared_commit(cluster: ModelCluster, log: ModelLog) -> None:
    """A decision to commit stands: the next holder's init waits for the markers, and the records stay."""
    cluster.faults.marker_delay_ms = 300
    transact(ready(log), b"a", 1)
    log.kill_all()
    ready(ModelLog(cluster))
    assert visible(cluster, EVENTS) == [b"a"]
    assert committed(ModelLog(cluster)) == 1


def test_init_gives_up_while_markers_are_held(cluster: ModelCluster, log: ModelLog) -> None:
    """An init that can not finish its predecessor's transaction in time has an unknown outcome."""
    cluster.faults.marker_delay_ms = None
    transact(ready(log), b"a", 1)
    with pytest.raises(OutcomeUnknown):
        ready(ModelLog(cluster))


def test_init_aborts_an_open_transaction_and_its_offsets(cluster: ModelCluster, log: ModelLog) -> None:
    """What a killed holder left open is aborted in every partition and in the group's offsets."""
    producer = ready(log)
    producer.begin()
    producer.produce(out(EVENTS, b"a"))
    producer.send_offsets([Position(INPUT, 1)], GROUP, TIMEOUT_S)
    log.kill_all()
    ready(ModelLog(cluster))
    assert visible(cluster, EVENTS) == []
    assert cluster.partition(EVENTS).stable_end == cluster.partition(EVENTS).end == 2
    assert committed(ModelLog(cluster)) is None


def test_open_transaction_times_out_to_the_millisecond(cluster: ModelCluster, log: ModelLog) -> None:
    """The coordinator aborts at transaction.timeout.ms after the first record, and fences the holder."""
    producer = ready(log, timeout_ms=4_000)
    producer.begin()
    cluster.advance(60_000)
    producer.produce(out(EVENTS, b"a"))
    cluster.advance(3_999)
    assert cluster.transactions.state_of(SLOT) is TransactionState.ONGOING
    cluster.advance(1)
    assert cluster.transactions.state_of(SLOT) is TransactionState.COMPLETE_ABORT
    with pytest.raises(Fenced):
        producer.commit(TIMEOUT_S)


def test_markers_stand_in_the_offsets_topic_too(cluster: ModelCluster, log: ModelLog) -> None:
    """A transaction with offsets leaves a record an offset and one marker in the group's own log."""
    transact(ready(log), b"a", 1)
    stored = cluster.stored(OFFSETS_TOPIC, 0)
    assert [(entry.key, entry.marker is None) for entry in stored] == [
        (b"orchestrator/run-commands/0", True),
        (None, False),
    ]
    ends = log.watermarks(TopicPartition(OFFSETS_TOPIC, 0), Isolation.COMMITTED, 1)
    assert ends.end == 2


def test_hanging_transaction_shows_in_the_ends(cluster: ModelCluster, log: ModelLog) -> None:
    """A marker that never comes freezes the committed end below the uncommitted one."""
    cluster.faults.marker_delays_ms[EVENTS] = None
    transact(ready(log), b"a", 1)
    cluster.advance(3_600_000)
    ends = {isolation: log.watermarks(EVENTS, isolation, 1).end for isolation in Isolation}
    assert ends == {Isolation.COMMITTED: 0, Isolation.UNCOMMITTED: 1}
    assert list(cluster.partition(EVENTS).open_producers()) != []


def test_late_commit_of_offsets_does_not_undo_a_newer_one(cluster: ModelCluster, log: ModelLog) -> None:
    """An offset committed by a transaction does not replace one that was committed after it was sent."""
    producer = ready(log)
    producer.begin()
    producer.send_offsets([Position(INPUT, 1)], GROUP, TIMEOUT_S)
    cluster.advance(10)
    newer = ready(log, "slot-1")
    newer.begin()
    newer.send_offsets([Position(INPUT, 7)], GROUP, TIMEOUT_S)
    newer.commit(TIMEOUT_S)
    producer.commit(TIMEOUT_S)
    assert committed(log) == 7


def test_records_may_arrive_after_the_offsets(cluster: ModelCluster, log: ModelLog) -> None:
    """Nothing need be in the partition when the offsets are acknowledged; the commit brings it."""
    cluster.faults.late_records = True
    producer = ready(log)
    producer.begin()
    producer.produce(out(EVENTS, b"a"))
    producer.send_offsets([Position(INPUT, 1)], GROUP, TIMEOUT_S)
    assert cluster.partition(EVENTS).end == 0
    with pytest.raises(Unavailable):
        committed(log)
    producer.commit(TIMEOUT_S)
    assert visible(cluster, EVENTS) == [b"a"]
    assert committed(log) == 1


def test_dead_producers_queue_dies_with_it(cluster: ModelCluster, log: ModelLog) -> None:
    """Records that had not left a killed process are nowhere."""
    cluster.faults.late_records = True
    producer = ready(log)
    producer.begin()
    producer.produce(out(EVENTS, b"a"))
    log.kill_all()
    cluster.advance(20_000)
    assert cluster.partition(EVENTS).end == 0


def test_record_to_a_topic_that_is_gone_spoils_the_transaction(cluster: ModelCluster, log: ModelLog) -> None:
    """A record for an unknown partition makes the commit fail definitely."""
    producer = ready(log)
    producer.begin()
    producer.produce(Outgoing("run-events", 9, b"run", b"a"))
    with pytest.raises(TransactionAbortable):
        producer.commit(TIMEOUT_S)
    producer.abort(TIMEOUT_S)


def test_markers_of_a_deleted_topic_are_dropped(cluster: ModelCluster, log: ModelLog) -> None:
    """A topic that is deleted while markers are under way does not keep the transaction from completing."""
    cluster.faults.marker_delay_ms = 10
    transact(ready(log), b"a", 1)
    cluster.delete_topic("tool-requests")
    cluster.advance(10)
    assert cluster.transactions.state_of(SLOT) is TransactionState.COMPLETE_COMMIT
    assert visible(cluster, EVENTS) == [b"a"]


@pytest.mark.parametrize("api", [Api.INIT, Api.TXN_OFFSETS, Api.END_TXN, Api.PRODUCE])
def test_lost_request_breaks_the_producer(cluster: ModelCluster, log: ModelLog, api: Api) -> None:
    """A request without an answer is OutcomeUnknown, whichever it was, and the clock shows the wait."""
    producer = log.transactional(SLOT, 120_000)
    cluster.faults.inject(api, SLOT, Fate.LOST)
    before_ms = cluster.now_ms

    def batch() -> None:
        producer.init(TIMEOUT_S)
        transact(producer, b"a", 1)

    with pytest.raises(OutcomeUnknown):
        batch()
    assert cluster.now_ms - before_ms >= TIMEOUT_S * 1000
    assert visible(cluster, EVENTS) == []


def test_coordinator_away_is_an_unknown_outcome(cluster: ModelCluster, log: ModelLog) -> None:
    """With the transaction coordinator away neither init nor commit can tell what happened."""
    producer = ready(log)
    producer.begin()
    producer.produce(out(EVENTS, b"a"))
    cluster.faults.transaction_coordinator_down = True
    with pytest.raises(OutcomeUnknown):
        producer.commit(TIMEOUT_S)
    with pytest.raises(OutcomeUnknown):
        ready(ModelLog(cluster), "slot-1")


steps = st.lists(
    st.tuples(
        st.sampled_from(["record", "commit", "abort", "crash", "markers", "advance"]),
        st.integers(0, 2),
        st.integers(0, 1),
    ),
    max_size=60,
)


@given(steps)
def test_committed_transactions_are_whole_and_in_order(history: list[tuple[str, int, int]]) -> None:
    """Whatever happens between: what was committed is visible in log order, and nothing else is."""
    cluster = ModelCluster()
    cluster.create_topic("run-events", 2)
    cluster.faults.marker_delay_ms = 50
    log = ModelLog(cluster)
    producers = [ready(log, f"slot-{n}", 600_000) for n in range(3)]
    pending: list[list[tuple[int, bytes]] | None] = [None, None, None]
    expected: list[list[bytes]] = [[], []]
    for number, (what, who, partition) in enumerate(history):
        producer, written = producers[who], pending[who]
        match what:
            case "record":
                if written is None:
                    producer.begin()
                    written = pending[who] = []
                value = b"%d" % number
                producer.produce(Outgoing("run-events", partition, b"run", value))
                written.append((partition, value))
            case "commit" | "abort" if written is not None:
                if what == "commit":
                    producer.commit(TIMEOUT_S)
                    for at, value in written:
                        expected[at].append(value)
                else:
                    producer.abort(TIMEOUT_S)
                pending[who] = None
            case "crash":
                log.kill(producer)
                producers[who], pending[who] = ready(log, f"slot-{who}", 600_000), None
            case "markers":
                cluster.release_markers()
            case _:
                cluster.advance(20)
        for at in range(2):
            ends = cluster.partition(TopicPartition("run-events", at))
            assert ends.stable_end <= ends.end
    for who, written in enumerate(pending):
        if written is not None:
            producers[who].abort(TIMEOUT_S)
    cluster.advance(50)
    for at in range(2):
        seen = visible(cluster, TopicPartition("run-events", at))
        assert sorted(seen, key=str) == sorted(expected[at], key=str)
        log_order = [entry.value for entry in cluster.stored("run-events", at) if entry.value in expected[at]]
        assert seen == log_order
