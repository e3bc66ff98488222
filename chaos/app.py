"""Agents whose outside world is one append-only file, the ground truth.

Each line of it is one execution of a tool: ``effect run_id call_id attempt key pid``. The line is the effect:
it is written in one ``write`` to a file opened with O_APPEND, so a kill leaves all of it or nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from perdure import (
    Agent,
    App,
    Question,
    ReconcileAnswer,
    ToolContext,
    did_not_happen,
    happened,
    reconciler,
    tool,
)

TRUTH_VARIABLE: Final = "CHAOS_TRUTH"
TRUTH: Final = Path(os.environ.get(TRUTH_VARIABLE, "truth.log"))
CALL_TIMEOUT_S: Final = 1.0


def append(effect: str, context: ToolContext) -> None:
    """One atomic line."""
    line = f"{effect} {context.run_id} {context.call_id} {context.attempt} {context.idempotency_key}"
    handle = os.open(TRUTH, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, f"{line} {os.getpid()}\n".encode())
    finally:
        os.close(handle)


@reconciler
def find_line(question: Question) -> ReconcileAnswer:
    """Whether the ground truth knows the call."""
    wanted = f" {question.run_id} {question.call_id} "
    with TRUTH.open(encoding="utf-8") as lines:
        if any(wanted in line for line in lines):
            return happened({"key": question.idempotency_key})
    return did_not_happen()


def _look(subject: str, context: ToolContext) -> dict[str, str]:
    """Look something up."""
    append("read_only", context)
    return {"subject": subject}


def _put(subject: str, context: ToolContext) -> dict[str, str]:
    """Write something by its key."""
    append("idempotent_write", context)
    return {"subject": subject, "key": context.idempotency_key}


def _send(subject: str, context: ToolContext) -> dict[str, str]:
    """Send something: it may not be sent twice."""
    append("non_idempotent", context)
    return {"subject": subject, "key": context.idempotency_key}


look = tool(effect="read_only", timeout_s=CALL_TIMEOUT_S, name="act")(_look)
put = tool(effect="idempotent_write", timeout_s=CALL_TIMEOUT_S, name="act")(_put)
send = tool(effect="non_idempotent", timeout_s=CALL_TIMEOUT_S, name="act")(_send)
send_asked = tool(effect="non_idempotent", timeout_s=CALL_TIMEOUT_S, reconcile=find_line, name="act")(_send)

SYSTEM: Final = "You act."


def _acting(name: str, act: object) -> Agent:
    return Agent(name, model="scripted", system=SYSTEM, tools=[act])  # type: ignore[list-item]


READ_ONLY: Final = "read-only"
IDEMPOTENT_WRITE: Final = "idempotent-write"
BLIND: Final = "blind"
RECONCILED: Final = "reconciled"

ONE_CALL: Final[list[dict[str, Any]]] = [
    {
        "content": [
            {"type": "text", "text": "I act."},
            {"type": "tool_use", "name": "act", "input": {"subject": "s-1"}},
        ]
    },
    {"content": [{"type": "text", "text": "Done."}]},
]
"""What the scripted model says to the agents with one tool: two model calls, one tool call."""

MIXED: Final = "mixed"
MIXED_BLIND: Final = "mixed-blind"


def _mixed(name: str, *, is_asked: bool) -> Agent:
    named = [
        tool(effect="read_only", timeout_s=CALL_TIMEOUT_S, name="look")(_look),
        tool(effect="idempotent_write", timeout_s=CALL_TIMEOUT_S, name="put")(_put),
        tool(
            effect="non_idempotent",
            timeout_s=CALL_TIMEOUT_S,
            reconcile=find_line if is_asked else None,
            name="send",
        )(_send),
    ]
    return Agent(name, model="scripted", system=SYSTEM, tools=named)


THREE_CALLS: Final[list[dict[str, Any]]] = [
    {
        "content": [
            {"type": "text", "text": "I look, write and send."},
            {"type": "tool_use", "name": "look", "input": {"subject": "s-1"}},
            {"type": "tool_use", "name": "put", "input": {"subject": "s-2"}},
            {"type": "tool_use", "name": "send", "input": {"subject": "s-3"}},
        ]
    },
    {"content": [{"type": "tool_use", "name": "send", "input": {"subject": "s-4"}}]},
    {"content": [{"type": "text", "text": "Done."}]},
]
"""What it says to the agents with tools of all three effect classes: three model calls, four tool calls."""

app = App(
    [
        _acting(READ_ONLY, look),
        _acting(IDEMPOTENT_WRITE, put),
        _acting(BLIND, send),
        _acting(RECONCILED, send_asked),
        _mixed(MIXED, is_asked=True),
        _mixed(MIXED_BLIND, is_asked=False),
    ]
)
