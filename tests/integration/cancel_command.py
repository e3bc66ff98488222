"""An agent whose tool is a command that goes on, with a child, whatever it is sent but SIGKILL.

``CANCEL_FOLDER``: where it says which processes it is.
"""

from __future__ import annotations

import os
from pathlib import Path

from perdure import Agent, subprocess_tool

FOLDER = Path(os.environ.get("CANCEL_FOLDER", "."))
GRACE_S = 0.3
HELD_S = 300.0
# The sleep has inherited that SIGTERM is ignored.
STUBBORN = """trap "" TERM
sleep 1000 &
echo "$$ $!" > "$FOLDER/pids.part"
mv "$FOLDER/pids.part" "$FOLDER/pids"
wait"""

command = subprocess_tool(
    "command",
    command=["/bin/sh", "-c", STUBBORN],
    effect="non_idempotent",
    schema={"type": "object"},
    extra_env={"FOLDER": str(FOLDER)},
    timeout_s=HELD_S,
    grace_s=GRACE_S,
    description="Go on, whatever happens.",
)
agent = Agent("holder", model="scripted", tools=[command])
