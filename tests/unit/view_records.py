"""Status records for tests of the view, and a fold of them that shares nothing with the one under test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, TypeAlias

from perdure.schemas.codec import decode, encode
from perdure.schemas.outputs import Status
from perdure.schemas.values import Provenance, RunState, Usage

Fed: TypeAlias = tuple[bytes | None, bytes | None]


def status(
    run_id: str,
    seq: int,
    state: RunState = RunState.RUNNING,
    *,
    agent: str = "support",
    tenant: str | None = "acme",
    tokens: int = 10,
    created_ms: int = 1_000,
) -> Status:
    return Status(
        run_id=run_id,
        seq=seq,
        execution=0,
        state=state,
        agent=agent,
        turn=1,
        usage=Usage(tokens, tokens // 2, 0, 1, tokens * 1_000),
        created_ms=created_ms,
        updated_ms=created_ms + seq,
        pending_approvals=0,
        waiting_for=None,
        code=None,
        provenance=Provenance(tenant=tenant),
    )


def fed(record: Status) -> Fed:
    return record.run_id.encode(), encode(record)


def tombstone(run_id: str) -> Fed:
    return run_id.encode(), None


def newest(records: Iterable[Fed]) -> dict[str, Status]:
    """The status with the highest seq since the last tombstone; readable records of run ids only."""
    found: dict[str, Status] = {}
    for key, value in records:
        assert key is not None
        if value is None:
            found.pop(key.decode(), None)
            continue
        record = decode(Status, value)
        if record.run_id not in found or found[record.run_id].seq <= record.seq:
            found[record.run_id] = record
    return found


def counted(rows: Iterable[Status]) -> dict[str, Any]:
    """What the view counts, done the long way: runs by (field, value, state), tokens by (field, value)."""
    runs: Counter[tuple[str, str | None, str]] = Counter()
    tokens: Counter[tuple[str, str | None]] = Counter()
    for row in rows:
        for field, value in (("all", ""), ("agent", row.agent), ("tenant", row.provenance.tenant)):
            runs[field, value, row.state.value] += 1
            tokens[field, value] += row.usage.input_tokens
    return {"runs": +runs, "tokens": +tokens}
