"""Slots: the folder and the stable name of one process of one role, held by an OS lock.

::

    <state_dir>/<namespace>/<role>/<slot>/
    ├── lock     flock, held for as long as the process lives, however it ends
    └── store/   the orchestrator's rows (RocksDB), rebuilt from the log if they are gone

A slot's name goes into the transactional.id and the group.instance.id, so it must be unique in the cluster:
it begins with the host's name. Whoever takes a slot over fences its predecessor.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from perdure.schemas.errors import Stop
from perdure.topics.table import Role

SLOTS_MAX: Final = 256
NAME_CHARS_MAX: Final = 64
_UNUSABLE: Final = re.compile(r"[^A-Za-z0-9_-]+")


class SlotBusy(Stop):
    """Another process holds the slot."""

    code = "slot_busy"
    remedy = "Stop the other process, or give this one another --slot (or none: it takes the first free one)."


class SlotUnusable(Stop):
    """The slot's folder cannot be used."""

    code = "slot_unusable"
    remedy = "Look at the state directory (--state-dir): rights, free space, the disk."


@dataclass(slots=True)
class Slot:
    """A slot that is held. ``name``: letters, digits, underscore, hyphen; unique in the cluster."""

    name: str
    folder: Path
    _lock: int

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def take_slot(state_dir: Path, namespace: str, role: Role, wanted: str | None = None) -> Slot:
    """Take the ``wanted`` slot, or the first free one.

    Raises:
        SlotBusy: the wanted one is held, or SLOTS_MAX are.
        SlotUnusable: the folder cannot be made or locked.
    """
    home = (state_dir / namespace / role.value).absolute()
    host = _clean(socket.gethostname().partition(".")[0])
    if wanted is not None:
        slot = _taken(home / _clean(wanted), _clean(wanted))
        if slot is None:
            raise SlotBusy(f"It is {wanted}, in {home}.")
        return slot
    for number in range(SLOTS_MAX):
        slot = _taken(home / str(number), f"{host}-{number}")
        if slot is not None:
            return slot
    raise SlotBusy(f"All {SLOTS_MAX} in {home} are held.")


def slot_folders(state_dir: Path, namespace: str, role: Role) -> list[Path]:
    """Folders of slots that were ever taken, held or not."""
    home = (state_dir / namespace / role.value).absolute()
    return sorted(each for each in home.iterdir() if (each / "lock").is_file()) if home.is_dir() else []


def _clean(name: str) -> str:
    return _UNUSABLE.sub("-", name)[:NAME_CHARS_MAX].strip("-") or "slot"


def _taken(folder: Path, name: str) -> Slot | None:
    """The slot, or None if another process holds it. The lock goes with the process, not its children."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise SlotUnusable(f"{folder}: {error}.") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError as error:
        os.close(lock)
        raise SlotUnusable(f"{folder}: {error}.") from error
    return Slot(name, folder, lock)
