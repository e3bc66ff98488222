"""``python -m benchmarks parked``: what a run costs that waits for a person, and how soon it goes on.

Submits runs that ask for one call needing approval until all of them are parked; then decides some chosen by
chance, kills the orchestrator with -9, decides again, deletes its store, decides again.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks import parking, report, sizes
from benchmarks.desk import Desk, Stalled
from benchmarks.profiling import CLOCKS, hottest
from benchmarks.stage import FOLDER, Load, Stage, Wanted, WorkerGone, stage
from perdure.connectors.kafka_jars import KAFKA_VERSION
from perdure.schemas.commands import Decide, Submit
from perdure.schemas.errors import PerdureError
from perdure.schemas.values import RunState, Verdict
from perdure.topics.table import PARTITIONS_DEFAULT, Role

EXIT_ERROR: Final = 2
STALL_S: Final = 60.0
RESTORE_S: Final = 600.0
SETTLE_S: Final = 2.0
TOLD_S: Final = 20.0
SEED: Final = 7

_begun_s: Final = time.perf_counter()


def options_of(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks parked", description=__doc__)
    parser.add_argument("--runs", type=int, default=5_000, help="runs that are parked (%(default)s)")
    parser.add_argument("--inflight", type=int, default=1_000, help="submitted and not parked (%(default)s)")
    parser.add_argument("--decisions", type=int, default=200, help="each time (%(default)s)")
    parser.add_argument("--partitions", type=int, default=PARTITIONS_DEFAULT, help="(%(default)s)")
    parser.add_argument("--profile", nargs="?", choices=CLOCKS, const=CLOCKS[0], help="of the parking alone")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where its files go (%(default)s)")
    parser.add_argument("--keep", action="store_true", help="leave them there")
    options = parser.parse_args(given)
    if options.runs < 3 * (options.decisions + options.partitions):
        parser.error("runs: at least three times decisions and partitions")
    return options


def main(given: Sequence[str]) -> int:
    options = options_of(given)
    load = Load(parking.APP_PLACE, parking.MODEL_PLACE)
    wanted = Wanted(
        options.partitions,
        load,
        False,
        options.profile,
        options.folder,
        options.keep,
    )
    try:
        with stage(wanted, _tell) as put_up:
            try:
                figures = measure(put_up, options)
            except (WorkerGone, Stalled) as error:
                print(f"{type(error).__name__}: {error}\n{put_up.told()}", file=sys.stderr)
                return EXIT_ERROR
    except PerdureError as error:
        print(f"{error.code}: {error}", file=sys.stderr)
        return EXIT_ERROR
    print(json.dumps(figures))
    return 0


def measure(put_up: Stage, options: argparse.Namespace) -> dict[str, Any]:
    """All parts, one after the other."""
    chance = random.Random(SEED)
    run_ids = [f"parked-{number}" for number in range(options.runs)]
    figures: dict[str, Any] = {
        "benchmark": "perdure parked runs",
        "at": report.now(),
        "machine": report.machine(),
        "versions": report.versions(None if put_up.is_given else KAFKA_VERSION),
    }
    desk = Desk(put_up.settings, put_up.look)
    try:
        kept_before, memory_before = _kept_bytes(put_up), _memory_mb(put_up)
        figures["parking"] = _park(desk, run_ids, options.inflight)
        _tell(f"parked: {figures['parking']}")
        time.sleep(SETTLE_S)
        store = _stored_bytes(_stores(put_up))
        figures["per_run"] = {
            "orchestrator_store_bytes": round(store / options.runs),
            "log_bytes": sizes.per_run(
                kept_before, _kept_bytes(put_up), options.runs, put_up.settings.namespace
            ),
        }
        figures["memory_mb"] = {"idle": memory_before, "parked": _memory_mb(put_up)}
        if options.profile is not None:
            put_up.end_workers()
            files = sorted(put_up.folder.glob("*.pstats"))
            return {**figures, "profile": {each.stem: hottest(each, options.runs) for each in files}}
        chance.shuffle(run_ids)
        figures["decisions"] = _decide(desk, _taken(run_ids, options.decisions))
        _tell(f"decisions: {figures['decisions']}")
        figures["after_kill"] = _again(put_up, desk, run_ids, options, keeps_store=True)
        _tell(f"after kill -9: {figures['after_kill']}")
        figures["after_loss"] = _again(put_up, desk, run_ids, options, keeps_store=False)
        _tell(f"after the loss of the store: {figures['after_loss']}")
        figures["memory_mb"]["restored"] = _memory_mb(put_up)
    finally:
        desk.close()
    return figures


def _park(desk: Desk, run_ids: Sequence[str], inflight: int) -> dict[str, Any]:
    """Submit all of them, at most ``inflight`` being on their way, until each is parked."""
    begun_s = told_s = heard_s = time.perf_counter()
    sent = 0
    while len(desk.asked) < len(run_ids):
        while sent < len(run_ids) and sent - len(desk.asked) < inflight:
            run_id = run_ids[sent]
            body = Submit(agent=parking.AGENT, input=msgspec.json.encode(parking.input_of(run_id)))
            desk.send(run_id, body, run_id)
            sent += 1
        now_s = time.perf_counter()
        if desk.read(0.05):
            heard_s = now_s
        elif now_s - heard_s > STALL_S:
            raise Stalled(f"{len(desk.asked)} of {sent} submitted are parked")
        if now_s - told_s > TOLD_S:
            told_s = now_s
            _tell(f"{len(desk.asked)} parked")
    seconds = time.perf_counter() - begun_s
    return {"runs": sent, "seconds": round(seconds, 1), "runs_per_s": round(sent / seconds, 1)}


def _decide(desk: Desk, run_ids: Sequence[str]) -> dict[str, Any]:
    """Approve one after the other: until its dispatch is committed, and until the run has ended."""
    resumed: list[float] = []
    ended: list[float] = []
    for run_id in run_ids:
        sent_s = _approve(desk, run_id)
        desk.until(lambda run_id=run_id: run_id in desk.ended_s, STALL_S, f"the end of {run_id}")  # type: ignore[misc]
        assert desk.outcomes[run_id].state is RunState.COMPLETED
        resumed.append(desk.answered_s[run_id] - sent_s)
        ended.append(desk.ended_s[run_id] - sent_s)
    return {
        "decisions": len(run_ids),
        "resumed": report.spread_ms(resumed),
        "completed": report.spread_ms(ended),
    }


def _approve(desk: Desk, run_id: str) -> float:
    asked = desk.asked[run_id]
    return desk.send(
        run_id, Decide(asked.call_id, Verdict.APPROVE, asked.token, "benchmark"), f"approve-{run_id}"
    )


def _again(
    put_up: Stage, desk: Desk, run_ids: list[str], options: argparse.Namespace, *, keeps_store: bool
) -> dict[str, Any]:
    """Kill the orchestrator and start it; ready is when a run of every partition has gone on."""
    put_up.kill(Role.ORCHESTRATOR)
    if not keeps_store:
        for folder in _stores(put_up):
            shutil.rmtree(folder)
    begun_s = time.perf_counter()
    put_up.start(Role.ORCHESTRATOR)
    first = {desk.partition(run_id): run_id for run_id in run_ids}
    for run_id in first.values():
        run_ids.remove(run_id)
        _approve(desk, run_id)
    desk.until(lambda: desk.answered_s.keys() >= set(first.values()), RESTORE_S, "the restore")
    ready_s = time.perf_counter() - begun_s
    return {
        "ready_s": round(ready_s, 2),
        "partitions": len(first),
        **_decide(desk, _taken(run_ids, options.decisions)),
    }


def _taken(run_ids: list[str], count: int) -> list[str]:
    taken, run_ids[:] = run_ids[:count], run_ids[count:]
    return taken


def _stores(put_up: Stage) -> list[Path]:
    """The orchestrator's stores, one folder of partitions a slot."""
    home = put_up.settings.state_dir / put_up.settings.namespace / Role.ORCHESTRATOR.value
    return sorted(home.glob("*/store"))


def _stored_bytes(folders: Sequence[Path]) -> int:
    return sum(each.stat().st_size for folder in folders for each in folder.rglob("*") if each.is_file())


def _memory_mb(put_up: Stage) -> Mapping[str, float]:
    """Resident memory of each process, now."""
    found: dict[str, float] = {}
    for name, pid in put_up.pids.items():
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmRSS:"):
                found[name] = round(int(line.split()[1]) / 1024, 1)
    return found


def _kept_bytes(put_up: Stage) -> Any:
    return None if put_up.settings.kafka else sizes.kept_bytes(put_up.settings.bootstrap)


def _tell(text: str) -> None:
    print(f"{time.perf_counter() - _begun_s:6.1f} s  {text}", file=sys.stderr, flush=True)
