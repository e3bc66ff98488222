"""The model's transactional producer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import assert_never

from perdure.schemas.errors import PerdureError
from perdure.topics.errors import Fenced, LogMisuse, OutcomeUnknown, RecordTooLarge, TransactionAbortable
from perdure.topics.log import GroupMetadata, Outgoing, Position, TopicPartition
from perdure.topics.model_cluster import ModelCluster, is_producible
from perdure.topics.model_codes import Code
from perdure.topics.model_faults import Api, Fate, GroupLog, MarkerTarget
from perdure.topics.model_identity import Credentials, ProducerIdentity
from perdure.topics.model_partition import Marker

# librdkafka does not keep to the time-out it is given here, but to its producer's socket time-out.
TXN_OFFSETS_TIMEOUT_S = 60.0

FENCING = frozenset(
    {Code.PRODUCER_FENCED, Code.ILLEGAL_GENERATION, Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID}
)


class ProducerState(Enum):
    NEW = "new"
    READY = "ready"
    OPEN = "open"
    BROKEN = "broken"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Queued:
    """A record that has not reached its partition yet."""

    out: Outgoing
    created_ms: int
    track: bool


class ModelTransactionalProducer:
    """:class:`~perdure.topics.log.TransactionalProducer`; records leave in the background, as they can."""

    def __init__(self, cluster: ModelCluster, transactional_id: str, transaction_timeout_ms: int) -> None:
        self._cluster = cluster
        self.client_id = transactional_id
        self._timeout_ms = transaction_timeout_ms
        self._state = ProducerState.NEW
        self._identity = ProducerIdentity(transactional_id, -1, -1)
        self._queue: deque[Queued] = deque()
        self._added: set[MarkerTarget] = set()
        self._tracked: dict[TopicPartition, int] = {}
        self._failed: Code | None = None  # what came of a record in the background; later calls tell it
        self._gap = False  # a refused record left one in the sequence numbers; mending it costs a transaction
        self._unanswered = False  # a record was sent and nobody can tell what came of it

    # ---- the port ------------------------------------------------------------------------------------------

    def init(self, timeout_s: float) -> None:
        self._expect(ProducerState.NEW)
        faults = self._cluster.faults
        fate = faults.meet(Api.INIT, self.client_id)
        if fate in (Fate.HELD, Fate.RESENT):  # whenever it arrives it takes the id over, from whomever
            faults.hold(
                Api.INIT,
                self.client_id,
                lambda: self._cluster.transactions.init(self.client_id, self._timeout_ms),
            )
        if fate in (Fate.LOST, Fate.HELD):
            self._give_up(timeout_s)
        identity: ProducerIdentity | None = None

        def ready() -> bool:
            nonlocal identity
            if not faults.transaction_coordinator_down:
                identity = self._cluster.transactions.init(self.client_id, self._timeout_ms)
            return identity is not None

        self._cluster.wait(ready, timeout_s)
        if identity is None or fate is Fate.UNANSWERED:
            self._give_up(0.0)
        else:
            self._identity = identity
            self._state = ProducerState.READY

    def begin(self) -> None:
        self._expect(ProducerState.READY)
        self._queue.clear()
        self._added.clear()
        self._tracked.clear()
        self._failed, self._unanswered = None, False
        self._state = ProducerState.OPEN

    def produce(self, out: Outgoing, *, track: bool = False) -> None:
        self._expect(ProducerState.OPEN)
        if not is_producible(out):
            raise RecordTooLarge(f"{out.topic}[{out.partition}].")
        if self._failed is not None:
            raise self._error(self._failed)
        self._queue.append(Queued(out, self._cluster.now_ms, track))
        if not self._cluster.faults.late_records:
            self._pump()

    def send_offsets(self, offsets: Sequence[Position], group: GroupMetadata, timeout_s: float) -> None:
        self._expect(ProducerState.OPEN)
        sent = tuple(each for each in offsets if each.offset >= 0)
        if not sent:
            return  # as librdkafka does: success, nothing sent, nothing fenced
        who = group.native if isinstance(group.native, Credentials) else None
        who = Credentials(group.generation, group.member_id, None if who is None else who.instance_id)
        self._added_or_fail(GroupLog(group.group), timeout_s)

        def arrive() -> Code:
            if self._cluster.faults.group_coordinator_down:
                return Code.COORDINATOR_NOT_AVAILABLE
            return self._cluster.groups.commit_transactional(group.group, who, self._identity, sent)

        self._conclude(self._send(Api.TXN_OFFSETS, arrive), max(timeout_s, TXN_OFFSETS_TIMEOUT_S))

    def commit(self, timeout_s: float) -> Mapping[TopicPartition, int]:
        self._expect(ProducerState.OPEN)
        flushed = self._cluster.wait(self._pump, timeout_s)
        if self._failed is not None:
            raise self._error(self._failed)
        if not flushed:
            self._give_up(0.0)
        self._end(Marker.COMMIT, timeout_s)
        return dict(self._tracked)

    def abort(self, timeout_s: float) -> None:
        self._expect(ProducerState.OPEN)
        self._queue.clear()
        self._end(Marker.ABORT, timeout_s)

    def close(self) -> None:
        self._state = ProducerState.CLOSED
        self._queue.clear()

    def kill(self) -> None:
        """The process is gone; what it queued is gone, frames under way may still arrive."""
        self.close()

    # ---- inside --------------------------------------------------------------------------------------------

    def _pump(self) -> bool:
        """Send what is queued, in order, as far as the coordinator lets us; True when nothing is left."""
        while self._queue and self._failed is None:
            queued = self._queue[0]
            at = TopicPartition(queued.out.topic, queued.out.partition)
            code = Code.OUT_OF_ORDER_SEQUENCE_NUMBER if self._gap else self._add(at)
            if code is Code.CONCURRENT_TRANSACTIONS:
                return False  # the previous transaction's markers are under way: later
            self._queue.popleft()
            if code is Code.NONE:
                code = self._deliver(queued, at)
            if code is Code.REQUEST_TIMED_OUT:
                self._unanswered = True
            elif code is not Code.NONE:
                self._failed = code
                self._gap = code is Code.MESSAGE_TOO_LARGE
        return not self._unanswered

    def _deliver(self, queued: Queued, at: TopicPartition) -> Code:
        fate = self._cluster.faults.meet(Api.PRODUCE, self.client_id)
        if fate is Fate.LOST:
            return Code.REQUEST_TIMED_OUT
        if fate is Fate.HELD:
            identity = self._identity
            frame = partial(self._cluster.append, queued.out, identity, queued.created_ms)
            self._cluster.faults.hold(Api.PRODUCE, self.client_id, frame)
            return Code.REQUEST_TIMED_OUT
        if fate is Fate.RESENT:  # the first frame's sequence number will be known by then: it has no effect
            self._cluster.faults.hold(Api.PRODUCE, self.client_id, lambda: None)
        code, offset = self._cluster.append(queued.out, self._identity, queued.created_ms)
        if fate is Fate.UNANSWERED:
            return Code.REQUEST_TIMED_OUT
        if code is Code.NONE and queued.track:
            self._tracked[at] = max(offset, self._tracked.get(at, -1))
        return code

    def _add(self, target: MarkerTarget) -> Code:
        if target in self._added:
            return Code.NONE
        if isinstance(target, TopicPartition) and self._cluster.find(target) is None:
            return Code.UNKNOWN_TOPIC_OR_PARTITION
        if self._cluster.faults.transaction_coordinator_down:
            return Code.CONCURRENT_TRANSACTIONS  # no answer: try again
        code = self._cluster.transactions.add(self._identity, target)
        if code is Code.NONE:
            self._added.add(target)
        return code

    def _added_or_fail(self, target: MarkerTarget, timeout_s: float) -> None:
        code = Code.NONE

        def ready() -> bool:
            nonlocal code
            code = self._add(target)
            return code is not Code.CONCURRENT_TRANSACTIONS

        if not self._cluster.wait(ready, timeout_s):
            self._give_up(0.0)
        self._conclude(code, 0.0)

    def _end(self, marker: Marker, timeout_s: float) -> None:
        if not self._added:  # nothing was written: no EndTxn is sent, so nothing is fenced either
            self._state = ProducerState.READY
            return
        code = Code.NONE
        identity = self._identity

        def arrive() -> Code:
            return self._cluster.transactions.end(identity, marker)

        code = self._send(Api.END_TXN, arrive)
        if code is Code.CONCURRENT_TRANSACTIONS:
            code = Code.NONE  # this very decision is being carried out already
        self._conclude(code, timeout_s)
        self._state = ProducerState.READY

    def _send(self, api: Api, arrive: Callable[[], Code]) -> Code:
        """One request to a coordinator, and what befalls it."""
        faults = self._cluster.faults
        if faults.transaction_coordinator_down and api is Api.END_TXN:
            return Code.COORDINATOR_NOT_AVAILABLE
        fate = faults.meet(api, self.client_id)
        match fate:
            case None:
                return arrive()
            case Fate.LOST:
                return Code.REQUEST_TIMED_OUT
            case Fate.UNANSWERED:
                arrive()
                return Code.REQUEST_TIMED_OUT
            case Fate.HELD:
                faults.hold(api, self.client_id, arrive)
                return Code.REQUEST_TIMED_OUT
            case Fate.RESENT:
                faults.hold(api, self.client_id, arrive)
                return arrive()
            case _:
                assert_never(fate)

    def _conclude(self, code: Code, timeout_s: float) -> None:
        """Raise what a request's answer means."""
        match code:
            case Code.NONE:
                return
            case Code.REQUEST_TIMED_OUT | Code.COORDINATOR_NOT_AVAILABLE:
                self._give_up(timeout_s)
            case _:
                raise self._error(code)

    def _error(self, code: Code) -> PerdureError:
        if code in FENCING:
            self._state = ProducerState.BROKEN
            return Fenced(code.value)
        return TransactionAbortable(code.value)

    def _give_up(self, timeout_s: float) -> None:
        self._state = ProducerState.BROKEN
        self._cluster.time_out(timeout_s)
        raise OutcomeUnknown(f"{self.client_id} got no answer in time.")

    def _expect(self, state: ProducerState) -> None:
        if self._state is not state:
            raise LogMisuse(f"{self.client_id} is {self._state.value}, not {state.value}.")
