"""Which partition a key belongs to: murmur2 over the root run id, as the Java client's default partitioner.

Clients in any language that use that partitioner with the plain run id put a command where perdure wants it.
Children and forks are ``root~suffix`` and composite keys are ``run_id/part``; both go with their root, so
that a family of runs lives in one partition and moves in one transaction.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from perdure.schemas.keys import root_of

# A run's key is hashed for each of its records; this many runs in flight are remembered.
REMEMBERED_MAX: Final = 65_536

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit murmur2 of Kafka's Java client (Utils.murmur2), as an unsigned number."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for start in range(0, whole, 4):
        k = int.from_bytes(data[start : start + 4], "little") * _M & _MASK
        h = h * _M & _MASK ^ (k ^ k >> 24) * _M & _MASK
    if whole != length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


@lru_cache(maxsize=REMEMBERED_MAX)
def _hash(root: str) -> int:
    # Any text has a partition, also one that no run id may be: a poisoned key must not stop its reader.
    return murmur2(root.encode("utf-8", "surrogatepass")) & 0x7FFFFFFF


def partition_of(key: str, partitions: int) -> int:
    """The partition, 0 to ``partitions`` - 1, of a run id or of a composite key that begins with one."""
    if partitions < 1:
        raise ValueError(f"{partitions} partitions")
    return _hash(root_of(key)) % partitions
