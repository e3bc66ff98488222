"""What an event platform and a downstream consumer would write: confluent-kafka and fastavro, nothing of
perdure.

Only the names of topics and the .avsc files are shared.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import fastavro
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from fastavro.schema import fingerprint, to_parsing_canonical_form

AVRO = Path(__file__).absolute().parents[1] / "schemas" / "avro"
MARKER = b"\xc3\x01"


class Codec:
    """Avro single-object encoding of one record type, from its .avsc alone."""

    def __init__(self, name: str) -> None:
        raw = json.loads((AVRO / f"{name}.avsc").read_text(encoding="utf-8"))
        self._schema = fastavro.parse_schema(raw)
        crc = fingerprint(to_parsing_canonical_form(self._schema), "CRC-64-AVRO")
        self._head = MARKER + int(crc, 16).to_bytes(8, "big")

    def encode(self, record: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, self._schema, record)
        return self._head + out.getvalue()

    def decode(self, data: bytes) -> dict[str, Any]:
        assert data[:10] == self._head, "another schema"
        found = fastavro.schemaless_reader(io.BytesIO(data[10:]), self._schema, None, return_record_name=True)
        assert isinstance(found, dict)
        return found


def feed(bootstrap: str, topic: str, agent: str, run_ids: Iterable[str]) -> None:
    """Submit runs as any Kafka client would: default partitioner (not murmur2), no command ids."""
    codec = Codec("Command")
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5})
    for run_id in run_ids:
        body = {"agent": agent, "input": json.dumps(f"serve {run_id}").encode()}
        command = {"body": ("dev.perdure.Submit", body)}
        producer.produce(topic, key=run_id.encode(), value=codec.encode(command))
        producer.poll(0)
    assert producer.flush(60) == 0


def read_all(bootstrap: str, topic: str) -> Iterator[tuple[bytes, bytes | None, int, int]]:
    """(key, value, partition, offset) of everything committed up to the end as of now."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "outside-reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        open_ones = set(partitions)
        while open_ones:
            for message in consumer.consume(500, 1.0):
                error = message.error()
                if error is None:
                    partition, offset = message.partition(), message.offset()
                    assert partition is not None
                    assert offset is not None
                    yield message.key() or b"", message.value(), partition, offset
                elif error.code() == -191:  # partition EOF
                    open_ones.discard(message.partition())
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()


def outcomes(bootstrap: str, topic: str) -> Counter[tuple[str, int]]:
    """How many outcomes stand in the committed log per (run, execution)."""
    codec = Codec("Outcome")
    found: Counter[tuple[str, int]] = Counter()
    for _, value, _, _ in read_all(bootstrap, topic):
        if value is not None:
            record = codec.decode(value)
            found[record["run_id"], record["execution"]] += 1
    return found


def newest(bootstrap: str, topic: str) -> dict[bytes, bytes]:
    """The newest value per key, without what was removed."""
    found: dict[bytes, bytes] = {}
    for key, value, _, _ in read_all(bootstrap, topic):
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value
    return found
