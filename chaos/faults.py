"""What happens to brokers, workers and the wires between them, drawn from a seed."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from math import ceil
from typing import Final

from chaos.cluster import Cluster
from chaos.proxy import Weather
from chaos.worker import Worker

# How often a minute.
PLAN: Final = {
    "kill_worker": 3.0,
    "stop_worker": 0.9,
    "end_worker": 0.6,
    "kill_broker": 1.2,
    "end_broker": 0.3,
    "stop_broker": 0.3,
    "weather": 2.0,
}
AWAY_S: Final = (0.5, 4.0)
ZOMBIE_S: Final = (6.5, 11.0)
BROKER_AWAY_S: Final = (0.5, 5.0)
BROKER_STOPPED_S: Final = (2.0, 8.0)
WEATHER_S: Final = (2.0, 8.0)
ROUGH: Final = (Weather.DELAY, Weather.HOLD, Weather.DROP, Weather.CUT)
ENDS_S_MAX: Final = 40.0
QUIET_SHARE: Final = 0.06
"""Of the time, at its end, in which nothing new goes wrong."""


class Faults:
    """Each fault is a thread's work from its beginning to its end; ``counts`` says what was done."""

    def __init__(
        self,
        cluster: Cluster,
        workers: Sequence[Worker],
        chance: random.Random,
        tell: Callable[[str], None],
        kinds: Sequence[str] = tuple(PLAN),
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._workers = list(workers)
        self._chance = chance
        self._tell = tell
        self._kinds = kinds
        self._lock = threading.Lock()
        self._busy: set[object] = set()
        self._broker_fault = threading.Lock()
        self._threads: list[threading.Thread] = []

    def go(self, seconds: float) -> None:
        """All faults of that time, spread over it; returns when each has been undone."""
        planned = [
            (self._chance.uniform(0, seconds * (1 - QUIET_SHARE)), kind)
            for kind in self._kinds
            for _ in range(ceil(PLAN[kind] * seconds / 60))
        ]
        begun_s = time.monotonic()
        for at_s, kind in sorted(planned):
            while time.monotonic() < begun_s + at_s:
                self.tend()
                time.sleep(0.1)
            act: Callable[[random.Random], None] = getattr(self, f"_{kind}")
            chance = random.Random(self._chance.random())
            thread = threading.Thread(target=act, args=(chance,), name=kind, daemon=True)
            thread.start()
            self._threads.append(thread)
        while time.monotonic() < begun_s + seconds or any(each.is_alive() for each in self._threads):
            self.tend()
            time.sleep(0.1)
        for proxy in self._cluster.proxies:
            proxy.change(Weather.CLEAR)

    def tend(self) -> None:
        """Start again what has ended by itself, as a supervisor would."""
        for worker in self._workers:
            if self._take(worker):
                try:
                    if not worker.running:
                        self.counts["ended_by_themselves"] += 1
                        self._tell(f"{worker.slot} ended by itself: {worker.told()[-300:]}")
                        worker.start()
                finally:
                    self._give_back(worker)

    # ---- what can happen

    def _kill_worker(self, chance: random.Random) -> None:
        worker = self._some_worker(chance)
        self._tell(f"kill -9 {worker.slot}")
        worker.kill()
        self.counts["kills"] += 1
        if chance.random() < 0.25:
            worker.forget()
            self.counts["folders_deleted"] += 1
        time.sleep(chance.uniform(*AWAY_S))
        worker.start()
        self._give_back(worker)

    def _stop_worker(self, chance: random.Random) -> None:
        worker = self._some_worker(chance)
        seconds = chance.uniform(*ZOMBIE_S)
        self._tell(f"stop {worker.slot} for {seconds:.1f} s")
        worker.send(signal.SIGSTOP)
        time.sleep(seconds)
        worker.send(signal.SIGCONT)
        self.counts["zombies"] += 1
        self._give_back(worker)

    def _end_worker(self, chance: random.Random) -> None:
        worker = self._some_worker(chance)
        self._tell(f"ask {worker.slot} to end")
        worker.send(signal.SIGTERM)
        if not worker.wait_until_gone(ENDS_S_MAX):
            self.counts["never_drained"] += 1
            worker.kill()
        self.counts["ends"] += 1
        worker.start()
        self._give_back(worker)

    def _kill_broker(self, chance: random.Random) -> None:
        with self._broker_fault:  # two of three at once would be no cluster
            broker = chance.choice(self._cluster.brokers)
            self._tell(f"kill -9 broker {broker.folder.name}")
            broker.kill()
            self.counts["broker_kills"] += 1
            time.sleep(chance.uniform(*BROKER_AWAY_S))
            begun_s = time.monotonic()
            broker.start()
            self._tell(f"broker {broker.folder.name} is back after {time.monotonic() - begun_s:.1f} s")

    def _end_broker(self, chance: random.Random) -> None:
        with self._broker_fault:
            broker = chance.choice(self._cluster.brokers)
            self._tell(f"ask broker {broker.folder.name} to end")
            broker.stop()
            self.counts["broker_ends"] += 1
            broker.start()

    def _stop_broker(self, chance: random.Random) -> None:
        with self._broker_fault:
            broker = chance.choice(self._cluster.brokers)
            seconds = chance.uniform(*BROKER_STOPPED_S)
            self._tell(f"stop broker {broker.folder.name} for {seconds:.1f} s")
            broker.send(signal.SIGSTOP)
            time.sleep(seconds)
            broker.send(signal.SIGCONT)
            self.counts["broker_stops"] += 1

    def _weather(self, chance: random.Random) -> None:
        proxy, weather = chance.choice(self._cluster.proxies), chance.choice(ROUGH)
        seconds = chance.uniform(*WEATHER_S)
        self._tell(f"{weather.value} frames of a broker for {seconds:.1f} s")
        proxy.change(weather)
        time.sleep(seconds)
        proxy.change(Weather.CLEAR)
        self.counts[f"weather_{weather.value}"] += 1

    # ---- inside

    def _some_worker(self, chance: random.Random) -> Worker:
        """A running one that nothing else happens to; it is taken until it is given back."""
        while True:
            worker = chance.choice(self._workers)
            if self._take(worker):
                if worker.running:
                    return worker
                self._give_back(worker)
            time.sleep(0.05)

    def _take(self, what: object) -> bool:
        with self._lock:
            if what in self._busy:
                return False
            self._busy.add(what)
            return True

    def _give_back(self, what: object) -> None:
        with self._lock:
            self._busy.discard(what)
