"""The model's idempotent producer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import assert_never

from perdure.schemas.errors import PerdureError
from perdure.topics.errors import LogMisuse, OutcomeUnknown, RecordTooLarge
from perdure.topics.log import DeliveryReport, Outgoing
from perdure.topics.model_cluster import ModelCluster, is_producible
from perdure.topics.model_codes import Code
from perdure.topics.model_faults import Api, Fate


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
        if not is_producible(out):
            raise RecordTooLarge(f"{out.topic}[{out.partition}].")
        created_ms, faults = self._cluster.now_ms, self._cluster.faults

        def report(error: PerdureError | None, offset: int) -> None:
            if on_delivery is not None:
                self._reports.append(partial(on_delivery, error, offset))

        def arrive() -> None:
            code, offset = self._cluster.append(out, None, created_ms)
            report(_failure(code), offset)

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


def _failure(code: Code) -> PerdureError | None:
    match code:
        case Code.NONE:
            return None
        case Code.MESSAGE_TOO_LARGE:
            return RecordTooLarge(code.value)
        case _:
            return OutcomeUnknown(code.value)
