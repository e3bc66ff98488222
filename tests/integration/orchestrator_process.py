"""An orchestrator as a process of its own, for tests that kill it: run with one JSON argument."""

from __future__ import annotations

import json
import logging
import signal
import sys
from pathlib import Path

from perdure.processors.clock import SystemClock, SystemEntropy
from perdure.processors.definitions import DefinitionBook
from perdure.processors.orchestrator.host import Orchestrator, run_forever
from perdure.processors.orchestrator.settings import OrchestratorSettings
from perdure.processors.store_rocks import RocksStores
from perdure.processors.watchdog import ThreadWatchdog
from perdure.topics.kafka_log import KafkaLog
from perdure.topics.table import Namespace


def main(bootstrap: str, namespace: str, slot: str, partitions: int, folder: str) -> None:
    """Run until SIGTERM."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    clock, names = SystemClock(), Namespace(namespace)
    log = KafkaLog(bootstrap)
    settings = OrchestratorSettings(namespace=names, slot=slot, partitions=partitions, token_key=b"k" * 32)
    book = DefinitionBook(log, names, clock, settings.client_id("definitions"))
    watchdog = ThreadWatchdog(clock)
    host = Orchestrator(log, RocksStores(Path(folder)), clock, SystemEntropy(), book, settings, watchdog)
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    run_forever(host, lambda: bool(stopping))
    book.close()
    watchdog.close()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
