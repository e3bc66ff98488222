"""The transcript caches, in memory and in a store: one contract for both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.processors.store import StoreBroken
from perdure.processors.store_memory import MemoryRows, MemoryStore
from perdure.processors.store_rocks import RocksStores
from perdure.processors.transcripts import MESSAGE_OVERHEAD_BYTES, MemoryTranscripts, Transcripts
from perdure.processors.transcripts_stored import StoredTranscripts

Make = Callable[[int], Transcripts]


@pytest.fixture(params=["memory", "stored"])
def make(request: pytest.FixtureRequest) -> Make:
    if request.param == "memory":
        return MemoryTranscripts
    return lambda bytes_max: StoredTranscripts(MemoryStore(MemoryRows()), bytes_max)


def test_a_transcript_is_found_by_the_digest_of_any_recent_length(make: Make) -> None:
    """Extending a transcript does not forget the length it was extended from."""
    cache = make(10_000)
    cache.extend("run", None, b"d1", [b"1"])
    cache.extend("run", b"d1", b"d3", [b"2", b"3"])
    assert cache.get("run", b"d1") == (b"1",)
    assert cache.get("run", b"d3") == (b"1", b"2", b"3")
    assert cache.get("run", b"d2") is None
    assert cache.get("other", b"d1") is None


def test_extending_an_unknown_base_keeps_nothing(make: Make) -> None:
    """New messages without what they follow are no transcript."""
    cache = make(10_000)
    cache.extend("run", b"d1", b"d2", [b"2"])
    assert cache.get("run", b"d2") is None


def test_another_continuation_replaces_the_first(make: Make) -> None:
    """What a run had beyond the base is forgotten, with the digests that spoke of it."""
    cache = make(10_000)
    cache.extend("run", None, b"d1", [b"1"])
    cache.extend("run", b"d1", b"d3", [b"2", b"3"])
    cache.extend("run", b"d1", b"e2", [b"other"])
    assert cache.get("run", b"d3") is None
    assert cache.get("run", b"e2") == (b"1", b"other")
    cache.extend("run", None, b"f1", [b"new"])
    assert cache.get("run", b"d1") is None
    assert cache.get("run", b"f1") == (b"new",)


def test_the_run_longest_unused_goes_first(make: Make) -> None:
    """Over the limit a cache forgets whole runs; a look counts as use."""
    cache = make(3 * (100 + MESSAGE_OVERHEAD_BYTES))
    for run in ("a", "b", "c"):
        cache.extend(run, None, b"d", [b"x" * 100])
    assert cache.get("a", b"d") is not None
    cache.extend("e", None, b"d", [b"x" * 100])
    assert cache.get("b", b"d") is None
    assert [cache.get(run, b"d") is not None for run in ("a", "c", "e")] == [True, True, True]


def test_a_transcript_over_the_limit_is_not_kept(make: Make) -> None:
    """One run larger than the whole cache is forgotten at once instead of staying for ever."""
    cache = make(100)
    cache.extend("run", None, b"d", [b"x" * 200])
    assert cache.get("run", b"d") is None


steps = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.lists(st.binary(max_size=4), max_size=3)),
    max_size=25,
)


@given(steps)
def test_both_caches_answer_alike(steps: list[tuple[str, int, list[bytes]]]) -> None:
    """Whatever the order of extensions, memory and store hold the same transcripts in the same space."""
    memory = MemoryTranscripts(2_000)
    stored = StoredTranscripts(MemoryStore(MemoryRows()), 2_000)
    digests: list[bytes | None] = [None]
    for number, (run, back, messages) in enumerate(steps):
        base, digest = digests[-1 - back % len(digests)], b"d%d" % number
        for cache in (memory, stored):
            cache.extend(run, base, digest, messages)
        digests.append(digest)
        assert memory.size == stored.size
        for each in digests[1:]:
            assert each is not None
            assert memory.get(run, each) == stored.get(run, each)


def test_stored_transcripts_outlive_the_process(tmp_path: Path) -> None:
    """A restart finds what was stored, and still keeps to its limit."""
    cache = StoredTranscripts(RocksStores(tmp_path).open(0))
    cache.extend("run", None, b"d2", [b"1", b"2" * 1_000])
    cache.extend("last", None, b"d", [b"x"])
    size = cache.size
    cache.close()
    cache = StoredTranscripts(RocksStores(tmp_path).open(0), bytes_max=size)
    assert cache.get("run", b"d2") == (b"1", b"2" * 1_000)
    assert cache.size == size
    cache.extend("new", None, b"d", [b"y"])
    assert cache.get("last", b"d") is None
    assert cache.get("run", b"d2") is not None
    cache.close()


def test_a_broken_store_is_a_cache_that_misses() -> None:
    """A disk that fails costs a NeedTranscript, not the worker."""
    store = MemoryStore(MemoryRows())
    cache = StoredTranscripts(store)
    cache.extend("run", None, b"d", [b"1"])
    store.close()
    with pytest.raises(StoreBroken):
        store.get(b"h")
    assert cache.get("run", b"d") is None
    cache.extend("run", b"d", b"e", [b"2"])


def test_damaged_heads_are_forgotten() -> None:
    """A row that is no head does not keep the cache from being opened."""
    rows = MemoryRows()
    store = MemoryStore(rows)
    store.write({b"hrun": b"\xc1"})
    cache = StoredTranscripts(MemoryStore(rows))
    assert cache.get("run", b"d") is None
    cache.extend("run", None, b"d", [b"1"])
    assert cache.get("run", b"d") == (b"1",)
