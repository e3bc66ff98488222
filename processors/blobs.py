"""The blob store: where results stand whole that are too large for a record. Implemented in ``connectors``.

A blob is known by the run whose call it answers and by its content, ``run-ROOT/SHA256``; whoever writes it
again writes the same. It is written before the result that names it, so a reference in the log is never to
something that was not there.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final, Protocol, Self
from urllib.parse import unquote

from perdure.schemas.errors import Reject, Retry, Stop
from perdure.schemas.keys import FAMILY_MARK
from perdure.schemas.limits import RUN_ID_CHARS_MAX
from perdure.schemas.values import BlobRef

BLOB_BYTES_MAX: Final = 256 << 20
"""Largest blob that is written; of what is larger only the head is kept."""
TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"

_KEY: Final = re.compile(
    rf"(?:.*/)?run-([A-Za-z0-9._:-]{{1,{RUN_ID_CHARS_MAX}}})/([0-9a-f]{{64}})", re.ASCII | re.DOTALL
)


class BlobUnreachable(Retry):
    """The blob store does not answer, or refuses."""

    code = "blob_store_unreachable"
    remedy = "Check the setting blob_store, the credentials and the service behind it."


class BlobMissing(Reject):
    """There is no such blob in the blob store."""

    code = "blob_missing"
    remedy = "Check the reference, and that blob_store names the store it was written to."


class BlobDamaged(Stop):
    """The blob store returned something else than was written."""

    code = "blob_damaged"
    remedy = "Restore the blob from a copy: its name ends in the SHA-256 of its content."


class InvalidBlobReference(Reject):
    """This is no reference to a blob."""

    code = "invalid_blob_reference"
    remedy = "Give the uri that `perdure show` or the event names; it ends in run-RUN/SHA256."


@dataclass(frozen=True, slots=True)
class BlobKey:
    """Names a blob within its store. ``root``: the run at the root of the family; a fork or a child shares
    its blobs. The prefix keeps a run called ``..`` from being more than a name.
    """

    root: str
    sha256: str

    @classmethod
    def of(cls, run_id: str, data: bytes) -> Self:
        return cls(run_id.partition(FAMILY_MARK)[0], hashlib.sha256(data).hexdigest())

    @classmethod
    def parse(cls, uri: str) -> Self:
        """The key at the end of a reference: the same in a store that was moved. Raises
        :class:`InvalidBlobReference`.
        """
        found = _KEY.fullmatch(unquote(uri))  # of a file:// reference
        if found is None:
            raise InvalidBlobReference(f"{uri!r:.200}.")
        return cls(found.group(1), found.group(2))

    def __str__(self) -> str:
        return f"{folder_of(self.root)}/{self.sha256}"

    def ref(self, uri: str, data: bytes, media_type: str) -> BlobRef:
        return BlobRef(uri, bytes.fromhex(self.sha256), len(data), media_type)

    def checked(self, data: bytes) -> bytes:
        """``data``, if it is what this key names. Raises :class:`BlobDamaged`."""
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise BlobDamaged(f"{self} has {len(data)} bytes of another content.")
        return data


def folder_of(run_id: str) -> str:
    """What the names of the blobs of a run's family begin with, up to a slash."""
    return f"run-{run_id.partition(FAMILY_MARK)[0]}"


class BlobStore(Protocol):
    """Keeps bytes. Methods block, may be called from several threads, and are bounded in time."""

    def put(self, run_id: str, data: bytes, media_type: str) -> BlobRef:
        """Durable when it returns; again is harmless. Raises :class:`BlobUnreachable`."""
        ...

    def get(self, uri: str) -> bytes:
        """The whole, compared with its hash.

        Raises :class:`BlobUnreachable`, :class:`BlobMissing`, :class:`BlobDamaged`,
        :class:`InvalidBlobReference`.
        """
        ...

    def forget(self, run_id: str) -> None:
        """Delete every blob of the run's family. Raises :class:`BlobUnreachable`; again is harmless."""
        ...
