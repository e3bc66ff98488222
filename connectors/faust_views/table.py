"""The table: Faust's RocksDB store, and the view that reads it and is told of every change.

Faust hands each record of the changelog to the store; here the fold decides what it does to the row. Row and
offset are one write batch: a kill leaves both or neither. The view's aggregates change after the write, with
nothing in between, so that they are those of the rows at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, cast

import faust
from faust.stores.rocksdb import Store
from rocksdict import WriteBatch

from perdure.processors.views.fold import Put, Removed
from perdure.processors.views.run_view import RunView
from perdure.topics.partitioner import partition_of

# Faust logs as the module that a service's class stands in, at info, also what is of no interest here.
FAUST_LOG: Final = logging.getLogger("faust.perdure")

TABLE_NAME: Final = "runs"
# Of each partition: rows are small and read one at a time.
STORE_OPTIONS: Final = {
    "driver": "rocksdict",
    "block_cache_size": 4 << 20,
    "write_buffer_size": 4 << 20,
    "max_open_files": 64,
}


class StatusStore(Store):
    """The rows of all partitions, and how they are written."""

    logger = FAUST_LOG
    partitions: int
    view: RunView
    # What was written, by partition; None of a partition that holds nothing yet.
    applied: dict[int, int]
    # What went wrong while writing. Faust logs it and goes on; the host ends the process.
    fault: Exception | None = None

    def held(self, run_id: str) -> bytes | None:
        value = cast("Any", self._db_for_partition(self._home(run_id))).get(run_id.encode())
        assert value is None or isinstance(value, bytes)
        return value

    def all_held(self) -> Iterator[tuple[str, bytes]]:
        for partition in range(self.partitions):
            for key, value in self._visible_items(self._db_for_partition(partition)):
                yield key.decode(), value

    def persisted_offset(self, tp: Any) -> int | None:
        offset = super().persisted_offset(tp)
        if offset is not None:
            self.applied[tp.partition] = offset
        return offset

    def apply_changelog_batch(
        self,
        batch: Iterable[Any],
        to_key: Callable[[Any], Any],  # noqa: ARG002 - keys and values are stored as they are
        to_value: Callable[[Any], Any],  # noqa: ARG002
    ) -> None:
        try:
            for event in batch:
                message = event.message
                self._apply(message.partition, message.offset, message.key, message.value)
        except Exception as error:
            self.fault = error
            raise

    def _apply(self, partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        change = self.view.change(key, value)
        batch = WriteBatch(raw_mode=True)
        batch.put(self.offset_key, str(offset).encode())
        if isinstance(change, Put | Removed):
            # A run's row has one place, whichever partition a stranger wrote its record to.
            home = self._home(change.run_id)
            row = batch if home == partition else WriteBatch(raw_mode=True)
            if isinstance(change, Put):
                row.put(change.run_id.encode(), value)
            else:
                row.delete(change.run_id.encode())
            if home != partition:
                self._db_for_partition(home).write(row)
        self._db_for_partition(partition).write(batch)
        self.applied[partition] = offset
        self.view.note(change)

    def _home(self, run_id: str) -> int:
        return partition_of(run_id, self.partitions)


class StoreRows:
    """See :class:`perdure.processors.views.rows.Rows`."""

    def __init__(self, store: StatusStore) -> None:
        self._store = store

    def get(self, run_id: str) -> bytes | None:
        return self._store.held(run_id)

    def items(self) -> Iterator[tuple[str, bytes]]:
        return self._store.all_held()


class StatusTable(faust.Table):  # type: ignore[type-arg]
    """A table whose only writer is the log."""

    logger = FAUST_LOG

    def _new_store_by_url(self, url: Any) -> StatusStore:
        store = StatusStore(
            url,
            self.app,
            self,
            table_name=self.name,
            key_type=self.key_type,
            key_serializer=self.key_serializer,
            value_serializer=self.value_serializer,
            value_type=self.value_type,
            loop=self.loop,
            options=dict(STORE_OPTIONS),
        )
        assert self.partitions is not None
        store.partitions = self.partitions
        store.applied = {}
        store.view = RunView(StoreRows(store))
        return store
