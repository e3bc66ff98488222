"""Commands as tools: what each way of ending becomes, and what a command is given."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from perdure.connectors.declared_tool import UnusableDeclaration
from perdure.connectors.guardian_process import read_stat
from perdure.connectors.subprocess_tools import subprocess_tool
from perdure.connectors.tool import EffectMissing
from perdure.processors.abort import AbortSignal
from perdure.schemas.results import Completed, Failed
from perdure.schemas.values import Effect, FailureKind
from tests.unit.declared_tools import KEY, Caller, text_of

GRACE_S = 0.3
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "additionalProperties": False,
}
STUBBORN = 'trap "" TERM; sleep 1000 & echo $! >> "$PIDS"; echo $$ >> "$PIDS"; wait; wait'


def shell(script: str, **options: Any) -> Caller:
    given: dict[str, Any] = {"effect": "non_idempotent", "schema": SCHEMA, "grace_s": GRACE_S, **options}
    return Caller(subprocess_tool("it", command=["sh", "-c", script], **given))


def failed(caller: Caller, arguments: dict[str, Any] | None = None) -> Failed:
    answer = caller.run(arguments)
    assert isinstance(answer, Failed), answer
    return answer


def test_arguments_go_in_as_json_and_output_comes_back() -> None:
    """Stdin holds the arguments as JSON; text is passed on, JSON is read."""
    assert text_of(shell("cat").run({"x": 1})) == '{"x":1}'
    assert text_of(shell("echo '{ \"b\": [1, 2] }'", output="json").run()) == '{"b":[1,2]}'
    assert text_of(shell("true").run()) == "(no output)"


def test_arguments_that_violate_the_schema_start_nothing(tmp_path: Path) -> None:
    """The model is told what is wrong, and no process is started."""
    answer = shell(f"touch {tmp_path}/ran").run({"x": "no"})
    assert isinstance(answer, Completed)
    assert answer.is_error
    assert not (tmp_path / "ran").exists()


def test_the_environment_is_a_list_of_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the variables named are passed on, with the idempotency key added."""
    monkeypatch.setenv("SECRET", "s")
    monkeypatch.setenv("SHARED", "shared")
    script = "tr '\\0' '\\n' < /proc/$$/environ"
    seen = text_of(shell(script, env=["PATH", "SHARED"], extra_env={"MORE": "m"}).run()).split()
    assert sorted(seen) == sorted(
        ["SHARED=shared", "MORE=m", f"PATH={os.environ['PATH']}", f"PERDURE_IDEMPOTENCY_KEY={KEY}"]
    )


@pytest.mark.parametrize("effect", list(Effect))
def test_exit_codes_count_as_declared(effect: Effect) -> None:
    """A declared error is the tool's answer, a declared refusal was not executed, all else is a failure."""
    options: dict[str, Any] = {"effect": effect, "error_codes": [1], "not_executed_codes": [75]}
    answer = shell("echo no such customer; exit 1", **options).run()
    assert isinstance(answer, Completed)
    assert answer.is_error
    assert text_of(answer) == "no such customer"
    assert failed(shell("exit 75", **options)).kind is FailureKind.NOT_EXECUTED
    unknown = failed(shell("echo half done >&2; exit 3", **options))
    assert unknown.kind is FailureKind.EXCEPTION
    assert "[command_failed]" in unknown.message
    assert "exit code 3: half done" in unknown.message
    assert "signal 9" in failed(shell("kill -9 $$", **options)).message


def test_a_command_that_cannot_be_executed_was_not_executed() -> None:
    """An absent program or folder is definite: nothing happened."""
    absent = subprocess_tool("it", command=["/no/such"], effect="non_idempotent", schema=SCHEMA)
    assert failed(Caller(absent)).kind is FailureKind.NOT_EXECUTED
    assert failed(shell("true", cwd="/no/such/folder")).kind is FailureKind.NOT_EXECUTED


def test_output_that_is_not_what_was_promised_is_no_answer() -> None:
    """The tool ran; text that is no JSON, or JSON that violates its schema, is a failure of its output."""
    assert failed(shell("echo {", output="json")).kind is FailureKind.OUTPUT
    promised = shell("echo 1", output="json", output_schema={"type": "string"})
    assert failed(promised).kind is FailureKind.OUTPUT


