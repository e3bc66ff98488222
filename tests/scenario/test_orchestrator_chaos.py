"""Processes are killed, stopped and cut off at random; one seed, one history; each run lives one life."""

from __future__ import annotations

import random

import pytest

from perdure.processors.orchestrator.host import SlotTaken
from perdure.processors.store_memory import MemoryStores
from perdure.topics.model_faults import Api, Fate
from tests.scenario.orchestrator_stage import Stage, Worker

SLOTS = ("a", "b", "c")
ROUNDS = 150
RUNS = 40
# Frames that never get an answer come to rest by time-outs, not by a quiet cluster.
APIS = (Api.PRODUCE, Api.TXN_OFFSETS, Api.END_TXN, Api.INIT)
FATES = (Fate.LOST, Fate.UNANSWERED, Fate.HELD)


class Chaos:
    """One seed's history."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.stage = Stage()
        self.disks = {slot: MemoryStores() for slot in SLOTS}
        self.stopped: list[Worker] = []
        self.waiting = [f"run-{n}" for n in range(RUNS)]

    def play(self) -> None:
        for _ in range(ROUNDS):
            self.chance.choice(
                (self.live, self.live, self.live, self.live, self.submit, self.submit, self.disturb)
            )()
        while self.waiting:
            self.submit()
        self.calm()

    def live(self) -> None:
        for _ in range(self.chance.randint(1, 6)):
            self.step()
            self.stage.pass_ms(self.chance.choice((0, 1, 20, 300)))
        if self.chance.random() < 0.7:
            self.stage.play()

    def submit(self) -> None:
        for _ in range(self.chance.randint(1, 3)):
            if self.waiting:
                self.stage.submit(self.waiting.pop())

    def disturb(self) -> None:
        slot = self.chance.choice(SLOTS)
        worker = next((each for each in self.stage.workers if each.slot == slot), None)
        faults = self.stage.cluster.faults
        match self.chance.randrange(9):
            case 0 | 1 if worker is None:
                self.stage.worker(slot, self.disks[slot])
            case 2 if worker is not None:
                worker.kill()
            case 3 if worker is not None:
                worker.kill()
                self.disks[slot] = MemoryStores()
            case 4 if worker is not None:
                worker.stop()
            case 5 if worker is not None:
                worker.log.stop()
                self.stage.workers.remove(worker)
                self.stopped.append(worker)
            case 6 if self.stopped:
                self.go_on(self.stopped.pop())
            case 7:
                fate, api = self.chance.choice(FATES), self.chance.choice(APIS)
                faults.inject(api, self.stage.settings.namespace.prefix + f".orchestrator.{slot}", fate)
            case 8:
                faults.marker_delay_ms = self.chance.choice((0, 0, 5, 500))
                faults.late_records = self.chance.random() < 0.5
                faults.release()
            case _:
                pass

    def go_on(self, worker: Worker) -> None:
        """SIGCONT; the process finds out by itself what became of it."""
        worker.log.go_on()
        if any(each.slot == worker.slot for each in self.stage.workers):
            # Its slot was taken meanwhile: it may take some steps beside the newer one.
            for _ in range(3):
                try:
                    worker.host.step()
                except SlotTaken:
                    break
            worker.log.kill_all()
        else:
            self.stage.workers.append(worker)

    def step(self) -> None:
        for worker in list(self.stage.workers):
            try:
                worker.host.step()
            except SlotTaken:
                worker.kill()

    def calm(self) -> None:
        """No more disturbance: one process of each slot, and time."""
        self.stage.cluster.faults.marker_delay_ms = 0
        self.stage.cluster.faults.release()
        self.stage.cluster.release_markers()
        for worker in self.stopped:
            worker.log.kill_all()
        for slot in SLOTS:
            if not any(worker.slot == slot for worker in self.stage.workers):
                self.stage.worker(slot, self.disks[slot])
        self.stage.play_to_the_end(ms_max=600_000)


@pytest.mark.parametrize("seed", range(12))
def test_each_run_lives_one_life(seed: int) -> None:
    """Whatever befell the processes, each run has one outcome and an undisturbed life's requests."""
    chaos = Chaos(seed)
    chaos.play()
    stage = chaos.stage
    stage.check_histories()
    assert stage.dead_letters() == []
    assert len(stage.outcomes()) == RUNS
    for run_id in {outcome.run_id for outcome in stage.outcomes()}:
        assert [request.turn for request in stage.model_requests(run_id)] == [1, 2]
        assert len(stage.events(run_id)) == 9
