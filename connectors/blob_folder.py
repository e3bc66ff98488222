"""Blobs in a folder: one machine, or a file system that all workers mount."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from perdure.processors.blobs import BlobKey, BlobMissing, BlobUnreachable, folder_of
from perdure.schemas.values import BlobRef

PARTIAL: Final = ".partial-"
MODE: Final = 0o640


class FolderBlobs:
    """See :class:`perdure.processors.blobs.BlobStore`. The folder is made when the first blob is written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.expanduser().absolute()

    def put(self, run_id: str, data: bytes, media_type: str) -> BlobRef:
        key = BlobKey.of(run_id, data)
        path = self._folder / str(key)
        ref = key.ref(path.as_uri(), data, media_type)
        try:
            # A whole file under its name is the blob: it was renamed there after it was durable.
            if not (path.is_file() and path.stat().st_size == len(data)):
                self._write(path, data)
        except OSError as error:
            raise BlobUnreachable(f"{path}: {error}.") from error
        return ref

    def get(self, uri: str) -> bytes:
        key = BlobKey.parse(uri)
        path = self._folder / str(key)
        try:
            return key.checked(path.read_bytes())
        except FileNotFoundError as error:
            raise BlobMissing(f"{path}.") from error
        except OSError as error:
            raise BlobUnreachable(f"{path}: {error}.") from error

    def forget(self, run_id: str) -> None:
        folder = self._folder / folder_of(run_id)
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise BlobUnreachable(f"{folder}: {error}.") from error

    def _write(self, path: Path, data: bytes) -> None:
        """Whole or not at all, and there after a power loss: file, then name, then the folders' names."""
        made = [each for each in (path.parent, *path.parent.parents) if not each.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(prefix=PARTIAL, dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(file.fileno(), MODE)
                os.fsync(file.fileno())
            Path(partial).replace(path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise
        for folder in (path.parent, *(each.parent for each in made)):
            _sync(folder)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
