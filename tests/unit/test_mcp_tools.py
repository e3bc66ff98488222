"""Tools of real small MCP servers, over stdio and over HTTP on loopback."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.connectors.agent import Agent
from perdure.connectors.declared_tool import UnusableDeclaration
from perdure.connectors.function_tools import FunctionTools
from perdure.connectors.guardian_process import read_stat
from perdure.connectors.mcp_session import NotReached
from perdure.connectors.mcp_tools import McpServer
from perdure.connectors.reconciler import Question, ReconcileAnswer, happened, reconciler
from perdure.connectors.tool import Tool
from perdure.processors.abort import AbortSignal
from perdure.processors.tool_executor import ToolExecutor
from perdure.schemas.recipient import recipient_of
from perdure.schemas.results import Completed, Declined, Failed
from perdure.schemas.values import DeclineReason, Effect, ExecutorKind, FailureKind
from tests.unit.declared_tools import KEY, Caller, text_of

WAIT_S = 20.0
SERVER = '''
import asyncio, os, sys
from pathlib import Path
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import ToolAnnotations

folder = Path(sys.argv[1])
(folder / "pid").write_text(str(os.getpid()))
server = MCPServer("small")

@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> str:
    """Add two numbers."""
    with (folder / "calls").open("a") as file:
        file.write("add\\n")
    return str(a + b)

@server.tool()
def fail(why: str) -> str:
    """Fail."""
    raise ValueError(why)

@server.tool()
def large(count: int) -> str:
    """Answer at length."""
    return "a" * count

@server.tool()
def key(ctx: Context) -> str:
    """Tell the idempotency key."""
    meta = ctx.request_context.meta
    return str(dict(meta)["perdure/idempotency-key"])

@server.tool()
def die() -> str:
    """End the server."""
    os._exit(3)

@server.tool()
async def wait() -> str:
    """Wait until cancelled."""
    (folder / "waiting").touch()
    try:
        await asyncio.sleep(1000)
    finally:
        (folder / "cancelled").touch()
    return "late"

if (folder / "changed").exists():
    server.remove_tool("add")
    @server.tool(name="add")
    def changed(a: int, b: int, c: int = 0) -> str:
        """Add three numbers."""
        return str(a + b + c)

if len(sys.argv) > 2:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
else:
    server.run("stdio")
'''


class Place:
    """A folder with the server's program, and what the server left there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "server.py"
        self.program.write_text(SERVER)

    def command(self, *more: str) -> list[str]:
        return [sys.executable, "-W", "ignore", str(self.program), str(self.folder), *more]

    def calls(self) -> int:
        file = self.folder / "calls"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def pid(self) -> int:
        return int((self.folder / "pid").read_text())

    def is_alive(self) -> bool:
        stat = read_stat(self.pid())
        return stat is not None and stat[0] not in {"Z", "X"}


def until(happened: Any, what: str) -> None:
    begun_s = time.monotonic()
    while not happened():
        assert time.monotonic() - begun_s < WAIT_S, what
        time.sleep(0.01)  # a poll of another process, bounded above


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where servers are remembered."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def stdio(place: Place) -> Iterator[McpServer]:
    server = McpServer.stdio("small", place.command(), grace_s=0.2)
    yield server
    server.close()
    until(lambda: not place.is_alive(), "the server outlived its session")


class HttpPlace:
    """A server over HTTP that can be ended and started again on the same port."""

    def __init__(self, place: Place) -> None:
        self.place = place
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.server = McpServer.http("small", f"http://127.0.0.1:{self.port}/mcp")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(self.place.command(str(self.port)), stderr=subprocess.DEVNULL)
        until(self.answers, "the server did not start")

    def answers(self) -> bool:
        with socket.socket() as trial:
            return trial.connect_ex(("127.0.0.1", self.port)) == 0

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def http(place: Place) -> Iterator[HttpPlace]:
    made = HttpPlace(place)
    made.start()
    yield made
    made.server.close()
    made.end()


def named(tools: list[Tool[..., Any]], name: str) -> Tool[..., Any]:
    return next(each for each in tools if each.name == name)


def test_tools_are_found_and_called_over_stdio(stdio: McpServer, place: Place) -> None:
    """Each tool of the server becomes one of the agent, and calls share a session."""
    tools = stdio.tools(effects={"add": "read_only"}, prefix="s_")
    assert [each.name for each in tools] == ["s_add", "s_die", "s_fail", "s_key", "s_large", "s_wait"]
    Agent("a", model="m", tools=tools)
    pid = place.pid()
    caller = Caller(named(tools, "s_add"))
    assert text_of(caller.run({"a": 1, "b": 2})) == "3"
    assert text_of(caller.run({"a": 2, "b": 2})) == "4"
    assert place.pid() == pid


