"""A downstream system: reads how runs ended, with confluent-kafka and fastavro alone, nothing of perdure.

Two things matter. ``isolation.level`` is set explicitly: outcomes are written in transactions, and a reader
of uncommitted records would see outcomes of transactions that were aborted (librdkafka's default is
read_committed, that of Java clients is not). And the key to deduplicate by is (run_id, execution): it stands
exactly once.

::

    python examples/outcomes_consumer.py [COUNT]      # from the start, COUNT outcomes or until Ctrl-C
"""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import fastavro
from confluent_kafka import Consumer

SCHEMA = (
    Path(__file__).absolute().parents[1] / "schemas" / "avro" / "Outcome.avsc"
)  # or: perdure schemas Outcome
TOPIC = f"{os.environ.get('PERDURE_NAMESPACE', 'perdure')}.run-outcomes"
HEADER_BYTES = 10  # Avro single-object encoding: C3 01 and the schema's fingerprint, then the record


def main() -> None:
    """Print an outcome a line."""
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else None
    schema: Any = fastavro.parse_schema(json.loads(SCHEMA.read_text(encoding="utf-8")))
    untyped: Any = fastavro
    consumer = Consumer(
        {
            "bootstrap.servers": os.environ.get("PERDURE_BOOTSTRAP", "127.0.0.1:9092"),
            "group.id": os.environ.get("OUTCOMES_GROUP", "outcomes-example"),
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([TOPIC])
    seen = 0
    try:
        while wanted is None or seen < wanted:
            message = consumer.poll(1.0)
            value = None if message is None or message.error() else message.value()
            if message is None or value is None:
                continue
            outcome = untyped.schemaless_reader(io.BytesIO(value[HEADER_BYTES:]), schema, None)
            told = {name: outcome[name] for name in ("run_id", "execution", "state", "code")}
            output = outcome["output"]
            print(json.dumps({**told, "output": json.loads(output) if output else None}), flush=True)
            consumer.commit(message=message, asynchronous=False)  # after the work, so that none is lost
            seen += 1
    except KeyboardInterrupt:
        pass
    finally:
        consumer.close()


if __name__ == "__main__":
    main()
