"""``python -m benchmarks``: the workload through real processes and a real broker, figures as JSON.

What is measured, and what it means: docs/BENCHMARKS.md. Remarks go to standard error; the last line of
standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import cancelling, history, legs, parked, report, sizes, takeover
from benchmarks.driving import Driver, Measured, RunsStalled, RunsWrong
from benchmarks.profiling import CLOCKS, hottest
from benchmarks.stage import BROKER, FOLDER, Stage, Wanted, WorkerGone, stage, usual
from benchmarks.usage import busy_share, peak_memory_mb, usage
from perdure.connectors.kafka_jars import KAFKA_VERSION
from perdure.connectors.local_kafka import BOOTSTRAP_VARIABLE
from perdure.schemas.errors import PerdureError
from perdure.schemas.values import Effect
from perdure.topics.table import PARTITIONS_DEFAULT, RUN_EVENTS, Namespace

DRIVER: Final = "driver"
WATCH_S: Final = 1.0
IDLE_S: Final = 5.0
EXIT_ERROR: Final = 2
EXIT_INTERRUPTED: Final = 130
OTHERS: Final = {"cancel": cancelling.main, "parked": parked.main, "takeover": takeover.main}
"""Further benchmarks, by the word that chooses them."""

_begun_s: Final = time.perf_counter()


def options_of(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument(
        "--runs", type=_count, default=200, help="runs alone, one after the other (%(default)s)"
    )
    parser.add_argument("--warmup", type=_count, default=30, help="runs before, not counted (%(default)s)")
    parser.add_argument("--inflight", type=_count, default=500, help="runs open at once (%(default)s)")
    parser.add_argument("--load-runs", type=_count, help="runs of that part (six times as many)")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="after these it submits no more (%(default)s)"
    )
    parser.add_argument("--partitions", type=_count, default=PARTITIONS_DEFAULT, help="(%(default)s)")
    parser.add_argument(
        "--effect", choices=[each.value for each in Effect], default=Effect.READ_ONLY.value,
        help="of the tool; a non_idempotent one pays for its claim (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--flush", action="store_true", help="the broker calls fsync for every append")
    parser.add_argument(
        "--profile", nargs="?", choices=CLOCKS, const=CLOCKS[0],
        help="profile the workers, by processor time or by the time that passes; it slows them down",
    )  # fmt: skip
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where its files go (%(default)s)")
    parser.add_argument("--keep", action="store_true", help="leave them there: logs, data, profiles")
    options = parser.parse_args(given)
    options.load_runs = options.load_runs or 6 * options.inflight
    if options.flush and os.environ.get(BOOTSTRAP_VARIABLE):
        parser.error(f"--flush sets up a broker of its own, and {BOOTSTRAP_VARIABLE} names another")
    if options.profile and sys.version_info >= (3, 12):
        parser.error("--profile needs Python 3.11")
    return options


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def main(given: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if given is None else given
    if given and given[0] in OTHERS:
        return OTHERS[given[0]](given[1:])
    options = options_of(given)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    wanted = Wanted(
        options.partitions,
        usual(Effect(options.effect)),
        options.flush,
        options.profile,
        options.folder,
        options.keep,
    )
    try:
        with stage(wanted, _tell) as put_up:
            try:
                figures = measure(put_up, options)
            except (WorkerGone, RunsStalled, RunsWrong) as error:
                print(f"{type(error).__name__}: {error}\n{put_up.told()}", file=sys.stderr)
                return EXIT_ERROR
    except PerdureError as error:
        print(f"{error.code}: {error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    print(json.dumps(figures))
    return 0


def measure(put_up: Stage, options: argparse.Namespace) -> dict[str, Any]:
    """All parts, one after the other, on the same processes."""
    figures: dict[str, Any] = {
        "benchmark": "perdure",
        "at": report.now(),
        "workload": report.described_workload(Effect(options.effect)),
        "machine": report.machine(),
        "versions": report.versions(None if put_up.is_given else KAFKA_VERSION),
        "setup": _setup(put_up, options),
    }
    driver = Driver(put_up.settings, put_up.look)
    try:
        _tell(f"{options.warmup} runs to warm up")
        driver.in_flight("warm", options.warmup, max(1, options.warmup // 2), options.seconds)
        driver.one_by_one("warm-alone", max(1, options.warmup // 2))

        figures["idle"] = _idle(put_up)

        _tell(f"{options.runs} runs alone")
        alone, figures["alone"] = _part(put_up, lambda: driver.one_by_one("alone", options.runs))
        traces = {run_id: legs.Trace(*instants) for run_id, instants in alone.instants.items()}
        legs.read_traces(put_up.log, Namespace(put_up.settings.namespace), traces)

        _tell(f"{options.inflight} runs in flight, {options.load_runs} in all")
        _, figures["in_flight"] = _part(
            put_up,
            lambda: driver.in_flight("load", options.load_runs, options.inflight, options.seconds),
        )
        figures["in_flight"]["inflight"] = options.inflight
        figures["where_the_time_goes"] = {
            "legs_of_a_run_alone": legs.table(traces.values()),
            "cores_alone": figures["alone"]["cores"],
            "cores_in_flight": figures["in_flight"]["cores"],
        }
        figures["peak_memory_mb"] = {name: round(peak_memory_mb(pid), 1) for name, pid in put_up.pids.items()}
    finally:
        driver.close()
    if options.profile is not None:
        put_up.end_workers()
        runs = options.warmup + max(1, options.warmup // 2) + options.runs + figures["in_flight"]["runs"]
        figures["profile"] = {
            file.stem: hottest(file, runs) for file in sorted(put_up.folder.glob("*.pstats"))
        }
    return figures


def _idle(put_up: Stage) -> dict[str, Any]:
    """What it costs that everything is up and nothing to do."""
    pids = {**put_up.pids, DRIVER: os.getpid()}
    before = usage(pids)
    time.sleep(IDLE_S)
    return {"seconds": IDLE_S, "cores": report.cores(usage(pids).since(before), IDLE_S)}


def _part(put_up: Stage, run: Any) -> tuple[Measured, dict[str, Any]]:
    """Measure one part: what it took of time, processor and disk."""
    pids = {**put_up.pids, DRIVER: os.getpid()}
    settings = put_up.settings
    kept_before = _kept_bytes(put_up)
    events = Namespace(settings.namespace).topic(RUN_EVENTS)
    ends_before = history.ends(put_up.log, events, settings.partitions)
    busy_before = busy_share(WATCH_S)
    before = usage(pids)
    measured: Measured = run()
    used = usage(pids).since(before)
    kept = sizes.per_run(kept_before, _kept_bytes(put_up), measured.runs, settings.namespace)
    ends_after = history.ends(put_up.log, events, settings.partitions)
    written = history.per_run(*history.added(put_up.log, ends_before, ends_after), measured.runs)
    figures = report.part(measured, used, kept, written, busy_before)
    _tell(
        f"  p50 {figures['p50_ms']} ms, {figures['steps_per_s']} steps/s, "
        f"{figures['cpu_ms_per_run']['total']} CPU ms a run"
    )
    return measured, figures


def _kept_bytes(put_up: Stage) -> Any:
    """None for a cluster that wants more than an address: Kafka's tool spells such settings otherwise."""
    return None if put_up.settings.kafka else sizes.kept_bytes(put_up.settings.bootstrap)


def _setup(put_up: Stage, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "cluster": "given" if put_up.is_given else "one local broker",
        "fsync": None if put_up.is_given else "each append" if options.flush else "none",
        "replication": put_up.settings.replication,
        "partitions": put_up.settings.partitions,
        "processes": {name: 1 for name in put_up.pids if name != BROKER},
        "profiled": options.profile,
    }


def _tell(text: str) -> None:
    print(f"{time.perf_counter() - _begun_s:6.1f} s  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
