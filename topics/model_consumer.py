"""The model's consumer: a reader assigned by hand, or a member of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, assert_never

from perdure.topics.errors import LogMisuse, Unavailable
from perdure.topics.log import (
    CommitOutcome,
    CommitStatus,
    CommittedOffset,
    Consumer,
    ConsumerSpec,
    GroupMetadata,
    Polled,
    Position,
    RebalanceListener,
    TopicPartition,
)
from perdure.topics.model_cluster import ModelCluster
from perdure.topics.model_codes import Code
from perdure.topics.model_faults import Api, Fate
from perdure.topics.model_fetch import Fetcher
from perdure.topics.model_member import Member

METADATA_CHARS_MAX = 4_095
COMMIT_TIMEOUT_S = 15.0  # librdkafka sends a commit three times, 5 s each, and then calls it timed out

Callback: TypeAlias = Callable[[Consumer, tuple[TopicPartition, ...]], None]

REFUSALS = frozenset(
    {
        Code.ILLEGAL_GENERATION,
        Code.UNKNOWN_MEMBER_ID,
        Code.REBALANCE_IN_PROGRESS,
        Code.STALE_MEMBER_EPOCH,
        Code.FENCED_MEMBER_EPOCH,
    }
)


class ModelConsumer:
    """:class:`~perdure.topics.log.Consumer` over a :class:`~perdure.topics.model_cluster.ModelCluster`."""

    def __init__(self, cluster: ModelCluster, spec: ConsumerSpec) -> None:
        self._cluster = cluster
        self._spec = spec
        self._listener: RebalanceListener | None = None
        self._fetcher = Fetcher(cluster, spec.queued_records_min, eof=spec.eof)
        self._member = Member(cluster, spec, self)
        self._alive = True
        self._broken: BaseException | None = None

    @property
    def client_id(self) -> str:
        return self._spec.client_id

    # ---- the port ------------------------------------------------------------------------------------------

    def subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        self._check_usable()
        self._group()
        if not topics:
            raise LogMisuse("Nothing to subscribe to.")
        self._listener = listener
        self._member.subscribe(tuple(sorted(topics)))

    def assign(self, positions: Sequence[Position]) -> None:
        self._check_usable()
        self._check_positions(positions)
        self._fetcher.assign(positions)

    def incremental_assign(self, positions: Sequence[Position]) -> None:
        self._check_usable()
        self._check_positions(positions)
        self._fetcher.add(positions)

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        self._check_usable()
        self._fetcher.remove(partitions)

    def poll(self, max_records: int, timeout_s: float) -> list[Polled]:
        self._check_usable()
        if max_records < 1:
            raise LogMisuse("At least one record has to be asked for.")
        if self._broken is not None:
            raise self._broken
        self._member.step()
        items = self._fetcher.take(max_records)
        if not items and timeout_s > 0 and self._cluster.on_wait is not None:
            self._cluster.on_wait(timeout_s)
            if self._alive:
                self._member.step()
                items = self._fetcher.take(max_records)
        return items

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self._check_usable()
        self._fetcher.pause(partitions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        self._check_usable()
        self._fetcher.resume(partitions)

    def seek(self, position: Position) -> None:
        self._check_usable()
        self._check_positions((position,))
        self._fetcher.seek(position)

    def committed(self, partitions: Sequence[TopicPartition], timeout_s: float) -> list[CommittedOffset]:
        self._check_usable()
        group = self._group()
        if self._cluster.faults.meet(Api.OFFSET_FETCH, self.client_id) is not None:
            self._cluster.time_out(timeout_s)
            raise Unavailable("OffsetFetch timed out.")

        def fetch() -> list[CommittedOffset] | None:
            if self._cluster.faults.group_coordinator_down:
                return None
            return self._cluster.groups.fetch(group, partitions)

        self._cluster.wait(lambda: fetch() is not None, timeout_s)
        found = fetch()
        if found is None:
            raise Unavailable("Offsets are not stable, or the coordinator is away.")
        return found

    def commit(self, offsets: Sequence[CommittedOffset]) -> CommitOutcome:
        self._check_usable()
        group = self._group()
        if not offsets or any(each.offset is None or each.offset < 0 for each in offsets):
            raise LogMisuse("A commit needs offsets, none of them missing or negative.")
        if any(len(each.metadata) > METADATA_CHARS_MAX for each in offsets):
            raise LogMisuse("Too much metadata for one offset.")
        sent, who = tuple(offsets), self._member.credentials

        def arrive() -> Code:
            if self._cluster.faults.group_coordinator_down:
                return Code.COORDINATOR_NOT_AVAILABLE
            return self._cluster.groups.commit(group, who, sent)

        return _outcome(self._send_commit(arrive))

    def group_metadata(self) -> GroupMetadata:
        self._check_usable()
        who = self._member.credentials
        return GroupMetadata(self._group(), who.generation, who.member_id, native=who)

    def close(self) -> None:
        if self._alive:
            self._member.close()
            self._fetcher.assign(())
            self._alive = False

    # ---- ownership, as the member tells --------------------------------------------------------------------

    def gain(self, partitions: frozenset[TopicPartition]) -> None:
        if self._listener is not None:
            self._tell(self._listener.on_assign, partitions)

    def give_up(self, partitions: frozenset[TopicPartition]) -> None:
        if self._listener is not None:
            self._tell(self._listener.on_revoke, partitions)
        self._unassign(partitions)

    def lose(self, partitions: frozenset[TopicPartition]) -> None:
        if self._listener is not None:
            self._tell(self._listener.on_lost, partitions)
        self._unassign(partitions)

    # ---- the process ---------------------------------------------------------------------------------------

    def kill(self) -> None:
        """The process is gone: no leave, no callback; the session runs out by itself."""
        self._alive = False
        self.stop()

    def stop(self) -> None:
        """The process stands still (SIGSTOP) or is cut off: no heartbeats from now on."""
        if self._member.client.silent_since_ms is None:
            self._member.client.silent_since_ms = self._cluster.now_ms

    def go_on(self) -> None:
        """The process runs again and knows nothing of the time in between."""
        if self._alive:
            self._member.client.silent_since_ms = None

    # ---- inside --------------------------------------------------------------------------------------------

    def _send_commit(self, arrive: Callable[[], Code]) -> Code:
        """One OffsetCommit as the client library sends it, its hidden re-send included."""
        faults = self._cluster.faults
        fate = faults.meet(Api.OFFSET_COMMIT, self.client_id)
        match fate:
            case None:
                return arrive()
            case Fate.LOST:
                pass
            case Fate.UNANSWERED:
                arrive()
            case Fate.HELD:
                faults.hold(Api.OFFSET_COMMIT, self.client_id, arrive)
            case Fate.RESENT:
                faults.hold(Api.OFFSET_COMMIT, self.client_id, arrive)
                self._cluster.advance(self._spec.commit_retry_backoff_ms)
                return arrive()
            case _:
                assert_never(fate)
        self._cluster.time_out(COMMIT_TIMEOUT_S)
        return Code.REQUEST_TIMED_OUT

    def _tell(self, callback: Callback, partitions: frozenset[TopicPartition]) -> None:
        try:
            callback(self, tuple(sorted(partitions)))
        except BaseException as raised:
            self._broken = raised  # a listener's failure breaks the consumer for good
            raise

    def _unassign(self, partitions: frozenset[TopicPartition]) -> None:
        if self._spec.protocol.incremental:
            self._fetcher.remove(partitions)
        else:
            self._fetcher.assign(())

    def _check_usable(self) -> None:
        if not self._alive:
            raise LogMisuse(f"Consumer {self.client_id} is closed.")

    def _group(self) -> str:
        if self._spec.group is None:
            raise LogMisuse(f"Consumer {self.client_id} has no group.")
        return self._spec.group

    def _check_positions(self, positions: Sequence[Position]) -> None:
        if any(each.offset < 0 for each in positions):
            raise LogMisuse("Positions are never negative.")


def _outcome(code: Code) -> CommitOutcome:
    if code is Code.NONE:
        return CommitOutcome(CommitStatus.ACKNOWLEDGED)
    if code in REFUSALS:
        return CommitOutcome(CommitStatus.REFUSED, code.value)
    return CommitOutcome(CommitStatus.UNKNOWN, code.value)
