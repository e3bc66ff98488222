"""One seed's life: anything may fail (safety), then nothing does and everything has to end (liveness)."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from unittest import mock

from perdure.connectors import function_tools
from perdure.topics.table import TOPICS, Role
from simulator.checkers import Checkers
from simulator.commands import Commands
from simulator.disturbances import Disturbances
from simulator.marks import Listening, Marks
from simulator.plan import Plan, draw, pick
from simulator.poison import Poison
from simulator.service import compiled_once
from simulator.violation import Fault, Violated
from simulator.world import IDLE_STEP_MS_MAX, NAMES, STEP_MS_MAX, World

ROUNDS_MAX: Final = 40
QUIET_MS: Final = 2_500
"""Longer than any trailing timer of a status, and than any silence that timers wait for."""
SETTLE_MS_MAX: Final = 6 * 3_600_000
LOOKS_MAX: Final = 60_000
"""No life looks more often; one that does goes on for ever."""


@dataclass(frozen=True, slots=True)
class Lived:
    """How a life went. ``digest``: of every log, byte for byte."""

    seed: int
    violation: str | None
    fault: str | None
    marks: Counter[str]
    digest: str
    virtual_s: float
    looks: int


class Life:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.marks = Marks()
        self.world = World(plan, self.marks)
        self.checkers = Checkers(self.world)
        self.commands = Commands(self.world)
        self.looks = 0
        self._disturbances = Disturbances(self.world)
        owners = (self._disturbances, self.commands, Poison(self.world))
        self._draws = {name: _method(owners, name) for name in plan.weights}

    # ---- safety --------------------------------------------------------------------------------------------

    def safety(self) -> None:
        """Anything may fail, at any time."""
        world = self.world
        for role in self.plan.processes:
            for _ in range(self.plan.processes[role]):
                world.spawn(Role(role))
        for _ in range(self.plan.runs):
            self.commands.submit()
            if world.random.random() < 0.5:
                world.advance(world.random.choice(self.plan.pace))
        for _ in range(self.plan.disturbances):
            name = pick(world.random, self.plan.weights)
            self.marks.add(f"drawn_{name}")
            self._draws[name]()
            world.hurry()
            world.advance(world.random.choice(self.plan.pace))
            self.checkers.rows_do_not_lead()

    # ---- liveness ------------------------------------------------------------------------------------------

    def liveness(self) -> None:
        """No more faults: within bounds everything ends, and everything adds up."""
        world = self.world
        self._disturbances.heal()
        for _ in range(ROUNDS_MAX):
            self.settle()
            self.checkers.at_rest()
            if all(run.state.is_terminal for run in world.ledger.runs.values()):
                break
            self.commands.decide_all()
        else:
            states = {run_id: str(run.state) for run_id, run in world.ledger.runs.items()}
            raise Violated(Fault.STUCK, f"after {ROUNDS_MAX} rounds of decisions: {states}")
        self.checkers.in_the_end()

    def settle(self) -> None:
        """Until nothing happens by itself, for a while."""
        world = self.world
        moved_ms = quiet_ms = world.cluster.now_ms
        while True:
            self.looks += 1
            if world.round():
                moved_ms = world.cluster.now_ms
            self._disturbances.man()
            why = world.disturbed() or self._waiting()
            now_ms = world.cluster.now_ms
            if why is not None:
                quiet_ms = now_ms
            elif now_ms - quiet_ms >= QUIET_MS:
                return
            if now_ms - moved_ms > SETTLE_MS_MAX or self.looks > LOOKS_MAX:
                raise Violated(Fault.STUCK, f"it goes on: {why}")
            world.pass_time(STEP_MS_MAX if world.disturbed() else IDLE_STEP_MS_MAX)

    def _waiting(self) -> str | None:
        """A run that is neither over nor with a person goes on some day, by its timers."""
        for run in self.world.ledger.runs.values():
            if not run.state.is_terminal and not run.pending and not run.children:
                return f"run {run.run_id} is {run.state}, waiting for {run.waiting_for}"
        return None


def _method(owners: tuple[object, ...], name: str) -> Callable[[], None]:
    """Whoever has it."""
    owner = next(each for each in owners if hasattr(each, name))
    found: Callable[[], None] = getattr(owner, name)
    return found


def digest_of(world: World) -> str:
    """Everything that stands in any log."""
    digest = hashlib.sha256()
    for spec in TOPICS:
        name = NAMES.topic(spec.name)
        for number in range(world.cluster.partition_count(name)):
            for entry in world.cluster.stored(name, number):
                digest.update(repr(entry).encode())
    return digest.hexdigest()


def live(seed: int, plan: Plan | None = None) -> Lived:
    """Live a seed's life to its end, or to the first violation."""
    life = Life(plan or draw(seed))
    violation: Violated | None = None
    began_ms = life.world.cluster.now_ms
    with Listening(life.marks), mock.patch.object(function_tools, "compile_schema", compiled_once):
        try:
            life.safety()
            life.liveness()
        except Violated as raised:
            violation = raised
        digest = digest_of(life.world)
        life.world.close()
    return Lived(
        seed,
        None if violation is None else str(violation),
        None if violation is None else violation.fault.value,
        life.marks.counts,
        digest,
        (life.world.cluster.now_ms - began_ms) / 1000,
        life.looks,
    )
