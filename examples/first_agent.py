"""The smallest agent: one tool that only reads. Its tools may run again after a crash, for nothing changes.

In one terminal, with ANTHROPIC_API_KEY set::

    perdure dev --app examples.first_agent:agent

and in another::

    python examples/first_agent.py "How many words has: to be or not to be?"
"""

from __future__ import annotations

import json
import os
import sys

from perdure import Agent, Client, tool


@tool(effect="read_only")
def count_words(text: str) -> dict[str, int]:
    """Count the words of a text.

    Args:
        text: the text, without the question around it.
    """
    words = text.split()
    return {"words": len(words), "different": len(set(words))}


agent = Agent(
    "word-counter",
    model=os.environ.get("EXAMPLE_MODEL", "claude-sonnet-4-5"),
    system="You answer questions about words. Count with the tool, never by yourself.",
    tools=[count_words],
)


def main() -> None:
    """Submit a run, wait for its outcome, print it."""
    question = " ".join(sys.argv[1:]) or "How many words has: to be or not to be?"
    with Client() as client:
        run_id = client.submit(agent, question)
        print(f"run {run_id}", file=sys.stderr)
        outcome = client.outcome(run_id, timeout_s=120)
    if outcome.output is None:
        sys.exit(f"{outcome.state}: {outcome.code} {outcome.message}")
    print(json.loads(outcome.output))


if __name__ == "__main__":
    main()
