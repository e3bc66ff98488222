"""Tools that are commands: JSON on stdin, an answer on stdout, an exit code.

Each call is a process under a guardian (``connectors.guardian``): when the call ends, for whatever reason,
nothing that it started lives on. How an end counts:

- **exit code 0**: stdout is the answer.
- **a code of error_codes**: the tool ran, and this is its answer, an error; the model is told its output.
- **a code of not_executed_codes**, or a command that cannot be executed: definitely nothing happened.
- **anything else**, a signal, the deadline, an abort: for a non_idempotent tool nobody knows what happened.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Unpack

from perdure.connectors.declared_tool import (
    OUTPUT_BYTES_MAX_DEFAULT,
    ToolOptions,
    UnusableDeclaration,
    check_arguments,
    checked,
    cut,
    described,
    output_check,
)
from perdure.connectors.guardian import (
    GRACE_S_DEFAULT,
    GRACE_S_MAX,
    KILL_WAIT_S,
    Guarded,
    head_of,
    tail_of,
)
from perdure.connectors.tool import (
    TOOL_TIMEOUT_S_DEFAULT,
    EffectName,
    NotExecuted,
    Tool,
    ToolContext,
    ToolError,
    tool,
)
from perdure.connectors.tool_failures import DeadlinePassed, ToolFailure, UnusableOutput
from perdure.processors.abort import Aborted
from perdure.schemas.canonical import NotJson, canonical_json, loads_json
from perdure.schemas.json_schema import Check
from perdure.schemas.limits import JSON_BYTES_MAX
from perdure.schemas.values import Effect, ExecutorKind

IDEMPOTENCY_KEY: Final = "PERDURE_IDEMPOTENCY_KEY"
ENV_DEFAULT: Final = ("HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "TZ")
STDERR_BYTES_MAX: Final = 4 << 10
# The guardian and the command must have started before the deadline can be meant seriously.
START_S: Final = 0.5

_log: Final = logging.getLogger(__name__)


class CommandFailed(ToolFailure):
    """The command ended in a way that its declaration does not explain."""

    code = "command_failed"
    remedy = "Read its stderr; name the exit codes that are answers in error_codes."


@dataclass(frozen=True, slots=True)
class _Command:
    command: tuple[str, ...]
    cwd: str | os.PathLike[str] | None
    env: Collection[str]
    extra_env: Mapping[str, str]
    output: Literal["json", "text"]
    output_check: Check | None
    output_bytes_max: int
    error_codes: Collection[int]
    not_executed_codes: Collection[int]
    grace_s: float

    async def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> Any:
        process = await Guarded.start(
            self.command, env=self._environment(context), cwd=self.cwd, grace_s=self.grace_s
        )
        try:
            return await self._attend(process, context, canonical_json(arguments))
        finally:
            process.close()

    async def _attend(self, process: Guarded, context: ToolContext, given: bytes) -> Any:
        ending = asyncio.ensure_future(self._run(process, given))
        aborting = asyncio.ensure_future(context.abort.wait())
        # So that nothing lives any more when the attempt's deadline passes: a reconciler asks after it.
        time_s = max(0.0, context.remaining_s() - self.grace_s - KILL_WAIT_S)
        try:
            await asyncio.wait({ending, aborting}, timeout=time_s, return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                return ending.result()
            process.stop()
            await asyncio.wait({ending}, timeout=self.grace_s + KILL_WAIT_S)
            # Also an exit code 0 says nothing now: many programs end so when they are told to stop.
            if context.abort.aborted:
                raise Aborted(context.abort.reason)
            raise DeadlinePassed(None)
        finally:
            for task in (ending, aborting):
                task.cancel()
            await asyncio.gather(ending, aborting, return_exceptions=True)

    async def _run(self, process: Guarded, given: bytes) -> Any:
        feeding = asyncio.ensure_future(_feed(process, given))
        output = asyncio.ensure_future(head_of(process.stdout, self.output_bytes_max))
        errors = asyncio.ensure_future(tail_of(process.stderr, STDERR_BYTES_MAX))
        try:
            code = await process.ended()
            if not await process.gone():
                _log.error(
                    "%s left a process that cannot be killed", self.command[0], extra={"action": "unkillable"}
                )
                raise CommandFailed(f"It ended with {code}, but left a process that cannot be killed.")
            return self._answer(code, *await output, await errors)
        finally:
            for task in (feeding, output, errors):
                task.cancel()
            await asyncio.gather(feeding, output, errors, return_exceptions=True)

    def _answer(self, code: int, head: bytes, count: int, errors: bytes) -> Any:
        text = cut(head, count)
        stderr = errors.decode("utf-8", "replace").strip()
        said = f"exit code {code}: {stderr or text.strip()}" if code >= 0 else f"signal {-code}: {stderr}"
        if code in self.not_executed_codes:
            raise NotExecuted(said)
        if code in self.error_codes:
            return ToolError(text.strip() or said)
        if code != 0:
            raise CommandFailed(said)
        if self.output == "text" or count > len(head):
            # A JSON value that was cut is none; its head is still worth more to the model than nothing.
            return text if self.output == "json" else checked(text, self.output_check)
        try:
            value = loads_json(head)
        except NotJson as error:
            raise UnusableOutput(f"stdout is no JSON: {error.detail}") from error
        return checked(value, self.output_check)

    def _environment(self, context: ToolContext) -> dict[str, str]:
        passed = {name: os.environ[name] for name in self.env if name in os.environ}
        return {**passed, **self.extra_env, IDEMPOTENCY_KEY: context.idempotency_key}


async def _feed(process: Guarded, given: bytes) -> None:
    with suppress(OSError):  # a command that does not read its stdin is none the worse for it
        process.stdin.write(given)
        await process.stdin.drain()
    process.stdin.close()


def subprocess_tool(
    name: str,
    *,
    command: Sequence[str],
    effect: Effect | EffectName,
    schema: Mapping[str, Any],
    output: Literal["json", "text"] = "text",
    output_schema: Mapping[str, Any] | None = None,
    output_bytes_max: int = OUTPUT_BYTES_MAX_DEFAULT,
    error_codes: Collection[int] = (),
    not_executed_codes: Collection[int] = (),
    env: Collection[str] = ENV_DEFAULT,
    extra_env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    timeout_s: float = TOOL_TIMEOUT_S_DEFAULT,
    grace_s: float = GRACE_S_DEFAULT,
    **options: Unpack[ToolOptions],
) -> Tool[..., Any]:
    """Declare a command as a tool of an agent.

    Args:
        name: what the model calls it.
        command: program and arguments, fixed; no shell. What the model says goes to stdin, as JSON.
        effect: as of ``@tool``.
        schema: JSON Schema of the arguments.
        output: what stdout holds.
        output_schema: JSON Schema of the output; output that violates it is no answer.
        output_bytes_max: how much of stdout is kept, from its beginning.
        error_codes: exit codes that are the tool's own answer, an error.
        not_executed_codes: exit codes that say that nothing was done; the call may be made again.
        env: names of the worker's variables that the command is given. It always is given
            ``PERDURE_IDEMPOTENCY_KEY``.
        extra_env: further variables.
        cwd: working folder.
        timeout_s: how long the command may take. The attempt's deadline is later by what stopping it takes.
        grace_s: between SIGTERM and SIGKILL, 0 to 3 s.
        **options: description, settle_s, attempts_max, needs_approval, approval_timeout_s, reconcile,
            concurrency_max, as of ``@tool``.

    Raises:
        UnusableDeclaration, EffectMissing, UnusableTool, UnusableSchema.
    """
    if not command or not 0 <= grace_s <= GRACE_S_MAX or timeout_s <= 0:
        raise UnusableDeclaration(f"{name}: a command, timeout_s > 0 and 0 <= grace_s <= {GRACE_S_MAX}.")
    if 0 in error_codes or 0 in not_executed_codes or set(error_codes) & set(not_executed_codes):
        raise UnusableDeclaration(f"{name}: an exit code means one thing, and 0 is success.")
    check_arguments(schema, min(output_bytes_max, JSON_BYTES_MAX))
    runner = _Command(
        command=tuple(command),
        cwd=cwd,
        env=tuple(env),
        extra_env=dict(extra_env or {}),
        output=output,
        output_check=output_check(output_schema),
        output_bytes_max=min(output_bytes_max, JSON_BYTES_MAX),
        error_codes=frozenset(error_codes),
        not_executed_codes=frozenset(not_executed_codes),
        grace_s=grace_s,
    )

    async def run(perdure_context: ToolContext, **arguments: Any) -> Any:
        return await runner.call(perdure_context, arguments)

    whole_s = timeout_s + grace_s + KILL_WAIT_S + START_S
    declare = tool(name=name, effect=effect, schema=schema, timeout_s=whole_s, **described(options))
    # Where the program stands differs from worker to worker, and its arguments may be secrets.
    program = os.path.basename(runner.command[0])  # noqa: PTH119 - of a name as it is given
    return replace(declare(run), executor=ExecutorKind.SUBPROCESS, server=program)
