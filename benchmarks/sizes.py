"""How many bytes the brokers keep of each topic, replicas and internal topics included."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from perdure.connectors.java import JavaMissing
from perdure.connectors.kafka_jars import MavenMissing
from perdure.connectors.local_kafka import ToolFailed, kafka_tool

TOOL = "org.apache.kafka.tools.LogDirsCommand"


def kept_bytes(bootstrap: str) -> Mapping[str, int] | None:
    """Bytes by topic, as Kafka's own tool tells them; None where that tool can not be used."""
    try:
        told = kafka_tool(TOOL, ["--bootstrap-server", bootstrap, "--describe"])
    except (ToolFailed, JavaMissing, MavenMissing):
        return None
    return parsed(told)


def parsed(told: str) -> Mapping[str, int]:
    """The tool's JSON line, summed over brokers, folders and partitions."""
    line = next(line for line in told.splitlines() if line.startswith("{"))
    answer: Any = json.loads(line)
    sizes: Counter[str] = Counter()
    for broker in answer["brokers"]:
        for folder in broker["logDirs"]:
            for partition in folder["partitions"]:
                sizes[partition["partition"].rpartition("-")[0]] += partition["size"]
    return sizes


def per_run(
    before: Mapping[str, int] | None, after: Mapping[str, int] | None, runs: int, namespace: str
) -> Mapping[str, int] | None:
    """Bytes added by topic and run, largest first, with their total; only of ours and Kafka's own topics."""
    if before is None or after is None or runs == 0:
        return None
    prefix = f"{namespace}."
    added = {
        topic.removeprefix(prefix): round((size - before.get(topic, 0)) / runs)
        for topic, size in after.items()
        if topic.startswith((prefix, "__"))
    }
    ordered = sorted(((name, size) for name, size in added.items() if size), key=lambda each: -each[1])
    return {"total": sum(size for _, size in ordered), **dict(ordered)}
