"""Settings of every Kafka client perdure opens: what a user may pass through, and what is not theirs to set.

What is passed through as ``kafka.*`` (security, sockets, compression, debugging) goes to every client
unchanged. Settings that perdure's guarantees rest on are refused by name instead of being overridden in
silence.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, TypeAlias

from perdure.schemas.errors import Reject
from perdure.topics.errors import LogMisuse
from perdure.topics.log import ConsumerSpec, GroupProtocol
from perdure.topics.table import PRODUCED_BYTES_MAX

logger: Final = logging.getLogger("perdure.kafka")

Setting: TypeAlias = str | int | bool
Settings: TypeAlias = dict[str, object]

# A dead connection is noticed after this; below the 6 s in which a silent member is evicted.
SOCKET_TIMEOUT_MS: Final = 5_000
CONNECT_TIMEOUT_MS: Final = 5_000
# The client's default maximum of 10 s would let a restarted broker wait for its clients. Against a port that
# refuses connections it pauses for half of the first number each time (measured).
RECONNECT_BACKOFF_MS: Final = 200
RECONNECT_BACKOFF_MAX_MS: Final = 1_000
# The broker answers CONCURRENT_TRANSACTIONS until the previous transaction's markers are written; with the
# client's default of 100 ms a transaction of 3 ms takes 104 ms.
PRODUCER_RETRY_BACKOFF_MS: Final = 2
PRODUCER_RETRY_BACKOFF_MAX_MS: Final = 10
CONSUMER_RETRY_BACKOFF_MAX_MS: Final = 1_000
# How long a partition whose local queue is full waits before it looks again; the client's default of one
# second would bound a reader to one queue a second.
FETCH_QUEUE_BACKOFF_MS: Final = 10

# What the client logs as an error and mends by itself, many times a second while a broker is away; and what
# it also tells its caller, who knows whether it was expected.
_PASSING_FACILITIES: Final = frozenset({"FAIL", "REQTMOUT", "GETPID", "FATAL", "TXNERR"})


class ClientLog:
    """Where the clients' own log lines go (confluent-kafka calls ``log`` alone)."""

    def log(self, level: int, message: str, facility: str, client: str, text: str) -> None:
        passing = facility in _PASSING_FACILITIES
        logger.log(logging.DEBUG if passing else level, message, facility, client, text)


client_log: Final = ClientLog()

PROTECTED: Final[Mapping[str, str]] = {
    "acks": "a record counts as written only when all in-sync replicas have it",
    "allow.auto.create.topics": "topics are made by provisioning, with a pinned partition count",
    "auto.commit.enable": "offsets are committed with the work they stand for",
    "auto.commit.interval.ms": "offsets are committed with the work they stand for",
    "auto.offset.reset": "a missing offset has to be told, never skipped",
    "bootstrap.servers": "it is a setting of its own",
    "client.id": "perdure names its clients after role and slot",
    "default.topic.config": "it would reach the settings refused here by another way",
    "enable.auto.commit": "offsets are committed with the work they stand for",
    "enable.auto.offset.store": "offsets are committed with the work they stand for",
    "enable.gapless.guarantee": "it stops a producer that has to go on",
    "enable.idempotence": "without it the client's re-sends may double or reorder records",
    "enable.partition.eof": "a restore ends where the reader reports the end",
    "group.id": "perdure names its groups",
    "group.instance.id": "perdure names its members after their slot",
    "group.protocol": "perdure chooses it by role and broker",
    "group.remote.assignor": "perdure chooses it by role and broker",
    "heartbeat.interval.ms": "it is part of a role's membership",
    "isolation.level": "perdure reads committed records only",
    "max.in.flight": "more than five reorder records",
    "max.in.flight.requests.per.connection": "more than five reorder records",
    "max.poll.interval.ms": "it is part of a role's membership",
    "message.max.bytes": "it follows from the topics' own limit",
    "message.send.max.retries": "giving up early leaves a record's fate open",
    "metadata.broker.list": "it is another name of bootstrap.servers",
    "partition.assignment.strategy": "perdure chooses it by role and broker",
    "request.required.acks": "a record counts as written only when all in-sync replicas have it",
    "retries": "giving up early leaves a record's fate open",
    "retry.backoff.max.ms": "an executor's lease is shorter than its hidden re-sends",
    "retry.backoff.ms": "an executor's lease is shorter than its hidden re-sends",
    "session.timeout.ms": "it is part of a role's membership",
    "transaction.timeout.ms": "restore waits for it",
    "transactional.id": "perdure names it after the slot, so that a successor fences its predecessor",
}


