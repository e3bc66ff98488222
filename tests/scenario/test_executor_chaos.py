"""Executors under random kills, freezes, lost and late frames, with an orchestrator that decides by log
order.

Each seed is one history under virtual time; a failure names its seed and can be run again alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest

from perdure.processors.executor.engine import Phase
from perdure.schemas.results import Completed, Declined, Failed, Result, Started, Suspect
from perdure.schemas.values import Effect
from perdure.topics.log import GroupProtocol
from perdure.topics.model_faults import Api, Fate
from tests.scenario.executor_stage import ONCE, READ, Stage, Worker

CALLS = 60
WORKERS_MAX = 3
TICK_MS = 40
QUIET_MS = 120_000
PARTITIONS = 2


@dataclass
class Ledger:
    """What an orchestrator knows of one call."""

    call_id: str
    effect: Effect
    partition: int
    ms: int
    attempt: int = 1
    is_started: bool = False
    is_closed: bool = False
    is_ambiguous: bool = False


class Orchestrator:
    """Dispatches the next attempt only where the log says that the last one did not run."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._read = [0] * stage.partitions
        self.ledgers: dict[str, Ledger] = {}

    def ask(self, ledger: Ledger) -> None:
        self.ledgers[ledger.call_id] = ledger
        self._dispatch(ledger)

    def step(self) -> None:
        for partition in range(self._stage.partitions):
            results = self._stage.results(partition)
            for result in results[self._read[partition] :]:
                self._decide(result)
            self._read[partition] = len(results)

    def _decide(self, result: Result) -> None:
        ledger = self.ledgers[result.call_id]
        if ledger.is_closed or result.attempt != ledger.attempt:
            return
        match result.body:
            case Started():
                ledger.is_started = True
            case Completed() | Failed():
                ledger.is_closed = True
            case Suspect() if ledger.effect is ONCE and ledger.is_started:
                ledger.is_ambiguous = True
            case Suspect() | Declined():
                ledger.attempt += 1
                ledger.is_started = ledger.is_ambiguous = False
                self._dispatch(ledger)
            case _:
                raise AssertionError(result)

    def _dispatch(self, ledger: Ledger) -> None:
        self._stage.ask(
            ledger.call_id,
            ledger.effect,
            f"sleep:{ledger.ms}",
            partition=ledger.partition,
            attempt=ledger.attempt,
        )


class Chaos:
    """One seeded history."""

    def __init__(self, seed: int, protocol: GroupProtocol) -> None:
        self.random = Random(seed)
        self.stage = Stage(partitions=PARTITIONS, protocol=protocol)
        self.stage.provision()
        self.orchestrator = Orchestrator(self.stage)
        self._count = 0
        self._frozen: list[Worker] = []

    @property
    def _living(self) -> list[Worker]:
        return [
            each
            for each in self.stage.workers
            if each.is_alive and each.executor.phase is not Phase.STOPPED and each not in self._frozen
        ]

    def run(self) -> None:
        while self._count < CALLS:
            self._disturb()
            if self.random.random() < 0.5:
                self._ask()
            self._tick(TICK_MS)
        self._thaw()
        until_ms = self.stage.cluster.now_ms + QUIET_MS
        while not self._is_resolved() and self.stage.cluster.now_ms < until_ms:
            self.stage.cluster.faults.release()  # what is still to be held is held one tick
            if not self._living:
                self._hire()
            self._tick(TICK_MS)

    def close(self) -> None:
        for worker in self.stage.workers:
            worker.runner.close()

    def _is_resolved(self) -> bool:
        return all(each.is_closed or each.is_ambiguous for each in self.orchestrator.ledgers.values())

    def _tick(self, ms: int) -> None:
        living = self._living
        if living:
            self.stage.run(ms, *living)
        else:
            self.stage.cluster.advance(ms)
        self.orchestrator.step()

    def _ask(self) -> None:
        effect = self.random.choice((ONCE, ONCE, READ))
        ms = self.random.choice((0, 10, 200, 3_000))
        partition = self.random.randrange(PARTITIONS)
        self.orchestrator.ask(Ledger(f"c{self._count}", effect, partition, ms))
        self._count += 1

    def _hire(self) -> None:
        self.stage.worker(f"w{len(self.stage.workers)}")

    def _disturb(self) -> None:
        living = self._living
        if not living or (len(living) < WORKERS_MAX and self.random.random() < 0.05):
            self._hire()
            return
        victim = self.random.choice(living)
        match self.random.randrange(30):
            case 0 | 1:
                victim.kill()
            case 2:
                victim.executor.drain()
            case 3 | 4:
                victim.log.stop()
                self._frozen.append(victim)
            case 5 | 6:
                self._thaw()
            case 7 | 8:
                self.stage.cluster.advance(self.random.choice((100, 2_500, 50_000)))
            case 9 | 10:
                fate = self.random.choice(list(Fate))
                self.stage.cluster.faults.inject(Api.OFFSET_COMMIT, victim.client_id, fate)
            case 11 | 12:
                self.stage.cluster.faults.inject(Api.PRODUCE, victim.results_id, Fate.HELD)
            case 13:
                self.stage.cluster.faults.inject(Api.HEARTBEAT, victim.client_id, Fate.LOST)
            case 14 | 15:
                self.stage.cluster.faults.release()
            case _:
                pass

    def _thaw(self) -> None:
        for each in self._frozen:
            if each.is_alive:
                each.log.go_on()
        self._frozen.clear()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("protocol", list(GroupProtocol))
@pytest.mark.parametrize("seed", range(5))
def test_no_call_is_executed_twice_whatever_happens(seed: int, protocol: GroupProtocol) -> None:
    """A non_idempotent call begins at most once over all its attempts, and every call is resolved in
    the end.
    """
    chaos = Chaos(seed, protocol)
    try:
        chaos.run()
    finally:
        chaos.close()
    ledgers = chaos.orchestrator.ledgers
    begun = {call: chaos.stage.begun(call) for call, each in ledgers.items() if each.effect is ONCE}
    assert {call: times for call, times in begun.items() if times > 1} == {}
    open_ = [each for each in ledgers.values() if not each.is_closed and not each.is_ambiguous]
    assert open_ == []
    assert len(chaos.stage.workers) > WORKERS_MAX, "nothing was disturbed"
