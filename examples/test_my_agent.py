"""How an agent is tested: in process, with a scripted model, under virtual time; no broker, no key.

::

    pytest examples/test_my_agent.py
"""

from __future__ import annotations

from perdure import Agent, tool
from perdure.testing import Entry, ScriptedModel, TestBed, calls, fails, use

OUTBOX: list[tuple[str, str]] = []


@tool(effect="read_only")
def find_customer(name: str) -> dict[str, str]:
    """Find a customer by name."""
    return {"id": "c-1", "name": name}


@tool(effect="non_idempotent")
def send_message(customer_id: str, text: str) -> str:
    """Send a message to a customer."""
    OUTBOX.append((customer_id, text))
    return "sent"


support = Agent("support", model="claude-sonnet-4-5", tools=[find_customer, send_message])

SCRIPT: list[Entry] = [
    calls(use("find_customer", name="Ada")),
    fails("overloaded", after="I will"),  # the turn is asked again, after a while of virtual time
    calls(use("send_message", customer_id="c-1", text="Your parcel is here.")),
    "Ada knows.",
]


def test_the_customer_is_told_once() -> None:
    """One message, whatever the model provider does in between."""
    OUTBOX.clear()
    with TestBed(support, model=ScriptedModel(SCRIPT)) as bed:
        run = bed.submit("Tell Ada that her parcel is here.")
        bed.settle()
        assert run.state == "completed"
        assert run.output == "Ada knows."
        assert len(OUTBOX) == 1


def test_a_crash_after_the_message_sends_no_second_one() -> None:
    """The worker dies once the message is out and its result is not yet known: a person is asked."""
    OUTBOX.clear()

    @tool(effect="non_idempotent", name="send_message")
    async def send_and_die(customer_id: str, text: str) -> str:
        OUTBOX.append((customer_id, text))
        bed.crash("tool-executor")
        return "nobody hears this"

    agent = Agent("support", model="claude-sonnet-4-5", tools=[find_customer, send_and_die])
    with TestBed(agent, model=ScriptedModel([*SCRIPT[:1], *SCRIPT[2:]])) as bed:
        run = bed.submit("Tell Ada that her parcel is here.")
        bed.settle()
        bed.restart("tool-executor")
        bed.settle()
        assert run.state == "awaiting_approval"
        bed.decide(run, run.pending[0].call_id, "ran", result="sent")
        bed.settle()
        assert run.output == "Ada knows."
        assert len(OUTBOX) == 1
