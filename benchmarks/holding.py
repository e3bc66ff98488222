"""The agent of the cancel benchmark: its tool is a command that holds on against SIGTERM, with a child."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from perdure import Agent, App, subprocess_tool
from perdure.connectors.subprocess_tools import IDEMPOTENCY_KEY

AGENT: Final = "holding"
APP_PLACE: Final = "benchmarks.holding:app"
FOLDER: Final = "BENCH_HOLDING_FOLDER"
"""Variable: where the tool writes the process ids of a call, in a file named after its idempotency key."""
GRACE_S: Final = 2.0
HELD_S: Final = 600.0

# A shell that ignores SIGTERM, and a child of it that has inherited that.
_COMMAND: Final = f"""trap '' TERM
sleep {HELD_S:.0f} &
echo "$$ $!" > "${FOLDER}/${IDEMPOTENCY_KEY}.part"
mv "${FOLDER}/${IDEMPOTENCY_KEY}.part" "${FOLDER}/${IDEMPOTENCY_KEY}"
wait"""


def pids_of(folder: Path, key: str) -> tuple[int, ...] | None:
    """The processes of a call; None: they have not said who they are yet."""
    try:
        return tuple(int(each) for each in (folder / key).read_text().split())
    except FileNotFoundError:
        return None


def is_alive(pid: int) -> bool:
    """Whether the process still does anything (a zombie does not)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


hold: Final = subprocess_tool(
    "hold",
    command=["/bin/sh", "-c", _COMMAND],
    effect="non_idempotent",
    schema={"type": "object"},
    timeout_s=HELD_S,
    grace_s=GRACE_S,
    extra_env={FOLDER: os.environ.get(FOLDER, ".")},
    description="Holds on.",
)
app: Final = App([Agent(AGENT, model="scripted", system="You hold on.", tools=[hold])])
