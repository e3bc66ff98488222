"""The Log port: what a reader sees."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perdure.topics.errors import LogMisuse, OffsetOutOfRange
from perdure.topics.log import Eof, Isolation, Outgoing, Position, TopicPartition
from tests.contract.world import TIMEOUT_S, World, records_of, values_of


def test_order_of_a_partition_is_the_order_of_writing(world: World) -> None:
    """Each partition's records come in the order in which they were produced, offsets ascending."""
    topic = world.topic(partitions=2)
    producer = world.producer()
    for number in range(50):
        producer.produce(Outgoing(topic, number % 2, b"k%d" % number, b"v%d" % number))
    assert producer.flush(TIMEOUT_S) == 0
    reader = world.reader(*(Position(TopicPartition(topic, p), 0) for p in range(2)))
    records = world.read(reader, 50)
    for partition in range(2):
        mine = [record for record in records if record.partition == partition]
        assert [record.value for record in mine] == [b"v%d" % n for n in range(50) if n % 2 == partition]
        assert [record.offset for record in mine] == list(range(25))


def test_record_comes_back_as_it_was_written(world: World) -> None:
    """Key, value and headers are returned byte for byte, duplicates and empty ones included."""
    topic = world.topic()
    headers = (("a", b"1"), ("a", b""), ("trace", b"\x00\xff"))
    producer = world.producer()
    producer.produce(Outgoing(topic, 0, b"\x00key", b"", headers))
    producer.flush(TIMEOUT_S)
    (record,) = world.read(world.reader(Position(TopicPartition(topic, 0), 0)), 1)
    assert (record.key, record.value, record.headers) == (b"\x00key", b"", headers)
    assert record.at == TopicPartition(topic, 0)


def test_tombstone_has_no_value(world: World) -> None:
    """A record written with value None is read with value None, which an empty value is not."""
    topic = world.topic(cleanup_policy="compact")
    producer = world.producer()
    producer.produce(Outgoing(topic, 0, b"run", b""))
    producer.produce(Outgoing(topic, 0, b"run", None))
    producer.flush(TIMEOUT_S)
    assert world.read_all(topic)[0] == [b"", None]


def test_delivery_report_tells_the_offset(world: World) -> None:
    """A delivery report comes once a record, from poll or flush, with the offset it was given."""
    topic = world.topic()
    assert world.write(topic, b"a", b"b", b"c") == [0, 1, 2]


def test_end_is_reported_once_each_time_it_is_reached(world: World) -> None:
    """A reader that asked for it is told of the end once, and once more after it has read what came later."""
    topic = world.topic()
    world.write(topic, b"a")
    reader = world.reader(Position(TopicPartition(topic, 0), 0))
    assert world.read_to_end(reader)[1] == 1
    assert reader.poll(10, 0.3) == []
    world.write(topic, b"b")
    records, end = world.read_to_end(reader)
    assert (values_of(records), end) == ([b"b"], 2)
    assert reader.poll(10, 0.3) == []


def test_end_of_an_empty_partition_is_reported(world: World) -> None:
    """Also a partition without records has an end, at offset 0."""
    topic = world.topic()
    assert world.read_all(topic) == ([], 0)


def test_reader_is_told_no_end_that_it_did_not_ask_for(world: World) -> None:
    """Without the wish for it no Eof is delivered."""
    topic = world.topic()
    world.write(topic, b"a")
    reader = world.reader(Position(TopicPartition(topic, 0), 0), eof=False)
    world.read(reader, 1)
    assert reader.poll(10, 0.3) == []


def test_poll_returns_no_more_than_asked_for(world: World) -> None:
    """A poll hands out at most max_records items and the next one goes on right there."""
    topic = world.topic()
    world.write(topic, *(b"%d" % n for n in range(10)))
    reader = world.reader(Position(TopicPartition(topic, 0), 0), eof=False)
    first = world.until(lambda: reader.poll(3, 0.1))
    assert len(first) <= 3
    rest = world.read(reader, 10 - len(first))
    assert values_of(records_of(first) + rest) == [b"%d" % n for n in range(10)]


