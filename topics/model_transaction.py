"""The model's transaction coordinator (KIP-98; without KIP-890, as librdkafka lacks it).

EndTxn is acknowledged once the decision is prepared; the markers that make it visible reach each partition
and the groups' offsets later and one by one. Until the last has arrived every further request of the same
transactional id is answered CONCURRENT_TRANSACTIONS.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from perdure.topics.model_broker import Broker
from perdure.topics.model_codes import Code
from perdure.topics.model_faults import MarkerTarget
from perdure.topics.model_identity import ProducerIdentity
from perdure.topics.model_partition import Marker


class TransactionState(Enum):
    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


COMPLETED = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}
PREPARED = frozenset(COMPLETED)


@dataclass(slots=True)
class Transaction:
    """The coordinator's memory of one transactional id."""

    producer_id: int
    timeout_ms: int
    epoch: int = -1
    state: TransactionState = TransactionState.EMPTY
    started_ms: int = 0
    serial: int = 0  # of the transactions of this id; a delayed marker belongs to one of them
    targets: set[MarkerTarget] = field(default_factory=set[MarkerTarget])
    unmarked: set[MarkerTarget] = field(default_factory=set[MarkerTarget])

    @property
    def marker(self) -> Marker:
        return Marker.COMMIT if self.state is TransactionState.PREPARE_COMMIT else Marker.ABORT


class TransactionCoordinator:
    """State of every transactional id."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._transactions: dict[str, Transaction] = {}

    def state_of(self, transactional_id: str) -> TransactionState | None:
        transaction = self._transactions.get(transactional_id)
        return None if transaction is None else transaction.state

    def init(self, transactional_id: str, timeout_ms: int) -> ProducerIdentity | None:
        """Fence older holders and take the id over. None: markers are still under way, ask again.

        An open transaction of an older holder is aborted; a prepared one is left to complete as decided.
        """
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            transaction = Transaction(self._broker.next_producer_id(), timeout_ms)
            self._transactions[transactional_id] = transaction
        if transaction.state is TransactionState.ONGOING:
            self._fence_and_abort(transaction)
        if transaction.state in PREPARED:
            return None
        transaction.epoch += 1
        transaction.timeout_ms = timeout_ms
        transaction.state = TransactionState.EMPTY
        return ProducerIdentity(transactional_id, transaction.producer_id, transaction.epoch)

    def add(self, who: ProducerIdentity, target: MarkerTarget) -> Code:
        """AddPartitionsToTxn and AddOffsetsToTxn: from now on ``target`` will get a marker."""
        transaction = self._transactions[who.transactional_id]
        if who.epoch != transaction.epoch:
            return Code.PRODUCER_FENCED
        if transaction.state in PREPARED:
            return Code.CONCURRENT_TRANSACTIONS
        if transaction.state is not TransactionState.ONGOING:
            transaction.state = TransactionState.ONGOING
            transaction.started_ms = self._broker.now_ms
            transaction.serial += 1
            transaction.targets = set()
        transaction.targets.add(target)
        return Code.NONE

    def verify(self, who: ProducerIdentity, target: MarkerTarget) -> Code:
        """What a partition's leader asks before it takes a transactional write (KIP-890, part one)."""
        transaction = self._transactions[who.transactional_id]
        if who.epoch != transaction.epoch:
            return Code.PRODUCER_FENCED
        if transaction.state is not TransactionState.ONGOING or target not in transaction.targets:
            return Code.INVALID_TXN_STATE
        return Code.NONE

    def end(self, who: ProducerIdentity, marker: Marker) -> Code:
        """EndTxn. It names the producer, not the transaction: a late frame ends whichever is open by then."""
        transaction = self._transactions[who.transactional_id]
        if who.epoch != transaction.epoch:
            return Code.PRODUCER_FENCED
        match transaction.state:
            case TransactionState.ONGOING:
                self._prepare(transaction, marker)
                return Code.NONE
            case TransactionState.PREPARE_COMMIT | TransactionState.PREPARE_ABORT:
                same = marker is transaction.marker
                return Code.CONCURRENT_TRANSACTIONS if same else Code.INVALID_TXN_STATE
            case TransactionState.COMPLETE_COMMIT:
                return Code.NONE if marker is Marker.COMMIT else Code.INVALID_TXN_STATE
            case TransactionState.COMPLETE_ABORT:
                return Code.NONE if marker is Marker.ABORT else Code.INVALID_TXN_STATE
            case TransactionState.EMPTY:
                return Code.INVALID_TXN_STATE

    def next_deadline_ms(self) -> int | None:
        """When the next open transaction times out."""
        ongoing = [t for t in self._transactions.values() if t.state is TransactionState.ONGOING]
        return min((each.started_ms + each.timeout_ms for each in ongoing), default=None)

    def expire(self) -> None:
        """Abort what is open for longer than its timeout; the holder is fenced."""
        for transaction in self._transactions.values():
            late = self._broker.now_ms >= transaction.started_ms + transaction.timeout_ms
            if transaction.state is TransactionState.ONGOING and late:
                self._fence_and_abort(transaction)

    def release(self, transactional_id: str | None = None, target: MarkerTarget | None = None) -> int:
        """Write markers that are under way now; returns how many."""
        written = 0
        for name, transaction in list(self._transactions.items()):
            if transactional_id in (None, name) and transaction.state in PREPARED:
                for each in sorted(transaction.unmarked, key=repr):
                    if target in (None, each):
                        self._write_marker(transaction, each)
                        written += 1
        return written

    def _fence_and_abort(self, transaction: Transaction) -> None:
        transaction.epoch += 1
        self._prepare(transaction, Marker.ABORT)

    def _prepare(self, transaction: Transaction, marker: Marker) -> None:
        commit = marker is Marker.COMMIT
        transaction.state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        transaction.unmarked = set(transaction.targets)
        for target in sorted(transaction.targets, key=repr):
            delay_ms = self._broker.faults.marker_delay(target)
            if delay_ms == 0:
                self._write_marker(transaction, target)
            elif delay_ms is not None:
                self._write_later(transaction, target, delay_ms)

    def _write_later(self, transaction: Transaction, target: MarkerTarget, delay_ms: int) -> None:
        serial = transaction.serial

        def arrive() -> None:
            if transaction.serial == serial:
                self._write_marker(transaction, target)

        self._broker.schedule(delay_ms, arrive)

    def _write_marker(self, transaction: Transaction, target: MarkerTarget) -> None:
        if transaction.state not in PREPARED or target not in transaction.unmarked:
            return
        self._broker.write_marker(target, transaction.producer_id, transaction.marker)
        transaction.unmarked.discard(target)
        if not transaction.unmarked:
            transaction.state = COMPLETED[transaction.state]
            transaction.targets = set()
