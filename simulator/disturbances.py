"""What befalls processes, disks, clocks and the cluster. Each method is one disturbance of the plan."""

from __future__ import annotations

from typing import Final

from perdure.topics.log import TopicPartition
from perdure.topics.model_faults import Api, Fate, GroupLog, MarkerTarget
from perdure.topics.model_transaction import TransactionState
from perdure.topics.table import RUN_COMMANDS, RUN_EVENTS, TOPICS, Role
from simulator.world import NAMES, Process, World

CALLS_MAX: Final = 60
"""Calls to the log until a fuse has burnt down."""
LATE_MS_MAX: Final = 20_000
DAYS_MS: Final = 24 * 3_600_000
APIS: Final = {
    Role.ORCHESTRATOR: (Api.END_TXN, Api.END_TXN, Api.TXN_OFFSETS, Api.INIT, Api.PRODUCE),
    Role.MODEL_CALLER: (Api.PRODUCE, Api.OFFSET_COMMIT, Api.OFFSET_FETCH, Api.HEARTBEAT),
    Role.TOOL_EXECUTOR: (Api.PRODUCE, Api.OFFSET_COMMIT, Api.OFFSET_COMMIT, Api.OFFSET_FETCH, Api.HEARTBEAT),
}
"""Requests that may be lost, held, unanswered or sent twice."""


