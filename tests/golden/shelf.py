"""How golden records stand on disk, and how they are compared.

``v<n>/<topic>.jsonl``: a record a line, key and value as they stand on the topic (base64; null: a
tombstone), and what the value says. ``v<n>/runs.json``: the run that each history folds to, and a digest.

Later builds may know more: what a golden record says is compared with what the decoded one says of the same
fields, and fields that came later are not looked at.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from perdure.processors.machine.apply import apply
from perdure.processors.machine.state import Run
from perdure.schemas.canonical import canonical_json
from perdure.schemas.codec import Undecodable, decode
from perdure.schemas.events import Event
from perdure.schemas.registry import BY_TOPIC

FOLDER: Final = Path(__file__).parent
EVENTS: Final = "run-events"
UNDECODABLE: Final = "undecodable"
"""Stands for what an undecodable value says: its error's code follows."""


@dataclass(frozen=True, slots=True)
class Golden:
    """One record of a topic. ``says``: the decoded value in plain words, None: a tombstone."""

    topic: str
    key: bytes | None
    value: bytes | None
    says: Any


def readable(value: Any) -> Any:
    """A record or a run in JSON: bytes as text where they are text, structs by field name and tag."""
    match value:
        case msgspec.Struct():
            tag = type(value).__struct_config__.tag
            fields = {field.name: getattr(value, field.name) for field in msgspec.structs.fields(value)}
            return ({"type": tag} if tag else {}) | {name: readable(part) for name, part in fields.items()}
        case bytes():
            text = value.decode("utf-8", "replace")
            return text if text.isprintable() and "\ufffd" not in text else f"hex {value.hex()}"
        case tuple() | list():
            return [readable(part) for part in value]
        case str():
            return str(value)
        case _:
            return value


def told(topic: str, value: bytes | None) -> Any:
    """What this build reads in a value."""
    if value is None:
        return None
    try:
        return readable(decode(BY_TOPIC[topic].type, value))
    except Undecodable as error:
        return f"{UNDECODABLE} {error.code}"


def fold_all(records: Iterable[Golden]) -> dict[str, Run]:
    """Each run of run-events, folded by this build. What a purge deleted afterwards is not: tombstones."""
    runs: dict[str, Run] = {}
    for record in records:
        if record.topic == EVENTS and record.value is not None:
            event = decode(Event, record.value)
            runs[event.run_id] = apply(runs.get(event.run_id), event)
    return runs


def digest_of(state: Any) -> str:
    """SHA-256 of the readable state in canonical JSON, hex."""
    return hashlib.sha256(canonical_json(state)).hexdigest()


def lacks(golden: Any, now: Any, where: str = "") -> list[str]:
    """Where ``now`` does not say what ``golden`` says; what it says beside that is not looked at."""
    if isinstance(golden, Mapping) and isinstance(now, Mapping):
        return [
            fault
            for name, part in golden.items()
            for fault in (
                lacks(part, now[name], f"{where}.{name}") if name in now else [f"{where}.{name} is gone"]
            )
        ]
    if isinstance(golden, list) and isinstance(now, list) and len(golden) == len(now):
        pairs = enumerate(zip(golden, now, strict=True))
        return [fault for n, (part, other) in pairs for fault in lacks(part, other, f"{where}[{n}]")]
    return [] if golden == now else [f"{where}: {golden!r} is {now!r} now"]


def versions() -> list[str]:
    """The recorded sets, oldest first."""
    return sorted(path.name for path in FOLDER.glob("v*") if path.is_dir())


def load(version: str) -> list[Golden]:
    """Every golden record of a set, by topic and in the topic's order."""
    found: list[Golden] = []
    for path in sorted((FOLDER / version).glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            found.append(Golden(path.stem, _bytes(row["key"]), _bytes(row["value"]), row["says"]))
    return found


def states(version: str) -> dict[str, dict[str, Any]]:
    """Run id -> the state that its golden history folds to, and its digest."""
    found: dict[str, dict[str, Any]] = json.loads((FOLDER / version / "runs.json").read_text("utf-8"))
    return found


def save(version: str, records: Iterable[Golden]) -> None:
    """Write the records of a set, one file a topic."""
    by_topic: dict[str, list[str]] = {}
    for record in records:
        row = {"key": _text(record.key), "value": _text(record.value), "says": record.says}
        by_topic.setdefault(record.topic, []).append(json.dumps(row, ensure_ascii=False))
    (FOLDER / version).mkdir(exist_ok=True)
    for topic, lines in by_topic.items():
        (FOLDER / version / f"{topic}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def save_states(version: str) -> None:
    """Write what the golden histories of a set fold to now."""
    rows: dict[str, Any] = {}
    for run_id, run in sorted(fold_all(load(version)).items()):
        state = readable(run)
        rows[run_id] = {"digest": digest_of(state), "state": state}
    text = json.dumps(rows, indent=1, ensure_ascii=False)
    (FOLDER / version / "runs.json").write_text(text + "\n", encoding="utf-8")


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
