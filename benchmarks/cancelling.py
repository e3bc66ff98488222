"""``python -m benchmarks cancel``: how soon a cancel is durable, and how soon what it stops has stopped.

First runs whose model streams for ever, cancelled one after the other; then runs whose tool is a command
that ignores SIGTERM, and so does its child, some at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks import holding, report
from benchmarks.desk import Desk, Stalled
from benchmarks.endless_api import STREAM, EndlessApi
from benchmarks.profiling import CLOCKS, hottest
from benchmarks.stage import FOLDER, Load, Stage, Wanted, WorkerGone, stage
from perdure.connectors.kafka_jars import KAFKA_VERSION
from perdure.processors.machine.requests import idempotency_key
from perdure.schemas.commands import Cancel, Submit
from perdure.schemas.errors import PerdureError
from perdure.schemas.values import RunState
from perdure.topics.table import PARTITIONS_DEFAULT

EXIT_ERROR: Final = 2
LIMIT_S: Final = 60.0
SETTLE_S: Final = 0.2
LOOK_S: Final = 0.002
CALL: Final = "call_0"
PROCESS: Final = "process"

_begun_s: Final = time.perf_counter()


def options_of(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks cancel", description=__doc__)
    parser.add_argument("--cancels", type=int, default=100, help="of each kind (%(default)s)")
    parser.add_argument("--warmup", type=int, default=10, help="streams before, not counted (%(default)s)")
    parser.add_argument("--at-a-time", type=int, default=5, help="commands running at once (%(default)s)")
    parser.add_argument("--partitions", type=int, default=PARTITIONS_DEFAULT, help="(%(default)s)")
    parser.add_argument("--profile", nargs="?", choices=CLOCKS, const=CLOCKS[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where its files go (%(default)s)")
    parser.add_argument("--keep", action="store_true", help="leave them there")
    return parser.parse_args(given)


def main(given: Sequence[str]) -> int:
    options = options_of(given)
    options.folder.mkdir(parents=True, exist_ok=True)
    holds = options.folder.absolute() / f"holds-{os.getpid()}"
    holds.mkdir()
    os.environ[holding.FOLDER] = str(holds)  # the workers inherit it
    try:
        with EndlessApi() as api:
            told = {"anthropic_base_url": api.url, "anthropic_api_key": "none"}
            load = Load(holding.APP_PLACE, None, told)
            wanted = Wanted(options.partitions, load, False, options.profile, options.folder, options.keep)
            with stage(wanted, _tell) as put_up:
                try:
                    figures = measure(put_up, api, holds, options)
                except (WorkerGone, Stalled) as error:
                    print(f"{type(error).__name__}: {error}\n{put_up.told()}", file=sys.stderr)
                    return EXIT_ERROR
    except PerdureError as error:
        print(f"{error.code}: {error}", file=sys.stderr)
        return EXIT_ERROR
    finally:
        for each in holds.iterdir():
            each.unlink()
        holds.rmdir()
    print(json.dumps(figures))
    return 0


def measure(put_up: Stage, api: EndlessApi, holds: Path, options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "benchmark": "perdure cancel",
        "at": report.now(),
        "machine": report.machine(),
        "versions": report.versions(None if put_up.is_given else KAFKA_VERSION),
        "grace_s": holding.GRACE_S,
    }
    desk = Desk(put_up.settings, put_up.look)
    try:
        for number in range(options.warmup):
            _cancel_stream(desk, api, f"warm-{number}")
        streams = [_cancel_stream(desk, api, f"stream-{number}") for number in range(options.cancels)]
        figures["stream"] = {
            "cancels": len(streams),
            "cancelled": report.spread_ms([each[0] for each in streams]),
            "stream_closed": report.spread_ms([each[1] for each in streams]),
        }
        _tell(f"streams: {figures['stream']}")
        commands: list[tuple[float, float]] = []
        while len(commands) < options.cancels:
            count = min(options.at_a_time, options.cancels - len(commands))
            ids = [f"command-{len(commands) + number}" for number in range(count)]
            commands += _cancel_commands(desk, holds, ids)
        figures["command"] = {
            "cancels": len(commands),
            "at_a_time": options.at_a_time,
            "cancelled": report.spread_ms([each[0] for each in commands]),
            "processes_dead": report.spread_ms([each[1] for each in commands]),
        }
        _tell(f"commands: {figures['command']}")
    finally:
        desk.close()
    if options.profile is not None:
        put_up.end_workers()
        files = sorted(put_up.folder.glob("*.pstats"))
        figures["profile"] = {each.stem: hottest(each, options.cancels) for each in files}
    return figures


def _cancel_stream(desk: Desk, api: EndlessApi, run_id: str) -> tuple[float, float]:
    """Seconds from the cancel to its outcome, and to the end of the stream as the server sees it."""
    _submit(desk, run_id, STREAM)
    _await(desk, lambda: run_id in api.began_s, f"the stream of {run_id}")
    time.sleep(SETTLE_S)
    sent_s = desk.send(run_id, Cancel("enough"), f"cancel-{run_id}")
    _await(desk, lambda: run_id in desk.ended_s and run_id in api.closed_s, f"the end of {run_id}")
    assert desk.outcomes[run_id].state is RunState.CANCELLED
    return desk.ended_s[run_id] - sent_s, api.closed_s[run_id] - sent_s


def _cancel_commands(desk: Desk, holds: Path, run_ids: Sequence[str]) -> list[tuple[float, float]]:
    """The same, and until no process of the call lives."""
    keys = {run_id: idempotency_key(run_id, CALL) for run_id in run_ids}
    for run_id in run_ids:
        _submit(desk, run_id, PROCESS)
    found: dict[str, tuple[int, ...]] = {}

    def all_run() -> bool:
        for run_id, key in keys.items():
            pids = holding.pids_of(holds, key)
            if pids is not None:
                found[run_id] = pids
        return len(found) == len(keys)

    _await(desk, all_run, "the commands")
    time.sleep(SETTLE_S)
    sent_s = {run_id: desk.send(run_id, Cancel("enough"), f"cancel-{run_id}") for run_id in run_ids}
    dead_s: dict[str, float] = {}

    def all_dead() -> bool:
        _note_dead(found, dead_s)
        return len(dead_s) == len(run_ids) and all(each in desk.ended_s for each in run_ids)

    _await(desk, all_dead, "the end of the commands")
    return [(desk.ended_s[each] - sent_s[each], dead_s[each] - sent_s[each]) for each in run_ids]


def _note_dead(pids: Mapping[str, Sequence[int]], dead_s: dict[str, float]) -> None:
    for run_id, each in pids.items():
        if run_id not in dead_s and not any(map(holding.is_alive, each)):
            dead_s[run_id] = time.perf_counter()


def _submit(desk: Desk, run_id: str, word: str) -> None:
    body = Submit(agent=holding.AGENT, input=msgspec.json.encode(f"{word} {run_id}"))
    desk.send(run_id, body, run_id)


def _await(desk: Desk, reached: Callable[[], bool], what: str) -> None:
    desk.until(reached, LIMIT_S, what, LOOK_S)


def _tell(text: str) -> None:
    print(f"{time.perf_counter() - _begun_s:6.1f} s  {text}", file=sys.stderr, flush=True)
