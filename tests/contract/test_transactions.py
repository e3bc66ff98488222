"""The Log port: what a transaction makes visible, and when."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from perdure.topics.errors import Fenced, LogMisuse, RecordTooLarge, TransactionAbortable
from perdure.topics.log import (
    GroupMetadata,
    Isolation,
    Outgoing,
    Position,
    TopicPartition,
    TransactionalProducer,
)
from tests.contract.world import TIMEOUT_S, World, records_of, values_of

NOBODY = -1


def record(topic: str, value: bytes, partition: int = 0) -> Outgoing:
    return Outgoing(topic, partition, b"key", value)


def nobody(group: str) -> GroupMetadata:
    """Metadata of a consumer that never joined."""
    return GroupMetadata(group, NOBODY, "")


def committed_offset(world: World, group: str, at: TopicPartition) -> int | None:
    consumer = world.lone_committer(group)
    (found,) = consumer.committed([at], TIMEOUT_S)
    consumer.close()
    return found.offset


def test_open_transaction_is_invisible(world: World) -> None:
    """Records of an open transaction are not delivered, and the end is reported before the first of them."""
    topic = world.topic()
    producer = world.transactional()
    world.write(topic, b"before")
    producer.begin()
    producer.produce(record(topic, b"open"))
    world.until(lambda: ends(world, topic) == (1, 2))
    assert world.read_all(topic) == ([b"before"], 1)


def test_aborted_transaction_is_invisible_and_occupies_offsets(world: World) -> None:
    """Aborted records are never delivered, yet their offsets and their marker's are used up."""
    topic = world.topic()
    producer = world.transactional()
    producer.begin()
    producer.produce(record(topic, b"never"))
    world.until(lambda: ends(world, topic)[1] == 1)
    producer.abort(TIMEOUT_S)
    world.until(lambda: ends(world, topic) == (2, 2))
    assert world.write(topic, b"after") == [2]
    assert world.read_all(topic) == ([b"after"], 3)


def test_commit_marker_occupies_an_offset_in_each_partition(world: World) -> None:
    """A committed transaction uses one offset more than its records in each partition it touched."""
    topic = world.topic(partitions=3)
    producer = world.transactional()
    producer.begin()
    producer.produce(record(topic, b"a", 0))
    producer.produce(record(topic, b"b", 0))
    producer.produce(record(topic, b"c", 1))
    producer.commit(TIMEOUT_S)
    world.until(lambda: [ends(world, topic, p) for p in range(3)] == [(3, 3), (2, 2), (0, 0)])


def test_end_stands_behind_the_marker(world: World) -> None:
    """The end reported after a transaction's last record is the offset behind its marker."""
    topic = world.topic()
    world.write_transaction(world.transactional(), topic, b"a", b"b")
    world.until(lambda: ends(world, topic) == (3, 3))
    assert world.read_all(topic) == ([b"a", b"b"], 3)


def test_marker_alone_moves_the_end(world: World) -> None:
    """A reader that stands at the end is told of a new one when only invisible offsets have come."""
    topic = world.topic()
    producer = world.transactional()
    reader = world.reader(Position(TopicPartition(topic, 0), 0))
    assert world.read_to_end(reader) == ([], 0)
    producer.begin()
    producer.produce(record(topic, b"never"))
    world.until(lambda: ends(world, topic)[1] == 1)
    producer.abort(TIMEOUT_S)
    assert world.read_to_end(reader) == ([], 2)


def test_open_transaction_holds_back_later_records(world: World) -> None:
    """A later record of a writer without transactions stays invisible until the earlier transaction ends."""
    topic = world.topic()
    producer = world.transactional()
    producer.begin()
    producer.produce(record(topic, b"open"))
    world.until(lambda: ends(world, topic)[1] == 1)
    world.write(topic, b"plain")
    reader = world.reader(Position(TopicPartition(topic, 0), 0))
    assert world.read_to_end(reader) == ([], 0)
    assert reader.poll(10, 0.3) == []
    producer.commit(TIMEOUT_S)
    records, end = world.read_to_end(reader)
    assert (values_of(records), end) == ([b"open", b"plain"], 3)


def test_oldest_open_transaction_decides_the_stable_end(world: World) -> None:
    """A committed transaction behind an open one is visible only when that one has ended too."""
    topic = world.topic()
    first, second = world.transactional("first"), world.transactional("second")
    first.begin()
    first.produce(record(topic, b"first"))
    world.until(lambda: ends(world, topic)[1] == 1)
    world.write_transaction(second, topic, b"second")
    world.until(lambda: ends(world, topic) == (0, 3))
    assert world.read_all(topic) == ([], 0)
    first.abort(TIMEOUT_S)
    world.until(lambda: ends(world, topic) == (4, 4))
    assert world.read_all(topic) == ([b"second"], 4)


