"""Everything of one seed: the cluster, the processes of perdure, the people, and the services outside.

Nothing happens but inside :meth:`World.round` and :meth:`World.advance`. All chance is drawn from one
generator, in the order in which things happen.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field, replace
from typing import Final

from perdure.processors.definitions import DefinitionBook, publish
from perdure.processors.executor.engine import Phase
from perdure.processors.executor.settings import ExecutorSettings
from perdure.processors.machine.inputs import MachineSettings
from perdure.processors.machine.schedule import next_due_ms
from perdure.processors.offset_map import empty_map
from perdure.processors.orchestrator.host import SlotTaken
from perdure.processors.orchestrator.settings import OrchestratorSettings
from perdure.processors.transcripts import MemoryTranscripts
from perdure.testing.rest import Rest
from perdure.testing.virtual import SeededEntropy, VirtualClock, seeded
from perdure.testing.workers import Died, ExecutorWorker, OrchestratorWorker, Worker
from perdure.testing.workers import World as Built
from perdure.topics.errors import Fenced, Unavailable
from perdure.topics.log import CommittedOffset, ConsumerSpec, Outgoing, Record, TopicPartition
from perdure.topics.model_cluster import ModelCluster
from perdure.topics.model_log import ModelLog
from perdure.topics.table import INPUTS, MAPPED, TOPICS, Namespace, Role
from simulator.clocks import ProcessClock
from simulator.ledger import Ledger, digest_of
from simulator.marks import Marks
from simulator.model import Model, OnePrice
from simulator.plan import Plan
from simulator.service import LATE_AGENT, Service, agents_of
from simulator.violation import Fault, Violated
from simulator.wire import SimLog, SimStores, Wire

NAMES: Final = Namespace("sim")
STEP_MS_MIN: Final = 5
STEP_MS_MAX: Final = 1_000
IDLE_STEP_MS_MAX: Final = 60_000
STEP_GROWTH: Final = 1.6
NESTING_MAX: Final = 3


@dataclass(slots=True, eq=False)
class Process:
    """``is_old``: it serves no newer agents. ``stores``: its disk."""

    name: str
    role: Role
    worker: Worker
    wire: Wire
    clock: ProcessClock
    is_old: bool = False
    stores: SimStores | None = None
    is_doomed: bool = False
    is_inside: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as a process was handed it. ``session``: of which assignment of one consumer."""

    process: str
    session: int
    at: TopicPartition
    offset: int
    digest: bytes


@dataclass(slots=True, eq=False)
class Sent:
    """A command that was acknowledged: where it stands, and by what it is known."""

    run_id: str
    command_id: str
    is_forged: bool = False
    places: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])


