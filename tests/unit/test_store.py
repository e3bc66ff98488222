"""The store: one contract, held by both implementations; and what only the one on disk can get wrong."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.processors.store import Store, StoreBroken, StoreFactory, StoreTaken
from perdure.processors.store_memory import MemoryStores
from perdure.processors.store_overlay import Overlay
from perdure.processors.store_rocks import RocksStores

Changes = dict[bytes, bytes | None]


@pytest.fixture(params=["memory", "rocks"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> StoreFactory:
    """Each test of the contract runs on each implementation."""
    return MemoryStores() if request.param == "memory" else RocksStores(tmp_path / "stores")


@pytest.fixture
def store(stores: StoreFactory) -> Iterator[Store]:
    opened = stores.open(3)
    yield opened
    opened.close()


def test_absent_row_is_none_and_empty_value_is_not(store: Store) -> None:
    """A row with an empty value exists; one never written does not."""
    store.write({b"q1": b""})
    assert store.get(b"q1") == b""
    assert store.get(b"q2") is None


def test_batch_puts_and_deletes_together(store: Store) -> None:
    """One batch replaces, adds and deletes."""
    store.write({b"ra": b"1", b"rb": b"2"})
    store.write({b"ra": None, b"rb": b"3", b"rc": b"4", b"never": None})
    assert store.scan(b"r", b"s", 10) == [(b"rb", b"3"), (b"rc", b"4")]


def test_scan_is_ordered_bounded_and_limited(store: Store) -> None:
    """A scan takes start, leaves out end, ascends by bytes and stops at its limit."""
    store.write({bytes((7, n)): bytes((n,)) for n in (9, 1, 255, 5)})
    assert [key[1] for key, _ in store.scan(b"\x07\x01", b"\x07\xff", 10)] == [1, 5, 9]
    assert [key[1] for key, _ in store.scan(b"\x07", b"\x08", 2)] == [1, 5]
    assert store.scan(b"\x08", b"\x09", 10) == []


def test_rows_survive_close(stores: StoreFactory) -> None:
    """What was written is there when the store is opened again, also with a scan taken before."""
    first = stores.open(1)
    first.write({b"ra": b"1"})
    assert first.scan(b"r", b"s", 1) == [(b"ra", b"1")]
    first.close()
    first.close()
    second = stores.open(1)
    assert second.get(b"ra") == b"1"
    second.close()


def test_closed_store_is_broken(stores: StoreFactory) -> None:
    """A closed store raises StoreBroken instead of answering."""
    opened = stores.open(1)
    opened.close()
    with pytest.raises(StoreBroken):
        opened.get(b"ra")
    with pytest.raises(StoreBroken):
        opened.write({b"ra": b"1"})


def test_wipe_forgets_one_partition(stores: StoreFactory) -> None:
    """A wipe takes the rows of its partition and of no other; wiping nothing is no error."""
    for partition in (1, 2):
        opened = stores.open(partition)
        opened.write({b"ra": b"1"})
        opened.close()
    stores.wipe(1)
    stores.wipe(9)
    for partition, expected in ((1, None), (2, b"1")):
        opened = stores.open(partition)
        assert opened.get(b"ra") == expected
        opened.close()


keys = st.builds(lambda tail: b"q" + tail, st.binary(max_size=2))
batches = st.lists(st.dictionaries(keys, st.none() | st.binary(max_size=2), max_size=6), max_size=4)


@given(base=batches, over=batches, limit=st.integers(1, 5))
def test_overlay_reads_as_if_written(base: list[Changes], over: list[Changes], limit: int) -> None:
    """An overlay's get and scan answer as the store does once its changes are written, nested or not."""
    store = MemoryStores().open(0)
    written = MemoryStores().open(0)
    for changes in base:
        store.write(changes)
        written.write(changes)
    outer = Overlay(store)
    for changes in over:
        overlay = outer.nested()
        for key, value in changes.items():
            if value is None:
                overlay.delete(key)
            else:
                overlay.put(key, value)
        written.write(changes)
        assert list(overlay.scan(b"q", b"r", limit)) == list(written.scan(b"q", b"r", limit))
        outer.absorb(overlay)
    assert list(outer.scan(b"q", b"r", 100)) == list(written.scan(b"q", b"r", 100))
    store.write(outer.changes())
    assert list(store.scan(b"q", b"r", 100)) == list(written.scan(b"q", b"r", 100))


@pytest.mark.parametrize("victim", ["CURRENT", "MANIFEST", "IDENTITY", ".sst", ".log"])
def test_damaged_folder_is_wiped_or_serves_whole_batches(tmp_path: Path, victim: str) -> None:
    """Whatever file of the folder is overwritten, the store that opens holds whole batches or nothing."""
    stores = RocksStores(tmp_path)
    opened = stores.open(0)
    for batch in range(50):
        opened.write({b"ra%d" % batch: b"x" * 100, b"rb%d" % batch: b"x" * 100})
    opened.close()
    again = stores.open(0)  # turns the write-ahead log into a table
    again.write({b"ra50": b"y", b"rb50": b"y"})
    again.close()
    for file in (tmp_path / "0").iterdir():
        if victim in file.name:
            file.write_bytes(b"garbage" + file.read_bytes()[7:64])
    reopened = stores.open(0)
    try:
        for batch in range(51):
            assert (reopened.get(b"ra%d" % batch) is None) == (reopened.get(b"rb%d" % batch) is None)
    except StoreBroken:
        reopened.close()
        stores.wipe(0)
        reopened = stores.open(0)
        assert reopened.get(b"ra0") is None
    finally:
        reopened.close()


def test_folder_in_use_is_never_wiped(tmp_path: Path) -> None:
    """A folder that somebody else has open is not taken for a damaged one: opening it raises StoreTaken."""
    first = RocksStores(tmp_path).open(0)
    first.write({b"ra": b"1"})
    with pytest.raises(StoreTaken):
        RocksStores(tmp_path).open(0)
    assert first.get(b"ra") == b"1"
    first.close()


def test_killed_process_loses_nothing(tmp_path: Path) -> None:
    """What a process wrote before kill -9 is there afterwards: the write-ahead log is on."""
    program = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from perdure.processors.store_rocks import RocksStores\n"
        f"store = RocksStores(Path({str(tmp_path)!r})).open(0)\n"
        "for n in range(100): store.write({b'ra%d' % n: b'1'})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=False)
    assert ended.returncode == -9
    opened = RocksStores(tmp_path).open(0)
    assert len(opened.scan(b"r", b"s", 1_000)) == 100
    opened.close()


def test_a_store_whose_folder_was_deleted_is_closed_and_opened_anew(tmp_path: Path) -> None:
    """A disk that is lost under a living process ends no role: closing never fails, what opens is empty."""
    stores = RocksStores(tmp_path / "stores")
    opened = stores.open(0)
    opened.write({b"a": b"1"})
    shutil.rmtree(tmp_path / "stores")
    opened.close()
    again = stores.open(0)
    assert again.get(b"a") is None
    again.close()
