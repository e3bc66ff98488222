"""The topics of perdure as data: what flows, who writes it, who reads it, and how long it is kept.

Names here are short; a :class:`Namespace` puts its prefix before them. Provisioning, access rules, consumers
and the documentation are made from this table, so that they can not disagree with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final

from perdure.schemas.errors import Reject

SECOND_MS: Final = 1_000
HOUR_MS: Final = 3_600 * SECOND_MS
DAY_MS: Final = 24 * HOUR_MS

PARTITIONS_DEFAULT: Final = 8  # final without a migration: a run's records are found by this number
REPLICATION_DEFAULT: Final = 1

# perdure's own limit for a command or a result; what is larger is dead-lettered as head, digest and position.
INBOX_BYTES_MAX: Final = 1 << 20
# What a topic takes in one batch of records. Larger than the own limit, so that an oversized record can be
# told.
TOPIC_BYTES_MAX: Final = 4 << 20
# One record, key, headers and frame included, as a client accepts it; the frame of its batch must still fit.
PRODUCED_BYTES_MAX: Final = TOPIC_BYTES_MAX - 128

# A command that a later one of the same run replaces must not vanish before it was read, outages included.
COMMANDS_COMPACTION_LAG_MS: Final = 30 * DAY_MS
# How long a tombstone stays visible. A local store older than half of this can not know what was deleted.
DELETE_RETENTION_MS: Final = 7 * DAY_MS
DELTAS_RETENTION_MS: Final = 6 * HOUR_MS
DEAD_LETTERS_RETENTION_MS: Final = 28 * DAY_MS
UNLIMITED: Final = -1

# With that many replicas a record is acknowledged by two of them, and one broker may be away.
REPLICATION_FOR_TWO_IN_SYNC: Final = 3

RUN_COMMANDS: Final = "run-commands"
RUN_RESULTS: Final = "run-results"
RUN_EVENTS: Final = "run-events"
MODEL_REQUESTS: Final = "model-requests"
TOOL_REQUESTS: Final = "tool-requests"
RUN_STATUS: Final = "run-status"
RUN_OUTCOMES: Final = "run-outcomes"
RUN_APPROVALS: Final = "run-approvals"
RUN_SIGNALS: Final = "run-signals"
RUN_DELTAS: Final = "run-deltas"
AGENT_DEFINITIONS: Final = "agent-definitions"
DEAD_LETTERS: Final = "dead-letters"


class Role(Enum):
    """What a process does; each role that consumes as a group is one group, scaled by adding processes."""

    ORCHESTRATOR = "orchestrator"
    MODEL_CALLER = "model-caller"
    TOOL_EXECUTOR = "tool-executor"


class Cleanup(Enum):
    """What removes records from a topic."""

    COMPACT = "compact"
    DELETE = "delete"  # by age
    CONSUMER = "consumer"  # by DeleteRecords of the consuming role below its committed base; never by age


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One topic. ``name`` has no prefix; ``key`` is the record key's layout; ``config`` are broker settings.

    ``run_keyed``: partitioned by run id over the pinned number of partitions, as every other such topic, so
    that partition p of each speaks of the same runs. Otherwise the topic has one partition.
    """

    name: str
    key: str
    cleanup: Cleanup
    written_by: tuple[str, ...]
    read_by: tuple[str, ...]
    run_keyed: bool = True
    config: Mapping[str, str] = field(default_factory=dict[str, str])

    def partitions(self, pinned: int) -> int:
        return pinned if self.run_keyed else 1

    def settings(self, replication: int) -> Mapping[str, str]:
        """Every broker setting the topic is to have, as the broker spells them."""
        return MappingProxyType(
            {
                "cleanup.policy": "compact" if self.cleanup is Cleanup.COMPACT else "delete",
                "max.message.bytes": str(TOPIC_BYTES_MAX),
                "min.insync.replicas": "2" if replication >= REPLICATION_FOR_TWO_IN_SYNC else "1",
                **_KEPT[self.cleanup],
                **self.config,
            }
        )


_KEPT: Final[Mapping[Cleanup, Mapping[str, str]]] = {
    Cleanup.COMPACT: {"delete.retention.ms": str(DELETE_RETENTION_MS)},
    Cleanup.DELETE: {},
    Cleanup.CONSUMER: {"retention.ms": str(UNLIMITED), "retention.bytes": str(UNLIMITED)},
}

_APPEND_TIME: Final[Mapping[str, str]] = {"message.timestamp.type": "LogAppendTime"}

_ORCHESTRATOR: Final = Role.ORCHESTRATOR.value
_MODEL_CALLER: Final = Role.MODEL_CALLER.value
_TOOL_EXECUTOR: Final = Role.TOOL_EXECUTOR.value

