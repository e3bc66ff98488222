"""The folder of one view: its rows, and what they are worth.

::

    <state_dir>/<namespace>/view/<number>/
    ├── lock        flock, held for as long as the process lives
    ├── view.json   whose rows these are, and when they were last up to date
    └── rows/       Faust's own folders (RocksDB)

The rows are thrown away, to be read from the log again, whenever they can not be trusted: another topic (one
that was re-created has another id), another number of partitions, or too old. A tombstone is only promised to
stay for ``delete.retention.ms``; rows that were up to date less than half of that ago have missed none.

The name of the consumer group goes with the folder. Two views share no group, whichever machines they are on,
and one that was killed comes back as the same member without waiting for its session to end. A folder that
was copied to another host gets another name there, and so does one whose topic was made anew.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Self, TypeGuard, cast

from perdure.processors.clock import Clock, Entropy, new_id
from perdure.schemas.errors import Stop

FORMAT: Final = 1
FOLDERS_MAX: Final = 64


class ViewFolderUnusable(Stop):
    """The view's folder can not be used."""

    code = "view_folder_unusable"
    remedy = "Look at the state directory (--state-dir): rights, free space, the disk."


@dataclass(frozen=True, slots=True)
class Source:
    """What the rows come from. ``delete_retention_ms``: of the topic, as it is."""

    topic: str
    topic_id: str
    partitions: int
    delete_retention_ms: int

    @property
    def age_max_ms(self) -> int:
        return self.delete_retention_ms // 2


@dataclass(frozen=True, slots=True)
class Marker:
    """``caught_up_ms``: wall clock when the rows were last known to hold everything visible; at first, when
    reading began.
    """

    format: int
    view_id: str
    host: str
    topic: str
    topic_id: str
    partitions: int
    caught_up_ms: int


class ViewFolder:
    """A folder that is held. Close it, or use it as a context manager."""

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder = folder
        self._lock = lock
        self._marker: Marker | None = None

    @property
    def rows(self) -> Path:
        return self.folder / "rows"

    @property
    def marker(self) -> Marker:
        assert self._marker is not None, "the folder was never opened for a topic"
        return self._marker

    def open(self, source: Source, clock: Clock, entropy: Entropy) -> str | None:
        """Make the folder fit for ``source``; why the rows were thrown away, or None if they were kept.

        Raises :class:`ViewFolderUnusable`.
        """
        now_ms = clock.wall_ms()
        host = socket.gethostname()
        found = self._read()
        why = _fault(found, source, now_ms, has_rows=self.rows.exists())
        try:
            if why is None:
                assert found is not None
                self._marker = found
                if found.host != host:
                    self._write(replace(found, view_id=new_id(entropy), host=host))
            else:
                # The marker goes first: without it whatever is left is thrown away by the next start.
                (self.folder / "view.json").unlink(missing_ok=True)
                if self.rows.exists():
                    shutil.rmtree(self.rows)
                view_id = found.view_id if _keeps_name(found, source, host) else new_id(entropy)
                self._write(
                    Marker(FORMAT, view_id, host, source.topic, source.topic_id, source.partitions, now_ms)
                )
            self.rows.mkdir(exist_ok=True)
        except OSError as error:
            raise ViewFolderUnusable(f"{self.folder}: {error}.") from error
        return why

    def caught_up(self, at_ms: int) -> None:
        """Note that the rows held everything that was visible at ``at_ms``."""
        self._write(replace(self.marker, caught_up_ms=at_ms))

    def condemn(self) -> None:
        """The next start throws the rows away."""
        try:
            (self.folder / "view.json").unlink(missing_ok=True)
        except OSError as error:
            raise ViewFolderUnusable(f"{self.folder}: {error}.") from error

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> Marker | None:
        try:
            raw: Any = json.loads((self.folder / "view.json").read_text())
            return Marker(**cast("dict[str, Any]", raw))
        except FileNotFoundError:
            return None
        except (OSError, TypeError, ValueError):
            return None  # unreadable: as good as none

    def _write(self, marker: Marker) -> None:
        partial = self.folder / "view.json.new"
        try:
            partial.write_text(json.dumps(asdict(marker)))
            partial.replace(self.folder / "view.json")
        except OSError as error:
            raise ViewFolderUnusable(f"{self.folder}: {error}.") from error
        self._marker = marker


def take_view_folder(state_dir: Path, namespace: str) -> ViewFolder:
    """The first folder that no other process holds. Raises :class:`ViewFolderUnusable`."""
    home = (state_dir / namespace / "view").absolute()
    for number in range(FOLDERS_MAX):
        folder = home / str(number)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ViewFolderUnusable(f"{folder}: {error}.") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        return ViewFolder(folder, lock)
    raise ViewFolderUnusable(f"All {FOLDERS_MAX} in {home} are held.")


def _keeps_name(marker: Marker | None, source: Source, host: str) -> TypeGuard[Marker]:
    """Whether the group's name may be used again.

    Not for a topic that was made anew: the broker may remember what this member was assigned while there
    was none, which is nothing, and a static member that comes back is given that again.
    """
    return (
        marker is not None
        and marker.host == host
        and (marker.topic_id, marker.partitions) == (source.topic_id, source.partitions)
    )


def _fault(marker: Marker | None, source: Source, now_ms: int, *, has_rows: bool) -> str | None:
    """Why rows with this marker are not to be used, or None."""
    match marker:
        case None:
            return "unmarked" if has_rows else "new"
        case Marker(format=other) if other != FORMAT:
            return "format"
        case Marker(topic=topic, topic_id=topic_id) if (topic, topic_id) != (source.topic, source.topic_id):
            return "topic"
        case Marker(partitions=partitions) if partitions != source.partitions:
            return "partitions"
        case Marker(caught_up_ms=caught_up_ms) if not 0 <= now_ms - caught_up_ms <= source.age_max_ms:
            return "age"
        case _:
            return None if has_rows else "rows missing"
