"""Golden records: what an earlier build wrote is read, and folded, by this one as it was then."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from perdure.schemas.codec import identify
from perdure.schemas.commands import CommandBody
from perdure.schemas.events import EventBody
from perdure.schemas.keys import EventKey
from perdure.schemas.registry import RECORD_KINDS, released_schemas
from perdure.schemas.results import ResultBody
from perdure.schemas.values import RunState
from tests.golden import shelf

VERSIONS = shelf.versions()
LOADED = {version: shelf.load(version) for version in VERSIONS}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_golden_record_is_read_as_it_was_when_it_was_written(version: str) -> None:
    """Every value of every topic decodes to what it said then; fields that came later may stand beside it."""
    for record in LOADED[version]:
        assert shelf.lacks(record.says, shelf.told(record.topic, record.value)) == [], record.key


@pytest.mark.parametrize("version", VERSIONS)
def test_every_golden_history_folds_to_the_state_it_folded_to(version: str) -> None:
    """The fold of the recorded events is the recorded state, field by field."""
    runs = shelf.fold_all(LOADED[version])
    recorded = shelf.states(version)
    assert runs.keys() == recorded.keys()
    for run_id, row in recorded.items():
        assert shelf.lacks(row["state"], shelf.readable(runs[run_id])) == [], run_id
        assert shelf.digest_of(row["state"]) == row["digest"], run_id


@pytest.mark.parametrize("version", VERSIONS)
def test_golden_histories_stand_under_their_keys(version: str) -> None:
    """The key of an event is its run and its number, as the topic has them."""
    for record in LOADED[version]:
        if record.topic == shelf.EVENTS and record.value is not None:
            assert EventKey.parse(record.key) == EventKey(record.says["run_id"], record.says["seq"])


def test_every_released_schema_has_golden_records() -> None:
    """A schema is released together with a golden set that was written with it (make golden)."""
    written = {
        (found[0].name, found[1].version)
        for records in LOADED.values()
        for record in records
        if record.value is not None and (found := identify(record.value)) is not None
    }
    released = {(kind.name, each.version) for kind in RECORD_KINDS for each in released_schemas(kind)}
    assert released - written == set()


@pytest.mark.parametrize(
    ("topic", "union"),
    [("run-events", EventBody), ("run-commands", CommandBody), ("run-results", ResultBody)],
)
def test_the_golden_records_hold_every_kind(topic: str, union: Any) -> None:
    """Each member of the closed unions stands in a golden record: none can change its meaning unseen."""
    found = {
        record.says["body"]["type"]
        for records in LOADED.values()
        for record in records
        if record.topic == topic and isinstance(record.says, dict)
    }
    assert found == {kind.__name__ for kind in get_args(union)}


def test_the_golden_histories_reach_every_state() -> None:
    """Each of the eight states stands in a golden status or outcome."""
    found = {
        record.says["state"]
        for records in LOADED.values()
        for record in records
        if record.topic in {"run-status", "run-outcomes"} and isinstance(record.says, dict)
    }
    assert found == set(RunState)


def test_a_difference_is_seen_and_a_later_field_is_not_one() -> None:
    """The comparison names what is gone or changed, and takes no notice of what was added."""
    golden = {"a": 1, "b": [{"c": "x"}]}
    assert shelf.lacks(golden, {"a": 1, "b": [{"c": "x", "new": 0}], "new": 1}) == []
    assert shelf.lacks(golden, {"a": 1, "b": [{"c": "y"}]}) == [".b[0].c: 'x' is 'y' now"]
    assert shelf.lacks(golden, {"b": [{"c": "x"}]}) == [".a is gone"]
    assert shelf.lacks(golden, {"a": 1, "b": []}) != []
