"""``python -m chaos.crash``: the crash matrix, with real processes and a real broker.

A cell is one crash: a process of a role passes a named point of the product while runs are under way, and
kills, stops or asks itself to end there. Afterwards every run must have ended or wait for a person, as if
nothing had been; ``chaos.checker`` counts. Remarks go to standard error, the last line of standard output is
one JSON object, and the exit code is 0 only if nothing is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from chaos.app import ONE_CALL
from chaos.cells import Cell, all_cells, sample
from chaos.checker import DEAD_LETTERS, EVENTS, OUTCOMES, Checker, Reader, judge
from chaos.lane import Lane
from chaos.model_service import scripted_model
from chaos.worker import ROOT
from perdure.connectors.local_kafka import BOOTSTRAP_VARIABLE, LocalKafka
from perdure.processors.clock import SystemEntropy, new_id
from perdure.processors.machine.apply import fold
from perdure.schemas.codec import decode
from perdure.schemas.events import Event

FOLDER: Final = Path(".perdure") / "crash"
CELLS_PER_LANE_MIN: Final = 4
LANES_MAX: Final = 4
VERIFY_S_MAX: Final = 180.0
FAULTS_SHOWN_MAX: Final = 20
BROKER: Final = {
    # Silent executors are given up after three seconds, so that stopping one takes less time.
    "group.consumer.session.timeout.ms": "3000",
}

_begun_s: Final = time.monotonic()


def tell(text: str) -> None:
    print(f"{time.monotonic() - _begun_s:6.1f} s  {text}", file=sys.stderr, flush=True)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="chaos.crash", description=__doc__)
    parser.add_argument("--cells", type=int, default=12, help="how many cells (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=1, help="which ones, in which order (default: %(default)s)"
    )
    parser.add_argument("--lanes", type=int, help="cells that run at the same time")
    parser.add_argument("--only", default="", help="cells whose description contains this text")
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="where its files go (default: %(default)s)"
    )
    options = parser.parse_args(given)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    wanted = [cell for cell in all_cells() if options.only in str(cell)] if options.only else []
    cells = wanted[: options.cells] if options.only else sample(options.cells, options.seed)
    lanes = options.lanes or max(1, min(LANES_MAX, options.cells // CELLS_PER_LANE_MIN))
    figures = run_matrix(cells, lanes, options.seed, options.folder.absolute())
    print(json.dumps(figures))
    return 0 if figures["violations"] == 0 else 1


def run_matrix(cells: Sequence[Cell], lanes: int, seed: int, folder: Path) -> dict[str, Any]:
    """All cells; the figures."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        bootstrap = os.environ.get(BOOTSTRAP_VARIABLE)
        if not bootstrap:
            broker = LocalKafka(folder / "kafka", overrides=BROKER)
            stack.callback(broker.kill)  # nobody reads its data again
            bootstrap = broker.start().bootstrap
        model_port = stack.enter_context(scripted_model(folder, ONE_CALL))
        prefix = f"crash-{new_id(SystemEntropy())[-8:].lower()}"
        made = [
            Lane(f"{prefix}-{number}", bootstrap, model_port, folder / str(number),
                 random.Random(f"{seed}/{number}"), tell)
            for number in range(lanes)
        ]  # fmt: skip
        for lane in made:
            stack.callback(lane.close)
        tell(f"{len(cells)} cells, {lanes} at a time, at {bootstrap}")
        _run_all(made, cells)
        return _figures(made, cells, seed)


def _run_all(lanes: Sequence[Lane], cells: Sequence[Cell]) -> None:
    waiting: queue.SimpleQueue[tuple[int, Cell]] = queue.SimpleQueue()
    for number, cell in enumerate(cells):
        waiting.put((number, cell))

    def work(lane: Lane) -> None:
        try:
            lane.start()
            while True:
                try:
                    number, cell = waiting.get_nowait()
                except queue.Empty:
                    break
                lane.run(number, cell)
            lane.end()
        except Exception as error:  # noqa: BLE001 - a lane that broke is a violation, the others go on
            lane.tally.faults.append(f"lane: {lane.name}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(lane,), daemon=True) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _figures(lanes: Sequence[Lane], cells: Sequence[Cell], seed: int) -> dict[str, Any]:
    faults: list[str] = []
    totals = {"runs": 0, "waiting": 0, "doubted": 0, "executions": 0, "effects_twice": 0, "lost": 0,
              "doubled": 0, "unlicensed_executions": 0}  # fmt: skip
    for lane in lanes:
        checker, verdict_faults = _read_again(lane)
        verdict = judge(checker, lane.truth, lane.run_ids)
        faults += [*lane.tally.faults, *verdict_faults, *(f"{lane.name}: {each}" for each in verdict.faults)]
        if checker.dead_letters:
            faults.append(f"{lane.name}: {checker.dead_letters} dead letters")
        for name, value in (
            ("runs", verdict.runs), ("waiting", verdict.waiting), ("doubted", verdict.doubted),
            ("executions", verdict.executions), ("effects_twice", verdict.effects_twice),
            ("lost", verdict.lost), ("doubled", verdict.doubled),
            ("unlicensed_executions", verdict.unlicensed),
        ):  # fmt: skip
            totals[name] += value
    if len(cells) != sum(lane.tally.cells for lane in lanes):
        faults.append(f"cells: {sum(lane.tally.cells for lane in lanes)} of {len(cells)} were carried out")
    for fault in faults[:FAULTS_SHOWN_MAX]:
        tell(f"wrong: {fault}")
    return {
        "cells": len(cells),
        "distinct": len(set(cells)),
        "of": len(all_cells()),
        "violations": len(faults),
        **totals,
        "restarts_unasked": sum(lane.tally.ended_by_themselves for lane in lanes),
        "seed": seed,
        "seconds": round(time.monotonic() - _begun_s),
    }


def _read_again(lane: Lane) -> tuple[Checker, list[str]]:
    """The whole log once more, from its beginning; and does each history fold, and does doctor agree?"""
    checker, faults = Checker(), list[str]()
    histories: dict[str, list[Event]] = {}
    reader = Reader(lane.bootstrap, lane.name, (EVENTS, OUTCOMES, DEAD_LETTERS))
    try:
        for topic, _, value in reader.to_end():
            checker.take(topic, value)
            if topic == EVENTS and value is not None:
                event = decode(Event, value)
                histories.setdefault(event.run_id, []).append(event)
    finally:
        reader.close()
    for run_id, events in histories.items():
        try:
            fold(events)
        except Exception as error:  # noqa: BLE001 - whatever it is, the history does not fold
            faults.append(f"fold: {lane.name} {run_id}: {type(error).__name__}: {error}")
    worker = lane.workers[0]
    verified = subprocess.run(
        [sys.executable, "-m", "perdure.console.main", "doctor", "--verify", "--json"],
        env={**os.environ, **worker.environment}, cwd=ROOT, capture_output=True, text=True,
        timeout=VERIFY_S_MAX, check=False,
    )  # fmt: skip
    if verified.returncode != 0:
        faults.append(f"doctor: {lane.name}: {verified.stdout[-1500:]} {verified.stderr[-500:]}")
    return checker, faults


if __name__ == "__main__":
    sys.exit(main())
