"""The model's producers: an idempotent one and a transactional one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import assert_never

from perdure.schemas.errors import PerdureError
from perdure.topics.errors import (
    Fenced,
    LogMisuse,
    OutcomeUnknown,
    RecordTooLarge,
    TransactionAbortable,
    Unavailable,
)
from perdure.topics.log import DeliveryReport, GroupMetadata, Outgoing, Position, TopicPartition
from perdure.topics.model_cluster import ModelCluster
from perdure.topics.model_codes import Code
from perdure.topics.model_faults import Api, Fate, GroupLog, MarkerTarget
from perdure.topics.model_identity import Credentials, ProducerIdentity
from perdure.topics.model_partition import Marker

FENCING = frozenset(
    {Code.PRODUCER_FENCED, Code.ILLEGAL_GENERATION, Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID}
)


class ModelProducer:
    """An idempotent producer: a frame leaves at once, its report waits for ``poll`` or ``flush``."""

    def __init__(self, cluster: ModelCluster, client_id: str) -> None:
        self._cluster = cluster
        self.client_id = client_id
        self._alive = True
        self._reports: deque[Callable[[], None]] = deque()
        self._unanswered = 0

    def produce(self, out: Outgoing, on_delivery: DeliveryReport | None = None) -> None:
        self._check_usable()
        if not self._cluster.check_size(out):
            raise RecordTooLarge(f"{out.topic}[{out.partition}].")
        created_ms, faults = self._cluster.now_ms, self._cluster.faults

        def report(error: PerdureError | None, offset: int) -> None:
            if on_delivery is not None:
                self._reports.append(partial(on_delivery, error, offset))

        def arrive() -> None:
            code, offset = self._cluster.append(out, None, created_ms)
            report(None if code is Code.NONE else Unavailable(code.value), offset)

        fate = faults.meet(Api.PRODUCE, self.client_id)
        match fate:
            case None:
                arrive()
            case Fate.LOST:
                report(OutcomeUnknown("Produce timed out."), -1)
            case Fate.UNANSWERED:
                self._cluster.append(out, None, created_ms)
                report(OutcomeUnknown("Produce timed out."), -1)
            case (
                Fate.HELD | Fate.RESENT
            ):  # an idempotent producer's re-send is recognised; only the time is lost
                self._unanswered += 1

                def arrive_late() -> None:
                    self._unanswered -= 1
                    arrive()

                faults.hold(Api.PRODUCE, self.client_id, arrive_late)
            case _:
                assert_never(fate)

    def poll(self, timeout_s: float) -> None:  # noqa: ARG002 - what has arrived is there
        self._check_usable()
        while self._reports:
            self._reports.popleft()()

    def flush(self, timeout_s: float) -> int:
        self._check_usable()
        self._cluster.wait(lambda: self._unanswered == 0, timeout_s)
        self.poll(0)
        return self._unanswered

    def close(self) -> None:
        self._alive = False

    def kill(self) -> None:
        """The process is gone; frames under way may still arrive."""
        self._alive = False
        self._reports.clear()

    def _check_usable(self) -> None:
        if not self._alive:
            raise LogMisuse(f"Producer {self.client_id} is closed.")


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
        self._failure: PerdureError | None = None  # of a record sent in the background; commit tells it

    # ---- the port ------------------------------------------------------------------------------------------

    def init(self, timeout_s: float) -> None:
        self._expect(ProducerState.NEW)
        fate = self._cluster.faults.meet(Api.INIT, self.client_id)
        if fate is Fate.LOST:
            self._give_up(timeout_s)
        identity: ProducerIdentity | None = None

        def ready() -> bool:
            nonlocal identity
            if not self._cluster.faults.transaction_coordinator_down:
                identity = self._cluster.transactions.init(self.client_id, self._timeout_ms)
            return identity is not None

        self._cluster.wait(ready, timeout_s)
        if identity is None or fate is not None:
            self._give_up(0.0)
        else:
            self._identity = identity
            self._state = ProducerState.READY

    def begin(self) -> None:
        self._expect(ProducerState.READY)
        self._queue.clear()
        self._added.clear()
        self._tracked.clear()
        self._failure = None
        self._state = ProducerState.OPEN

    def produce(self, out: Outgoing, *, track: bool = False) -> None:
        self._expect(ProducerState.OPEN)
        if not self._cluster.check_size(out):
            raise RecordTooLarge(f"{out.topic}[{out.partition}].")
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

        self._conclude(self._send(Api.TXN_OFFSETS, arrive), timeout_s)

    def commit(self, timeout_s: float) -> Mapping[TopicPartition, int]:
        self._expect(ProducerState.OPEN)
        self._cluster.wait(self._pump, timeout_s)
        if self._failure is not None:
            raise self._failure
        if self._queue:
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
        while self._queue and self._failure is None:
            queued = self._queue[0]
            at = TopicPartition(queued.out.topic, queued.out.partition)
            code = self._add(at)
            if code is Code.CONCURRENT_TRANSACTIONS:
                return False  # the previous transaction's markers are under way: later
            self._queue.popleft()
            if code is Code.NONE:
                code = self._deliver(queued, at)
            if code is not Code.NONE:
                self._failure = self._error(code)
        return True

    def _deliver(self, queued: Queued, at: TopicPartition) -> Code:
        fate = self._cluster.faults.meet(Api.PRODUCE, self.client_id)
        if fate is Fate.LOST:
            return Code.REQUEST_TIMED_OUT
        if fate in (Fate.HELD, Fate.RESENT):
            identity = self._identity
            frame = lambda: self._cluster.append(queued.out, identity, queued.created_ms)  # noqa: E731
            self._cluster.faults.hold(Api.PRODUCE, self.client_id, frame)
            return Code.REQUEST_TIMED_OUT
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
