"""What the benchmark says: figures of each part, and what they were measured on."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import confluent_kafka as ck

from benchmarks import workload
from benchmarks.driving import Measured
from benchmarks.usage import Usage
from perdure import __version__
from perdure.schemas.values import Effect

ROOT: Final = Path(__file__).absolute().parents[1]
LIBRARIES: Final = ("confluent-kafka", "msgspec", "rocksdict")
OTHERS: Final = "others"


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest value that at least this part (0 to 1) of all do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def spread_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Percentiles in milliseconds."""
    parts = (("p50_ms", 0.5), ("p95_ms", 0.95), ("p99_ms", 0.99), ("max_ms", 1.0))
    return {name: round(percentile(seconds, part) * 1000, 1) for name, part in parts}


def latencies(measured: Measured) -> dict[str, Any]:
    """Milliseconds of a run, from its submit to when an independent reader has its outcome."""
    ms = [each * 1000 for each in measured.latencies_s]
    return {
        "p50_ms": round(percentile(ms, 0.50), 2),
        "p95_ms": round(percentile(ms, 0.95), 2),
        "p99_ms": round(percentile(ms, 0.99), 2),
        "min_ms": round(min(ms), 2),
        "max_ms": round(max(ms), 2),
    }


def rates(measured: Measured) -> dict[str, Any]:
    runs_per_s = measured.runs / measured.seconds
    return {
        "runs": measured.runs,
        "seconds": round(measured.seconds, 3),
        "runs_per_s": round(runs_per_s, 2),
        "steps_per_s": round(runs_per_s * workload.steps(), 1),
    }


def cpu(used: Usage, runs: int) -> dict[str, Any]:
    """Processor milliseconds per run: by process, of ours together, and of everything else meanwhile."""
    by_process = {name: round(used_s * 1000 / runs, 2) for name, used_s in used.by_process.items()}
    return {
        "total": round(sum(used.by_process.values()) * 1000 / runs, 2),
        **by_process,
        OTHERS: round(used.others_s * 1000 / runs, 2),
    }


def cores(used: Usage, seconds: float) -> dict[str, Any]:
    """How many cores each process has kept busy, on average."""
    every = {**used.by_process, OTHERS: used.others_s}
    return {name: round(used_s / seconds, 2) for name, used_s in every.items()}


def part(
    measured: Measured,
    used: Usage,
    bytes_per_run: Mapping[str, int] | None,
    history: Mapping[str, Any],
    busy_before: float,
) -> dict[str, Any]:
    """The figures of one part of the benchmark."""
    return {
        **rates(measured),
        **latencies(measured),
        "cpu_ms_per_run": cpu(used, measured.runs),
        "cores": cores(used, measured.seconds),
        "bytes_per_run": bytes_per_run,
        "history": history,
        "machine_busy_before": round(busy_before, 2),
    }


def described_workload(effect: Effect) -> dict[str, Any]:
    return {
        "turns": workload.TURNS,
        "model_calls": workload.TURNS,
        "tool_calls": workload.tool_calls(),
        "steps": workload.steps(),
        "tool_effect": effect.value,
        "tool_result_bytes": workload.RESULT_BYTES,
        "answer_bytes": workload.ANSWER_BYTES,
        "streamed_deltas": 0,
    }


def machine() -> dict[str, Any]:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _field("/proc/cpuinfo", "model name"),
        "memory_mb": int(_field("/proc/meminfo", "MemTotal").split()[0]) // 1024,
        "kernel": platform.release(),
        "load_average": [round(each, 2) for each in os.getloadavg()],
    }


def versions(kafka: str | None) -> dict[str, Any]:
    """``kafka``: the version of our own broker; None: that of a given cluster can not be told."""
    return {
        "perdure": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "kafka": kafka,
        "librdkafka": ck.libversion()[0],
        **{name: importlib.metadata.version(name) for name in LIBRARIES},
    }


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def commit() -> str | None:
    """The work tree's commit, marked if the tree differs from it; None outside of a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return told.stdout.strip() or None


def _field(file: str, name: str) -> str:
    """``value`` of the first line ``name : value``."""
    for line in Path(file).read_text(encoding="utf-8").splitlines():
        head, _, value = line.partition(":")
        if head.strip() == name:
            return value.strip()
    return "0"