def test_hints_of_the_server_are_shown_and_not_trusted(stdio: McpServer) -> None:
    """A tool that calls itself read-only is non_idempotent until the author says otherwise."""
    add = named(stdio.tools(), "add")
    assert add.effect is Effect.NON_IDEMPOTENT
    assert add.description.startswith("Add two numbers.")
    assert "not verified" in add.description
    assert '"readOnlyHint":true' in add.description
    assert "MCP server small, schema sha256:" in add.description
    assert named(stdio.tools(effects={"add": "read_only"}), "add").effect is Effect.READ_ONLY


def test_the_idempotency_key_and_a_reconciler_come_along(stdio: McpServer) -> None:
    """The key is in the request's _meta, and a tool that writes can be given a reconciler."""

    @reconciler
    def find(question: Question) -> ReconcileAnswer:
        return happened(question.idempotency_key)

    declared = named(stdio.tools(reconcile={"key": find}), "key")
    assert declared.definition().reconcile == "find"
    assert text_of(Caller(declared).run()) == KEY


def test_invalid_arguments_and_errors_of_the_tool_are_answers(stdio: McpServer, place: Place) -> None:
    """Arguments are checked before anything is sent; an error of the tool is definite."""
    tools = stdio.tools()
    refused = Caller(named(tools, "add")).run({"a": "x"})
    assert isinstance(refused, Completed)
    assert refused.is_error
    assert place.calls() == 0
    failed = Caller(named(tools, "fail")).run({"why": "for a reason"})
    assert isinstance(failed, Completed)
    assert failed.is_error


def test_only_the_head_of_a_large_answer_is_kept(stdio: McpServer) -> None:
    """Megabytes pass the pipe; the model gets the head and is told."""
    large = named(stdio.tools(output_bytes_max=1000), "large")
    seen = text_of(Caller(large).run({"count": 2_000_000}))
    assert seen.startswith("a" * 1000 + "\n[cut: the output has 2000000 bytes")


def test_an_abort_cancels_the_request_at_the_server(stdio: McpServer, place: Place) -> None:
    """The server is told, the outcome is unknown, and the session goes on."""
    tools = stdio.tools()

    async def scenario() -> Any:
        abort = AbortSignal()
        calling = asyncio.ensure_future(Caller(named(tools, "wait")).call({}, abort))
        await asyncio.to_thread(until, (place.folder / "waiting").exists, "it was not called")
        abort.abort("cancelled")
        async with asyncio.timeout(3):
            return await calling

    answer = asyncio.run(scenario())
    assert isinstance(answer, Failed)
    assert answer.kind is FailureKind.ABORTED
    until((place.folder / "cancelled").exists, "the server was not told")
    assert text_of(Caller(named(tools, "add")).run({"a": 1, "b": 1})) == "2"


def test_a_server_that_dies_in_a_call_leaves_the_outcome_open_and_comes_back(
    stdio: McpServer, place: Place
) -> None:
    """The broken call is a lost connection; the next one opens a new session."""
    tools = stdio.tools()
    pid = place.pid()
    answer = Caller(named(tools, "die")).run()
    assert isinstance(answer, Failed)
    assert answer.kind is FailureKind.CONNECTION
    assert text_of(Caller(named(tools, "add")).run({"a": 1, "b": 1})) == "2"
    assert place.pid() != pid


def test_a_session_that_broke_between_calls_is_opened_again(stdio: McpServer, place: Place) -> None:
    """A server killed while idle costs no call."""
    add = named(stdio.tools(), "add")
    os.kill(place.pid(), signal.SIGKILL)
    until(lambda: not place.is_alive(), "it was not killed")
    assert text_of(Caller(add).run({"a": 1, "b": 1})) == "2"


def test_a_tool_that_changed_is_declined(stdio: McpServer, place: Place) -> None:
    """A call is bound to the schema its agent was published with; a changed tool is not called."""
    add = named(stdio.tools(), "add")
    (place.folder / "changed").touch()
    stdio.close()
    answer = Caller(add).run({"a": 1, "b": 1})
    assert isinstance(answer, Declined)
    assert answer.reason is DeclineReason.UNAVAILABLE
    assert "[tool_unavailable]" in answer.message
    assert place.calls() == 0


def test_a_tool_names_its_server_and_what_that_says_of_it(stdio: McpServer, http: HttpPlace) -> None:
    """An approval is bound to both; the address is shown where there is one."""
    conditional = {"add": {"properties": {"a": {"minimum": 10}}}}
    over_stdio = named(stdio.tools(needs_approval=conditional), "add").definition()
    over_http = named(http.server.tools(needs_approval=["add"]), "add").definition()
    assert (over_stdio.executor, over_http.executor) == (ExecutorKind.MCP, ExecutorKind.MCP)
    assert (over_stdio.server, over_http.server) == ("small", f"small http://127.0.0.1:{http.port}/mcp")
    assert over_stdio.server_schema == over_http.server_schema != ""
    assert recipient_of(over_stdio).schema_sha256 == recipient_of(over_http).schema_sha256
    assert over_stdio.approval_condition == conditional["add"]
    assert (over_http.needs_approval, over_http.approval_condition) == (True, None)