class World:
    """``commands``: by id. ``poison``: positions at which something stands that can not be handled."""

    def __init__(self, plan: Plan, marks: Marks) -> None:
        self.plan = plan
        self.marks = marks
        self.random = seeded(plan.seed)
        self.cluster = ModelCluster(random=self.random)
        self.entropy = SeededEntropy(self.random)
        self.log = ModelLog(self.cluster)
        for spec in TOPICS:
            self.cluster.create_topic(
                NAMES.topic(spec.name), spec.partitions(plan.partitions), spec.settings(1)
            )
        self.ledger = Ledger(self.log, NAMES, marks)
        self.model = Model(self.random, plan.replies, marks)
        self.service = Service(
            self.cluster, self.random, plan.ends, marks, self._doom, lambda: self._running[-1].name
        )
        self.agents = agents_of(self.service)
        self.producer = self.log.producer("sim.outside")
        self.processes: list[Process] = []
        self.dead: list[Process] = []
        self.disks: list[SimStores] = []
        self.seen: list[Seen] = []
        self.commands: dict[str, Sent] = {}
        self.decided_ms: dict[str, int] = {}
        """When a question, by its token, was decided as it may be."""
        self.poison: set[tuple[str, int, int]] = set()
        self.lag = 0.0
        self.deafness = 0.0
        self.delay_ms = 0
        self._running: list[Process] = []
        self._spawned = 0
        self._step_ms = float(STEP_MS_MIN)
        self._built = self._settings()
        self.rest = Rest(self.cluster, self.ledger, self._built.orchestrator)
        self._provision()

    def _settings(self) -> Built:
        plan = self.plan
        return Built(
            cluster=self.cluster,
            names=NAMES,
            clock=VirtualClock(self.cluster),
            entropy=self.entropy,
            agents=self.agents,
            model=self.model,
            orchestrator=OrchestratorSettings(
                namespace=NAMES,
                slot="0",
                partitions=plan.partitions,
                token_key=b"the simulator's key",
                running_runs_max=plan.running_runs_max,
                machine=MachineSettings(
                    dispatch_wait_ms_max=plan.dispatch_wait_ms,
                    approval_timeout_ms=plan.approval_timeout_ms,
                    model_failures_max=6,
                    child_depth_max=2,
                    children_max=3,
                    finished_runs_retention_ms=plan.retention_ms,
                    retry_delay_ms_max=20_000,
                ),
            ),
            executor=ExecutorSettings(slots=plan.slots, asks_max=4, revoke_drain_s=6.0, abandoned_max=2),
            open_transcripts=lambda: MemoryTranscripts(plan.cache_bytes),
            prices=OnePrice(),
        )

    def _provision(self) -> None:
        """What provisioning and deployment leave behind: offsets with empty maps, and published agents."""
        for role in (each for each in Role if each in MAPPED):
            topic = NAMES.topic(INPUTS[role][0])
            consumer = self.log.consumer(ConsumerSpec("sim.admin", group=NAMES.group(role)))
            text = empty_map(self.log.describe([topic], 1.0)[topic].topic_id)
            numbers = range(self.plan.partitions)
            consumer.commit([CommittedOffset(TopicPartition(topic, n), 0, text) for n in numbers])
            self.log.kill(consumer)
        self.publish(self.agents[0].version)
        if not self.plan.late_agent:
            self.publish(LATE_AGENT)

    def publish(self, which: str) -> None:
        """Publish the agents of this name or version."""
        book = DefinitionBook(self.log, NAMES, self._built.clock, "sim.publisher")
        for agent in self.agents:
            if which in {agent.name, agent.version} and (agent.name == LATE_AGENT) == (which == LATE_AGENT):
                publish(agent.definition(), book, self.producer, NAMES, self._built.clock)
        book.close()

    # ---- processes -----------------------------------------------------------------------------------------

    def living(self, role: Role | None = None) -> list[Process]:
        """Processes that were not killed; those that stand still are among them."""
        return [each for each in self.processes if each.worker.is_alive and role in {None, each.role}]

    def spawn(self, role: Role, *, keeps_disk: bool = True, is_old: bool = False) -> Process | None:
        """Start a process. None: the cluster does not answer, it ended at once."""
        self._spawned += 1
        name = f"{role.value}#{self._spawned}"
        wire = Wire(name, self.random, self)
        wire.lag, wire.deafness, wire.delay_ms = self.lag, self.deafness, self.delay_ms
        clock = ProcessClock(self.cluster, self.random, self.plan.skew_ms, self.plan.drift)

        def open_log(cluster: ModelCluster) -> ModelLog:
            return SimLog(cluster, wire, self.plan.protocol)

        built = replace(
            self._built,
            clock=clock,
            agents=(self.agents[0], *self.agents[2:]) if is_old else self.agents,
            open_log=open_log,
        )
        process: Process
        try:
            if role is Role.ORCHESTRATOR:
                process = self._orchestrator(built, name, wire, clock, keeps_disk=keeps_disk)
            else:
                worker: Worker = ExecutorWorker(built, role, f"e{self._spawned}")
                process = Process(name, role, worker, wire, clock, is_old)
        except Unavailable:
            self.marks.add("stillborn")
            return None
        wire.on_brake = lambda: self._stand_still(process)
        self.processes.append(process)
        self.marks.add("spawned")
        self.hurry()
        return process

    def _orchestrator(
        self, built: Built, name: str, wire: Wire, clock: ProcessClock, *, keeps_disk: bool
    ) -> Process:
        """In the first free slot, with what is left on the disk of that slot."""
        keeps_clear = self.random.random() < 0.6  # else who stands still may be succeeded in its own slot
        taken = {
            each.worker.slot
            for each in self.living(Role.ORCHESTRATOR)
            if keeps_clear or not (each.worker.is_paused or each.is_inside)
        }
        slot = next(str(number) for number in range(len(taken) + 1) if str(number) not in taken)
        held = [each.stores for each in self.living(Role.ORCHESTRATOR)]
        free = [disk for disk in self.disks if disk not in held]
        stores = free[int(slot) % len(free)] if free and keeps_disk else SimStores()
        if stores not in self.disks:
            self.disks.append(stores)
        stores.wire = wire
        settings = replace(built.orchestrator, slot=slot)
        worker = OrchestratorWorker(built, slot, stores, settings)
        return Process(name, Role.ORCHESTRATOR, worker, wire, clock, stores=stores)

    def kill(self, process: Process) -> None:
        """Kill -9. From inside of its own step it ends at the next call it makes."""
        if process.is_inside:
            process.wire.fuse = 0
            return
        if process.worker.is_alive:
            process.worker.kill()
        self._bury(process)

    def _bury(self, process: Process) -> None:
        if process in self.processes:
            self.processes.remove(process)
            self.dead.append(process)
        process.worker.bury()

    def end(self, process: Process) -> None:
        """SIGTERM, and time until it has left."""
        if process.is_inside:
            return
        process.is_inside = True
        self._running.append(process)
        try:
            process.worker.stop(self.cluster.advance)
        except Died:
            process.worker.kill()
        except Fenced:
            process.worker.kill()
        finally:
            self._running.pop()
            process.is_inside = False
        self._bury(process)

    def _doom(self) -> None:
        """A tool takes its process with it: nothing of it is heard after this."""
        self._running[-1].is_doomed = True
        self._running[-1].wire.fuse = 0

    def _stand_still(self, process: Process) -> None:
        """SIGSTOP in the middle of a step, and SIGCONT after others went on for a while."""
        if len(self._running) >= NESTING_MAX:
            return
        self.marks.add("stopped_inside_a_step")
        process.worker.pause()
        try:
            self.advance(self.random.choice((0.3, 3.0, 9.0, 25.0, 70.0)))
        finally:
            process.worker.go_on()

    def saw(self, process: str, session: int, record: Record) -> None:
        self.seen.append(Seen(process, session, record.at, record.offset, digest_of(record)))

    # ---- time ----------------------------------------------------------------------------------------------

    def hurry(self) -> None:
        """Something happened: look again soon."""
        self._step_ms = STEP_MS_MIN

    def round(self) -> bool:
        """Every process takes a turn. Whether an event was committed."""
        turns = [each for each in self.living() if not each.worker.is_paused and not each.is_inside]
        self.random.shuffle(turns)
        for process in turns:
            if process.worker.is_alive and not process.worker.is_paused and not process.is_inside:
                self._step(process)
        moved = self.ledger.read()
        if moved:
            self.hurry()
        return moved

    def _step(self, process: Process) -> None:
        worker = process.worker
        process.is_inside = True
        self._running.append(process)
        try:
            worker.step()
            is_dead = process.is_doomed or not worker.is_alive
        except Died:
            is_dead = True
            self.marks.add("died_inside_a_step")
        except SlotTaken:
            is_dead = True
            self.marks.add("slot_taken")
        except Violated:
            raise
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            raise Violated(Fault.PROCESS_FAILED, f"{process.name}: {text}") from error
        finally:
            self._running.pop()
            process.is_inside = False
        if is_dead:
            if isinstance(worker, ExecutorWorker) and worker.executor.phase is Phase.STOPPED:
                self.marks.add(f"exit_{worker.executor.exit.name.lower()}")
            self.kill(process)
        if self.model.fault is not None:
            fault = self.model.fault
            if isinstance(fault, Violated):
                raise fault
            raise Violated(Fault.INVALID_TRANSCRIPT, str(fault))

    def advance(self, seconds: float) -> None:
        """Go on for so many seconds."""
        end_ms = self.cluster.now_ms + round(seconds * 1000)
        while True:
            self.round()
            left_ms = end_ms - self.cluster.now_ms
            if left_ms <= 0:
                return
            self.pass_time(min(left_ms, STEP_MS_MAX))

    def disturbed(self) -> str | None:
        """What goes on by itself, in words."""
        return self.rest.disturbed_by([each.worker for each in self.processes])

    def pass_time(self, step_ms_max: int) -> None:
        """Little where things happen, more where they do not, never past a timer."""
        now_ms = self.cluster.now_ms
        step_ms = min(round(self._step_ms), step_ms_max)
        due = [due for run in self.ledger.runs.values() if (due := next_due_ms(run)) is not None]
        next_ms = min((each for each in due if each > now_ms), default=None)
        if next_ms is not None and now_ms + step_ms > next_ms:
            step_ms = max(1, next_ms - now_ms)
        self.cluster.advance(step_ms)
        self._step_ms = min(self._step_ms * STEP_GROWTH, IDLE_STEP_MS_MAX)

    # ---- writing from outside ------------------------------------------------------------------------------

    def write(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None
    ) -> tuple[str, int, int] | None:
        """Any record, as anybody may write it; returns its position."""
        offsets: list[int] = []
        name = NAMES.topic(topic)
        self.producer.produce(Outgoing(name, partition, key, value), lambda _, offset: offsets.append(offset))
        self.producer.poll(0.0)
        self.hurry()
        return (name, partition, offsets[0]) if offsets and offsets[0] >= 0 else None

    def close(self) -> None:
        for process in [*self.processes, *self.dead]:
            process.worker.bury()
        self.log.kill_all()