class SettingRefused(Reject):
    """A setting passed through to Kafka is refused."""

    code = "kafka_setting_refused"
    remedy = "Remove it from the kafka.* settings."


def checked(extra: Mapping[str, Setting]) -> dict[str, Setting]:
    """``extra`` itself, or :class:`SettingRefused` naming the first key that may not be set."""
    for key in sorted(extra):
        if (why := PROTECTED.get(key)) is not None:
            raise SettingRefused(f"kafka.{key}: {why}.")
        if key.endswith("_cb"):
            raise SettingRefused(f"kafka.{key}: callbacks can not be set from outside.")
    return dict(extra)


def common(bootstrap: str, client_id: str, extra: Mapping[str, Setting]) -> Settings:
    return {
        "socket.nagle.disable": True,
        "socket.keepalive.enable": True,
        "socket.connection.setup.timeout.ms": CONNECT_TIMEOUT_MS,
        "reconnect.backoff.ms": RECONNECT_BACKOFF_MS,
        "reconnect.backoff.max.ms": RECONNECT_BACKOFF_MAX_MS,
        **extra,
        "bootstrap.servers": bootstrap,
        "client.id": client_id,
    }


def consumer(bootstrap: str, extra: Mapping[str, Setting], spec: ConsumerSpec) -> Settings:
    settings: Settings = {
        "socket.timeout.ms": SOCKET_TIMEOUT_MS,
        **common(bootstrap, spec.client_id, extra),
        # The client wants a group even from a reader that never joins one.
        "group.id": spec.group if spec.group is not None else spec.client_id,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "allow.auto.create.topics": False,
        "enable.partition.eof": spec.eof,
        "max.poll.interval.ms": spec.max_poll_interval_ms,
        "fetch.wait.max.ms": spec.fetch_wait_ms,
        "fetch.queue.backoff.ms": FETCH_QUEUE_BACKOFF_MS,
        "queued.min.messages": spec.queued_records_min,
        "retry.backoff.ms": spec.commit_retry_backoff_ms,
        "retry.backoff.max.ms": max(spec.commit_retry_backoff_ms, CONSUMER_RETRY_BACKOFF_MAX_MS),
    }
    if spec.instance_id is not None:
        if spec.group is None:
            raise LogMisuse("An instance id without a group.")
        settings["group.instance.id"] = spec.instance_id
    if spec.protocol is GroupProtocol.CONSUMER:
        settings["group.protocol"] = "consumer"  # sessions and the assignor are the broker's to set (KIP-848)
    else:
        settings["group.protocol"] = "classic"
        settings["partition.assignment.strategy"] = spec.protocol.value
        settings["session.timeout.ms"] = spec.session_timeout_ms
        settings["heartbeat.interval.ms"] = spec.heartbeat_interval_ms
    return settings


def producer(bootstrap: str, extra: Mapping[str, Setting], client_id: str) -> Settings:
    return {
        "linger.ms": 0,
        **common(bootstrap, client_id, extra),
        "enable.idempotence": True,
        "acks": "all",
        "message.max.bytes": PRODUCED_BYTES_MAX,
        "retry.backoff.ms": PRODUCER_RETRY_BACKOFF_MS,
        "retry.backoff.max.ms": PRODUCER_RETRY_BACKOFF_MAX_MS,
    }


def transactional(
    bootstrap: str, extra: Mapping[str, Setting], transactional_id: str, transaction_timeout_ms: int
) -> Settings:
    return {
        **producer(bootstrap, extra, transactional_id),
        "transactional.id": transactional_id,
        "transaction.timeout.ms": transaction_timeout_ms,
    }


def admin(bootstrap: str, extra: Mapping[str, Setting]) -> Settings:
    return {"socket.timeout.ms": SOCKET_TIMEOUT_MS, **common(bootstrap, "perdure.admin", extra)}
