"""How a tool that is no Python function says that it got no answer; see ``connectors.function_tools``.

An answer, also an error, is a value (``ToolError``). These are for everything else.
"""

from __future__ import annotations

from typing import ClassVar

from perdure.schemas.errors import Restore, Retry
from perdure.schemas.values import FailureKind


class ToolFailure(Restore):
    """The call ended without an answer."""

    code = "tool_failed"
    remedy = "Read the message; a non_idempotent call is reconciled or put before a person."
    kind: ClassVar[FailureKind] = FailureKind.EXCEPTION


class DeadlinePassed(ToolFailure):
    """The tool did not end before its deadline."""

    code = "tool_deadline"
    remedy = "Raise the tool's timeout_s if it needs longer."
    kind = FailureKind.DEADLINE


class ConnectionLost(ToolFailure):
    """The connection broke before the answer was complete."""

    code = "tool_connection_lost"
    remedy = "Look at the service the tool talks to."
    kind = FailureKind.CONNECTION


class UnusableOutput(ToolFailure):
    """The tool ran, but what it answered is not what it promises."""

    code = "tool_output_unusable"
    remedy = "Correct the tool, or what its declaration says about its output."
    kind = FailureKind.OUTPUT


class Unavailable(Retry):
    """The tool was not called: it is not, or no longer, what its definition says."""

    code = "tool_unavailable"
    remedy = "Publish the agent with the tool as it is now, or bring back the tool as it was."
