"""A whole perdure in one thread: topics, workers, time.

::

    with TestBed(agent, model=ScriptedModel([calls(use("look_up", name="Ada")), "It is Ada."])) as bed:
        run = bed.submit("Who is it?")
        bed.settle()
        assert run.output == "It is Ada."

Nothing happens but inside :meth:`TestBed.settle` and :meth:`TestBed.advance`. One seed is one history.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

from perdure.connectors.agent import Agent, App, as_app
from perdure.connectors.client import Client
from perdure.connectors.command_sender import CommandSender
from perdure.connectors.settings import Settings
from perdure.processors.blobs import BlobStore
from perdure.processors.clock import new_id
from perdure.processors.definitions import DefinitionBook, publish
from perdure.processors.executor.settings import ExecutorSettings
from perdure.processors.machine.inputs import MachineSettings
from perdure.processors.machine.schedule import next_due_ms
from perdure.processors.offset_map import empty_map
from perdure.processors.orchestrator.settings import OrchestratorSettings
from perdure.processors.rate_limits import RateLimits
from perdure.processors.store_memory import MemoryStores
from perdure.schemas.commands import Command, CommandBody
from perdure.schemas.outputs import DeadLetter
from perdure.schemas.values import Budget, Provenance
from perdure.testing.history import History
from perdure.testing.inline import inlined
from perdure.testing.rest import Rest
from perdure.testing.run import TestRun
from perdure.testing.script import ScriptedModel
from perdure.testing.virtual import SeededEntropy, VirtualClock, seeded
from perdure.testing.workers import Died, ExecutorWorker, OrchestratorWorker, Worker, World
from perdure.topics.log import CommittedOffset, ConsumerSpec, Headers, Outgoing, TopicPartition
from perdure.topics.model_cluster import ModelCluster
from perdure.topics.model_log import ModelLog
from perdure.topics.table import DEAD_LETTERS, INPUTS, MAPPED, TOPICS, Namespace, Role

NAMES: Final = Namespace("testbed")
PARTITIONS_DEFAULT: Final = 2
RUNNING_RUNS_MAX_DEFAULT: Final = 1_000
STEP_MS_MIN: Final = 5
STEP_MS_MAX: Final = 250
IDLE_STEP_MS_MAX: Final = 60_000
STEP_GROWTH: Final = 1.25
QUIET_MS: Final = 500
"""What is left to do at rest, such as committing offsets, is done within this time."""
SETTLE_LIMIT_S: Final = 900.0


class NotAtRest(AssertionError):
    """Something goes on for longer than a test waits."""


class TestBed:
    """Agents with everything around them, in process and deterministic. Use it as a context manager.

    Args:
        agents: an Agent, several, or an App.
        model: what the model says; shared by all runs, in the order in which they ask.
        seed: of identifiers, jitter, and the order in which workers and partitions take turns.
        partitions: of each run-keyed topic.
        machine: limits of the machine, such as ``approval_timeout_ms``.
        executor: limits of the executors.
        blobs: where large results are kept whole; by default nowhere.
        rates: limits of the provider's key.
        running_runs_max: runs per partition that may be running or awaiting tools.

    Raises, from whatever makes time pass: :class:`~perdure.testing.history.BrokenPromise`,
    :class:`~perdure.testing.transcript.InvalidTranscript`, :class:`~perdure.testing.script.ScriptExhausted`.
    """

    __test__ = False  # the name is not meant for test collectors

    def __init__(
        self,
        agents: Agent | Sequence[Agent] | App,
        *,
        model: ScriptedModel,
        seed: int = 1,
        partitions: int = PARTITIONS_DEFAULT,
        machine: MachineSettings | None = None,
        executor: ExecutorSettings | None = None,
        blobs: BlobStore | None = None,
        rates: RateLimits | None = None,
        running_runs_max: int = RUNNING_RUNS_MAX_DEFAULT,
    ) -> None:
        app = as_app(agents if isinstance(agents, (Agent, App)) else list(agents))
        self.model = model
        self.names = NAMES
        self.partitions = partitions
        self._random = seeded(seed)
        self.cluster = ModelCluster(random=seeded(seed))
        self.clock = VirtualClock(self.cluster)
        self._entropy = SeededEntropy(seeded(seed))
        self._log = ModelLog(self.cluster)
        for spec in TOPICS:
            self.cluster.create_topic(NAMES.topic(spec.name), spec.partitions(partitions), spec.settings(1))
        self.history = History(self._log, NAMES)
        self._world = World(
            cluster=self.cluster,
            names=NAMES,
            clock=self.clock,
            entropy=self._entropy,
            agents=inlined(app.agents),
            model=model,
            orchestrator=OrchestratorSettings(
                namespace=NAMES,
                slot="0",
                partitions=partitions,
                token_key=b"the test bed's key",
                machine=machine or MachineSettings(),
                running_runs_max=running_runs_max,
            ),
            executor=executor or ExecutorSettings(),
            blobs=blobs,
            rates=rates or RateLimits(),
        )
        self._agents = tuple(app.agents)
        settings = Settings(namespace=NAMES.prefix, partitions=partitions)
        self.client = Client(settings, log=self._log, clock=self.clock, entropy=self._entropy)
        self._sender = CommandSender(self._log, NAMES, "testbed.commands")
        self._producer = self._log.producer("testbed.records")
        self._disks: dict[str, MemoryStores] = {}
        self._crashed: list[tuple[Role, str]] = []
        self.workers: list[Worker] = []
        self._buried: list[Worker] = []
        self._rest = Rest(self.cluster, self.history, self._world.orchestrator)
        self._step_ms = float(STEP_MS_MIN)
        self._provision()
        for role in Role:
            self.add(role)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End everything. Idempotent."""
        for worker in (*self.workers, *self._buried):
            worker.bury()
        self._log.kill_all()

    # ---- asking --------------------------------------------------------------------------------------------

    def submit(
        self,
        input: str | Sequence[Mapping[str, Any]],  # noqa: A002 - as the client calls it
        *,
        agent: Agent | str | None = None,
        run_id: str | None = None,
        deadline_s: float | None = None,
        delay_s: float | None = None,
        max_turns: int | None = None,
        budget: Budget | None = None,
        provenance: Provenance | None = None,
    ) -> TestRun:
        """Ask for a run, of the only agent or the one given. The rest is as for ``Client.submit``."""
        if agent is None:
            names = {each.name for each in self._agents}
            assert len(names) == 1, f"say which agent: {sorted(names)}"
            agent = names.pop()
        chosen = self.client.submit(
            agent, input, run_id=run_id, deadline_s=deadline_s, delay_s=delay_s,
            max_turns=max_turns, budget=budget, provenance=provenance,
        )  # fmt: skip
        return TestRun(chosen, self.history, self.client, self.send)

    def run(self, run_id: str) -> TestRun:
        """Any run, such as a child."""
        return TestRun(run_id, self.history, self.client, self.send)

    def send(self, run_id: str, body: CommandBody, command_id: str | None = None) -> str:
        """Write any command; returns its id."""
        command_id = command_id or new_id(self._entropy)
        self._sender.send(run_id, Command(body, command_id))
        return command_id

    def decide(self, run: TestRun, call_id: str | None, verdict: str, **more: Any) -> str:
        """As :meth:`TestRun.decide`."""
        return run.decide(call_id, verdict, **more)

    def write(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> None:
        """Write any record, as anybody may. ``topic``: its name in the topic table."""
        self._producer.produce(Outgoing(NAMES.topic(topic), partition, key, value, headers))
        self._producer.poll(0.0)

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """Inputs that could not be handled."""
        return self.history.all_of(DEAD_LETTERS, DeadLetter)

    # ---- time ----------------------------------------------------------------------------------------------

    def settle(self, limit_s: float = SETTLE_LIMIT_S) -> None:
        """Go on until nothing more happens by itself: runs have ended, or wait for a person, for a later
        instant, or for a role of which no worker lives.

        Raises :class:`NotAtRest` if nothing comes of what goes on for ``limit_s`` virtual seconds.
        """
        moved_ms = self.cluster.now_ms
        quiet_until_ms = moved_ms + QUIET_MS
        while True:
            if self._round():
                moved_ms = self.cluster.now_ms
            why = self._rest.disturbed_by(self.workers)
            if why is not None:
                quiet_until_ms = self.cluster.now_ms + QUIET_MS
            elif self.cluster.now_ms >= quiet_until_ms:
                return
            if self.cluster.now_ms - moved_ms > limit_s * 1000:
                raise NotAtRest(f"after {limit_s} s without an event: {why}")
            self._pass(STEP_MS_MAX)

    def advance(self, seconds: float) -> None:
        """Go on for so many virtual seconds, whether there is anything to do or not."""
        end_ms = self.cluster.now_ms + round(seconds * 1000)
        while True:
            self._round()
            left_ms = end_ms - self.cluster.now_ms
            if left_ms <= 0:
                return
            is_idle = self._rest.disturbed_by(self.workers) is None
            self._pass(min(left_ms, IDLE_STEP_MS_MAX if is_idle else STEP_MS_MAX))

    def until(self, reached: Callable[[], object], limit_s: float = SETTLE_LIMIT_S) -> None:
        """Go on until something holds. Raises :class:`NotAtRest` if it does not within ``limit_s``."""
        end_ms = self.cluster.now_ms + round(limit_s * 1000)
        while not reached():
            if self.cluster.now_ms > end_ms:
                raise NotAtRest(f"it did not come about within {limit_s} s")
            self._round()
            self._pass(STEP_MS_MAX)

    def _round(self) -> bool:
        """Every worker takes a turn. Whether an event was committed."""
        turns = [worker for worker in self.workers if worker.is_alive and not worker.is_paused]
        self._random.shuffle(turns)
        for worker in turns:
            if not worker.is_alive:
                continue
            try:
                worker.step()
            except Died:
                self._kill(worker)
            except Exception:
                if worker.is_alive:  # else it was killed from inside, by a tool, and notices only now
                    raise
        moved = self.history.read()
        if self.model.fault is not None:
            raise self.model.fault
        if moved:
            self._step_ms = STEP_MS_MIN
        return moved

    def _pass(self, step_ms_max: int) -> None:
        """Let time pass: little where things happen, more where they do not, never past a timer."""
        now_ms = self.cluster.now_ms
        step_ms = min(round(self._step_ms), step_ms_max)
        due = [due for run in self.history.runs.values() if (due := next_due_ms(run)) is not None]
        next_ms = min((each for each in due if each > now_ms), default=None)
        if next_ms is not None and now_ms + step_ms > next_ms:
            step_ms = max(1, next_ms - now_ms)
        self.cluster.advance(step_ms)
        self._step_ms = min(self._step_ms * STEP_GROWTH, IDLE_STEP_MS_MAX)

    # ---- workers -------------------------------------------------------------------------------------------

    def add(
        self, role: Role | str, *, keeps_disk: bool = True, agents: Sequence[Agent] | None = None
    ) -> Worker:
        """Start one more worker of a role, in its first free slot.

        ``keeps_disk`` False: what an earlier worker of the slot had on its disk is gone. ``agents``: what a
        tool-executor serves, by default all that the bed was made with.
        """
        role = Role(role)
        taken = {worker.slot for worker in self.workers if worker.role is role and worker.is_alive}
        slot = next(str(number) for number in range(len(taken) + 1) if str(number) not in taken)
        worker: Worker
        if role is Role.ORCHESTRATOR:
            if not keeps_disk:
                self._disks.pop(slot, None)
            stores = self._disks.setdefault(slot, MemoryStores())
            settings = replace(self._world.orchestrator, slot=slot)
            worker = OrchestratorWorker(self._world, slot, stores, settings)
        else:
            served = self._world if agents is None else replace(self._world, agents=inlined(agents))
            worker = ExecutorWorker(served, role, slot)
        self.workers.append(worker)
        self._step_ms = STEP_MS_MIN
        return worker

    def worker(self, role: Role | str) -> Worker:
        """The first living worker of a role."""
        return next(each for each in self.workers if each.role is Role(role) and each.is_alive)

    def crash(self, role: Role | str) -> None:
        """Kill -9 every worker of a role. May be called by a tool, which then ends with its worker."""
        for worker in [each for each in self.workers if each.role is Role(role) and each.is_alive]:
            self._kill(worker)

    def restart(
        self, role: Role | str, *, keeps_disk: bool = True, agents: Sequence[Agent] | None = None
    ) -> Worker:
        """Crash what lives of a role, if anything does, and start one worker, as :meth:`add` does."""
        self.crash(role)
        return self.add(role, keeps_disk=keeps_disk, agents=agents)

    def stop(self, role: Role | str) -> None:
        """SIGTERM every worker of a role: what runs ends, then they leave."""
        for worker in [each for each in self.workers if each.role is Role(role) and each.is_alive]:
            worker.stop(self.cluster.advance)
            self._bury(worker)

    def _kill(self, worker: Worker) -> None:
        worker.kill()
        if worker.role is Role.MODEL_CALLER:
            self.model.forget_unanswered()
        self._bury(worker)

    def _bury(self, worker: Worker) -> None:
        self.workers.remove(worker)
        self._buried.append(worker)

    # ---- before the first worker ---------------------------------------------------------------------------

    def _provision(self) -> None:
        """What provisioning and deployment leave behind: offsets with empty maps, and published agents."""
        for role in MAPPED:
            topic = NAMES.topic(INPUTS[role][0])
            consumer = self._log.consumer(ConsumerSpec("testbed.admin", group=NAMES.group(role)))
            text = empty_map(self._log.describe([topic], 1.0)[topic].topic_id)
            consumer.commit(
                [CommittedOffset(TopicPartition(topic, n), 0, text) for n in range(self.partitions)]
            )
            self._log.kill(consumer)
        self.publish(*self._agents)

    def publish(self, *agents: Agent) -> None:
        """Make agents known, as the start of a worker with them does; those of the bed are already."""
        book = DefinitionBook(self._log, NAMES, self.clock, "testbed.publisher")
        for agent in agents:
            publish(agent.definition(), book, self._producer, NAMES, self.clock)
        book.close()
