"""``python -m chaos``: three brokers, several workers of each role, and everything goes wrong for minutes.

Brokers and workers are killed with SIGKILL, stopped for longer than their sessions and cut off by proxies
that delay, hold and lose frames, under a load of real runs with all three effect classes. Then faults stop,
everything must end, and ``chaos.checker`` counts. Remarks go to standard error, the last line of standard
output is one JSON object, and the exit code is 0 only if nothing is wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from chaos.app import MIXED, MIXED_BLIND, THREE_CALLS
from chaos.checker import DEAD_LETTERS, EVENTS, OUTCOMES, Checker, Reader, judge
from chaos.cluster import Cluster
from chaos.faults import Faults
from chaos.load import Load, wait_until
from chaos.model_service import scripted_model
from chaos.worker import Worker, environment_of
from perdure.connectors.settings import Settings
from perdure.console.topics import provisioned
from perdure.topics.table import Role

FOLDER: Final = Path(".perdure") / "chaos"
NAMESPACE: Final = "chaos"
PARTITIONS: Final = 6
REPLICATION: Final = 3
WORKERS: Final = {Role.ORCHESTRATOR: 3, Role.MODEL_CALLER: 2, Role.TOOL_EXECUTOR: 3}
THINK_TIME_MS: Final = 150
CALM_S_MAX: Final = 240.0
WARM_S: Final = 15.0
DRAIN_S_MAX: Final = 60.0
FAULTS_SHOWN_MAX: Final = 20

_begun_s: Final = time.monotonic()


def tell(text: str) -> None:
    print(f"{time.monotonic() - _begun_s:6.1f} s  {text}", file=sys.stderr, flush=True)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="of faults (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the faults (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=4.0, help="runs a second (default: %(default)s)")
    parser.add_argument("--open", type=int, default=60, help="runs open at once (default: %(default)s)")
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="where its files go (default: %(default)s)"
    )
    options = parser.parse_args(given)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    figures = run_chaos(options.minutes, options.seed, options.rate, options.open, options.folder.absolute())
    print(json.dumps(figures))
    return 0 if figures["violations"] == 0 else 1


def run_chaos(minutes: float, seed: int, rate: float, open_max: int, folder: Path) -> dict[str, Any]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    truth = folder / "truth.log"
    truth.touch()
    with ExitStack() as stack:
        cluster = Cluster(folder)
        stack.callback(cluster.close)
        cluster.start()
        tell(f"three brokers at {cluster.bootstrap}")
        provisioned(
            Settings(
                bootstrap=cluster.bootstrap,
                namespace=NAMESPACE,
                partitions=PARTITIONS,
                replication=REPLICATION,
            )
        )
        port = stack.enter_context(scripted_model(folder, THREE_CALLS, THINK_TIME_MS))
        workers = made_workers(cluster, folder, port, truth)
        for worker in workers:
            stack.callback(worker.end_at_once)
            worker.start()
        load = Load(cluster.bootstrap, NAMESPACE, (MIXED, MIXED_BLIND), rate, open_max)
        stack.callback(load.close)
        load.start()
        faults = Faults(cluster, workers, random.Random(seed), tell)
        _let_begin(load, faults)
        tell(f"faults for {minutes} minutes")
        faults.go(minutes * 60)
        load.stop_submitting()
        tell(f"faults are over; {len(load.open)} of {len(load.acknowledged)} runs are open")
        calm_s = time.monotonic()
        has_settled = wait_until(load, CALM_S_MAX, faults.tend)
        calm_s = time.monotonic() - calm_s
        tell(f"{'everything settled' if has_settled else 'not everything settled'} after {calm_s:.1f} s")
        never_left = _drain(workers)
        return _figures(cluster, truth, load, faults, never_left, calm_s, seed, minutes)


def made_workers(cluster: Cluster, folder: Path, model_port: int, truth: Path) -> list[Worker]:
    """The odd ones reach the brokers through the proxies."""
    made: list[Worker] = []
    for role, count in WORKERS.items():
        for number in range(count):
            bootstrap = cluster.proxied if number % 2 else cluster.bootstrap
            environment = environment_of(
                bootstrap, NAMESPACE, folder / "state", model_port, truth, PARTITIONS
            )
            slot = f"{role.value}-{number}"
            made.append(Worker(role, slot, environment, folder / "state" / NAMESPACE, folder / f"{slot}.log"))
    return made


def _let_begin(load: Load, faults: Faults) -> None:
    """Faults begin when work has begun."""
    end_s = time.monotonic() + CALM_S_MAX
    while load.settled == 0:
        if time.monotonic() > end_s:
            raise RuntimeError("no run ended before any fault")
        faults.tend()
        time.sleep(0.2)


def _drain(workers: Sequence[Worker]) -> list[str]:
    for worker in workers:
        if worker.running:
            worker.send(signal.SIGTERM)
    return [worker.slot for worker in workers if not worker.wait_until_gone(DRAIN_S_MAX)]


def _figures(
    cluster: Cluster,
    truth: Path,
    load: Load,
    faults: Faults,
    never_left: Sequence[str],
    calm_s: float,
    seed: int,
    minutes: float,
) -> dict[str, Any]:
    checker = Checker()
    reader = Reader(cluster.bootstrap, NAMESPACE, (EVENTS, OUTCOMES, DEAD_LETTERS))
    try:
        for topic, _, value in reader.to_end():
            checker.take(topic, value)
    finally:
        reader.close()
    unsure = set(load.refused) & set(checker.runs)
    verdict = judge(checker, truth, {*load.acknowledged, *unsure})
    wrong = list(verdict.faults)
    wrong += [f"drain: {slot} did not leave" for slot in never_left]
    if faults.counts["never_drained"]:
        wrong.append(f"drain: {faults.counts['never_drained']} workers did not end when asked")
    if checker.dead_letters:
        wrong.append(f"{checker.dead_letters} dead letters")
    for fault in wrong[:FAULTS_SHOWN_MAX]:
        tell(f"wrong: {fault}")
    counts = dict(sorted(faults.counts.items()))
    return {
        "runs": verdict.runs,
        "lost": verdict.lost,
        "doubled": verdict.doubled,
        "unlicensed_executions": verdict.unlicensed,
        "ambiguous": verdict.doubted,
        "ambiguous_share": round(verdict.doubted / max(1, verdict.runs), 4),
        "kills": counts.pop("kills", 0),
        "broker_kills": counts.pop("broker_kills", 0),
        "zombies": counts.pop("zombies", 0),
        "waiting": verdict.waiting,
        "executions": verdict.executions,
        "effects_twice": verdict.effects_twice,
        "violations": len(wrong),
        "frames_lost": sum(proxy.lost for proxy in cluster.proxies),
        "other_faults": counts,
        "settled_after_s": round(calm_s, 1),
        "minutes": minutes,
        "seed": seed,
    }


if __name__ == "__main__":
    sys.exit(main())
