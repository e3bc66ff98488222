"""Profiles of a role's own threads: taken in the role's process, read by the benchmark.

cProfile sees one thread. The role's loop is a thread of the worker, and an executor's calls run in another,
so each gets a profile of its own when it starts. The processor's time is measured (CLOCK_THREAD_CPUTIME_ID),
or with ``wall`` the time that passes, waits included.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final, cast

CLOCKS: Final = ("cpu", "wall")
ROWS_MAX: Final = 30
ROOT: Final = Path(__file__).absolute().parents[1]

_Key = tuple[str, int, str]
_Row = tuple[int, int, float, float, Any]


class Profiles:
    """One cProfile for each thread named in ``threads``, from its start on."""

    def __init__(self, threads: frozenset[str], clock: str) -> None:
        # From 3.12 on a profile takes the events of every thread, and there can be only one.
        assert sys.version_info < (3, 12), "profiles of single threads need Python 3.11"
        self._threads = threads
        self._clock = time.perf_counter if clock == "wall" else time.thread_time
        self._taken: dict[str, cProfile.Profile] = {}

    def begin(self) -> None:
        """Threads that start from now on are profiled; the present one is not."""
        threading.setprofile(self._on_first_call)

    def write(self, folder: Path, prefix: str) -> None:
        """``<prefix>.<thread>.pstats``; the threads have ended or wait."""
        for name, profile in self._taken.items():
            pstats.Stats(profile).dump_stats(folder / f"{prefix}.{name}.pstats")

    def _on_first_call(self, _frame: FrameType, _event: str, _argument: object) -> None:
        sys.setprofile(None)
        name = threading.current_thread().name
        if name in self._threads:
            profile = self._taken[name] = cProfile.Profile(self._clock)
            profile.enable()


def hottest(file: Path, runs: int, rows_max: int = ROWS_MAX) -> list[Mapping[str, Any]]:
    """The functions with the most time of their own; milliseconds and calls are per run."""
    stats = cast("dict[_Key, _Row]", cast("Any", pstats.Stats(str(file))).stats)
    ordered = sorted(stats.items(), key=lambda item: -item[1][2])
    return [
        {
            "where": _shown(*where),
            "calls": round(calls / runs, 1),
            "own_ms": round(own_s * 1000 / runs, 4),
            "with_callees_ms": round(whole_s * 1000 / runs, 4),
        }
        for where, (_, calls, own_s, whole_s, _) in ordered[:rows_max]
    ]


def _shown(file: str, line: int, function: str) -> str:
    if file == "~":
        return function
    path = Path(file)
    if "site-packages" in path.parts:
        place = "/".join(path.parts[path.parts.index("site-packages") + 1 :])
    elif path.is_relative_to(ROOT):
        place = path.relative_to(ROOT).as_posix()
    else:
        place = path.name
    return f"{place}:{line} {function}"
