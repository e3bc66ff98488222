"""The store on disk: one RocksDB folder per partition, through ``rocksdict``.

The write-ahead log stays on and is never synced. A batch then costs one ``write`` call (some 25 µs,
measured, beside a transaction of 3 ms), and a killed process finds everything it wrote, since the page
cache outlives it; without the log a restart would fold again whatever stood in the memtable. Power loss may
cost the newest batches, whole ones and only at the end (recovery stops at the first torn record), which the
log makes good.

Rows are many and small, processes own several partitions: memtables, caches and open files are kept small.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from perdure.processors.store import StoreBroken, StoreTaken, StoreUnusable

if TYPE_CHECKING:
    from rocksdict import Cache, Options, Rdict

MEMTABLE_BYTES: Final = 4 << 20
MEMTABLES_MAX: Final = 2
BLOCK_CACHE_BYTES: Final = 32 << 20  # of all partitions together
BLOCK_BYTES: Final = 16 << 10
BLOOM_BITS_PER_KEY: Final = 10
OPEN_FILES_MAX: Final = 64
INFO_LOG_BYTES_MAX: Final = 1 << 20
INFO_LOGS_MAX: Final = 2
# Timer and queue rows are deleted where scans begin; files full of such deletions are compacted soon.
DELETIONS_WINDOW: Final = 1_024
DELETIONS_TRIGGER: Final = 256
DELETIONS_RATIO: Final = 0.5
LOCK_SIGN: Final = "/LOCK:"  # how RocksDB names a folder that is open already

_log = logging.getLogger(__name__)


def _options(cache: Cache) -> Options:
    from rocksdict import BlockBasedOptions, DBCompressionType, Options

    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_block_size(BLOCK_BYTES)
    table.set_bloom_filter(BLOOM_BITS_PER_KEY, block_based=False)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(MEMTABLE_BYTES)
    options.set_max_write_buffer_number(MEMTABLES_MAX)
    options.set_max_open_files(OPEN_FILES_MAX)
    options.set_max_log_file_size(INFO_LOG_BYTES_MAX)
    options.set_keep_log_file_num(INFO_LOGS_MAX)
    options.set_level_compaction_dynamic_level_bytes(True)
    options.add_compact_on_deletion_collector_factory(DELETIONS_WINDOW, DELETIONS_TRIGGER, DELETIONS_RATIO)
    return options


class RocksStore:
    """See :class:`perdure.processors.store.Store`. Raises :class:`StoreBroken` when the folder can not be
    opened.
    """

    def __init__(self, folder: Path, cache: Cache) -> None:
        from rocksdict import Rdict

        self._folder = folder
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            self._rows: Rdict | None = Rdict(str(folder), _options(cache))
        except Exception as raised:  # rocksdict raises bare Exception
            if LOCK_SIGN in str(raised):
                raise StoreTaken(f"{folder}: {raised}.") from raised
            raise StoreBroken(f"{folder}: {raised}.") from raised

    def get(self, key: bytes) -> bytes | None:
        try:
            value: Any = self._open().get(key)
        except Exception as raised:
            raise self._broken(raised) from raised
        assert value is None or isinstance(value, bytes)
        return value

    def scan(self, start: bytes, end: bytes, limit: int) -> Sequence[tuple[bytes, bytes]]:
        from rocksdict import ReadOptions

        bounded = ReadOptions()
        bounded.set_iterate_upper_bound(end)
        try:
            # Taken whole: an iterator left alive keeps the folder locked after close.
            found: Any = list(islice(self._open().items(from_key=start, read_opt=bounded), limit))
        except Exception as raised:
            raise self._broken(raised) from raised
        rows: list[tuple[bytes, bytes]] = found
        return rows

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        from rocksdict import WriteBatch

        batch = WriteBatch(raw_mode=True)
        for key, value in changes.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        try:
            self._open().write(batch)
        except Exception as raised:
            raise self._broken(raised) from raised

    def close(self) -> None:
        """Never fails: what a lost disk takes with it is in the log."""
        rows, self._rows = self._rows, None
        if rows is None:
            return
        try:
            rows.close()
        except Exception as raised:  # noqa: BLE001 - rocksdict raises bare Exception
            _log.warning(
                "%s was not closed cleanly: %s", self._folder, raised,
                extra={"action": "store_close_failed", "folder": str(self._folder)},
            )  # fmt: skip

    def _open(self) -> Rdict:
        if self._rows is None:
            raise StoreBroken(f"{self._folder}: It is closed.")
        return self._rows

    def _broken(self, raised: Exception) -> StoreBroken:
        return raised if isinstance(raised, StoreBroken) else StoreBroken(f"{self._folder}: {raised}.")


class RocksStores:
    """See :class:`perdure.processors.store.StoreFactory`: ``folder``/<partition>."""

    def __init__(self, folder: Path) -> None:
        from rocksdict import Cache

        self._folder = folder
        self._cache = Cache(BLOCK_CACHE_BYTES)

    def open(self, partition: int) -> RocksStore:
        try:
            return RocksStore(self._of(partition), self._cache)
        except StoreBroken as broken:
            _log.warning(
                "partition %d: wiping a store that can not be opened: %s",
                partition,
                broken,
                extra={"action": "store_wiped", "partition": partition, "reason": broken.code},
            )
            self.wipe(partition)
            try:
                return RocksStore(self._of(partition), self._cache)
            except StoreBroken as again:
                raise StoreUnusable(str(again)) from again

    def wipe(self, partition: int) -> None:
        folder = self._of(partition)
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            return
        except OSError as raised:
            raise StoreUnusable(f"{folder}: {raised}.") from raised

    def _of(self, partition: int) -> Path:
        return self._folder / str(partition)
