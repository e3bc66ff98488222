"""Worker processes of the three roles, each with its own connection, built of the classes that production
runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from perdure.connectors.agent import Agent
from perdure.connectors.function_tools import FunctionTools
from perdure.connectors.known_definitions import KnownDefinitions
from perdure.processors.blobs import BlobStore
from perdure.processors.clock import Entropy
from perdure.processors.definitions import DefinitionBook
from perdure.processors.executor.engine import Executor, Phase
from perdure.processors.executor.settings import ExecutorSettings
from perdure.processors.executor.work import Work
from perdure.processors.model_caller import ModelCaller
from perdure.processors.orchestrator.host import Orchestrator
from perdure.processors.orchestrator.settings import OrchestratorSettings
from perdure.processors.ports import ModelPort, Prices
from perdure.processors.rate_limits import RateLimiter, RateLimits
from perdure.processors.store_memory import MemoryStores
from perdure.processors.tool_executor import ToolExecutor
from perdure.processors.transcripts import MemoryTranscripts, Transcripts
from perdure.schemas.errors import PerdureError
from perdure.testing.virtual import VirtualClock, VirtualRunner
from perdure.topics.model_cluster import ModelCluster
from perdure.topics.model_log import ModelLog
from perdure.topics.table import RUN_DELTAS, Namespace, Role

DRAIN_STEPS_MAX: Final = 2_000
NO_LIMITS: Final = RateLimits()


class Died(BaseException):
    """Raised in a worker's step, as by a patched crash point, it ends that worker as kill -9 does."""


@dataclass(frozen=True, slots=True)
class World:
    """What every worker is built from.

    ``open_log``: a process's connection; ``open_transcripts``: what a model-caller keeps of transcripts.
    """

    cluster: ModelCluster
    names: Namespace
    clock: VirtualClock
    entropy: Entropy
    agents: tuple[Agent, ...]
    model: ModelPort
    orchestrator: OrchestratorSettings
    executor: ExecutorSettings
    blobs: BlobStore | None = None
    rates: RateLimits = NO_LIMITS
    open_log: Callable[[ModelCluster], ModelLog] = ModelLog
    open_transcripts: Callable[[], Transcripts] = MemoryTranscripts
    prices: Prices | None = None


class Worker(ABC):
    """One process. ``slot`` names it for ever; a restart takes the slot over."""

    def __init__(self, world: World, role: Role, slot: str) -> None:
        self.role = role
        self.slot = slot
        self.log = world.open_log(world.cluster)
        self.is_alive = True
        self.is_paused = False
        self._book = DefinitionBook(
            self.log, world.names, world.clock, world.names.client_id(role, slot, "agents")
        )

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Whether it holds work that is not done, as far as it can tell."""

    @abstractmethod
    def step(self) -> None: ...

    @abstractmethod
    def stop(self, pass_ms: Callable[[int], None]) -> None:
        """Leave as on SIGTERM."""

    def kill(self) -> None:
        """Kill -9: nothing is flushed, nobody is told, nothing of it runs again."""
        self.is_alive = False
        self.log.kill_all()

    def pause(self) -> None:
        """SIGSTOP."""
        self.is_paused = True
        self.log.stop()

    def go_on(self) -> None:
        """SIGCONT."""
        self.is_paused = False
        self.log.go_on()

    @abstractmethod
    def bury(self) -> None:
        """The test is over: let go of what a killed process would have left to its operating system."""


class OrchestratorWorker(Worker):
    """``stores``: its disk."""

    def __init__(self, world: World, slot: str, stores: MemoryStores, settings: OrchestratorSettings) -> None:
        super().__init__(world, Role.ORCHESTRATOR, slot)
        self.host = Orchestrator(
            self.log, stores, world.clock, world.entropy, self._book, settings, prices=world.prices
        )

    @property
    def is_busy(self) -> bool:
        return False

    def step(self) -> None:
        self.host.step()

    def stop(self, pass_ms: Callable[[int], None]) -> None:  # noqa: ARG002 - it leaves at once
        self.host.close()
        self.is_alive = False

    def bury(self) -> None:
        """Everything of it is memory."""


class ExecutorWorker(Worker):
    """A model-caller or a tool-executor."""

    def __init__(self, world: World, role: Role, slot: str) -> None:
        super().__init__(world, role, slot)
        definitions = KnownDefinitions(self._book, world.clock)
        self._tools: FunctionTools | None = None
        work: Work
        if role is Role.MODEL_CALLER:
            deltas = self.log.producer(world.names.client_id(role, slot, "deltas"))
            work = ModelCaller(
                world.model, definitions, world.open_transcripts(), world.entropy,
                deltas, world.names.topic(RUN_DELTAS),
                RateLimiter(world.rates, world.orchestrator.partitions, world.clock),
            )  # fmt: skip
        else:
            self._tools = FunctionTools(world.agents, definitions=definitions, clock=world.clock)
            work = ToolExecutor(self._tools, world.blobs)
        self._runner = VirtualRunner(world.clock, lambda wait_s: world.cluster.advance(round(wait_s * 1000)))
        try:
            self.executor = Executor(
                self.log, work, self._runner, world.clock, world.entropy,
                worker=slot, namespace=world.names, settings=world.executor,
            )  # fmt: skip
        except PerdureError:  # the log does not answer: it ends before it began
            self.bury()
            raise

    @property
    def is_busy(self) -> bool:
        return self.executor.busy + self.executor.backlog > 0

    def step(self) -> None:
        if self.executor.step() is Phase.STOPPED:
            self.is_alive = False

    def stop(self, pass_ms: Callable[[int], None]) -> None:
        self.executor.drain()
        for _ in range(DRAIN_STEPS_MAX):
            if self.executor.step() is Phase.STOPPED:
                break
            pass_ms(10)
        self.executor.close()
        self.is_alive = False

    def bury(self) -> None:
        self._runner.close()
        if self._tools is not None:
            self._tools.close()
