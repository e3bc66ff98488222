"""``python -m chaos.transactions``: the shape of Kafka's own transaction test, on the product.

Numbered commands go into many runs while orchestrators and brokers are bounced, hard (SIGKILL) and clean
(SIGTERM). Afterwards each run's history must hold each of its commands once, in the order in which they were
sent. The last line of standard output is one JSON object; the exit code is 0 only if nothing is wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, Message, Producer

from chaos.app import BLIND
from chaos.checker import DEAD_LETTERS, EVENTS, Checker, Reader
from chaos.cluster import Cluster
from chaos.faults import Faults
from chaos.outside import Codec
from chaos.worker import Worker, environment_of
from perdure.connectors.settings import Settings
from perdure.console.topics import provisioned
from perdure.topics.table import Role

FOLDER: Final = Path(".perdure") / "transactions"
NAMESPACE: Final = "transactions"
PARTITIONS: Final = 6
REPLICATION: Final = 3
ORCHESTRATORS: Final = 3
COMMANDS_PER_RUN: Final = 50
BOUNCES: Final = ("kill_worker", "end_worker", "stop_worker", "kill_broker", "end_broker")
ROUND_S: Final = 30.0
CALM_S_MAX: Final = 300.0
SEND_S_MAX: Final = 180.0
READ_S: Final = 0.2
FAULTS_SHOWN_MAX: Final = 20
DAY_MS: Final = 86_400_000
NO_MODEL: Final = 9
"""A port at which nobody listens: the runs wait for tomorrow and never ask a model."""

_begun_s: Final = time.monotonic()


def tell(text: str) -> None:
    print(f"{time.monotonic() - _begun_s:6.1f} s  {text}", file=sys.stderr, flush=True)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="chaos.transactions", description=__doc__)
    parser.add_argument("--commands", type=int, default=100_000, help="(default: %(default)s)")
    parser.add_argument("--rate", type=int, default=1_500, help="commands a second (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the bounces (default: %(default)s)")
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="where its files go (default: %(default)s)"
    )
    options = parser.parse_args(given)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    figures = run_bounced(options.commands, options.rate, options.seed, options.folder.absolute())
    print(json.dumps(figures))
    return 0 if figures["violations"] == 0 else 1


class Sender:
    """Numbers a run's commands and sends them, run after run, in a thread of its own.

    ``sent``: by run id, the numbers the cluster has confirmed, in that order.
    """

    def __init__(self, bootstrap: str, commands: int, rate: int) -> None:
        self.sent: dict[str, list[str]] = {}
        self.refused = 0
        self._rate = rate
        self._commands = commands
        self._codec = Codec("Command")
        self._topic = f"{NAMESPACE}.run-commands"
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",  # the right partition at once: order holds per partition
                "message.timeout.ms": int(SEND_S_MAX * 1_000),
                "linger.ms": 5,
                "queue.buffering.max.messages": commands + 10_000,
                "log_level": 0,
            }
        )
        self.thread = threading.Thread(target=self._send, name="sender", daemon=True)

    def _send(self) -> None:
        runs = [f"run-{number:05d}" for number in range(max(1, self._commands // COMMANDS_PER_RUN))]
        tomorrow_ms = int(time.time() * 1_000) + DAY_MS
        submit = {"agent": BLIND, "input": b'"wait"', "not_before_ms": tomorrow_ms}
        for run_id in runs:
            self._produce(run_id, "submit", ("dev.perdure.Submit", submit))
        begun_s = time.monotonic()
        for number in range(self._commands):
            text = str(number // len(runs))
            self._produce(runs[number % len(runs)], text, ("dev.perdure.Signal", {"message": text}))
            while number > (time.monotonic() - begun_s) * self._rate:
                self._producer.poll(0.005)
        self._producer.flush(SEND_S_MAX)

    def _produce(self, run_id: str, text: str, body: tuple[str, dict[str, Any]]) -> None:
        def told(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                self.refused += 1
            elif text == "submit":
                self.sent.setdefault(run_id, [])
            else:
                self.sent.setdefault(run_id, []).append(text)

        value = self._codec.encode({"body": body, "command_id": f"{run_id}/{text}"})
        self._producer.produce(self._topic, key=run_id.encode(), value=value, on_delivery=told)
        self._producer.poll(0)


def run_bounced(commands: int, rate: int, seed: int, folder: Path) -> dict[str, Any]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        cluster = Cluster(folder)
        stack.callback(cluster.close)
        cluster.start()
        provisioned(
            Settings(
                bootstrap=cluster.bootstrap,
                namespace=NAMESPACE,
                partitions=PARTITIONS,
                replication=REPLICATION,
            )
        )
        environment = environment_of(
            cluster.bootstrap, NAMESPACE, folder / "state", NO_MODEL, folder / "truth.log", PARTITIONS
        )
        workers = [
            Worker(
                Role.ORCHESTRATOR, f"orchestrator-{number}", environment,
                folder / "state" / NAMESPACE, folder / f"orchestrator-{number}.log",
            )
            for number in range(ORCHESTRATORS)
        ]  # fmt: skip
        for worker in workers:
            stack.callback(worker.end_at_once)
            worker.start()
        faults = Faults(cluster, workers, random.Random(seed), tell, BOUNCES)
        reader = Reader(cluster.bootstrap, NAMESPACE, (EVENTS,))
        stack.callback(reader.close)
        checker = Checker()
        sender = Sender(cluster.bootstrap, commands, rate)
        tell(f"{commands} commands")
        _await(reader, checker, sender, faults, 1)
        sender_begun_s = time.monotonic()
        while sender.thread.is_alive():
            faults.go(ROUND_S)
            _take(reader, checker)
            tell(f"{_seen(checker)} of {commands} commands are in histories")
        is_whole = _await(reader, checker, sender, faults, commands)
        seconds = time.monotonic() - sender_begun_s
        return _figures(cluster, sender, faults, commands, seconds, is_whole=is_whole)


def _await(reader: Reader, checker: Checker, sender: Sender, faults: Faults, least: int) -> bool:
    """Until so many commands are in histories; starts the sender when it does not run yet."""
    if sender.thread.ident is None:
        sender.thread.start()
    end_s = time.monotonic() + CALM_S_MAX
    while _seen(checker) < least:
        if time.monotonic() > end_s:
            return False
        faults.tend()
        _take(reader, checker)
    return True


def _take(reader: Reader, checker: Checker) -> None:
    while records := reader.more(READ_S):
        for topic, _, value in records:
            checker.take(topic, value)


def _seen(checker: Checker) -> int:
    return sum(len(seen.signals) for seen in checker.runs.values())


def _figures(
    cluster: Cluster, sender: Sender, faults: Faults, commands: int, seconds: float, *, is_whole: bool
) -> dict[str, Any]:
    """Read the whole log once more, and compare it with what was confirmed."""
    checker = Checker()
    reader = Reader(cluster.bootstrap, NAMESPACE, (EVENTS, DEAD_LETTERS))
    try:
        for topic, _, value in reader.to_end():
            checker.take(topic, value)
    finally:
        reader.close()
    missing = doubled = out_of_order = 0
    for run_id, numbers in sender.sent.items():
        found = checker.runs[run_id].signals
        counts = Counter(found)
        missing += sum(counts[number] == 0 for number in numbers)
        doubled += sum(count - 1 for count in counts.values())
        out_of_order += list(dict.fromkeys(found)) != sorted(set(found), key=int)
    wrong = [
        *checker.faults,
        *([f"{missing} commands are missing"] if missing else []),
        *([f"{doubled} commands are there again"] if doubled else []),
        *([f"{out_of_order} runs have them in another order"] if out_of_order else []),
        *([f"{checker.dead_letters} dead letters"] if checker.dead_letters else []),
        *([] if is_whole else [f"after {CALM_S_MAX} s of calm not all were there"]),
        *([f"the cluster refused {sender.refused} commands"] if sender.refused else []),
    ]
    for fault in wrong[:FAULTS_SHOWN_MAX]:
        tell(f"wrong: {fault}")
    counts_of = dict(sorted(faults.counts.items()))
    return {
        "commands": sum(len(numbers) for numbers in sender.sent.values()),
        "runs": len(sender.sent),
        "missing": missing,
        "doubled": doubled,
        "out_of_order": out_of_order,
        "violations": len(wrong),
        "bounces": counts_of,
        "seconds": round(seconds, 1),
        "commands_per_s": round(commands / seconds, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
