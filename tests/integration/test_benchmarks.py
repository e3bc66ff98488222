"""The benchmark, small, through its real processes: that it runs at all and says what it should."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from benchmarks import legs, workload
from perdure.connectors.local_kafka import BOOTSTRAP_VARIABLE

ROOT = Path(__file__).absolute().parents[2]
TIMEOUT_S = 150
ARGUMENTS = ("--runs=3", "--warmup=2", "--inflight=4", "--load-runs=8", "--partitions=2")


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 30)
def test_it_measures_and_leaves_nothing_behind(kafka: str, tmp_path: Path) -> None:
    """Its last line is one JSON object with every part; its topics and its folder are gone afterwards."""
    answer = subprocess.run(
        [sys.executable, "-m", "benchmarks", *ARGUMENTS, f"--folder={tmp_path}"],
        env={**os.environ, BOOTSTRAP_VARIABLE: kafka},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    figures: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])

    assert figures["workload"]["steps"] == workload.steps()
    assert (figures["alone"]["runs"], figures["in_flight"]["runs"]) == (3, 8)
    for part in (figures["alone"], figures["in_flight"]):
        assert 0 < part["min_ms"] <= part["p50_ms"] <= part["p95_ms"] <= part["max_ms"]
        assert part["bytes_per_run"]["run-events"] > workload.tool_calls() * workload.RESULT_BYTES
        assert part["history"]["events_per_run"] >= workload.steps()
        assert part["history"]["markers_per_run"] > 0
        assert part["cpu_ms_per_run"].keys() >= {"orchestrator", "model-caller", "tool-executor", "driver"}
    assert figures["idle"]["cores"].keys() >= {"orchestrator", "model-caller", "tool-executor"}
    rows = {row["leg"]: row for row in figures["where_the_time_goes"]["legs_of_a_run_alone"]}
    assert list(rows) == list(legs.LEGS)
    assert rows[legs.MODEL]["per_run"] == workload.TURNS
    assert rows[legs.TOOLS]["per_run"] == workload.TURNS - 1

    assert list(tmp_path.iterdir()) == []
    left = AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=10).topics
    assert [name for name in left if name.startswith("bench-")] == []


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 30)
def test_cancels_close_streams_and_end_processes(kafka: str, tmp_path: Path) -> None:
    """Every cancelled stream is closed and every process of a cancelled command dies, within the aim and
    what a busy machine adds.
    """
    arguments = ("--cancels=3", "--warmup=1", "--at-a-time=3", "--partitions=2", f"--folder={tmp_path}")
    answer = subprocess.run(
        [sys.executable, "-m", "benchmarks", "cancel", *arguments],
        env={**os.environ, BOOTSTRAP_VARIABLE: kafka},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    figures: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    assert figures["stream"]["cancels"] == figures["command"]["cancels"] == 3
    assert 0 < figures["stream"]["stream_closed"]["max_ms"] < 5_000
    grace_ms = figures["grace_s"] * 1_000
    assert grace_ms <= figures["command"]["processes_dead"]["p50_ms"] < grace_ms + 5_000
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 30)
def test_parked_runs_go_on_after_a_kill_and_after_the_loss_of_the_store(kafka: str, tmp_path: Path) -> None:
    """Every chosen run that waits for a person completes, whatever became of the orchestrator meanwhile."""
    arguments = ("--runs=40", "--decisions=4", "--inflight=10", "--partitions=2", f"--folder={tmp_path}")
    answer = subprocess.run(
        [sys.executable, "-m", "benchmarks", "parked", *arguments],
        env={**os.environ, BOOTSTRAP_VARIABLE: kafka},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    figures: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    assert figures["parking"]["runs"] == 40
    assert figures["per_run"]["orchestrator_store_bytes"] > 0
    for part in (figures["decisions"], figures["after_kill"], figures["after_loss"]):
        assert part["decisions"] == 4
        assert 0 < part["resumed"]["p50_ms"] <= part["completed"]["p50_ms"] <= part["completed"]["max_ms"]
    assert figures["after_kill"]["ready_s"] > 0
    assert figures["after_loss"]["partitions"] == 2
    assert list(tmp_path.iterdir()) == []
