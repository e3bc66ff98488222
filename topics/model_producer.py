"""The model's idempotent producer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from perdure.schemas.errors import PerdureError
from perdure.topics.errors import LogMisuse, OutcomeUnknown, RecordTooLarge
from perdure.topics.log import DeliveryReport, Outgoing
from perdure.topics.model_cluster import ModelCluster, is_producible
from perdure.topics.model_codes import Code
from perdure.topics.model_faults import Api, Fate


@dataclass(eq=False, slots=True)
class Sent:
    """A record on its way, and whom to tell of its end. ``told``: its end is known, or was given up on."""

    out: Outgoing
    created_ms: int
    on_delivery: DeliveryReport | None
    told: bool = False


class ModelProducer:
    """An idempotent producer: a frame leaves at once, its report waits for ``poll`` or ``flush``."""

    def __init__(self, cluster: ModelCluster, client_id: str) -> None:
        self._cluster = cluster
        self.client_id = client_id
        self._alive = True
        self._reports: deque[Callable[[], None]] = deque()
        self._unanswered: list[Sent] = []

    def produce(self, out: Outgoing, on_delivery: DeliveryReport | None = None) -> None:
        self._check_usable()
        if not is_producible(out):
            raise RecordTooLarge(f"{out.topic}[{out.partition}].")
        sent = Sent(out, self._cluster.now_ms, on_delivery)
        faults = self._cluster.faults
        fate = faults.meet(Api.PRODUCE, self.client_id)
        match fate:
            case None:
                self._arrive(sent)
            case Fate.LOST:
                self._report(sent, OutcomeUnknown("Produce timed out."), -1)
            case Fate.UNANSWERED:
                self._cluster.append(out, None, sent.created_ms)
                self._report(sent, OutcomeUnknown("Produce timed out."), -1)
            case Fate.RESENT:  # the first frame's sequence number will be known by then: it has no effect
                faults.hold(Api.PRODUCE, self.client_id, lambda: None)
                self._arrive(sent)
            case Fate.HELD:
                self._unanswered.append(sent)
                faults.hold(Api.PRODUCE, self.client_id, partial(self._arrive, sent))
            case _:
                assert_never(fate)

    def poll(self, timeout_s: float) -> None:  # noqa: ARG002 - what has arrived is there
        self._check_usable()
        while self._reports:
            self._reports.popleft()()

    def flush(self, timeout_s: float) -> int:
        self._check_usable()
        self._cluster.wait(lambda: not self._unanswered, timeout_s)
        self.poll(0)
        return len(self._unanswered)

    def close(self) -> None:
        """Free the client; records not yet answered for are reported as OutcomeUnknown."""
        if not self._alive:
            return
        for sent in list(self._unanswered):
            self._report(sent, OutcomeUnknown("The producer was closed."), -1)
        self.poll(0)
        self._alive = False

    def kill(self) -> None:
        """The process is gone; frames under way may still arrive, and nobody is told."""
        self._alive = False
        self._reports.clear()

    def _arrive(self, sent: Sent) -> None:
        code, offset = self._cluster.append(sent.out, None, sent.created_ms)
        self._report(sent, _failure(code), offset)

    def _report(self, sent: Sent, error: PerdureError | None, offset: int) -> None:
        if sent in self._unanswered:
            self._unanswered.remove(sent)
        if sent.on_delivery is not None and not sent.told and self._alive:
            self._reports.append(partial(sent.on_delivery, error, offset))
        sent.told = True

    def _check_usable(self) -> None:
        if not self._alive:
            raise LogMisuse(f"Producer {self.client_id} is closed.")


def _failure(code: Code) -> PerdureError | None:
    match code:
        case Code.NONE:
            return None
        case Code.MESSAGE_TOO_LARGE:
            return RecordTooLarge(code.value)
        case _:
            return OutcomeUnknown(code.value)
