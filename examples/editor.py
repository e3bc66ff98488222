"""An agent that calls another one as a tool; each question is a run of its own.

perdure worker --app examples.editor:app
perdure submit editor "What do we know about the harbour?"
perdure continue RUN --message "And in one sentence?"
"""

from __future__ import annotations

from perdure import Agent, App, agent_tool, tool

NOTES = {"harbour": "Built in 1896, rebuilt in 1951.", "mill": "Burnt down in 1902."}


@tool(effect="read_only")
def look_up(topic: str) -> str:
    """What the notes say about a topic: harbour or mill."""
    return NOTES.get(topic, "nothing")


researcher = Agent(
    "researcher",
    model="claude-sonnet-4-5",
    system="You answer from the notes and say what they do not tell.",
    tools=[look_up],
)
editor = Agent(
    "editor",
    model="claude-sonnet-4-5",
    system="You ask the researcher before you write.",
    agents=[agent_tool("researcher", description="Knows the notes. Ask one question at a time.")],
)
app = App([editor, researcher])
