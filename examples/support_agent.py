"""A support agent with two tools: it looks a customer up and sends a message.

What may be done again after a crash is said by each tool's effect. Looking up changes nothing. Sending does,
and the service (``examples/outside/message_service.py``) does not deduplicate: a second POST is a second
message. So the tool hands the service its idempotency key as the client reference, and ``find_message`` asks
by that reference what became of a call whose answer nobody saw.

Serve it and start a run of it::

    MESSAGE_SERVICE_URL=http://127.0.0.1:8801 perdure worker --app examples.support_agent:app
    perdure submit support "Tell customer c-17 that her parcel has arrived."

``make demo`` runs this very file, kills a worker in the worst place, and counts what was delivered.
"""

from __future__ import annotations

import json
import os
from typing import Annotated, Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

from perdure import (
    Agent,
    App,
    NotExecuted,
    Question,
    ReconcileAnswer,
    ToolContext,
    ToolError,
    did_not_happen,
    happened,
    reconciler,
    tool,
)

MODEL = os.environ.get("SUPPORT_MODEL", "claude-sonnet-4-5")
SYSTEM = (
    "You work in customer support. Look the customer up before you write to them, send one short message, "
    "then say in one sentence what you did."
)
# An attempt is over after this time; only then may a message that nobody finds be sent again.
SEND_TIMEOUT_S = 3.0


@tool(effect="read_only", timeout_s=10.0)
def find_customer(
    customer_id: Annotated[str, "for example c-17"], context: ToolContext
) -> dict[str, str] | ToolError:
    """Look a customer up: name and e-mail address."""
    try:
        found: dict[str, str] = ask(f"/customers/{quote(customer_id)}", context.remaining_s())
    except HTTPError as refused:
        if refused.code != 404:
            raise
        return ToolError(f"There is no customer {customer_id}.")
    return found


@reconciler(timeout_s=5.0)
def find_message(question: Question) -> ReconcileAnswer:
    """Ask the service for the message with this call's client reference."""
    query = urlencode({"client_reference": question.idempotency_key})
    messages: list[dict[str, str]] = ask(f"/messages?{query}", question.timeout_ms / 1000)
    if not messages:
        return did_not_happen(f"The service has no message with reference {question.idempotency_key}.")
    return happened(receipt(messages[0]), f"The service has stored it as {messages[0]['id']}.")


@tool(effect="non_idempotent", reconcile=find_message, timeout_s=SEND_TIMEOUT_S)
def send_message(
    to: Annotated[str, "e-mail address"], text: Annotated[str, "plain text"], context: ToolContext
) -> dict[str, str] | ToolError:
    """Send a message to a customer."""
    message = {"to": to, "text": text, "client_reference": context.idempotency_key}
    try:
        return receipt(ask("/messages", context.remaining_s(), message))
    except HTTPError as refused:
        if refused.code >= 500:
            raise  # it may have stored the message all the same: nobody knows, so find_message is asked
        return ToolError(f"The service refused the message: {refused.read().decode()}")
    except URLError as failed:
        if isinstance(failed.reason, ConnectionRefusedError):
            raise NotExecuted("The message service does not listen.") from failed
        raise


def receipt(message: dict[str, str]) -> dict[str, str]:
    """What the model is told about a message: the same whether it was just sent or found later."""
    return {"message_id": message["id"], "stored_at": message["stored_at"]}


def ask(path: str, timeout_s: float, body: dict[str, str] | None = None) -> Any:
    """One HTTP request to the message service, never repeated; its JSON answer."""
    url = os.environ.get("MESSAGE_SERVICE_URL", "http://127.0.0.1:8801") + path
    content = None if body is None else json.dumps(body).encode()
    request = Request(url, content, {"Content-Type": "application/json"})  # noqa: S310 - our own service
    with urlopen(request, timeout=max(timeout_s, 0.001)) as answer:  # noqa: S310
        return json.load(answer)


# Two other declarations of the same function, to see what they lead to. Without a way to ask, a person has to
# say what became of a call in doubt.
send_unasked = tool(effect="non_idempotent", timeout_s=SEND_TIMEOUT_S, name="send_message")(
    send_message.function
)
# A false promise, for the service does not deduplicate: it leads to what a plain retry loop does.
send_naively = tool(effect="idempotent_write", timeout_s=SEND_TIMEOUT_S, name="send_message")(
    send_message.function
)

support = Agent("support", model=MODEL, system=SYSTEM, tools=[find_customer, send_message])
support_asking_people = Agent(
    "support-asking-people", model=MODEL, system=SYSTEM, tools=[find_customer, send_unasked]
)
support_naive = Agent("support-naive", model=MODEL, system=SYSTEM, tools=[find_customer, send_naively])

app = App([support, support_asking_people, support_naive])
