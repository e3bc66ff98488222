"""A payment whose answer gets lost, and nobody to ask: a person has to say what became of it.

``pay`` changes the world and must not be repeated. The bank takes the order and then does not answer, so
perdure does not know whether it was executed; without a reconciler the run waits, in awaiting_approval, until
somebody decides::

    perdure worker --app examples.doubtful_payment:agent
    perdure submit cashier "Pay 12 euros to Ada."
    perdure approvals
    python examples/doubtful_payment.py RUN     # or: perdure decide RUN CALL ran '{"receipt": "r-1"}'
"""

from __future__ import annotations

import json
import os
import sys

from perdure import Agent, Client, ToolContext, tool


@tool(effect="non_idempotent", timeout_s=5)
def pay(to: str, euros: int, context: ToolContext) -> str:
    """Pay an amount to somebody."""
    # A real bank would be handed the idempotency key as its reference, and have a query for it (see
    # support_agent.py). This one breaks the connection after it took the order.
    raise ConnectionResetError(f"the bank fell silent about {euros} for {to}, {context.idempotency_key[:8]}")


agent = Agent(
    "cashier",
    model=os.environ.get("EXAMPLE_MODEL", "claude-sonnet-4-5"),
    system="You pay what you are told to pay, once.",
    tools=[pay],
)


def main() -> None:
    """Show what is known about the doubtful call of a run, and say that it took effect."""
    (run_id,) = sys.argv[1:]
    with Client() as client:
        asked = client.approval(run_id)
        print(f"{asked.tool} {asked.arguments.decode()}: known is {asked.known.decode()}")
        command_id = client.ran(asked, {"receipt": "r-1"}, by="the accounts department")
        client.answered(run_id, command_id)  # raises CommandRefused if somebody decided before
        outcome = client.outcome(run_id, timeout_s=60)
    print(json.loads(outcome.output or b"null"))


if __name__ == "__main__":
    main()