def test_commit_makes_records_and_offsets_visible_together(world: World) -> None:
    """Before the commit neither the records nor the offsets are there; after it both are."""
    source, target = world.topic("source", 2), world.topic("target")
    group = world.name("group")
    producer = world.transactional()
    at = TopicPartition(source, 1)
    producer.begin()
    producer.produce(record(target, b"out"))
    world.until(lambda: ends(world, target)[1] == 1)
    assert world.read_all(target) == ([], 0)
    assert committed_offset(world, "group", at) is None
    producer.send_offsets([Position(at, 7)], nobody(group), TIMEOUT_S)
    producer.commit(TIMEOUT_S)
    assert committed_offset(world, "group", at) == 7
    world.until(lambda: world.read_all(target) == ([b"out"], 2))


def test_abort_drops_records_and_offsets_together(world: World) -> None:
    """After an abort the records are invisible and the group's offset is what it was."""
    topic = world.topic()
    group = world.name("group")
    at = TopicPartition(topic, 0)
    producer = world.transactional()
    producer.begin()
    producer.send_offsets([Position(at, 3)], nobody(group), TIMEOUT_S)
    producer.commit(TIMEOUT_S)
    producer.begin()
    producer.produce(record(topic, b"never"))
    producer.send_offsets([Position(at, 9)], nobody(group), TIMEOUT_S)
    producer.abort(TIMEOUT_S)
    assert committed_offset(world, "group", at) == 3
    assert world.read_all(topic)[0] == []


def test_offsets_of_several_topics_in_one_transaction(world: World) -> None:
    """One transaction commits offsets of any partitions of any topics; nobody checks who owns them."""
    first, second = world.topic("first"), world.topic("second", 2)
    group = world.name("group")
    wanted = {TopicPartition(first, 0): 5, TopicPartition(second, 0): 6, TopicPartition(second, 1): 7}
    producer = world.transactional()
    producer.begin()
    producer.send_offsets([Position(at, offset) for at, offset in wanted.items()], nobody(group), TIMEOUT_S)
    producer.commit(TIMEOUT_S)
    found = world.lone_committer().committed(list(wanted), TIMEOUT_S)
    assert {each.at: each.offset for each in found} == wanted


def test_transaction_spans_topics_and_partitions(world: World) -> None:
    """Records for several topics and partitions become visible by one commit."""
    first, second = world.topic("first", 2), world.topic("second")
    producer = world.transactional()
    producer.begin()
    producer.produce(record(first, b"a", 0))
    producer.produce(record(first, b"b", 1))
    producer.produce(record(second, b"c"))
    producer.commit(TIMEOUT_S)
    seen = [world.read_all(topic, p)[0] for topic, p in ((first, 0), (first, 1), (second, 0))]
    world.until(lambda: seen == [[b"a"], [b"b"], [b"c"]])


def test_commit_reports_tracked_offsets(world: World) -> None:
    """A commit tells the highest offset of the tracked records of each partition, untracked ones left out."""
    topic = world.topic(partitions=3)
    world.write(topic, b"before")
    producer = world.transactional()
    producer.begin()
    for value, partition, track in ((b"a", 0, True), (b"b", 0, True), (b"c", 0, False), (b"d", 1, True)):
        producer.produce(record(topic, value, partition), track=track)
    producer.produce(record(topic, b"e", 2))
    assert dict(producer.commit(TIMEOUT_S)) == {TopicPartition(topic, 0): 2, TopicPartition(topic, 1): 0}
    producer.begin()
    producer.produce(record(topic, b"f", 1), track=True)
    assert dict(producer.commit(TIMEOUT_S)) == {TopicPartition(topic, 1): 2}


def test_transactions_follow_each_other(world: World) -> None:
    """A producer commits and aborts in turn, and only the committed ones are seen, in order."""
    topic = world.topic()
    producer = world.transactional()
    for number in range(6):
        producer.begin()
        producer.produce(record(topic, b"%d" % number))
        if number % 3 == 2:
            producer.abort(TIMEOUT_S)
        else:
            producer.commit(TIMEOUT_S)
    world.until(lambda: world.read_all(topic)[0] == [b"0", b"1", b"3", b"4"])


def test_empty_transaction_changes_nothing(world: World) -> None:
    """A transaction without records and offsets commits and aborts without a trace."""
    topic = world.topic()
    producer = world.transactional()
    producer.begin()
    assert dict(producer.commit(TIMEOUT_S)) == {}
    producer.begin()
    producer.abort(TIMEOUT_S)
    assert ends(world, topic) == (0, 0)


def test_empty_offset_list_is_a_silent_no_op(world: World) -> None:
    """Sending no offsets succeeds, also for a member that is long gone: it fences nothing."""
    topic = world.topic()
    stale = GroupMetadata(world.name("group"), 17, "nobody-we-know")
    producer = world.transactional()
    producer.begin()
    producer.produce(record(topic, b"a"))
    producer.send_offsets([], stale, TIMEOUT_S)
    producer.commit(TIMEOUT_S)
    assert committed_offset(world, "group", TopicPartition(topic, 0)) is None
    world.until(lambda: world.read_all(topic)[0] == [b"a"])


def test_offsets_of_an_unknown_member_are_fenced(world: World) -> None:
    """Offsets with a generation and member id that the group does not know are refused as Fenced."""
    topic = world.topic()
    producer = world.transactional()
    producer.begin()
    stale = GroupMetadata(world.name("group"), 17, "nobody-we-know")
    with pytest.raises(Fenced):
        producer.send_offsets([Position(TopicPartition(topic, 0), 1)], stale, TIMEOUT_S)