def test_only_the_head_of_a_large_output_is_kept() -> None:
    """A tool that returns megabytes ends as it does otherwise; the model gets the head and is told."""
    script = "head -c 4000000 /dev/zero | tr '\\0' a; echo end >&2"
    seen = text_of(shell(script, output_bytes_max=1000).run())
    assert seen == "a" * 1000 + "\n[cut: the output has 4000000 bytes, of which the first 1000 are kept]"
    assert len(text_of(shell(script, output="json", output_bytes_max=100).run())) < 300


def test_a_command_that_does_not_read_its_input_is_none_the_worse() -> None:
    """A closed stdin is no failure, however much was to be written."""
    open_schema = {"type": "object"}
    caller = shell("exec <&-; echo done", schema=open_schema)
    assert text_of(caller.run({"x": "a" * 500_000})) == "done\n"


def pids(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def alive(file: Path) -> list[int]:
    found = [(each, read_stat(each)) for each in pids(file)]
    return [each for each, stat in found if stat is not None and stat[0] not in {"Z", "X"}]


def test_an_abort_kills_the_tree_and_the_outcome_is_unknown(tmp_path: Path) -> None:
    """When the aborted call returns, nothing of it lives, a grandchild that ignores SIGTERM included."""
    file = tmp_path / "pids"
    caller = shell(STUBBORN, extra_env={"PIDS": str(file)})

    async def scenario() -> tuple[Any, float]:
        abort = AbortSignal()
        calling = asyncio.ensure_future(caller.call({}, abort))
        while len(pids(file)) < 2:  # noqa: ASYNC110 - it is another process that is waited for
            await asyncio.sleep(0.005)
        begun_s = time.monotonic()
        abort.abort("cancelled")
        return await calling, time.monotonic() - begun_s

    answer, took_s = asyncio.run(scenario())
    assert isinstance(answer, Failed)
    assert answer.kind is FailureKind.ABORTED
    assert alive(file) == []
    assert took_s < GRACE_S + 0.5


def test_an_exit_code_of_zero_after_an_abort_proves_nothing() -> None:
    """Many programs end with 0 when they are told to stop; that is not their answer."""
    caller = shell('trap "exit 0" TERM; while :; do sleep 0.02; done', timeout_s=0.2)
    assert failed(caller).kind is FailureKind.DEADLINE


def test_nothing_lives_when_the_deadline_passes(tmp_path: Path) -> None:
    """Stopping is part of the attempt's time, so that a reconciler asks after all is over."""
    file = tmp_path / "pids"
    caller = shell(STUBBORN, extra_env={"PIDS": str(file)}, timeout_s=1.5)
    begun_s = time.monotonic()
    assert failed(caller).kind is FailureKind.DEADLINE
    assert time.monotonic() - begun_s < caller.timeout_ms / 1000
    assert len(pids(file)) == 2
    assert alive(file) == []


def test_a_grandchild_that_holds_the_output_does_not_hold_the_call(tmp_path: Path) -> None:
    """The command has ended, its child ignores SIGTERM and keeps stdout open: the answer still comes."""
    file = tmp_path / "pids"
    script = (
        'sh -c \'trap "" TERM; echo $$ >> "$PIDS"; exec sleep 1000\' &'
        ' while ! [ -s "$PIDS" ]; do sleep 0.01; done; echo answer'
    )
    assert text_of(shell(script, extra_env={"PIDS": str(file)}).run()) == "answer\n"
    assert alive(file) == []


def test_a_declaration_that_contradicts_itself_is_refused() -> None:
    """There is no default effect, and each bound has to make sense."""
    with pytest.raises(EffectMissing):
        shell("true", effect=None)
    for options in ({"grace_s": 9.0}, {"timeout_s": 0.0}, {"error_codes": [0]}, {"output_bytes_max": 0}):
        with pytest.raises(UnusableDeclaration, match="tool_declaration_unusable"):
            shell("true", **options)
    with pytest.raises(UnusableDeclaration):
        shell("true", schema={"type": "object", "properties": {"perdure_context": {}}})


def test_the_definition_says_nothing_of_the_command() -> None:
    """What the model and the log see is the tool; how it is made may hold secrets."""
    tool = subprocess_tool(
        "it", command=[sys.executable, "--token=t0ken"], effect="read_only", schema=SCHEMA, description="d"
    )
    definition = tool.definition()
    assert definition.input_schema == SCHEMA
    assert "t0ken" not in json.dumps([definition.name, definition.description])