def test_a_server_that_does_not_start_was_not_called(place: Place) -> None:
    """Discovery says why; a call to a server that is gone was not executed."""
    with pytest.raises(NotReached, match=r"\[mcp_not_reached\]"):
        McpServer.stdio("absent", ["/no/such/server"]).tools()
    server = McpServer.stdio("small", place.command(), grace_s=0.2)
    add = named(server.tools(), "add")
    server.close()
    place.program.write_text("")
    answer = Caller(add).run({"a": 1, "b": 1})
    assert isinstance(answer, Failed)
    assert answer.kind is FailureKind.NOT_EXECUTED


def test_an_agent_is_declared_while_its_server_is_down(place: Place) -> None:
    """As the server last was, with the same content hash; calls are not executed until it is back."""
    before = McpServer.stdio("small", place.command(), grace_s=0.2)
    published = Agent("a", model="m", tools=before.tools(effects={"add": "read_only"}))
    before.close()
    place.program.write_text("raise SystemExit(1)")
    server = McpServer.stdio("small", place.command(), grace_s=0.2)
    agent = Agent("a", model="m", tools=server.tools(effects={"add": "read_only"}))
    assert agent.digest == published.digest
    add = named(list(agent.tools), "add")
    answer = Caller(add).run({"a": 1, "b": 1})
    assert isinstance(answer, Failed)
    assert answer.kind is FailureKind.NOT_EXECUTED
    place.program.write_text(SERVER)
    assert text_of(Caller(add).run({"a": 1, "b": 1})) == "2"
    server.close()


def test_what_is_remembered_of_a_server_can_be_kept_beside_the_code(place: Place, tmp_path: Path) -> None:
    """A machine that never saw the server declares its tools from the file; a spoilt file is none."""
    known = tmp_path / "deployed" / "small.json"
    server = McpServer.stdio("small", place.command(), grace_s=0.2, known=known)
    names = [each.name for each in server.tools()]
    server.close()
    absent = McpServer.stdio("small", ["/no/such/server"], known=known)
    assert [each.name for each in absent.tools()] == names
    known.write_text('{"tools": [{}]}')
    with pytest.raises(NotReached, match="nothing is remembered"):
        absent.tools()


def test_a_worker_that_leaves_closes_its_sessions(place: Place) -> None:
    """The server of a drained worker does not live on; a session may be opened again afterwards."""
    server = McpServer.stdio("small", place.command(), grace_s=0.2)
    agent = Agent("a", model="m", tools=server.tools())
    assert place.is_alive()
    work = ToolExecutor(FunctionTools([agent]))
    work.close()
    until(lambda: not place.is_alive(), "the server outlived its worker")
    work.close()
    server.tools()
    assert place.is_alive()
    server.close()


def test_names_that_the_server_does_not_have_are_refused(stdio: McpServer) -> None:
    """A misspelt effect must not leave a tool with another one."""
    with pytest.raises(UnusableDeclaration, match="ad"):
        stdio.tools(effects={"ad": "read_only"})


def test_tools_are_called_over_http_and_sessions_reopened(http: HttpPlace) -> None:
    """Streamable HTTP works alike: an ended server is refused, and found again when it is back."""
    add = named(http.server.tools(), "add")
    assert text_of(Caller(add).run({"a": 1, "b": 2})) == "3"
    http.end()
    answer = Caller(add).run({"a": 1, "b": 2})
    assert isinstance(answer, Failed)
    assert answer.kind is FailureKind.NOT_EXECUTED
    http.start()
    assert text_of(Caller(add).run({"a": 2, "b": 2})) == "4"


def test_an_abort_over_http_cancels_the_request(http: HttpPlace) -> None:
    """The request's stream is closed; the call does not wait for the server."""
    wait = named(http.server.tools(), "wait")

    async def scenario() -> Any:
        abort = AbortSignal()
        calling = asyncio.ensure_future(Caller(wait).call({}, abort))
        await asyncio.to_thread(until, (http.place.folder / "waiting").exists, "it was not called")
        abort.abort("cancelled")
        async with asyncio.timeout(3):
            return await calling

    answer = asyncio.run(scenario())
    assert isinstance(answer, Failed)
    assert answer.kind is FailureKind.ABORTED
    until((http.place.folder / "cancelled").exists, "the server was not told")


def test_a_server_that_dies_in_a_call_over_http_leaves_the_outcome_open(http: HttpPlace) -> None:
    """The request was sent: whether it was carried out is not known."""
    answer = Caller(named(http.server.tools(), "die")).run()
    assert isinstance(answer, Failed)
    assert answer.kind in {FailureKind.CONNECTION, FailureKind.EXCEPTION}