def test_reader_starts_where_it_is_told(world: World) -> None:
    """An assignment starts at its position, whatever stands before."""
    topic = world.topic()
    world.write(topic, b"a", b"b", b"c")
    assert values_of(world.read_to_end(world.reader(Position(TopicPartition(topic, 0), 2)))[0]) == [b"c"]


def test_paused_partition_is_silent_and_loses_nothing(world: World) -> None:
    """What was prefetched before a pause is not delivered during it and comes once, in order, after it."""
    topic = world.topic(partitions=2)
    silent, talking = TopicPartition(topic, 0), TopicPartition(topic, 1)
    world.write(topic, *(b"%d" % n for n in range(20)))
    reader = world.reader(Position(silent, 0), Position(talking, 0), eof=False)
    first = records_of(world.until(lambda: reader.poll(5, 0.1)))
    reader.pause([silent])
    world.write(topic, b"other", partition=1)
    assert values_of(world.read(reader, 1)) == [b"other"]
    assert reader.poll(100, 0.3) == []
    reader.resume([silent])
    rest = world.read(reader, 20 - len(first))
    assert values_of(first + rest) == [b"%d" % n for n in range(20)]


def test_end_is_reported_again_after_a_pause(world: World) -> None:
    """A partition that is resumed at its end reports that end anew."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    world.write(topic, b"a")
    reader = world.reader(Position(at, 0))
    world.read_to_end(reader)
    reader.pause([at])
    reader.resume([at])
    assert world.read_to_end(reader) == ([], 1)


def test_assignment_clears_a_pause(world: World) -> None:
    """A partition that was paused before it was assigned anew is delivered."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    world.write(topic, b"a", b"b")
    reader = world.reader(Position(at, 0))
    reader.pause([at])
    reader.assign([Position(at, 0)])
    assert values_of(world.read_to_end(reader)[0]) == [b"a", b"b"]


def test_incremental_assignment_clears_a_pause(world: World) -> None:
    """A partition that was paused, taken away and added again is delivered."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    world.write(topic, b"a")
    reader = world.consumer_without_assignment()
    reader.incremental_assign([Position(at, 0)])
    reader.pause([at])
    reader.incremental_unassign([at])
    reader.incremental_assign([Position(at, 0)])
    assert values_of(world.read_to_end(reader)[0]) == [b"a"]


def test_unassigned_partition_is_silent(world: World) -> None:
    """After it was taken from an assignment nothing more of a partition is delivered, prefetched or not."""
    topic = world.topic(partitions=2)
    world.write(topic, *(b"%d" % n for n in range(20)))
    kept, left = TopicPartition(topic, 1), TopicPartition(topic, 0)
    reader = world.consumer_without_assignment()
    reader.incremental_assign([Position(left, 0), Position(kept, 0)])
    world.until(lambda: records_of(reader.poll(1, 0.1)))
    reader.incremental_unassign([left])
    world.write(topic, b"other", partition=1)
    found: list[bytes | None] = []

    def arrived() -> bool:
        found.extend(values_of(records_of(reader.poll(100, 0.1))))
        return bool(found)

    world.until(arrived)
    assert found == [b"other"]


def test_seek_goes_back_and_forth(world: World) -> None:
    """After a seek the very next record is the one at the new position."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    world.write(topic, *(b"%d" % n for n in range(10)))
    reader = world.reader(Position(at, 0))
    world.read_to_end(reader)
    reader.seek(Position(at, 8))
    assert values_of(world.read_to_end(reader)[0]) == [b"8", b"9"]
    reader.seek(Position(at, 3))
    assert world.read_to_end(reader)[0][0].value == b"3"