TOPICS: Final[tuple[TopicSpec, ...]] = (
    TopicSpec(
        name=RUN_COMMANDS,
        key="run_id",
        cleanup=Cleanup.COMPACT,
        written_by=("client", "trigger", _ORCHESTRATOR),
        read_by=(_ORCHESTRATOR,),
        config={**_APPEND_TIME, "min.compaction.lag.ms": str(COMMANDS_COMPACTION_LAG_MS)},
    ),
    TopicSpec(
        name=RUN_RESULTS,
        key="run_id/turn/call/attempt",
        cleanup=Cleanup.CONSUMER,
        written_by=(_MODEL_CALLER, _TOOL_EXECUTOR),
        read_by=(_ORCHESTRATOR,),
        config=_APPEND_TIME,
    ),
    TopicSpec(
        name=RUN_EVENTS,
        key="run_id/seq",
        cleanup=Cleanup.COMPACT,
        written_by=(_ORCHESTRATOR,),
        read_by=("anyone",),
    ),
    TopicSpec(
        name=MODEL_REQUESTS,
        key="run_id",
        cleanup=Cleanup.CONSUMER,
        written_by=(_ORCHESTRATOR,),
        read_by=(_MODEL_CALLER,),
        config=_APPEND_TIME,
    ),
    TopicSpec(
        name=TOOL_REQUESTS,
        key="run_id",
        cleanup=Cleanup.CONSUMER,
        written_by=(_ORCHESTRATOR,),
        read_by=(_TOOL_EXECUTOR,),
        config=_APPEND_TIME,
    ),
    TopicSpec(
        name=RUN_STATUS,
        key="run_id",
        cleanup=Cleanup.COMPACT,
        written_by=(_ORCHESTRATOR,),
        read_by=("view",),
    ),
    TopicSpec(
        name=RUN_OUTCOMES,
        key="run_id",
        cleanup=Cleanup.COMPACT,
        written_by=(_ORCHESTRATOR,),
        read_by=("downstream",),
    ),
    TopicSpec(
        name=RUN_APPROVALS,
        key="run_id/call_id",
        cleanup=Cleanup.COMPACT,
        written_by=(_ORCHESTRATOR,),
        read_by=("inbox",),
    ),
    TopicSpec(
        name=RUN_SIGNALS,
        key="run_id",
        cleanup=Cleanup.COMPACT,
        written_by=(_ORCHESTRATOR,),
        read_by=(_MODEL_CALLER, _TOOL_EXECUTOR),
    ),
    TopicSpec(
        name=RUN_DELTAS,
        key="run_id",
        cleanup=Cleanup.DELETE,
        written_by=(_MODEL_CALLER,),
        read_by=("viewer",),
        config={"retention.ms": str(DELTAS_RETENTION_MS)},
    ),
    TopicSpec(
        name=AGENT_DEFINITIONS,
        key="agent/version/content hash",
        cleanup=Cleanup.COMPACT,
        written_by=("deployer",),
        read_by=("anyone",),
        run_keyed=False,  # small, and read to its end by whoever misses a definition
    ),
    TopicSpec(
        name=DEAD_LETTERS,
        key="source topic/partition/offset",
        cleanup=Cleanup.DELETE,
        written_by=("anyone",),
        read_by=("operator",),
        run_keyed=False,  # read by people, in the order in which things went wrong
        config={"retention.ms": str(DEAD_LETTERS_RETENTION_MS)},
    ),
)

BY_NAME: Final[Mapping[str, TopicSpec]] = MappingProxyType({each.name: each for each in TOPICS})

# What each group commits offsets for.
INPUTS: Final[Mapping[Role, tuple[str, ...]]] = MappingProxyType(
    {
        Role.ORCHESTRATOR: (RUN_COMMANDS, RUN_RESULTS),
        Role.MODEL_CALLER: (MODEL_REQUESTS,),
        Role.TOOL_EXECUTOR: (TOOL_REQUESTS,),
    }
)
# Groups whose committed metadata carries the map of what was started and done.
MAPPED: Final = frozenset({Role.MODEL_CALLER, Role.TOOL_EXECUTOR})

NAMESPACE_DEFAULT: Final = "perdure"
NAMESPACE_CHARS_MAX: Final = 100  # Kafka's own limit for a topic name is 249
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


class NamespaceRefused(Reject):
    """A namespace is not usable as the prefix of topic names."""

    code = "namespace_refused"
    remedy = f"Use up to {NAMESPACE_CHARS_MAX} of letters, digits, dot, underscore and hyphen."


@dataclass(frozen=True, slots=True)
class Namespace:
    """A prefix that lets several installations share one cluster. Every name at the broker is made here."""

    prefix: str = NAMESPACE_DEFAULT

    def __post_init__(self) -> None:
        if len(self.prefix) > NAMESPACE_CHARS_MAX or not _NAMESPACE.fullmatch(self.prefix):
            raise NamespaceRefused(f"{self.prefix!r}.")

    def topic(self, name: str) -> str:
        """Full name of the table's topic ``name``. Raises KeyError for a name the table does not have."""
        return f"{self.prefix}.{BY_NAME[name].name}"

    def name(self, topic: str) -> str | None:
        """The table's name of a full topic name, or None for a topic that is not of this namespace."""
        head, tail = topic[: len(self.prefix) + 1], topic[len(self.prefix) + 1 :]
        return tail if head == f"{self.prefix}." and tail in BY_NAME else None

    def group(self, role: Role) -> str:
        return f"{self.prefix}.{role.value}"

    def transactional_id(self, role: Role, slot: str) -> str:
        """Stable for a slot, so that whoever takes the slot over fences its predecessor."""
        return f"{self.prefix}.{role.value}.{slot}"

    def instance_id(self, role: Role, slot: str) -> str:
        """The ``group.instance.id`` of a slot (static membership, the orchestrator's alone)."""
        return f"{self.prefix}.{role.value}.{slot}"

    def client_id(self, role: Role, slot: str, purpose: str) -> str:
        """A client's name as brokers log it; ``purpose`` tells a process's clients apart."""
        return f"{self.prefix}.{role.value}.{slot}.{purpose}"
