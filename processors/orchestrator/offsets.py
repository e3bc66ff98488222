"""``next_unprocessed``: the host's own account of what it has handled, per input partition.

A client's position is not used: it says what was fetched, not what was handled, and an empty or negative
list of offsets is a success for the broker that fences nobody. Every transaction sends both inputs of each
partition it touches, so that one without inputs of its own is fenced as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from perdure.topics.log import Position, Record, TopicPartition


class NextUnprocessed:
    """Set at assignment from the committed offsets; ascends only."""

    def __init__(self, positions: Iterable[Position]) -> None:
        self._next = {position.at: position.offset for position in positions}
        self._taken = dict(self._next)
        assert all(offset >= 0 for offset in self._next.values()), self._next

    def of(self, at: TopicPartition) -> int | None:
        """The next offset to be handled; None: this partition is not ours."""
        return self._next.get(at)

    def take(self, record: Record) -> bool:
        """Whether ``record`` is ours and was not taken before; from now on it was."""
        following = self._taken.get(record.at)
        if following is None or record.offset < following:
            return False
        self._taken[record.at] = record.offset + 1
        return True

    def after(self, records: Iterable[Record]) -> dict[TopicPartition, int]:
        """What ``next_unprocessed`` is once ``records`` are handled, for the partitions they are from."""
        moved: dict[TopicPartition, int] = {}
        for record in records:
            at = record.at
            assert record.offset >= moved.get(at, self._next[at]), "offsets ascend within a partition"
            moved[at] = record.offset + 1
        return moved

    def positions(
        self, partitions: Collection[int], moved: Mapping[TopicPartition, int]
    ) -> tuple[Position, ...]:
        """What a transaction that touches ``partitions`` sends: both inputs of each."""
        found = tuple(
            Position(at, moved.get(at, offset))
            for at, offset in sorted(self._next.items())
            if at.partition in partitions
        )
        assert found, "an empty list of offsets fences nobody"
        assert all(position.offset >= 0 for position in found), found
        assert {position.at.partition for position in found} == set(partitions)
        return found

    def advance(self, moved: Mapping[TopicPartition, int]) -> None:
        for at, offset in moved.items():
            assert offset >= self._next[at]
            self._next[at] = offset

    def all(self) -> tuple[Position, ...]:
        return tuple(Position(at, offset) for at, offset in sorted(self._next.items()))