def test_seek_discards_what_was_prefetched(world: World) -> None:
    """Records that wait in the reader's queue when it seeks are not delivered after it."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    world.write(topic, *(b"%d" % n for n in range(100)))
    reader = world.reader(Position(at, 0))
    world.until(lambda: records_of(reader.poll(1, 0.1)))
    reader.seek(Position(at, 50))
    assert world.read_to_end(reader)[0][0].value == b"50"


@pytest.mark.parametrize("offset", [0, 7])
def test_position_outside_of_the_log_is_an_error(world: World, offset: int) -> None:
    """A position below the log's start or beyond its end is told, never silently moved."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    world.write(topic, b"a", b"b", b"c")
    world.log.delete_records([Position(at, 2)], TIMEOUT_S)
    reader = world.reader(Position(at, offset))

    def raised() -> bool:
        try:
            assert reader.poll(10, 0.1) == []
        except OffsetOutOfRange:
            return True
        return False

    assert world.until(raised)


def test_other_partitions_go_on_beside_one_out_of_range(world: World) -> None:
    """One bad position is told once, holds up nothing else, and is mended by an assignment, not a seek."""
    topic = world.topic(partitions=2)
    bad, good = TopicPartition(topic, 0), TopicPartition(topic, 1)
    world.write(topic, b"a")
    world.write(topic, b"b", partition=1)
    reader = world.reader(Position(bad, 5), Position(good, 0), eof=False)
    found: list[bytes | None] = []
    errors = 0

    def both() -> bool:
        nonlocal errors
        try:
            found.extend(values_of(records_of(reader.poll(10, 0.1))))
        except OffsetOutOfRange:
            errors += 1
        return errors > 0 and len(found) == 1

    world.until(both)
    assert found == [b"b"]
    assert errors == 1
    with pytest.raises(LogMisuse):
        reader.seek(Position(bad, 0))
    reader.incremental_unassign([bad])
    reader.incremental_assign([Position(bad, 0)])
    assert values_of(world.read(reader, 1)) == [b"a"]


def test_retention_overtakes_a_reader(world: World) -> None:
    """A reader whose next record was deleted before it was fetched is told so."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    world.write(topic, b"a", b"b", b"c")
    reader = world.reader(Position(at, 0))
    world.read_to_end(reader)
    reader.pause([at])
    world.write(topic, b"d", b"e")
    world.log.delete_records([Position(at, 4)], TIMEOUT_S)
    reader.resume([at])

    def raised() -> bool:
        try:
            assert records_of(reader.poll(10, 0.1)) == []
        except OffsetOutOfRange:
            return True
        return False

    assert world.until(raised)


def test_deleted_records_are_gone_and_offsets_stay(world: World) -> None:
    """DeleteRecords moves the first offset kept and nothing else."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    world.write(topic, b"a", b"b", b"c")
    world.log.delete_records([Position(at, 2)], TIMEOUT_S)
    watermarks = world.log.watermarks(at, Isolation.UNCOMMITTED, TIMEOUT_S)
    assert (watermarks.low, watermarks.end) == (2, 3)
    records, end = world.read_to_end(world.reader(Position(at, 2)))
    assert ([record.offset for record in records], end) == ([2], 3)


