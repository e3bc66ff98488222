"""A view's life: take the folder, start Faust in this event loop, watch it, say when it must begin anew.

Faust carries on after faults that leave a view behind in silence (a write that failed, a topic that was made
again under it), so the host looks for itself. It mends nothing in place: what is wrong ends the view with
:class:`ViewFailed`, and a new process begins from the folder, or from the log alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import faust
from faust.app.base import BootStrategy
from faust.types import TP
from faust.types.enums import ProcessingGuarantee

from perdure.connectors.faust_views.folder import Source, ViewFolder
from perdure.connectors.faust_views.security import client_security
from perdure.connectors.faust_views.table import TABLE_NAME, StatusStore, StatusTable
from perdure.connectors.faust_views.transport import Reading, committed_transport
from perdure.connectors.faust_views.visible import visible_ends
from perdure.connectors.settings import Settings
from perdure.connectors.topic_reader import TopicMissing
from perdure.processors.clock import Clock, Entropy
from perdure.processors.views.run_view import RunView
from perdure.schemas.errors import Restore, Retry
from perdure.topics.kafka_log import KafkaLog
from perdure.topics.log import Isolation, TopicPartition, Watermarks
from perdure.topics.table import DELETE_RETENTION_MS, RUN_STATUS, Namespace

ASK_TIMEOUT_S: Final = 10.0
BROKER_LOOK_S: Final = 2.0
WATCH_S: Final = 0.25
CHECK_S: Final = 30.0
"""How often the topic is looked at: is it still the same, and is everything of it here."""
MISSING_S: Final = 60.0
"""A topic that is made anew is away for a moment: a process started meanwhile would find none and end."""
RECOVERY_STILL_S: Final = 60.0
"""Recovery that moves nothing for so long is begun anew: what it waited for is no longer in the log."""
STOP_TIMEOUT_S: Final = 10.0

_log: Final = logging.getLogger(__name__)


class ViewFailed(Restore):
    """The view can not go on with what it holds."""

    code = "view_failed"
    remedy = "Start the process again; it reads from the log what it can not trust."


@dataclass(frozen=True, slots=True)
class Health:
    """``is_ready``: the rows hold everything that was visible when it began. ``caught_up_ms``: wall clock
    when they were last known to be up to date; None: not yet.
    """

    is_ready: bool
    caught_up_ms: int | None
    records: int
    unnamed: int


@dataclass(frozen=True, slots=True)
class _Target:
    """What was visible at ``at_ms``: by partition, the offset after its last record; empty ones left out."""

    at_ms: int
    ends: Mapping[int, int]


class ViewHost:
    """One view of one namespace. :meth:`run` it in a task; the rest may be asked at any time.

    ``settings``: where Kafka is, and the namespace. ``folder``: held by the caller, closed by the caller.
    """

    def __init__(self, settings: Settings, folder: ViewFolder, clock: Clock, entropy: Entropy) -> None:
        self._folder = folder
        self._clock = clock
        self._entropy = entropy
        self._bootstrap = settings.bootstrap
        self._security = client_security(settings.kafka)
        self._log = KafkaLog(settings.bootstrap, settings.kafka)
        self._namespace = settings.namespace
        self._topic = Namespace(settings.namespace).topic(RUN_STATUS)
        self._source: Source | None = None
        self._store: StatusStore | None = None
        self._caught_up_ms: int | None = None
        self._is_checked = False
        self._missing_s: float | None = None
        self._failure: ViewFailed | None = None

    @property
    def view(self) -> RunView | None:
        """The view, once it is ready to be asked."""
        store = self._store
        return store.view if store is not None and store.view.is_built and self._is_checked else None

    def health(self) -> Health:
        store = self._store
        view = None if store is None else store.view
        return Health(
            is_ready=self.view is not None and self._failure is None,
            caught_up_ms=self._caught_up_ms,
            records=0 if view is None else view.records,
            unnamed=0 if view is None else view.unnamed,
        )

    async def run(self, stopping: asyncio.Event) -> None:
        """Serve until ``stopping`` is set. Raises :class:`ViewFailed`; ``Stop`` errors before it began."""
        source = await self._await_source(stopping)
        if source is None:
            return
        why = self._folder.open(source, self._clock, self._entropy)
        _log.info(
            "the view begins%s", "" if why is None else f" from the log: {why}",
            extra={"action": "view_began", "reason": why or "kept", "folder": str(self._folder.folder)},
        )  # fmt: skip
        self._source = source
        app = self._new_app(source)
        starting = asyncio.ensure_future(_start(app))
        try:
            await self._watch(app, starting, stopping)
        except ViewFailed as failure:
            self._failure = failure
            raise
        finally:
            await self._stop(app, starting)

    async def _await_source(self, stopping: asyncio.Event) -> Source | None:
        while not stopping.is_set():
            try:
                return await asyncio.to_thread(self._ask_source)
            except Retry as error:
                _log.warning(
                    "waiting for a broker at %s: %s",
                    self._bootstrap,
                    error,
                    extra={"action": "broker_awaited"},
                )
                await _wait(stopping, BROKER_LOOK_S)
        return None

    def _ask_source(self) -> Source:
        state = self._log.provision.topics([self._topic], ASK_TIMEOUT_S).get(self._topic)
        if state is None:
            raise TopicMissing(f"It is {self._topic}.")
        retention_ms = int(state.settings.get("delete.retention.ms", DELETE_RETENTION_MS))
        return Source(self._topic, state.topic_id, state.partitions, retention_ms)

    def _new_app(self, source: Source) -> Any:
        group = f"{self._namespace}.view.{self._folder.marker.view_id}"
        app = faust.App(
            group,
            broker="kafka://" + ";kafka://".join(self._bootstrap.split(",")),
            store="rocksdb://",
            datadir=str(self._folder.rows),
            processing_guarantee=ProcessingGuarantee.AT_LEAST_ONCE,
            topic_partitions=source.partitions,
            topic_allow_declare=False,
            topic_disable_leader=True,
            table_standby_replicas=0,
            # It compares with the end of recovery, which a live view has passed.
            recovery_consistency_check=False,
            web_enabled=False,
        )
        app.finalize()
        # Nothing is ever produced; the producer would be one more client to configure and to lose.
        app.boot_strategy = BootStrategy(app, enable_web=False, enable_kafka_producer=False)
        app.transport = committed_transport(app, Reading(self._bootstrap, group, self._security, self._ends))
        topic = app.topic(
            source.topic, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw",
            partitions=source.partitions, acks=False, allow_empty=True,
        )  # fmt: skip
        table = StatusTable(
            app, name=TABLE_NAME, key_type=bytes, value_type=bytes, partitions=source.partitions,
            changelog_topic=topic,
            recovery_buffer_size=1,  # 1 is what makes Faust follow the changelog after recovery
        )  # fmt: skip
        app.tables.add(table)
        store = cast("Any", table).data
        assert isinstance(store, StatusStore)
        self._store = store

        async def recovered() -> None:
            store.view.rebuild()

        table.on_recover(recovered)
        return app

    def _ends(self, partitions: Sequence[TP]) -> Mapping[TP, int]:
        """Where recovery ends; asked by Faust, in a thread."""
        ends = visible_ends(
            self._log, self._clock, [TopicPartition(tp.topic, tp.partition) for tp in partitions],
            f"{self._namespace}.view.ends",
        )  # fmt: skip
        return {tp: ends[TopicPartition(tp.topic, tp.partition)] for tp in partitions}

    async def _watch(self, app: Any, starting: asyncio.Future[None], stopping: asyncio.Event) -> None:
        store, moved_s, moved = self._store, self._clock.boot_s(), -1
        assert store is not None
        checked_s: float | None = None
        target: _Target | None = None
        while not stopping.is_set():
            await _wait(stopping, WATCH_S)
            now_s = self._clock.boot_s()
            if app.crashed or (starting.done() and starting.exception() is not None):
                reason = app.crash_reason or starting.exception()
                raise ViewFailed(f"Faust ended: {reason!r}.")
            if store.fault is not None:
                raise ViewFailed(f"A row could not be written: {store.fault!r}.")
            if not app.in_recovery or store.view.records != moved:
                moved, moved_s = store.view.records, now_s
            elif now_s - moved_s > RECOVERY_STILL_S:
                raise ViewFailed(f"Recovery did not move for {RECOVERY_STILL_S:.0f} s.")
            if store.view.is_built and (checked_s is None or now_s - checked_s > CHECK_S):
                checked_s = now_s
                target = await self._check(store) or target
            if target is not None and self._note_reached(store, target):
                target = None

    async def _check(self, store: StatusStore) -> _Target | None:
        """Is it still the same topic, does it still hold what was read? What there is to reach."""
        assert self._source is not None
        at_ms = self._clock.wall_ms()
        if at_ms - self._folder.marker.caught_up_ms > self._source.age_max_ms:
            raise ViewFailed("It was behind for so long that deletions may be missing.")
        try:
            found, marks, ends = await asyncio.to_thread(self._look)
        except TopicMissing as missing:
            now_s = self._clock.boot_s()
            self._missing_s = now_s if self._missing_s is None else self._missing_s
            if now_s - self._missing_s > MISSING_S:
                raise ViewFailed("The topic is gone.") from missing
            return None
        except Retry as error:
            _log.info("the topic was not looked at: %s", error, extra={"action": "view_check_failed"})
            return None
        self._missing_s = None
        if found.topic_id != self._source.topic_id or found.partitions != self._source.partitions:
            raise ViewFailed("The topic was made anew.")
        for partition, offset in store.applied.items():
            if offset >= marks[partition].end:
                self._folder.condemn()
                raise ViewFailed(f"Partition {partition} ends before offset {offset}, which was read.")
        self._is_checked = True
        return _Target(at_ms, {each: end for each, end in ends.items() if end > marks[each].low})

    def _look(self) -> tuple[Source, dict[int, Watermarks], dict[int, int]]:
        source = self._ask_source()
        asked = [TopicPartition(self._topic, number) for number in range(source.partitions)]
        ends = visible_ends(self._log, self._clock, asked, f"{self._namespace}.view.ends")
        marks = {at.partition: self._log.watermarks(at, Isolation.UNCOMMITTED, ASK_TIMEOUT_S) for at in asked}
        return source, marks, {at.partition: end for at, end in ends.items()}

    def _note_reached(self, store: StatusStore, target: _Target) -> bool:
        if any(store.applied.get(partition, -1) < end - 1 for partition, end in target.ends.items()):
            return False
        self._folder.caught_up(target.at_ms)
        self._caught_up_ms = target.at_ms
        return True

    async def _stop(self, app: Any, starting: asyncio.Future[None]) -> None:
        starting.cancel()
        try:
            await asyncio.wait_for(app.stop(), STOP_TIMEOUT_S)
        except Exception as error:  # noqa: BLE001 - it is ending; the rows are whole at any time
            _log.warning("Faust did not stop cleanly: %r", error, extra={"action": "view_stop_failed"})


async def _start(app: Any) -> None:
    await app.start()


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    waiting: Awaitable[bool] = event.wait()
    try:
        await asyncio.wait_for(waiting, timeout_s)
    except TimeoutError:
        return
