"""The blob store that the setting ``blob_store`` names."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from perdure.connectors.blob_folder import FolderBlobs
from perdure.processors.blobs import BlobStore
from perdure.schemas.errors import Stop

S3: Final = "s3://"


class UnusableBlobStore(Stop):
    """The setting blob_store names no blob store."""

    code = "blob_store_unusable"
    remedy = "Set it to a folder, or to s3://BUCKET or s3://BUCKET/PREFIX."


def blob_store(place: str | None) -> BlobStore | None:
    """The store at ``place``: a folder or ``s3://bucket/prefix``; None without one.

    Raises :class:`UnusableBlobStore`, ``S3Missing``.
    """
    if place is None:
        return None
    if place.startswith(S3):
        bucket, _, prefix = place.removeprefix(S3).partition("/")
        if not bucket:
            raise UnusableBlobStore(f"{place!r} names no bucket.")
        from perdure.connectors.blob_s3 import S3Blobs

        return S3Blobs(bucket, prefix)
    if "://" in place:
        raise UnusableBlobStore(f"{place!r} is neither.")
    return FolderBlobs(Path(place))
