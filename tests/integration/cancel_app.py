"""An agent with a tool of every kind, each of which goes on until it is stopped and leaves a trace of both.

``CANCEL_URL``: a service that does not answer.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from perdure import Agent, McpServer, ToolContext, http_tool, tool
from perdure.connectors.tool import Tool
from tests.integration.cancel_command import FOLDER, HELD_S, command

MCP_SERVER = '''
import asyncio, sys
from pathlib import Path
from mcp.server.mcpserver import MCPServer

folder = Path(sys.argv[1])
server = MCPServer("small")

@server.tool()
async def serve() -> str:
    """Wait until cancelled."""
    (folder / "mcp-began").touch()
    try:
        await asyncio.sleep(1000)
    finally:
        (folder / "mcp-aborted").touch()
    return "late"

server.run("stdio")
'''


@tool(effect="idempotent_write", timeout_s=HELD_S)
def block(perdure_context: ToolContext) -> str:
    """Wait in a thread."""
    (FOLDER / "thread-began").touch()
    perdure_context.abort.wait_blocking()
    (FOLDER / "thread-aborted").touch()
    perdure_context.abort.raise_if_aborted()
    return "never"


@tool(effect="idempotent_write", timeout_s=HELD_S)
async def wait(perdure_context: ToolContext) -> str:
    """Wait on the event loop."""
    (FOLDER / "async-began").touch()
    await perdure_context.abort.wait()
    (FOLDER / "async-aborted").touch()
    perdure_context.abort.raise_if_aborted()
    return "never"


request = http_tool(
    "request",
    url=os.environ.get("CANCEL_URL", "http://127.0.0.1:9") + "/hold",
    effect="idempotent_write",
    schema={"type": "object"},
    timeout_s=HELD_S,
    description="Ask the service.",
)
mcp = McpServer.stdio("small", [sys.executable, "-W", "ignore", "-c", MCP_SERVER, str(FOLDER)])
tools: list[Tool[..., Any]] = [block, wait, command, request, *mcp.tools(timeout_s=HELD_S)]
app = Agent("holder", model="scripted", tools=tools)
