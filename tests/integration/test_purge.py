"""Purge with a real worker and broker: a setting, and an ended run is forgotten."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.worker_stage import WorkerStage, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

START_S = 90.0


@pytest.fixture
def stage(kafka: str, namespace: str, tmp_path: Path) -> Iterator[WorkerStage]:
    answer = [{"content": [{"type": "text", "text": "Twelve words that nobody shall find again."}]}]
    made = WorkerStage(kafka, namespace, tmp_path, answer)
    made.environment = {**made.environment, "PERDURE_FINISHED_RUNS_RETENTION": "1s"}
    try:
        made.answered("topics", "apply")
        yield made
    finally:
        made.close()


def test_an_ended_run_is_forgotten_and_its_id_stays_used(stage: WorkerStage) -> None:
    """It leaves the list of runs and its history; the rows of a stopped orchestrator equal what is left."""
    stage.start("examples.first_agent:agent")
    stage.answered("submit", "word-counter", "How many?", "--run-id", "run-1")

    def kinds() -> list[str]:
        told = stage.perdure("show", "run-1", "--json").stdout
        lines = [json.loads(line) for line in told.splitlines()]
        return [line["body"]["type"] for line in lines if "body" in line]

    until(lambda: kinds() == ["RunPurged"], START_S, f"it is purged\n{stage.log()}")
    assert "run-1" not in stage.answered("runs", "--json")
    assert "purged" in stage.answered("show", "run-1")
    stage.perdure("submit", "word-counter", "Another question.", "--run-id", "run-1")
    assert stage.stop() == 0, stage.log()
    assert kinds() == ["RunPurged"]
    assert json.loads(stage.answered("doctor", "--verify", "--json"))["ok"]
