"""How the model's partitions forget: compaction in pieces, tombstone expiry, retention by time.

Rules (KIP-58, KIP-280, KIP-534): a cleaning pass covers the log from its start to some offset below the last
stable one; within it only the last record of a key stays; aborted records go; a tombstone and a marker stay
until ``delete.retention.ms`` after the first pass that met them, a marker also as long as a record of its
transaction stands before it. What lies above the pass is neither cleaned nor used to clean.
"""

from __future__ import annotations

from dataclasses import replace

from perdure.topics.model_partition import Entry, ModelPartition


def compact(
    partition: ModelPartition, upto: int | None, now_ms: int, delete_retention_ms: int, lag_min_ms: int
) -> None:
    """One cleaning pass over the offsets below ``upto`` (None: below the last stable offset).

    ``lag_min_ms``: ``min.compaction.lag.ms``; the pass stops at the first record younger than that.
    """
    bound = min(partition.stable_end, partition.stable_end if upto is None else upto)
    for entry in partition.entries:
        if lag_min_ms > 0 and entry.timestamp_ms > now_ms - lag_min_ms:
            bound = min(bound, entry.offset)
            break
    dirty = [entry for entry in partition.entries if entry.offset < bound]
    clean = [entry for entry in partition.entries if entry.offset >= bound]
    last_of_key = {entry.key: entry.offset for entry in dirty if _visible(partition, entry)}
    kept: list[Entry] = []
    producers: set[int] = set()
    for entry in dirty:
        left = _clean(partition, entry, last_of_key, producers, now_ms, delete_retention_ms)
        if left is not None:
            kept.append(left)
            if left.marker is None:
                producers.add(left.producer_id)
            else:
                producers.discard(left.producer_id)
    partition.keep(kept + clean)


def _clean(
    partition: ModelPartition,
    entry: Entry,
    last_of_key: dict[bytes | None, int],
    producers: set[int],
    now_ms: int,
    delete_retention_ms: int,
) -> Entry | None:
    """What one pass leaves of an entry. ``producers``: those with a kept record and no marker yet."""
    if entry.marker is not None:
        if entry.producer_id in producers:
            return entry
        return _until_horizon(entry, now_ms, delete_retention_ms)
    if not _visible(partition, entry) or last_of_key[entry.key] != entry.offset:
        return None
    if entry.value is None:
        return _until_horizon(entry, now_ms, delete_retention_ms)
    return entry


def _until_horizon(entry: Entry, now_ms: int, delete_retention_ms: int) -> Entry | None:
    if entry.delete_after_ms is None:
        return replace(entry, delete_after_ms=now_ms + delete_retention_ms)
    return entry if now_ms < entry.delete_after_ms else None


def _visible(partition: ModelPartition, entry: Entry) -> bool:
    return entry.marker is None and entry.offset not in partition.aborted


def retain(partition: ModelPartition, now_ms: int, retention_ms: int) -> None:
    """Drop the head of the log that is older than ``retention_ms``, up to the last stable offset."""
    keep_from = partition.stable_end
    for entry in partition.entries:
        if entry.timestamp_ms > now_ms - retention_ms:
            keep_from = min(keep_from, entry.offset)
            break
    partition.trim(keep_from)