def test_deleting_below_the_start_changes_nothing(world: World) -> None:
    """DeleteRecords below what is gone already is a success without effect."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    world.write(topic, b"a", b"b", b"c")
    world.log.delete_records([Position(at, 2)], TIMEOUT_S)
    world.log.delete_records([Position(at, 1)], TIMEOUT_S)
    assert world.log.watermarks(at, Isolation.COMMITTED, TIMEOUT_S).low == 2


def test_deleting_beyond_the_end_is_refused(world: World) -> None:
    """DeleteRecords beyond the end raises and deletes nothing."""
    topic = world.topic()
    at = TopicPartition(topic, 0)
    world.write(topic, b"a")
    with pytest.raises(OffsetOutOfRange):
        world.log.delete_records([Position(at, 9)], TIMEOUT_S)
    assert world.log.watermarks(at, Isolation.COMMITTED, TIMEOUT_S).low == 0


def test_append_time_is_the_brokers(world: World) -> None:
    """On a topic with LogAppendTime records carry the time of their arrival, in order."""
    topic = world.topic(message_timestamp_type="LogAppendTime")
    world.write(topic, b"a", b"b")
    times = [
        record.timestamp_ms for record in world.read(world.reader(Position(TopicPartition(topic, 0), 0)), 2)
    ]
    assert times == sorted(times)
    assert times[0] > 1_500_000_000_000


def test_describe_names_what_exists(world: World) -> None:
    """Describe tells partition count and id of each topic and leaves out what does not exist."""
    first, second = world.topic("first", 3), world.topic("second", 1)
    described = world.log.describe([first, second, world.name("absent")], TIMEOUT_S)
    assert {name: info.partitions for name, info in described.items()} == {first: 3, second: 1}
    assert described[first].topic_id != described[second].topic_id
    assert world.log.describe([], TIMEOUT_S) == {}


def test_recreated_topic_has_another_id(world: World) -> None:
    """A topic that was deleted and created again is empty and told apart by its id."""
    topic = world.topic()
    world.write(topic, b"a")
    before = world.log.describe([topic], TIMEOUT_S)[topic]
    world.recreate(topic)
    after = world.until(lambda: world.log.describe([topic], TIMEOUT_S).get(topic))
    assert after is not None
    assert (after.partitions, after.topic_id != before.topic_id) == (before.partitions, True)
    assert world.read_all(topic) == ([], 0)


def test_reader_of_a_recreated_topic_is_out_of_range(world: World) -> None:
    """A reader that stands beyond the end of a topic's new incarnation is told, not moved."""
    topic = world.topic()
    world.write(topic, b"a", b"b", b"c")
    reader = world.reader(Position(TopicPartition(topic, 0), 0))
    world.read_to_end(reader)
    world.recreate(topic)
    world.write(topic, b"new")

    def raised() -> bool:
        try:
            assert records_of(reader.poll(10, 0.1)) == []
        except OffsetOutOfRange:
            return True
        return False

    assert world.until(raised)


@pytest.mark.parametrize("misuse", ["negative position", "closed", "commit without group", "empty commit"])
def test_misuse_is_told(world: World, misuse: str) -> None:
    """What the port forbids raises LogMisuse instead of doing something else."""
    topic = world.topic()
    reader = world.consumer_without_assignment()
    calls: dict[str, Callable[[], object]] = {
        "negative position": lambda: reader.assign([Position(TopicPartition(topic, 0), -1)]),
        "closed": lambda: reader.poll(1, 0),
        "commit without group": lambda: reader.commit([]),
        "empty commit": lambda: world.lone_committer().commit([]),
    }
    if misuse == "closed":
        reader.close()
    call = calls[misuse]
    with pytest.raises(LogMisuse):
        call()


def test_close_is_idempotent(world: World) -> None:
    """Closing a reader twice is no error."""
    topic = world.topic()
    reader = world.reader(Position(TopicPartition(topic, 0), 0))
    reader.close()
    reader.close()


def test_items_carry_their_partition(world: World) -> None:
    """Ends and records of several partitions are told apart by topic and partition."""
    topic = world.topic(partitions=3)
    world.write(topic, b"a", partition=1)
    reader = world.reader(*(Position(TopicPartition(topic, p), 0) for p in range(3)))
    ends: dict[int, int] = {}

    def all_ended() -> bool:
        for item in reader.poll(10, 0.1):
            if isinstance(item, Eof):
                ends[item.partition] = item.offset
        return len(ends) == 3

    world.until(all_ended)
    assert ends == {0: 0, 1: 1, 2: 0}
