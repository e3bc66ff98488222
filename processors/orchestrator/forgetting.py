"""Blobs of purged runs: deleted beside the orchestrator's loop, before the last of a history goes.

What is deleted belongs to a whole family, so it goes with the root, which is purged last.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from perdure.processors.blobs import BlobStore
from perdure.schemas.errors import PerdureError

_log = logging.getLogger(__name__)


class Forgetter(Protocol):
    """Deletes what stands outside of the log."""

    def is_forgotten(self, run_id: str) -> bool:
        """Whether nothing of the run at the root of a family is left; if not, it will be: ask again."""
        ...

    def close(self) -> None: ...


class NothingToForget:
    """There is no blob store."""

    def is_forgotten(self, run_id: str) -> bool:  # noqa: ARG002 - the port's
        return True

    def close(self) -> None:
        """Nothing is held."""


class BlobForgetter:
    """One run at a time, in a thread of its own. What failed is tried again when it is asked for again."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="perdure-forgetter")
        self._asked: dict[str, Future[None]] = {}

    def is_forgotten(self, run_id: str) -> bool:
        asked = self._asked.get(run_id)
        if asked is None:
            self._asked[run_id] = self._pool.submit(self._blobs.forget, run_id)
            return False
        if not asked.done():
            return False
        del self._asked[run_id]
        try:
            asked.result()
        except PerdureError as error:
            _log.warning(
                "the blobs of run %s are not deleted yet: %s",
                run_id,
                error,
                extra={"action": "blobs_not_deleted", "run_id": run_id, "reason": error.code},
            )
            return False
        return True

    def close(self) -> None:
        """Begin nothing more; what was begun ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)
