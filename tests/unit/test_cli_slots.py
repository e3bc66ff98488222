"""Slots: one process each, found by their OS lock."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.console.slots import SlotBusy, SlotUnusable, slot_folders, take_slot
from perdure.topics.table import Role

ROLE = Role.ORCHESTRATOR

HOLD = """
import sys
from pathlib import Path
from perdure.console.slots import take_slot
from perdure.topics.table import Role
slot = take_slot(Path(sys.argv[1]), "n", Role.ORCHESTRATOR)
print(slot.name, flush=True)
sys.stdin.read()
"""


def test_each_taker_gets_the_first_free_slot_with_a_name_of_its_own(tmp_path: Path) -> None:
    """Numbers in the order of asking, the host in the name, a released one is free again."""
    first, second = (take_slot(tmp_path, "n", ROLE) for _ in range(2))
    assert [slot.folder.name for slot in (first, second)] == ["0", "1"]
    assert first.name != second.name
    assert first.name.endswith("-0")
    assert first.name.startswith(socket.gethostname().partition(".")[0][:3])
    first.release()
    with take_slot(tmp_path, "n", ROLE) as again:
        assert again.name == first.name
    with take_slot(tmp_path, "other", ROLE) as elsewhere:
        assert elsewhere.folder.name == "0"
    assert slot_folders(tmp_path, "n", ROLE) == [first.folder, second.folder]
    second.release()


def test_a_wanted_slot_that_is_held_is_refused(tmp_path: Path) -> None:
    """Two processes never share a slot, whatever they ask for; names become usable in ids."""
    with take_slot(tmp_path, "n", ROLE, "blue/1") as held:
        assert held.name == "blue-1"
        with pytest.raises(SlotBusy):
            take_slot(tmp_path, "n", ROLE, "blue/1")


def test_a_killed_process_frees_its_slot(tmp_path: Path) -> None:
    """The lock belongs to the process: kill -9 gives the slot to the next, under the same name."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    name = process.stdout.readline().strip()
    with take_slot(tmp_path, "n", ROLE) as beside:
        assert beside.folder.name == "1"
    process.kill()
    process.wait(10)
    process.stdin.close()
    process.stdout.close()
    with take_slot(tmp_path, "n", ROLE) as successor:
        assert successor.name == name


def test_a_state_directory_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    """A file where the folder should be is an error with a remedy, not a traceback."""
    (tmp_path / "state").write_text("")
    with pytest.raises(SlotUnusable, match="--state-dir"):
        take_slot(tmp_path / "state", "n", ROLE)
