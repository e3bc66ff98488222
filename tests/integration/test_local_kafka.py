"""The local broker: it starts, comes back with its data, and leaves nothing behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from perdure.connectors.broker_settings import MESSAGE_BYTES_MAX, free_ports
from perdure.connectors.local_kafka import (
    BrokerFailed,
    FolderBusy,
    LocalKafka,
    ToolFailed,
    bootstrap_or_local,
    kafka_tool,
)

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalKafka]:
    local = LocalKafka(tmp_path / "broker")
    try:
        yield local
    finally:
        local.kill()


def _create(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(timeout=30)


def _write(bootstrap: str, topic: str, value: bytes) -> None:
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": MESSAGE_BYTES_MAX})
    producer.produce(topic, value, partition=0, on_delivery=lambda error, _record: errors.append(error))
    assert producer.flush(30) == 0
    assert errors == [None]


def _read(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed"}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [record.value() for record in consumer.consume(count, timeout=30)]
    finally:
        consumer.close()


def test_acknowledged_records_survive_a_stop_and_a_kill_on_the_same_ports(broker: LocalKafka) -> None:
    """What the broker acknowledged is there after SIGTERM and after SIGKILL, at the same address."""
    address = broker.start().bootstrap
    _create(address, "kept")
    _write(address, "kept", b"before the stop")
    broker.stop()
    assert not broker.running
    broker.start()
    _write(address, "kept", b"before the kill")
    broker.kill()
    assert not broker.running
    assert broker.start().bootstrap == address
    assert _read(address, "kept", 2) == [b"before the stop", b"before the kill"]


def test_a_data_folder_that_was_formatted_halfway_is_begun_anew(broker: LocalKafka) -> None:
    """A format that was killed leaves a folder under another name, and the next start does not trip on it."""
    left = broker.folder / "data.forming"
    left.mkdir(parents=True)
    (left / "meta.properties").write_text("cluster.id=\n")
    broker.start()
    assert not left.exists()
    assert (broker.folder / "data" / "meta.properties").is_file()


def test_the_broker_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    """A kill -9 of the parent takes the JVM along; the end of the thread that asked for it does not."""
    program = (
        "import sys, threading\n"
        "from pathlib import Path\n"
        "from perdure.connectors.local_kafka import LocalKafka\n"
        "broker = LocalKafka(Path(sys.argv[1]))\n"
        "starter = threading.Thread(target=broker.start)\n"
        "starter.start(); starter.join()\n"
        "print(broker.pid, broker.running, flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "broker")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        pid, running = parent.stdout.readline().split()
        assert running == "True"
        watched = os.pidfd_open(int(pid))
        parent.kill()
    try:
        # Its end is an event on the pidfd: no polling, no guess how long it takes.
        ended, _, _ = select.select([watched], [], [], 20)
        if not ended:
            signal.pidfd_send_signal(watched, signal.SIGKILL)
        assert ended, "the broker outlived its parent"
    finally:
        os.close(watched)


def test_a_folder_has_one_broker_at_a_time(broker: LocalKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second start in the folder of a running broker is refused with a remedy, and harms nothing."""
    monkeypatch.setattr("perdure.connectors.local_kafka.LOCK_ATTEMPTS_MAX", 2)
    address = broker.start().bootstrap
    with pytest.raises(FolderBusy, match="choose another folder"):
        LocalKafka(broker.folder).start()
    _create(address, "still-there")


def test_a_broker_that_cannot_start_says_what_its_log_says(tmp_path: Path) -> None:
    """A setting that Kafka refuses ends in an error that quotes Kafka, not in a wait."""
    broken = LocalKafka(tmp_path / "broker", overrides={"num.io.threads": "0"})
    with pytest.raises(BrokerFailed, match=r"num\.io\.threads"):
        broken.start()
    assert not broken.running


def test_the_broker_runs_with_the_settings_that_perdure_relies_on(kafka: str) -> None:
    """Records up to 4 MiB, no topics by accident, offsets kept 30 days, dead transactions found soon."""
    resource = ConfigResource(ResourceType.BROKER, "1")
    admin = AdminClient({"bootstrap.servers": kafka})
    (answer,) = admin.describe_configs([resource]).values()
    settings = {name: entry.value for name, entry in answer.result(timeout=30).items()}
    assert settings["message.max.bytes"] == "4194304"
    assert settings["auto.create.topics.enable"] == "false"
    assert int(str(settings["offsets.retention.minutes"])) >= 30 * 24 * 60
    assert settings["transaction.abort.timed.out.transaction.cleanup.interval.ms"] == "1000"
    assert settings["group.consumer.session.timeout.ms"] == "6000"


def test_kafkas_own_tools_run_from_the_same_jars(kafka: str, namespace: str) -> None:
    """A group's offsets can be described with Kafka's tool, and a tool's failure carries what it said."""
    _create(kafka, namespace)
    described = kafka_tool(
        "org.apache.kafka.tools.TopicCommand",
        ["--bootstrap-server", kafka, "--describe", "--topic", namespace],
    )
    assert f"Topic: {namespace}" in described
    with pytest.raises(ToolFailed, match="does not exist"):
        kafka_tool(
            "org.apache.kafka.tools.TopicCommand",
            ["--bootstrap-server", kafka, "--describe", "--topic", "absent"],
        )


def test_a_given_cluster_is_used_and_no_broker_is_started(tmp_path: Path) -> None:
    """PERDURE_BOOTSTRAP wins over a local broker; its folder is not even made."""
    folder = tmp_path / "broker"
    with bootstrap_or_local(folder, environment={"PERDURE_BOOTSTRAP": "kafka.internal:9092"}) as address:
        assert address == "kafka.internal:9092"
    assert not folder.exists()


def test_ports_are_outside_the_range_that_clients_are_given() -> None:
    """A reconnecting client can never be given the broker's own port."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(free_ports()) < lowest
