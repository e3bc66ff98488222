"""perdure: LLM agents as durable, event-sourced state machines on Kafka.

This is the light facade: importing it loads no Kafka client, no RocksDB and no model SDK. What it offers is
loaded when it is first used::

    from perdure import Agent, Client, tool
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AgentTool",
    "App",
    "ApprovalRule",
    "Budget",
    "Client",
    "ContentBlocks",
    "Effect",
    "Event",
    "McpServer",
    "NotExecuted",
    "Outcome",
    "PerdureError",
    "Question",
    "ReconcileAnswer",
    "RunState",
    "Settings",
    "Status",
    "ToolContext",
    "ToolError",
    "Verdict",
    "__version__",
    "agent_tool",
    "did_not_happen",
    "happened",
    "http_tool",
    "load_settings",
    "reconciler",
    "subprocess_tool",
    "tool",
    "unknown",
]

if TYPE_CHECKING:
    from perdure.connectors.agent import Agent, App
    from perdure.connectors.agent_tool import AgentTool, agent_tool
    from perdure.connectors.client import Client
    from perdure.connectors.http_tools import http_tool
    from perdure.connectors.mcp_tools import McpServer
    from perdure.connectors.reconciler import (
        Question,
        ReconcileAnswer,
        did_not_happen,
        happened,
        reconciler,
        unknown,
    )
    from perdure.connectors.settings import Settings, load_settings
    from perdure.connectors.subprocess_tools import subprocess_tool
    from perdure.connectors.tool import ContentBlocks, NotExecuted, ToolContext, ToolError, tool
    from perdure.schemas.approval_rule import ApprovalRule
    from perdure.schemas.errors import PerdureError
    from perdure.schemas.events import Event
    from perdure.schemas.outputs import Outcome, Status
    from perdure.schemas.values import Budget, Effect, RunState, Verdict

_HOME = {
    "Agent": "connectors.agent",
    "AgentTool": "connectors.agent_tool",
    "App": "connectors.agent",
    "ApprovalRule": "schemas.approval_rule",
    "Budget": "schemas.values",
    "Client": "connectors.client",
    "ContentBlocks": "connectors.tool",
    "Effect": "schemas.values",
    "Event": "schemas.events",
    "McpServer": "connectors.mcp_tools",
    "NotExecuted": "connectors.tool",
    "Outcome": "schemas.outputs",
    "PerdureError": "schemas.errors",
    "Question": "connectors.reconciler",
    "ReconcileAnswer": "connectors.reconciler",
    "RunState": "schemas.values",
    "Settings": "connectors.settings",
    "Status": "schemas.outputs",
    "ToolContext": "connectors.tool",
    "ToolError": "connectors.tool",
    "Verdict": "schemas.values",
    "agent_tool": "connectors.agent_tool",
    "did_not_happen": "connectors.reconciler",
    "happened": "connectors.reconciler",
    "http_tool": "connectors.http_tools",
    "load_settings": "connectors.settings",
    "reconciler": "connectors.reconciler",
    "subprocess_tool": "connectors.subprocess_tools",
    "tool": "connectors.tool",
    "unknown": "connectors.reconciler",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
