"""The three roles put together from their parts, each a loop that a thread of the worker runs to its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from perdure.connectors.agent import App
from perdure.connectors.blob_stores import blob_store
from perdure.connectors.function_tools import FunctionTools
from perdure.connectors.known_definitions import KnownDefinitions
from perdure.connectors.prices import SnapshotPrices
from perdure.connectors.settings import Settings
from perdure.console.slots import Slot
from perdure.processors.clock import Clock, Entropy
from perdure.processors.definitions import DefinitionBook
from perdure.processors.executor.engine import Executor
from perdure.processors.executor.exits import Phase
from perdure.processors.executor.settings import ExecutorSettings
from perdure.processors.executor.work import Work
from perdure.processors.machine.inputs import MachineSettings
from perdure.processors.model_caller import ModelCaller
from perdure.processors.orchestrator.forgetting import BlobForgetter, NothingToForget
from perdure.processors.orchestrator.host import Orchestrator, run_forever
from perdure.processors.orchestrator.settings import OrchestratorSettings
from perdure.processors.ports import ModelPort
from perdure.processors.rate_limits import RateLimiter, RateLimits
from perdure.processors.runner import AsyncRunner
from perdure.processors.store_rocks import RocksStores
from perdure.processors.tool_executor import ToolExecutor
from perdure.processors.transcripts_stored import StoredTranscripts
from perdure.processors.watchdog import ThreadWatchdog
from perdure.schemas.errors import Stop
from perdure.topics.log import Log
from perdure.topics.table import RUN_DELTAS, Namespace, Role

# The tools run in threads of FunctionTools' own; the loop's pool is left with name look-ups and blobs.
LOOP_THREADS_MAX: Final = 16
# A slot's folder of stores holds one per partition for the orchestrator, and this one for the model-caller.
TRANSCRIPTS: Final = 0


class ModelKeyMissing(Stop):
    """The model-caller has no key for the Messages API."""

    code = "model_key_missing"
    remedy = "Set ANTHROPIC_API_KEY (any text for a local stand-in, with ANTHROPIC_BASE_URL)."


class AppMissing(Stop):
    """The tool-executor has no tools to serve."""

    code = "app_missing"
    remedy = "Give --app module:object, where object is an Agent, a list of Agents or an App."


@dataclass
class Stopping:
    """``asked``: somebody wants the process to end. ``drain``: start nothing more, end what runs. ``now``:
    leave at once; what runs becomes a suspect.
    """

    asked: threading.Event = field(default_factory=threading.Event)
    drain: threading.Event = field(default_factory=threading.Event)
    now: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class Means:
    """What every role of a process is built from. ``on_hang``: starts the process anew, never returns.

    ``model``: asked instead of the Messages API, if given.
    """

    settings: Settings
    partitions: int
    log: Log
    clock: Clock
    entropy: Entropy
    app: App | None
    token_key: bytes
    stopping: Stopping
    on_hang: Callable[[str, float], None]
    model: ModelPort | None = None

    @property
    def namespace(self) -> Namespace:
        return Namespace(self.settings.namespace)


def check_role(role: Role, settings: Settings, app: App | None, model: ModelPort | None = None) -> None:
    """Raise what would keep the role from working, before anything is joined."""
    if role is Role.MODEL_CALLER and model is None and settings.anthropic_api_key is None:
        raise ModelKeyMissing
    if role is Role.TOOL_EXECUTOR and app is None:
        raise AppMissing
    if role is not Role.MODEL_CALLER:
        blob_store(settings.blob_store)


def run_role(role: Role, means: Means, slot: Slot) -> int:
    """Run the role until it is told to stop or has to; the exit code it wishes (``executor.engine.Exit``).

    Raises ``Stop`` errors.
    """
    if role is Role.ORCHESTRATOR:
        return _run_orchestrator(means, slot)
    book = DefinitionBook(
        means.log, means.namespace, means.clock, means.namespace.client_id(role, slot.name, "agents")
    )
    definitions = KnownDefinitions(book, means.clock)
    try:
        if role is Role.MODEL_CALLER:
            return _run_executor(
                role, means, slot, _model_work(means, slot, definitions), means.settings.model_concurrency
            )
        assert means.app is not None
        concurrency = means.settings.tool_concurrency
        tools = FunctionTools(
            means.app.agents, definitions=definitions, clock=means.clock, threads_max=concurrency
        )
        return _run_executor(
            role, means, slot, ToolExecutor(tools, blob_store(means.settings.blob_store)), concurrency
        )
    finally:
        book.close()


def _run_orchestrator(means: Means, slot: Slot) -> int:
    names = means.namespace
    book = DefinitionBook(
        means.log, names, means.clock, names.client_id(Role.ORCHESTRATOR, slot.name, "agents")
    )
    watchdog = ThreadWatchdog(means.clock, means.on_hang)
    blobs = blob_store(means.settings.blob_store)
    forgetter = NothingToForget() if blobs is None else BlobForgetter(blobs)
    try:
        orchestrator = Orchestrator(
            means.log,
            RocksStores(slot.store),
            means.clock,
            means.entropy,
            book,
            OrchestratorSettings(
                namespace=names,
                slot=slot.name,
                partitions=means.partitions,
                token_key=means.token_key,
                machine=MachineSettings(
                    finished_runs_retention_ms=means.settings.finished_runs_retention
                    // timedelta(milliseconds=1)
                ),
                token_keys_older=means.settings.token_keys_older,
                has_own_key=means.settings.approval_token_key is None,
            ),
            watchdog,
            SnapshotPrices(),
            forgetter,
        )
        run_forever(orchestrator, means.stopping.drain.is_set)
    finally:
        forgetter.close()
        watchdog.close()
        book.close()
    return 0


def _messages_api(settings: Settings) -> ModelPort:
    from perdure.connectors.anthropic_model import AnthropicModel

    assert settings.anthropic_api_key is not None
    return AnthropicModel(settings.anthropic_api_key.reveal(), settings.anthropic_base_url)


def _model_work(means: Means, slot: Slot, definitions: KnownDefinitions) -> Work:
    names = means.namespace
    return ModelCaller(
        means.model if means.model is not None else _messages_api(means.settings),
        definitions,
        StoredTranscripts(RocksStores(slot.store).open(TRANSCRIPTS)),
        means.entropy,
        means.log.producer(names.client_id(Role.MODEL_CALLER, slot.name, "deltas")),
        names.topic(RUN_DELTAS),
        RateLimiter(_rate_limits(means.settings), means.partitions, means.clock),
    )


def _rate_limits(settings: Settings) -> RateLimits:
    return RateLimits(
        settings.model_requests_per_min,
        settings.model_input_tokens_per_min,
        settings.model_output_tokens_per_min,
    )


def _run_executor(role: Role, means: Means, slot: Slot, work: Work, slots: int) -> int:
    watchdog = ThreadWatchdog(means.clock, means.on_hang)
    executor = Executor(
        means.log,
        work,
        AsyncRunner(LOOP_THREADS_MAX, f"perdure-{role.value}"),
        means.clock,
        means.entropy,
        worker=slot.name,
        namespace=means.namespace,
        settings=ExecutorSettings(slots=slots),
        watchdog=watchdog,
    )
    is_told = False
    try:
        while executor.step() is not Phase.STOPPED:
            if means.stopping.now.is_set():
                break
            if means.stopping.drain.is_set() and not is_told:
                is_told = True
                executor.drain()
    finally:
        executor.close()
        watchdog.close()
    return executor.exit.value
