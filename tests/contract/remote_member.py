"""A group member in a process of its own, to be killed: prints what it owns, a line for each change."""

from __future__ import annotations

import json
import sys

from perdure.topics.kafka_log import KafkaLog
from perdure.topics.log import Consumer, ConsumerSpec, GroupProtocol, TopicPartition


class Printer:
    """A listener that reads nothing of what it owns."""

    def __init__(self, protocol: GroupProtocol) -> None:
        self._protocol = protocol
        self._owned: set[TopicPartition] = set()

    def on_assign(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None:
        if self._protocol.incremental:
            self._owned |= set(partitions)
            consumer.incremental_assign([])
        else:
            self._owned = set(partitions)
            consumer.assign([])
        self._say()

    def on_revoke(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None:
        self._owned -= set(partitions)
        self._say()

    def on_lost(self, consumer: Consumer, partitions: tuple[TopicPartition, ...]) -> None:
        self.on_revoke(consumer, partitions)

    def _say(self) -> None:
        sys.stdout.write(json.dumps([[at.topic, at.partition] for at in sorted(self._owned)]) + "\n")
        sys.stdout.flush()


def main() -> None:
    bootstrap, spec, topics = json.loads(sys.argv[1])
    protocol = GroupProtocol(spec.pop("protocol"))
    consumer = KafkaLog(bootstrap).consumer(ConsumerSpec(**spec, protocol=protocol))
    consumer.subscribe(topics, Printer(protocol))
    while True:
        consumer.poll(1, 0.1)


if __name__ == "__main__":
    main()
