"""ToolPort over Python functions: the tools of the agents a worker serves."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.error import HTTPError, URLError

import msgspec

from perdure.connectors.agent import Agent
from perdure.connectors.json_schema import compile_schema
from perdure.connectors.reconciler import Question, ReconcileAnswer, Reconciler
from perdure.connectors.threads import THREADS_MAX_DEFAULT, Threads
from perdure.connectors.tool import NotExecuted, Tool, ToolContext, ToolError
from perdure.connectors.tool_content import NoContent, completed, content_of, shown
from perdure.connectors.tool_failures import ToolFailure, Unavailable
from perdure.processors.abort import Aborted, AbortSignal
from perdure.processors.clock import Clock, SystemClock
from perdure.processors.ports import DefinitionSource, ToolAnswer, ToolInvocation
from perdure.processors.tool_executor import Concurrency
from perdure.schemas.definition import AgentDefinition
from perdure.schemas.json_schema import Check
from perdure.schemas.recipient import digest_of, recipient_of
from perdure.schemas.results import Completed, Declined, Failed, Reconciled
from perdure.schemas.values import Answer, DeclineReason, FailureKind, Purpose

# The engine gives up a little later (ExecutorSettings: abort_grace_s, deadline_slack_s), so that what is
# known here is what gets recorded.
ABORT_GRACE_S: Final = 4.0
CANCEL_WAIT_S: Final = 0.1

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Returned:
    value: object


@dataclass(frozen=True, slots=True)
class _Bound:
    """A tool of one of our agents, ready to be called."""

    tool: Tool[Any, Any]
    check: Check
    recipient: bytes


class FunctionTools:
    """See :class:`perdure.processors.ports.ToolPort`.

    A tool is known under the definitions of the agents given, and under any other definition of an agent of
    the same name in which that tool and its reconciler are declared exactly alike: a changed prompt must not
    strand the runs that began with the old one. Functions that are not async run in ``threads_max`` daemon
    threads.
    """

    def __init__(
        self,
        agents: Iterable[Agent],
        *,
        definitions: DefinitionSource | None = None,
        clock: Clock | None = None,
        threads_max: int = THREADS_MAX_DEFAULT,
        abort_grace_s: float = ABORT_GRACE_S,
    ) -> None:
        self._agents = tuple(agents)
        self._own: dict[str, AgentDefinition] = {each.digest: each.definition() for each in self._agents}
        self._definitions = definitions
        self._clock: Clock = clock or SystemClock()
        self._threads = Threads(threads_max)
        self._abort_grace_s = abort_grace_s
        self._found: dict[tuple[str, str], _Bound | Reconciler] = {}
        self._overdue: dict[Future[Any] | asyncio.Future[Any], str] = {}  # with the tool's name
        for agent in self._agents:  # a schema that is none is found at start, not at the first call
            for name in [*(each.name for each in agent.tools), *(each.name for each in agent.reconcilers)]:
                self._find(agent.digest, name)

    @property
    def abandoned(self) -> int:
        """How many calls ignored their deadline or abort and still run; each keeps its thread."""
        return len(self._overdue)

    def concurrency(self, definition: str, tool: str) -> Concurrency | None:
        """The tool's ``concurrency_max``, and how many of its calls nobody waits for any more."""
        found = self._find(definition, tool)
        if not isinstance(found, _Bound) or found.tool.concurrency_max is None:
            return None
        overdue = sum(name == tool for name in tuple(self._overdue.values()))
        return Concurrency(tool, found.tool.concurrency_max, overdue)

    def close(self) -> None:
        """Let threads end when they have nothing to do, and close what tools hold open. Idempotent."""
        self._threads.close()
        services = {id(each.service): each.service for agent in self._agents for each in agent.tools}
        for service in services.values():
            if service is None:
                continue
            try:
                service.close()
            except Exception:  # noqa: BLE001 - whatever it is, the others are closed
                _log.exception("a tool's service could not be closed", extra={"action": "service_not_closed"})

    def knows(self, definition: str, tool: str) -> bool:
        return self._find(definition, tool) is not None

    async def call(self, call: ToolInvocation, abort: AbortSignal) -> ToolAnswer:
        found = self._find(call.definition, call.tool)
        match (call.purpose, found):
            case (Purpose.CALL, _Bound()):
                return await self._call(call, found, abort)
            case (Purpose.RECONCILE, Reconciler()):
                return await self._reconcile(call, found, abort)
            case _:
                return Declined(DeclineReason.UNAVAILABLE, f"This worker has no {call.purpose} {call.tool}.")

    async def _call(self, call: ToolInvocation, bound: _Bound, abort: AbortSignal) -> ToolAnswer:
        if call.recipient not in {b"", bound.recipient}:
            message = f"A person approved {call.tool} of another recipient, or as it was described then."
            return Declined(DeclineReason.UNAVAILABLE, message)
        fault = bound.check(call.arguments)
        if fault is not None:
            return _refused(fault)
        try:
            arguments = bound.tool.signature.bind(call.arguments)
        except (msgspec.ValidationError, ValueError, TypeError) as error:
            return _refused(str(error))
        signal = AbortSignal()
        if bound.tool.signature.context is not None:
            arguments[bound.tool.signature.context] = self._context(call, signal)
        function: Callable[..., Any] = bound.tool.function
        ended = await self._run(lambda: function(**arguments), bound.tool.is_async, call, signal, abort)
        return completed(ended.value) if isinstance(ended, _Returned) else ended

    async def _reconcile(self, call: ToolInvocation, tool: Reconciler, abort: AbortSignal) -> ToolAnswer:
        signal = AbortSignal()
        question = Question(
            run_id=call.run_id,
            turn=call.turn,
            call_id=call.call_id,
            attempt=call.attempt,
            tool=call.tool,
            arguments=call.arguments,
            idempotency_key=call.idempotency_key,
            started_ms=call.started_ms,
            timeout_ms=call.timeout_ms,
            abort=signal,
        )
        ended = await self._run(lambda: tool(question), tool.is_async, call, signal, abort)
        if not isinstance(ended, _Returned):
            return ended
        answer = ended.value
        if not isinstance(answer, ReconcileAnswer):
            return Failed(
                FailureKind.OUTPUT, "A reconciler answers happened(), did_not_happen() or unknown()."
            )
        if answer.answer is not Answer.HAPPENED:
            return Reconciled(answer.answer, None, answer.message)
        if isinstance(answer.result, ToolError):
            return Failed(FailureKind.OUTPUT, "happened() takes the result of the call, not an error.")
        try:
            return Reconciled(answer.answer, content_of(answer.result), answer.message)
        except NoContent as error:
            return Failed(FailureKind.OUTPUT, str(error))

    async def _run(
        self,
        function: Callable[[], Any],
        is_async: bool,
        call: ToolInvocation,
        signal: AbortSignal,
        abort: AbortSignal,
    ) -> _Returned | Failed | Declined:
        """Run it to its end, its deadline, or an abort and the grace period after that, whichever comes
        first.
        """
        if abort.aborted:
            return Declined(DeclineReason.CANCELLED, abort.reason or "")
        thread: Future[Any] | None = None
        running: asyncio.Future[Any]
        if is_async:
            running = asyncio.ensure_future(_awaited(function))
        else:
            context = copy_context()
            thread = self._threads.submit(lambda: context.run(_called, function))
            running = asyncio.wrap_future(thread)
        aborting = asyncio.ensure_future(abort.wait())
        try:
            await asyncio.wait(
                {running, aborting}, timeout=call.timeout_ms / 1000, return_when=asyncio.FIRST_COMPLETED
            )
            if running.done():
                return _ended(running)
            kind = FailureKind.ABORTED if aborting.done() else FailureKind.DEADLINE
            signal.abort((abort.reason or "aborted") if aborting.done() else "deadline")
            if thread is not None and thread.cancel():
                return _never_began(kind)
            return await self._stop(running, thread, kind, call.tool)
        except asyncio.CancelledError:
            signal.abort("the worker ends")
            self._give_up(running, thread, call.tool)
            raise
        finally:
            aborting.cancel()

    async def _stop(
        self, running: asyncio.Future[Any], thread: Future[Any] | None, kind: FailureKind, tool: str
    ) -> _Returned | Failed | Declined:
        """The signal is set; an answer that still comes within the grace period is definite."""
        if kind is FailureKind.ABORTED:
            await asyncio.wait({running}, timeout=self._abort_grace_s)
        if not running.done() and thread is None:
            running.cancel()  # only a coroutine can be made to stop
            await asyncio.wait({running}, timeout=CANCEL_WAIT_S)
        if running.done() and not running.cancelled():
            return _ended(running)
        self._give_up(running, thread, tool)
        what = "its deadline" if kind is FailureKind.DEADLINE else "an abort"
        return Failed(kind, f"The tool did not end before {what}.")

    def _give_up(self, running: asyncio.Future[Any], thread: Future[Any] | None, tool: str) -> None:
        """Nobody waits for it any more; it is counted for as long as it goes on."""
        overdue: Future[Any] | asyncio.Future[Any] = running if thread is None else thread
        if not running.done():
            running.cancel()
        if not overdue.done():
            self._overdue[overdue] = tool
            cast("Any", overdue).add_done_callback(self._ended_late)

    def _ended_late(self, overdue: Future[Any] | asyncio.Future[Any]) -> None:
        self._overdue.pop(overdue, None)

    def _context(self, call: ToolInvocation, signal: AbortSignal) -> ToolContext:
        return ToolContext(
            run_id=call.run_id,
            turn=call.turn,
            call_id=call.call_id,
            attempt=call.attempt,
            idempotency_key=call.idempotency_key,
            timeout_ms=call.timeout_ms,
            deadline_boot_s=self._clock.boot_s() + call.timeout_ms / 1000,
            abort=signal,
            clock=self._clock,
        )

    def _find(self, digest: str, name: str) -> _Bound | Reconciler | None:
        found = self._found.get((digest, name))
        if found is not None:
            return found
        definition = self._own.get(digest)
        if definition is None and self._definitions is not None:
            definition = self._definitions.by_digest(digest)
        if definition is None:
            return None
        for agent in self._agents:
            if agent.name == definition.agent and _declared_alike(definition, agent.definition(), name):
                found = _bound(agent, name)
                if found is not None:
                    self._found[digest, name] = found
                    return found
        return None