class Disturbances:
    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.random

    def _anybody(self) -> Process | None:
        living = self._world.living()
        return self._random.choice(living) if living else None

    # ---- processes -----------------------------------------------------------------------------------------

    def kill(self) -> None:
        if process := self._anybody():
            self._world.marks.add("killed")
            self._world.kill(process)

    def fuse(self) -> None:
        """It dies between two of its next calls to the log, in the middle of whatever it does then."""
        if process := self._anybody():
            process.wire.fuse = self._random.randrange(CALLS_MAX)

    def brake(self) -> None:
        """It stands still between two of its next calls."""
        if process := self._anybody():
            process.wire.brake = self._random.randrange(CALLS_MAX)

    def pause(self) -> None:
        if process := self._anybody():
            self._world.marks.add("paused")
            process.worker.pause()

    def go_on(self) -> None:
        """Zombies: who was stopped goes on, whatever became of its place."""
        for process in self._world.living():
            if process.worker.is_paused and self._random.random() < 0.7:
                self._world.marks.add("went_on")
                process.worker.go_on()

    def start(self) -> None:
        role = self._random.choice(list(Role))
        world = self._world
        running = [each for each in world.living(role) if not each.worker.is_paused]
        if len(running) <= world.plan.processes[role.value]:
            world.spawn(role, is_old=self._random.random() < 0.2)

    def stop(self) -> None:
        process = self._anybody()
        if process is not None and not process.worker.is_paused:
            self._world.marks.add("terminated")
            self._world.end(process)

    def lose_disk(self) -> None:
        """A machine is gone, with its disk; somebody else starts in its slot."""
        if living := self._world.living(Role.ORCHESTRATOR):
            process = self._random.choice(living)
            self._world.kill(process)
            if process.stores in self._world.disks:
                self._world.disks.remove(process.stores)
            self._world.marks.add("disk_lost")
            self._world.spawn(Role.ORCHESTRATOR, keeps_disk=False)

    def break_disk(self) -> None:
        if living := self._world.living(Role.ORCHESTRATOR):
            self._random.choice(living).wire.disk_faults = self._random.choice((0.0, 0.02, 0.2))

    def lag(self) -> None:
        """What is written is read later than it could be."""
        self._world.lag = self._random.choice((0.0, 0.3, 0.9))
        for process in self._world.living():
            process.wire.lag = self._world.lag

    def slowness(self) -> None:
        """What is produced is under way for a while, also after its process is gone."""
        self._world.delay_ms = self._random.choice((0, 300, 2_500, 8_000))
        for process in self._world.living():
            process.wire.delay_ms = self._world.delay_ms

    def deafness(self) -> None:
        """Leaders change: questions are not answered."""
        self._world.deafness = self._random.choice((0.0, 0.1, 0.6))
        for process in self._world.living():
            process.wire.deafness = self._world.deafness

    def jump(self) -> None:
        if process := self._anybody():
            process.clock.jump()

    # ---- the cluster ---------------------------------------------------------------------------------------

    def fate(self) -> None:
        """What becomes of the next request of some kind."""
        process = self._anybody()
        if process is None:
            return
        api = self._random.choice(APIS[process.role])
        fate = self._random.choice(list(Fate))
        prefix = f"{NAMES.prefix}.{process.role.value}.{process.worker.slot}"
        purpose = {Api.PRODUCE: ".results"}.get(api, ".requests")
        who = prefix if process.role is Role.ORCHESTRATOR else prefix + purpose
        if api is Api.TXN_OFFSETS and fate is Fate.RESENT:
            self._world.ledger.may_read_again = True
        self._world.marks.add(f"fate_{api.value}_{fate.value}")
        self._world.cluster.faults.inject(api, who, fate, self._random.choice((1, 1, 1, 3)))
        if fate in {Fate.HELD, Fate.RESENT} and self._random.random() < 0.8:
            self._world.cluster.schedule(self._random.randint(50, LATE_MS_MAX), lambda: self._late(api, who))

    def _late(self, api: Api, who: str) -> None:
        """A frame arrives late, in the middle of whatever its process does by then."""
        world = self._world
        state = world.cluster.transactions.state_of(who) if api is Api.END_TXN else None
        arrived = world.cluster.faults.release(api, who)
        if arrived:
            is_open = state is TransactionState.ONGOING
            world.marks.add("late_end_on_a_later_transaction" if is_open else f"late_{api.value}")

    def release(self) -> None:
        """What was held arrives now, on whatever goes on then."""
        if self._world.cluster.faults.held:
            self._world.marks.add("held_frame_arrived")
        self._world.cluster.faults.release()
        self._world.cluster.release_markers()

    def markers(self) -> None:
        """Markers take their time, some more than others."""
        faults = self._world.cluster.faults
        faults.marker_delay_ms = self._random.choice((0, 0, 3, 400, 4_000))
        targets: list[MarkerTarget] = [GroupLog(NAMES.group(Role.ORCHESTRATOR))]
        targets += [
            TopicPartition(NAMES.topic(spec.name), number)
            for spec in TOPICS
            for number in range(spec.partitions(self._world.plan.partitions))
        ]
        faults.marker_delays_ms = {
            target: self._random.choice((0, 50, 2_000, 15_000))
            for target in targets
            if self._random.random() < 0.15
        }

    def late_records(self) -> None:
        faults = self._world.cluster.faults
        faults.late_records = not faults.late_records

    def hold_sync(self) -> None:
        faults = self._world.cluster.faults
        faults.hold_sync = not faults.hold_sync
        if not faults.hold_sync:
            self.sync()

    def sync(self) -> None:
        for role in Role:
            self._world.cluster.groups.sync(NAMES.group(role))

    def coordinator(self) -> None:
        faults = self._world.cluster.faults
        faults.group_coordinator_down = self._random.random() < 0.4
        faults.transaction_coordinator_down = self._random.random() < 0.4
        self._world.marks.add(
            f"coordinators_{faults.group_coordinator_down}_{faults.transaction_coordinator_down}"
        )

    def evict(self) -> None:
        """An administrator removes a member, whose process does not know yet."""
        groups = self._world.cluster.groups
        group = NAMES.group(self._random.choice(list(Role)))
        if members := groups.members(group):
            self._world.marks.add("evicted")
            groups.evict(group, self._random.choice(members))

    def compact(self) -> None:
        """The broker cleans a topic as far as it comes."""
        cluster = self._world.cluster
        spec = self._random.choice([each for each in TOPICS if each.name != RUN_COMMANDS])
        partition = self._random.randrange(spec.partitions(self._world.plan.partitions))
        name = NAMES.topic(spec.name)
        if spec.settings(1)["cleanup.policy"] == "compact":
            end = cluster.partition(TopicPartition(name, partition)).end
            cluster.compact(name, partition, self._random.randint(0, end) if end else None)
            self._world.marks.add("compacted")
            if spec.name == RUN_EVENTS:
                self._world.marks.add("compacted_events")

    def outage(self) -> None:
        """Nobody is there for days: offsets expire, tombstones do, rows are older than what is deleted."""
        world = self._world
        for process in world.living():
            world.kill(process)
        world.ledger.may_read_again = True
        world.marks.add("outage")
        world.cluster.advance(self._random.choice((1, 4, 9, 40)) * DAYS_MS)
        world.hurry()

    def publish(self) -> None:
        self._world.publish(self._random.choice(("2", "late")))

    # ---- the end of it all ---------------------------------------------------------------------------------

    def heal(self) -> None:
        """No more faults: what was held arrives, and each role has a process that works."""
        world, faults = self._world, self._world.cluster.faults
        faults.clear()
        faults.marker_delay_ms = 0
        faults.marker_delays_ms = {}
        faults.late_records = faults.hold_sync = False
        faults.group_coordinator_down = faults.transaction_coordinator_down = False
        faults.release()
        world.cluster.release_markers()
        self.sync()
        world.lag = world.deafness = 0.0
        world.delay_ms = 0
        world.service.is_kind = world.model.is_kind = True
        for process in world.living():
            wire = process.wire
            wire.lag = wire.deafness = wire.disk_faults = 0.0
            wire.fuse = wire.brake = None
            wire.delay_ms = 0
            if process.worker.is_paused:
                process.worker.go_on()
            if process.is_old:
                world.kill(process)
        for which in ("2", "late"):
            world.publish(which)
        self.man()

    def man(self) -> None:
        """Start what is missing."""
        for role in Role:
            if not self._world.living(role):
                self._world.spawn(role)
