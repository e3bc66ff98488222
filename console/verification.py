"""Do the local rows equal the fold of run-events, row by row?

Each store folder is opened read-only, also while its process runs (RocksDB then shows the last batch as a
whole), and the events up to the offset its rows belong to are folded anew, in memory, by the same code that
restores. Rows that are no function of the events are left out: when a status was last told, age marks, and
the clock of the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from perdure.connectors.settings import Settings
from perdure.connectors.topic_reader import describe_topic
from perdure.console.findings import Finding, note, ok, problem
from perdure.console.slots import slot_folders
from perdure.processors.clock import Clock
from perdure.processors.orchestrator.owned import Owned
from perdure.processors.orchestrator.partition_restore import PartitionRestore
from perdure.processors.orchestrator.settings import OrchestratorSettings
from perdure.processors.store_memory import MemoryStores
from perdure.processors.store_rows import (
    AGE,
    META,
    STATUS,
    STATUS_TIMER,
    Meta,
    QuarantineRow,
    layout,
    meta_from,
    pack,
    quarantine_from,
)
from perdure.schemas.errors import PerdureError
from perdure.topics.errors import Unavailable
from perdure.topics.log import ConsumerSpec, Eof, Isolation, Log, Position, TopicPartition
from perdure.topics.table import RUN_EVENTS, Namespace, Role

CHECK: Final = "rows"
NOT_DERIVED: Final = (META, AGE, STATUS, STATUS_TIMER)
QUARANTINE: Final = b"x"
DIFFERENCES_SHOWN_MAX: Final = 5
ASK_TIMEOUT_S: Final = 10.0
READ_WAIT_S: Final = 0.25
STILL_S_MAX: Final = 30.0
REMEDY: Final = (
    "Stop the worker, delete this folder and start it again: it is rebuilt from the log. Then report it."
)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one folder and where in the log they belong."""

    meta: Meta
    values: dict[bytes, bytes]


def verify(settings: Settings, log: Log, clock: Clock) -> list[Finding]:
    """One finding per partition folder of this state directory. Raises what the log raises."""
    folders = [
        store
        for slot in slot_folders(settings.state_dir, settings.namespace, Role.ORCHESTRATOR)
        for store in sorted((slot / "store").glob("[0-9]*"))
    ]
    if not folders:
        return [note(CHECK, f"No rows in {settings.state_dir}: nothing to compare.")]
    return [_verified(settings, log, clock, folder) for folder in folders]


def _verified(settings: Settings, log: Log, clock: Clock, folder: Path) -> Finding:
    partition = int(folder.name)
    where = f"{folder.parent.parent.name}/{partition}"
    try:
        rows = read_rows(folder)
    except Exception as error:  # noqa: BLE001 - rocksdict raises bare Exception
        return problem(CHECK, f"{where}: {folder} cannot be read: {error}", REMEDY)
    topic = Namespace(settings.namespace).topic(RUN_EVENTS)
    if rows is None:
        return note(CHECK, f"{where}: no rows yet.")
    if rows.meta.layout != layout():
        return note(CHECK, f"{where}: rows of another version of perdure; they are rebuilt when it starts.")
    if rows.meta.topic_id != describe_topic(log, topic).topic_id:
        return note(CHECK, f"{where}: rows of another cluster or an older {topic}; they are wiped at start.")
    try:
        folded = fold_anew(settings, log, clock, partition, rows.meta)
    except _Beyond as error:
        return problem(CHECK, f"{where}: {error}", REMEDY)
    differing = list(_differences(rows.values, folded))
    if not differing:
        runs = sum(key.startswith(b"r") for key in rows.values)
        return ok(
            CHECK,
            f"{where}: {len(rows.values)} rows of {runs} runs equal the fold of {topic} up to "
            f"{rows.meta.offset}.",
        )
    shown = ", ".join(differing[:DIFFERENCES_SHOWN_MAX])
    return problem(
        CHECK, f"{where}: {len(differing)} rows differ from the fold: {shown}", f"{REMEDY} {folder}"
    )


def read_rows(folder: Path) -> Rows | None:
    """All rows of a store folder, without taking its lock; None if it has none yet."""
    from rocksdict import AccessType, Options, Rdict

    opened = Rdict(str(folder), Options(raw_mode=True), access_type=AccessType.read_only())
    try:
        untyped: Any = list(opened.items())
    finally:
        opened.close()
    values = dict(cast("list[tuple[bytes, bytes]]", untyped))
    meta = values.get(META)
    return None if meta is None else Rows(meta_from(meta), values)


class _Beyond(PerdureError):
    """The rows are ahead of the log."""

    code = "rows_beyond_log"


def fold_anew(settings: Settings, log: Log, clock: Clock, partition: int, meta: Meta) -> dict[bytes, bytes]:
    """The rows that the events below ``meta.offset`` lead to."""
    names = Namespace(settings.namespace)
    at = TopicPartition(names.topic(RUN_EVENTS), partition)
    marks = log.watermarks(at, Isolation.COMMITTED, ASK_TIMEOUT_S)
    if meta.offset > marks.end:
        raise _Beyond(f"They stand at {meta.offset}, {at.topic} ends at {marks.end}.")
    stores = MemoryStores()
    owned = Owned(
        partition,
        meta.topic_id,
        stores,
        clock,
        OrchestratorSettings(
            namespace=names, slot="verify", partitions=settings.partitions, token_key=b"not used"
        ),
    )
    restore = PartitionRestore(owned, marks.low, meta.offset, clock.wall_ms())
    for item in _events(log, clock, at, marks.low, meta.offset):
        restore.take(item)
    restore.finish_if_empty()
    store = stores.open(partition)
    return dict(store.scan(b"", b"\xff" * 64, 1 << 62))


def _events(log: Log, clock: Clock, at: TopicPartition, low: int, end: int) -> Iterator[Any]:
    """Records of run-events from ``low`` to below ``end``, then the end as the restore wants to see it."""
    consumer = log.consumer(ConsumerSpec("perdure.verify", eof=True))
    try:
        consumer.assign([Position(at, low)])
        give_up_s = clock.boot_s() + STILL_S_MAX
        is_behind = low < end
        while is_behind:
            if clock.boot_s() > give_up_s:
                raise Unavailable(f"{at} was not read to {end} in {STILL_S_MAX:.0f} s.")
            for item in consumer.poll(2_000, READ_WAIT_S):
                give_up_s = clock.boot_s() + STILL_S_MAX
                if item.offset >= end:
                    is_behind = False
                    break
                if not isinstance(item, Eof):
                    yield item
    finally:
        consumer.close()
    yield Eof(at.topic, at.partition, end)


def _differences(rows: dict[bytes, bytes], folded: dict[bytes, bytes]) -> Iterator[str]:
    for key in sorted({*rows, *folded}):
        if key.startswith(NOT_DERIVED):
            continue
        one, other = rows.get(key), folded.get(key)
        if key.startswith(QUARANTINE):
            one, other = _unannounced(one), _unannounced(other)
        if one != other:
            what = "missing" if one is None else "surplus" if other is None else "different"
            yield f"{key[:1].decode()} {key[1:].decode('utf-8', 'backslashreplace')} is {what}"


def _unannounced(value: bytes | None) -> bytes | None:
    """A quarantine as the events tell it: whether operators were told is no part of that."""
    if value is None:
        return None
    row = quarantine_from(value)
    return pack(QuarantineRow(row.reason, row.offset))
