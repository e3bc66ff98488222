"""Where a run's records go: as the Java client's default partitioner sends its root run id."""

from __future__ import annotations

import confluent_kafka
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.schemas.keys import root_of
from perdure.topics.partitioner import murmur2, partition_of


def _signed(number: int) -> int:
    return number - (1 << 32) if number >= 1 << 31 else number


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_gives_the_values_that_kafka_tests_its_own_with(data: bytes, expected: int) -> None:
    """The hash equals the Java client's for each of the vectors in Kafka's UtilsTest."""
    assert _signed(murmur2(data)) == expected


@given(st.text(st.characters(exclude_characters="~/", exclude_categories=["Cs"])), st.integers(1, 1000))
def test_a_plain_key_goes_where_another_implementation_of_murmur2_sends_it(key: str, partitions: int) -> None:
    """The murmur2 of librdkafka, written in C by others, chooses the same partition for every text."""
    assert partition_of(key, partitions) == confluent_kafka.murmur2(key.encode(), partitions)


@given(st.text(), st.text(), st.text(), st.integers(1, 64))
def test_a_family_of_runs_and_all_its_parts_share_a_partition(
    root: str, suffix: str, part: str, partitions: int
) -> None:
    """Children, forks and composite keys go with their root, whatever else their keys hold."""
    home = partition_of(root, partitions)
    for key in (f"{root}~{suffix}", f"{root}/{part}", f"{root}~{suffix}/{part}"):
        assert partition_of(key, partitions) == home


@given(st.text(st.characters()), st.integers(1, 64))
def test_any_text_has_a_partition(key: str, partitions: int) -> None:
    """Also a lone surrogate, which no run id may hold, is hashed instead of raising."""
    assert 0 <= partition_of(key, partitions) < partitions


def test_the_root_is_what_stands_before_the_first_mark() -> None:
    """A child of a child, and a slash in a part, do not move the root."""
    assert root_of("order-1~a~b/7/call~x") == "order-1"
    assert root_of("order-1/7~x") == "order-1"
    assert root_of("order-1") == "order-1"


def test_no_partition_is_refused() -> None:
    """A count below one is a caller's mistake, not partition 0."""
    with pytest.raises(ValueError, match="0 partitions"):
        partition_of("run", 0)
