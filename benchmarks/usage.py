"""What processes and the machine have used, from /proc. Linux only."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_IDLE: Final = 3
_IOWAIT: Final = 4
_GUEST: Final = 8
"""From here on /proc/stat repeats what user and nice hold already."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor seconds used so far: by process, and by the whole machine."""

    by_process: Mapping[str, float]
    machine_s: float

    def since(self, before: Usage) -> Usage:
        return Usage(
            {name: used - before.by_process.get(name, 0.0) for name, used in self.by_process.items()},
            self.machine_s - before.machine_s,
        )

    @property
    def others_s(self) -> float:
        """What everything else on this machine used: it should be near nothing."""
        return max(0.0, self.machine_s - sum(self.by_process.values()))


def usage(pids: Mapping[str, int]) -> Usage:
    """Raises ``FileNotFoundError`` if one of the processes is gone."""
    used = {
        name: process_cpu_s(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8"))
        for name, pid in pids.items()
    }
    return Usage(used, machine_cpu_s(Path("/proc/stat").read_text(encoding="utf-8")))


def process_cpu_s(stat: str) -> float:
    """User and system seconds of all threads, ended ones included (proc(5), /proc/[pid]/stat)."""
    fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def machine_cpu_s(stat: str) -> float:
    """Busy seconds of all cores (proc(5), /proc/stat)."""
    ticks = [int(each) for each in stat.partition("\n")[0].split()[1 : 1 + _GUEST]]
    return (sum(ticks) - ticks[_IDLE] - ticks[_IOWAIT]) / TICKS_PER_S


def busy_share(seconds: float) -> float:
    """The share of all cores that is in use, watched for some seconds."""
    before = machine_cpu_s(Path("/proc/stat").read_text(encoding="utf-8"))
    time.sleep(seconds)
    after = machine_cpu_s(Path("/proc/stat").read_text(encoding="utf-8"))
    return (after - before) / seconds / (os.cpu_count() or 1)


def peak_memory_mb(pid: int) -> float:
    """The most resident memory the process has had, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0