def test_record_over_the_limit_is_told_at_once(world: World) -> None:
    """A record larger than perdure's topics accept raises before anything is sent, and the rest can go on."""
    topic = world.topic()
    producer = world.transactional()
    producer.begin()
    producer.produce(record(topic, b"fits"))
    with pytest.raises(RecordTooLarge):
        producer.produce(record(topic, bytes(5 << 20)))
    producer.commit(TIMEOUT_S)
    world.until(lambda: world.read_all(topic)[0] == [b"fits"])


def test_record_over_its_topics_limit_spoils_the_transaction(world: World) -> None:
    """A record that only its topic refuses makes the commit fail definitely, and at most the next one too.

    The client's sequence numbers have a gap then, which it mends by failing once more.
    """
    topic = world.topic(max_message_bytes="1000")
    producer = world.transactional()
    producer.begin()
    producer.produce(record(topic, bytes(5_000)))
    with pytest.raises(TransactionAbortable):
        producer.commit(TIMEOUT_S)
    producer.abort(TIMEOUT_S)
    with suppress(TransactionAbortable):
        world.write_transaction(producer, topic, b"next")
        producer.begin()
    producer.abort(TIMEOUT_S)
    world.write_transaction(producer, topic, b"last")
    world.until(lambda: world.read_all(topic)[0][-1:] == [b"last"])
    assert set(world.read_all(topic)[0]) <= {b"next", b"last"}


def test_idempotent_producer_reports_a_record_over_its_topics_limit(world: World) -> None:
    """A record that only the topic refuses comes back in its delivery report, offset -1."""
    topic = world.topic(max_message_bytes="1000")
    producer = world.producer()
    reports: list[tuple[Exception | None, int]] = []
    producer.produce(record(topic, bytes(5_000)), lambda error, offset: reports.append((error, offset)))
    assert producer.flush(TIMEOUT_S) == 0
    ((error, offset),) = reports
    assert isinstance(error, RecordTooLarge)
    assert offset == -1


@pytest.mark.parametrize(
    ("call", "before"),
    [
        ("begin", []),
        ("init", ["init"]),
        ("begin", ["init", "begin"]),
        ("produce", ["init"]),
        ("commit", ["init"]),
        ("abort", ["init"]),
        ("begin", ["init", "close"]),
    ],
)
def test_calls_out_of_turn_are_told(world: World, call: str, before: list[str]) -> None:
    """A call that the producer's state does not allow raises LogMisuse."""
    topic = world.topic()
    producer = world.transactional(init=False)
    calls: dict[str, Callable[[], object]] = {
        "init": lambda: producer.init(TIMEOUT_S),
        "begin": producer.begin,
        "produce": lambda: producer.produce(record(topic, b"a")),
        "commit": lambda: producer.commit(1),
        "abort": lambda: producer.abort(1),
        "close": producer.close,
    }
    for name in before:
        calls[name]()
    out_of_turn = calls[call]
    with pytest.raises(LogMisuse):
        out_of_turn()


def test_watermarks_of_both_isolations(world: World) -> None:
    """The committed end stops at the open transaction, the uncommitted one does not; the start is one."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    world.write(topic, b"a", b"b")
    world.log.delete_records([Position(at, 1)], TIMEOUT_S)
    producer = world.transactional()
    producer.begin()
    producer.produce(record(topic, b"c"))
    world.until(lambda: ends(world, topic) == (2, 3))
    lows = {world.log.watermarks(at, isolation, TIMEOUT_S).low for isolation in Isolation}
    assert lows == {1}
    producer.commit(TIMEOUT_S)
    world.until(lambda: ends(world, topic) == (4, 4))


def test_reader_sees_two_interleaved_transactions_in_log_order(world: World) -> None:
    """Records of two transactions keep the log's order whichever commits first; aborted ones fall out."""
    topic = world.topic()
    first, second = world.transactional("first"), world.transactional("second")
    first.begin()
    second.begin()

    def put(producer: TransactionalProducer, value: bytes, end: int) -> None:
        producer.produce(record(topic, value))
        world.until(lambda: ends(world, topic)[1] == end)

    put(first, b"f1", 1)
    put(second, b"s1", 2)
    put(first, b"f2", 3)
    put(second, b"s2", 4)
    second.abort(TIMEOUT_S)
    first.commit(TIMEOUT_S)
    reader = world.reader(Position(TopicPartition(topic, 0), 0))
    found: list[bytes | None] = []

    def enough() -> bool:
        found.extend(values_of(records_of(reader.poll(10, 0.1))))
        return len(found) >= 2

    world.until(enough)
    assert found == [b"f1", b"f2"]


def ends(world: World, topic: str, partition: int = 0) -> tuple[int, int]:
    """Committed and uncommitted end."""
    at = TopicPartition(topic, partition)
    committed = world.log.watermarks(at, Isolation.COMMITTED, TIMEOUT_S).end
    return committed, world.log.watermarks(at, Isolation.UNCOMMITTED, TIMEOUT_S).end
