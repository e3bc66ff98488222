"""A lane of the crash matrix: a namespace of its own, two processes a role, one crash after the other."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chaos.app import BLIND, IDEMPOTENT_WRITE, READ_ONLY, RECONCILED
from chaos.cells import AT_ASSIGNMENT, NTH_MAX, Cell
from chaos.checker import DEAD_LETTERS, EVENTS, OUTCOMES, Checker, Reader
from chaos.outside import feed
from chaos.worker import Worker, environment_of
from perdure.connectors.settings import Settings
from perdure.console.topics import provisioned
from perdure.processors.crash_points import CRASH_ORDER_ENV
from perdure.schemas.values import Effect
from perdure.topics.table import Role

PARTITIONS: Final = 2
SIBLINGS: Final = 2
RUNS_PER_CELL: Final = 3
READY_S_MAX: Final = 90.0
REACH_S_MAX: Final = 20.0
SETTLE_S_MAX: Final = 6.0
END_S_MAX: Final = 90.0
DRAIN_S_MAX: Final = 40.0
SESSION_S: Final = 6.0
"""What the group waits for a silent orchestrator; executors are given up sooner or as late."""
ZOMBIE_S_MAX: Final = 1.5
LOOK_S: Final = 0.1

AGENTS: Final = {
    Effect.READ_ONLY: (READ_ONLY,) * RUNS_PER_CELL,
    Effect.IDEMPOTENT_WRITE: (IDEMPOTENT_WRITE,) * RUNS_PER_CELL,
    Effect.NON_IDEMPOTENT: (BLIND, RECONCILED, BLIND),
}


class CellFailed(Exception):
    """A cell could not be carried out; it counts as a violation."""


@dataclass(slots=True)
class Tally:
    """What a lane did."""

    cells: int = 0
    reached_later: int = 0
    ended_by_themselves: int = 0
    faults: list[str] = field(default_factory=list[str])


class Lane:
    """``tell``: a line for a person. ``chance``: which pass of a point is taken, how long a zombie sleeps."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        model_port: int,
        folder: Path,
        chance: random.Random,
        tell: Callable[[str], None],
    ) -> None:
        self.name = name
        self.bootstrap = bootstrap
        self.folder = folder
        self.truth = folder / "truth.log"
        self.run_ids: list[str] = []
        self.checker = Checker()
        self.tally = Tally()
        self._chance = chance
        self._tell = tell
        folder.mkdir(parents=True, exist_ok=True)
        self.truth.touch()
        self.settings = Settings(
            bootstrap=bootstrap, namespace=name, partitions=PARTITIONS, state_dir=folder / "state"
        )
        provisioned(self.settings)
        environment = environment_of(bootstrap, name, folder / "state", model_port, self.truth, PARTITIONS)
        self.workers = [
            Worker(
                role,
                f"{role.value}-{number}",
                {**environment, CRASH_ORDER_ENV: str(self._order(role))},
                folder / "state" / name,
                folder / f"{role.value}-{number}.log",
            )
            for role in Role
            for number in range(SIBLINGS)
        ]
        self._is_closed = False
        self._reader = Reader(bootstrap, name, (EVENTS, OUTCOMES, DEAD_LETTERS))

    def start(self) -> None:
        """Start all and see one run of each kind through."""
        for worker in self.workers:
            worker.start()
        for effect in Effect:
            self._submit(f"warm-{effect.value}", effect)
        self._await(lambda: not self._unsettled(), READY_S_MAX, "the first runs end")

    def run(self, number: int, cell: Cell) -> None:
        """One cell. What is found wrong is kept in the tally, and the lane goes on."""
        begun_s = time.monotonic()
        self.tally.cells += 1
        try:
            victim = self._strike(number, cell)
            self._recover(victim, cell)
            self._see_it_through()
        except CellFailed as failure:
            self.tally.faults.append(f"cell: {cell}: {failure}")
            self._tell(f"{self.name} {number} {cell}: {failure}")
        self._tend()
        self._tell(f"{self.name} {number} {cell}: {time.monotonic() - begun_s:.1f} s")

    def end(self) -> None:
        """Wait for every run, then let all processes drain."""
        try:
            self._await(lambda: not self._unsettled(), END_S_MAX, "every run ends")
        except CellFailed as failure:
            self.tally.faults.append(f"end: {failure}: {self._unsettled()[:5]}")
        for worker in self.workers:
            if worker.running:
                worker.send(signal.SIGTERM)
        for worker in self.workers:
            if not worker.wait_until_gone(DRAIN_S_MAX):
                self.tally.faults.append(f"drain: {worker.slot} did not leave within {DRAIN_S_MAX} s")
        self.close()

    def close(self) -> None:
        self._is_closed = True
        for worker in self.workers:
            if worker.running:
                worker.kill()
        self._reader.close()

    # ---- a cell

    def _strike(self, number: int, cell: Cell) -> Worker:
        """Have a process pass the point and be struck there; which one it was."""
        for nth in (self._chance.randint(1, NTH_MAX), 1):
            self._give_order(cell, nth)
            if cell.point in AT_ASSIGNMENT:
                bounced = self._chance.choice([each for each in self.workers if each.role is cell.role])
                bounced.kill()
                self._give_order(cell, 1)
                bounced.start()
            self._submit(f"cell-{number}-{nth}", cell.effect)
            if (pid := self._taken(cell)) is not None:
                return next(each for each in self.workers if each.running_pid == pid)
            self.tally.reached_later += 1
        raise CellFailed("no process passed the point")

    def _recover(self, victim: Worker, cell: Cell) -> None:
        match cell.signal:
            case "SIGSTOP":
                victim.is_stopped = True
                if cell.is_forgotten:
                    victim.forget()
                self._wait(SESSION_S + self._chance.uniform(0.2, ZOMBIE_S_MAX))
                victim.send(signal.SIGCONT)
                return
            case "SIGTERM":
                if not self._gone(victim, DRAIN_S_MAX):
                    victim.kill()
                    raise CellFailed(f"it did not drain within {DRAIN_S_MAX} s")
            case _:
                if not self._gone(victim, REACH_S_MAX):
                    raise CellFailed("it survived SIGKILL")
        if cell.is_forgotten:
            victim.forget()
        victim.start()

    def _see_it_through(self) -> None:
        """Give the runs of the cell some time to end; those that need more have it until the lane ends."""
        end_s = time.monotonic() + SETTLE_S_MAX
        while self._unsettled() and time.monotonic() < end_s:
            self._read()
            self._tend()

    def _tend(self) -> None:
        """Start again what has ended by itself, as a supervisor would."""
        if self._is_closed:
            raise CellFailed("the matrix ends")
        for worker in self.workers:
            if not worker.running:
                self.tally.ended_by_themselves += 1
                self._tell(f"{self.name} {worker.slot} ended by itself: {worker.told()[-400:]}")
                worker.start()

    # ---- inside

    def _order(self, role: Role) -> Path:
        return self.folder / f"{role.value}.order"

    def _give_order(self, cell: Cell, nth: int) -> None:
        order = self._order(cell.role)
        order.with_name(f"{order.name}.taken").unlink(missing_ok=True)
        fresh = order.with_name(f"{order.name}.fresh")
        fresh.write_text(f"{cell.point} {cell.signal} {nth}", encoding="ascii")
        fresh.rename(order)

    def _taken(self, cell: Cell) -> int | None:
        """The pid of the process that followed the order; None if all runs have settled without."""
        order = self._order(cell.role)
        taken = order.with_name(f"{order.name}.taken")
        end_s = time.monotonic() + REACH_S_MAX
        quiet_s: float | None = None
        while time.monotonic() < end_s:
            if taken.exists():
                return int(taken.read_text(encoding="ascii"))
            self._read()
            if self._unsettled():
                quiet_s = None
            elif quiet_s is None:
                quiet_s = time.monotonic()
            elif time.monotonic() > quiet_s + 1.0 and cell.point not in AT_ASSIGNMENT:
                break
        order.unlink(missing_ok=True)
        return int(taken.read_text(encoding="ascii")) if taken.exists() else None

    def _submit(self, name: str, effect: Effect) -> None:
        for number, agent in enumerate(AGENTS[effect]):
            run_id = f"{name}-{number}"
            self.run_ids.append(run_id)
            feed(self.bootstrap, f"{self.name}.run-commands", agent, [run_id])

    def _unsettled(self) -> list[str]:
        return self.checker.unsettled(self.run_ids)

    def _read(self) -> None:
        for topic, _, value in self._reader.more(LOOK_S):
            self.checker.take(topic, value)

    def _gone(self, worker: Worker, timeout_s: float) -> bool:
        end_s = time.monotonic() + timeout_s
        while worker.running and time.monotonic() < end_s:
            self._read()
        return not worker.running

    def _wait(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self._read()

    def _await(self, is_so: Callable[[], bool], timeout_s: float, what: str) -> None:
        end_s = time.monotonic() + timeout_s
        while not is_so():
            if time.monotonic() > end_s:
                raise CellFailed(f"{what}: not within {timeout_s} s")
            self._read()
            self._tend()