def _declared_alike(one: AgentDefinition, other: AgentDefinition, name: str) -> bool:
    declared = one.tool(name)
    if declared is None or declared != other.tool(name):
        return False
    return declared.reconcile is None or one.tool(declared.reconcile) == other.tool(declared.reconcile)


def _bound(agent: Agent, name: str) -> _Bound | Reconciler | None:
    for each in agent.tools:
        if each.name == name:
            return _Bound(
                each, compile_schema(each.signature.schema), digest_of(recipient_of(each.definition()))
            )
    return next((each for each in agent.reconcilers if each.name == name), None)


def _refused(fault: str) -> Completed:
    """The arguments are at fault: the tool is not called, and the model is told why."""
    return Completed(
        content_of(f"The tool was not called, its arguments are invalid: {fault}"), is_error=True
    )


def _never_began(kind: FailureKind) -> Failed | Declined:
    if kind is FailureKind.ABORTED:
        return Declined(DeclineReason.CANCELLED, "It was waiting for a thread.")
    return Failed(
        FailureKind.NOT_EXECUTED, "No thread was free before its deadline; other tools hold them all."
    )


def _called(function: Callable[[], object]) -> object:
    """Call it; what no future can carry (StopIteration, SystemExit ...) becomes an ordinary exception."""
    try:
        return function()
    except Exception as error:
        if isinstance(error, StopIteration):
            raise _uncarriable(error) from error
        raise
    except BaseException as error:
        raise _uncarriable(error) from error


