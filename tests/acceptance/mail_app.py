"""Agents for the acceptance tests; their outside world is one append-only file, the ground truth.

Each line of it is one execution of the non_idempotent tool: ``run_id call_id attempt pid``. The line is the
effect: it is written in one ``write`` to a file opened with O_APPEND, so a kill leaves all of it or
nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

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

TRUTH = Path(os.environ.get("MAIL_TRUTH", "truth.log"))
SEND_TIMEOUT_S = 1.0


def append(line: str) -> None:
    """One atomic line."""
    handle = os.open(TRUTH, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, f"{line}\n".encode())
    finally:
        os.close(handle)


@tool(effect="read_only")
def find_customer(customer_id: str) -> dict[str, str]:
    """Look a customer up."""
    return {"id": customer_id, "email": f"{customer_id}@example.com"}


@reconciler
def find_message(question: Question) -> ReconcileAnswer:
    """Whether the ground truth knows the call."""
    wanted = f"{question.run_id} {question.call_id} "
    with TRUTH.open(encoding="utf-8") as lines:
        if any(line.startswith(wanted) for line in lines):
            return happened({"message_id": question.idempotency_key[:12]})
    return did_not_happen()


@tool(effect="non_idempotent", reconcile=find_message, timeout_s=SEND_TIMEOUT_S)
def send_message(to: str, text: str, context: ToolContext) -> dict[str, str]:
    """Send a message: it may not be sent twice."""
    append(f"{context.run_id} {context.call_id} {context.attempt} {os.getpid()}")
    return {"message_id": context.idempotency_key[:12]}


send_unasked = tool(effect="non_idempotent", timeout_s=SEND_TIMEOUT_S, name="send_message")(
    send_message.function
)

SYSTEM = "You send messages."
mailer = Agent("mailer", model="scripted", system=SYSTEM, tools=[find_customer, send_message])
mailer_blind = Agent("mailer-blind", model="scripted", system=SYSTEM, tools=[find_customer, send_unasked])

app = App([mailer, mailer_blind])

SCRIPT = [
    {
        "content": [
            {"type": "text", "text": "I look the customer up."},
            {"type": "tool_use", "name": "find_customer", "input": {"customer_id": "c-7"}},
        ]
    },
    {
        "content": [
            {"type": "tool_use", "name": "send_message", "input": {"to": "c-7@example.com", "text": "hello"}}
        ]
    },
    {"content": [{"type": "text", "text": "Sent."}]},
]
"""What the scripted model says: three model calls, two tool calls, five durable steps."""
