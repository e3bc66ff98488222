"""From records to work: what waits for a slot, what is held back as suspect, what is answered at once."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from perdure.processors.clock import Clock
from perdure.processors.executor.actions import Action, extra
from perdure.processors.executor.lanes import Lanes, Waiting
from perdure.processors.executor.partition import Partition
from perdure.processors.executor.results import Results
from perdure.processors.executor.running import Call
from perdure.processors.executor.work import Claim, Lane, Request, Unreadable, Work
from perdure.processors.headers import RequestIdentity
from perdure.schemas.results import Declined, ResultBody, Suspect, Undecodable
from perdure.schemas.values import DeclineReason
from perdure.topics.log import Record

logger: Final = logging.getLogger(__name__)

UNDECODABLE: Final = "undecodable"


@dataclass(frozen=True, slots=True)
class Load:
    """How much waits: requests and, roughly, the bytes they take in memory."""

    requests: int
    size: int


@dataclass(frozen=True, slots=True)
class Held:
    """A suspect that may not be told yet."""

    identity: RequestIdentity
    offsets: tuple[int, ...]
    partition: Partition


class Intake:
    """Reads records. ``active``: calls by request id, from their start until their result is durable."""

    def __init__(
        self, work: Work, results: Results, clock: Clock, active: Mapping[str, Call], window_offsets: int
    ) -> None:
        self._work = work
        self._results = results
        self._clock = clock
        self._active = active
        self._window_offsets = window_offsets
        self._waiting: deque[Waiting] = deque()
        self._waiting_bytes = 0
        self._lanes = Lanes()
        self._held: list[Held] = []

    @property
    def waiting(self) -> int:
        """For nothing but a slot."""
        return len(self._waiting)

    @property
    def parked(self) -> int:
        """For room in their lane."""
        return len(self._lanes)

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def load(self) -> Load:
        return Load(len(self._waiting) + len(self._lanes), self._waiting_bytes)

    def take(self) -> Waiting | None:
        """The request that has waited longest."""
        if not self._waiting:
            return None
        taken = self._waiting.popleft()
        self._waiting_bytes -= taken.request.size
        return taken

    def take_parked(self, may_start: Callable[[Waiting], bool]) -> Waiting | None:
        """The first of a lane that has room."""
        taken = self._lanes.take(may_start)
        if taken is not None:
            self._waiting_bytes -= taken.request.size
        return taken

    def park(self, taken: Waiting, lane: Lane) -> None:
        """Let it wait in its lane, or hand it back if too many do: others may read on."""
        if lane.waiting_max is not None and self._lanes.waiting_in(lane.key) >= lane.waiting_max:
            reason = f"{lane.key}: as many as may run at once do, and {lane.waiting_max} wait"
            self.answer(taken, Declined(DeclineReason.UNAVAILABLE, reason))
            return
        self._lanes.park(lane.key, taken)
        self._waiting_bytes += taken.request.size

    def parked_in(self, lane: Lane) -> int:
        return self._lanes.waiting_in(lane.key)

    def put_back(self, taken: Sequence[Waiting]) -> None:
        """Requests that could not be started yet, in the order in which they were taken."""
        self._waiting.extendleft(reversed(taken))
        self._waiting_bytes += sum(each.request.size for each in taken)

    def read(self, partition: Partition, record: Record) -> None:
        """One record of an owned partition, in order."""
        offset = record.offset
        if offset < partition.next or partition.refused is not None:
            return  # read before, or fetched beyond one that had no room
        if not partition.fits(offset, self._window_offsets):
            partition.refused = offset
            return
        if not partition.take(offset, record.timestamp_ms):
            return
        if record.value is None:
            logger.warning("tombstone at %s %d", record.at, offset, extra=extra(Action.TOMBSTONE))
            partition.finish((offset,))
            return
        for item in self._work.read(record):
            match item:
                case Request():
                    self._admit(partition, item)
                case Unreadable():
                    self._refuse(partition, item, record)

    def answer(self, waiting: Waiting, body: ResultBody) -> None:
        """Answer a request that no call was started for."""
        request, partition = waiting.request, waiting.partition
        if isinstance(body, Declined):
            logger.info(
                "declined %s: %s",
                request.identity.key.decode(),
                body.reason.value,
                extra=extra(Action.DECLINED),
            )
        self._tell(partition, request.identity, request.offsets, body)

    def meet_again(self, waiting: Waiting) -> bool:
        """Whether the request is being executed by this very process already."""
        request, partition = waiting.request, waiting.partition
        known = self._active.get(request.identity.request_id)
        if known is None:
            return False
        key = request.identity.key.decode()
        if known.partition.is_owned:
            logger.error("%s was requested twice, executed once", key, extra=extra(Action.DUPLICATE))
            partition.finish(request.offsets)
            return True
        # Lost and got back while it ran: its result will make it done, as if nothing had happened.
        logger.info("%s goes on in its new ownership", key, extra=extra(Action.ADOPTED))
        known.partition, known.request = partition, request
        if request.claim is not Claim.NONE:
            partition.start(request.offsets)
        return True

    def tell_suspects(self) -> int:
        """Tell the suspects whose time has come; returns how many."""
        now_s = self._clock.boot_s()
        ripe = [held for held in self._held if now_s >= held.partition.tell_at_s]
        if not ripe:
            return 0
        self._held = [held for held in self._held if now_s < held.partition.tell_at_s]
        for held in ripe:
            logger.warning("suspect %s", held.identity.key.decode(), extra=extra(Action.SUSPECT_TOLD))
            self._tell(held.partition, held.identity, held.offsets, Suspect())
        return len(ripe)

    def decline_cancelled(self, is_cancelled: Callable[[str, int], bool]) -> int:
        """Hand waiting requests of cancelled executions back at once; returns how many."""
        cancelled = [
            each
            for each in (*self._waiting, *self._lanes)
            if is_cancelled(each.request.identity.run_id, each.request.execution)
        ]
        if cancelled:
            self._drop(lambda each: each in cancelled)
        for each in cancelled:
            self.answer(each, Declined(DeclineReason.CANCELLED))
        return len(cancelled)

    def forget(self, partition: Partition) -> None:
        """Drop what has not begun; it is somebody else's now."""
        self._drop(lambda each: each.partition is partition)
        self._held = [each for each in self._held if each.partition is not partition]
        self._work.forget(partition.at.partition)

    def _admit(self, partition: Partition, request: Request) -> None:
        if self.meet_again(Waiting(request, partition)):
            return
        if partition.is_suspect(request.offsets):
            self._held.append(Held(request.identity, request.offsets, partition))
        elif (refusal := self._work.refusal(request)) is not None:
            self.answer(Waiting(request, partition), refusal)
        else:
            self._waiting.append(Waiting(request, partition))
            self._waiting_bytes += request.size

    def _drop(self, is_unwanted: Callable[[Waiting], bool]) -> None:
        self._waiting = deque(each for each in self._waiting if not is_unwanted(each))
        self._lanes.drop(is_unwanted)
        self._waiting_bytes = sum(each.request.size for each in (*self._waiting, *self._lanes))

    def _refuse(self, partition: Partition, item: Unreadable, record: Record) -> None:
        logger.error(
            "unreadable request at %s %s: %s", record.at, item.offsets, item.reason,
            extra=extra(Action.UNDECODABLE),
        )  # fmt: skip
        if item.identity is None:
            offsets = item.offsets
            self._results.set_aside(record, UNDECODABLE, item.reason, lambda: _finish(partition, offsets))
        elif partition.is_suspect(item.offsets):
            # Another version of the worker may have been able to read and start it.
            self._held.append(Held(item.identity, item.offsets, partition))
        else:
            self._tell(partition, item.identity, item.offsets, Undecodable(item.reason))

    def _tell(
        self, partition: Partition, identity: RequestIdentity, offsets: tuple[int, ...], body: ResultBody
    ) -> None:
        self._results.tell(partition.at.partition, identity, body, lambda: _finish(partition, offsets))


def _finish(partition: Partition, offsets: tuple[int, ...]) -> None:
    if partition.is_owned:
        partition.finish(offsets)