async def _awaited(function: Callable[[], Awaitable[object]]) -> object:
    """Await it; SystemExit and KeyboardInterrupt would end the loop."""
    try:
        return await function()
    except (KeyboardInterrupt, SystemExit) as error:
        raise _uncarriable(error) from error


def _uncarriable(error: BaseException) -> RuntimeError:
    return RuntimeError(f"the tool raised {type(error).__name__}: {error}")


def _ended(running: asyncio.Future[Any]) -> _Returned | Failed | Declined:
    if running.cancelled():
        return Failed(FailureKind.EXCEPTION, "The tool cancelled itself.")
    error = running.exception()
    if error is None:
        return _Returned(running.result())
    if isinstance(error, Unavailable):
        return Declined(DeclineReason.UNAVAILABLE, shown(error))
    kind = _kind_of(error)
    if kind is not FailureKind.NOT_EXECUTED:
        _log.warning("a tool raised", exc_info=error, extra={"action": "tool_raised"})
    return Failed(kind, shown(error))


def _kind_of(error: BaseException) -> FailureKind:
    match error:
        case NotExecuted():
            return FailureKind.NOT_EXECUTED
        case Aborted():
            return FailureKind.ABORTED
        case ToolFailure():
            return error.kind
        case HTTPError():
            return FailureKind.EXCEPTION
        case ConnectionError() | TimeoutError() | socket.gaierror() | URLError():
            return FailureKind.CONNECTION
        case _:
            # httpx and requests have error trees of their own, and neither is a dependency.
            names = {each.__name__ for each in type(error).__mro__}
            foreign = {"TransportError", "ConnectionError", "ConnectTimeout", "ReadTimeout"}
            return FailureKind.CONNECTION if names & foreign else FailureKind.EXCEPTION
