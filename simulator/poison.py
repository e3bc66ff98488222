"""What should not be in the log and is all the same: garbage, strangers' records, copies."""

from __future__ import annotations

from typing import Final

from perdure.processors.clock import new_id
from perdure.schemas.codec import encode
from perdure.schemas.commands import Cancel, Command
from perdure.schemas.results import Completed, Result, Suspect
from perdure.topics.log import TopicPartition
from perdure.topics.partitioner import partition_of
from perdure.topics.table import MODEL_REQUESTS, RUN_COMMANDS, RUN_RESULTS, TOOL_REQUESTS
from simulator.world import NAMES, World

LARGE_BYTES: Final = (1 << 20) + 1
COPIES_MAX: Final = 8


class Poison:
    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.random

    def _partition(self) -> int:
        return self._random.randrange(self._world.plan.partitions)

    def _write(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> None:
        place = self._world.write(topic, partition, key, value)
        if place is not None and value is not None:
            self._world.poison.add(place)
        self._world.marks.add(f"poison_{topic}")

    def poison_command(self) -> None:
        good = encode(Command(Cancel("poison"), "c" * 8))
        long_id = encode(Command(Cancel("poison"), "c" * 300))
        run_id = b"r0"
        own = partition_of("r0", self._world.plan.partitions)
        kind = self._random.randrange(7)
        match kind:
            case 0:
                self._write(RUN_COMMANDS, self._partition(), run_id, self._random.randbytes(20))
            case 1:
                self._write(RUN_COMMANDS, self._partition(), b"no/run id", good)
            case 2:
                self._write(RUN_COMMANDS, self._partition(), b"\xff\xfe", good)
            case 3:
                self._write(RUN_COMMANDS, self._partition(), run_id, None)
            case 4:
                self._write(RUN_COMMANDS, own, run_id, long_id)
            case 5 if self._random.random() < 0.2:
                self._write(RUN_COMMANDS, self._partition(), run_id, b"\0" * LARGE_BYTES)
            case _:
                self._write(RUN_COMMANDS, self._partition(), run_id, b"")

    def poison_result(self) -> None:
        world = self._world
        kind = self._random.randrange(4)
        own = partition_of("nobody", world.plan.partitions)
        body = Completed(b'"x"') if kind == 1 else Suspect()
        result = Result(new_id(world.entropy), "nobody", 1, "c", 1, "q", "w", body)
        match kind:
            case 0:
                self._write(RUN_RESULTS, self._partition(), b"key", self._random.randbytes(30))
            case 1 | 2:
                self._write(RUN_RESULTS, own, b"nobody/1/c/1", encode(result))
            case _:
                self._write(RUN_RESULTS, self._partition(), b"k", None)

    def poison_request(self) -> None:
        topic = self._random.choice((MODEL_REQUESTS, TOOL_REQUESTS))
        self._write(topic, self._partition(), b"r0", self._random.choice((b"", b"garbage", None)))

    def repeat_result(self) -> None:
        """Results come a second time, as when a topic is mirrored from its start."""
        world = self._world
        at = TopicPartition(NAMES.topic(RUN_RESULTS), self._partition())
        entries = [each for each in world.cluster.visible(at.topic, at.partition) if each.value is not None]
        for _ in range(self._random.randint(1, COPIES_MAX)):
            if entries:
                chosen = self._random.choice(entries)
                if (at.topic, at.partition, chosen.offset) in world.poison:
                    continue
                world.write(RUN_RESULTS, at.partition, chosen.key, chosen.value)
                world.marks.add("result_repeated")
