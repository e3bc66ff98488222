"""One real Kafka broker on loopback, for development, the demo and the tests.

The folder of a broker::

    <folder>/
    ├── owner.lock         held by the broker's JVM and by whoever started it
    ├── broker.properties  written at each start
    ├── broker.log         what the broker said, warnings and up
    └── data/              formatted elsewhere and renamed to this: it is whole or absent
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TextIO

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from perdure.connectors.broker_settings import HOST, broker_settings, free_ports, properties_text
from perdure.connectors.java import Java, JavaProcess, find_java
from perdure.connectors.kafka_jars import kafka_jars
from perdure.schemas.errors import Stop

BOOTSTRAP_VARIABLE: Final = "PERDURE_BOOTSTRAP"
HEAP_MB: Final = 512
TOOL_HEAP_MB: Final = 256
TOOL_TIMEOUT_S: Final = 120.0
READY_ATTEMPTS_MAX: Final = 240
READY_ATTEMPT_S: Final = 0.5
READY_PAUSE_S: Final = 0.02
STOP_TIMEOUT_S: Final = 20.0
KILL_TIMEOUT_S: Final = 10.0
# A killed JVM holds its lock until the kernel has taken it apart.
LOCK_ATTEMPTS_MAX: Final = 100
LOCK_PAUSE_S: Final = 0.1
LOG_TAIL_CHARS: Final = 2_000

# The serial collector and the first compiler only: up soonest, and least work taken from a small machine.
_JVM_FLAGS: Final = (
    "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData",
)  # fmt: skip
_LOG_FLAGS: Final = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
)


class BrokerFailed(Stop):
    """The local Kafka broker did not start."""

    code = "broker_failed"
    remedy = (
        "Read its broker.log; remove its folder to begin anew; or set PERDURE_BOOTSTRAP to a running Kafka."
    )


class FolderBusy(Stop):
    """Another process runs a broker in this folder."""

    code = "broker_folder_busy"
    remedy = "Stop the other one, or choose another folder."


class ToolFailed(Stop):
    """One of Kafka's own command line tools failed."""

    code = "kafka_tool_failed"
    remedy = "Read what it said."


class LocalKafka:
    """A broker that can be started, stopped, killed and started again on the same data and ports.

    Args:
        folder: holds everything the broker writes; made if absent.
        port: where clients connect; a free one if None, kept over restarts of this object.
        overrides: broker settings that win over perdure's own.
        cluster_id: which cluster the node belongs to; one of its own, named after the folder, if None.
        heap_mb: the JVM's heap.
        jars: a folder of Kafka's jars; fetched into the cache if None.
        java: the runtime to use; found if None.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        overrides: Mapping[str, str] | None = None,
        cluster_id: str | None = None,
        heap_mb: int = HEAP_MB,
        jars: Path | None = None,
        java: Java | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self.log_file = self.folder / "broker.log"
        self._wanted_port = port
        self._ports: tuple[int, int] | None = None
        self._overrides = dict(overrides or {})
        self._cluster_id = cluster_id or cluster_id_of(self.folder)
        self._heap_mb = heap_mb
        self._java = java
        self._jars = jars
        self._process: JavaProcess | None = None

    @property
    def bootstrap(self) -> str:
        """The address for ``bootstrap.servers``; known once the broker was started."""
        assert self._ports is not None, "the broker was never started"
        return f"{HOST}:{self._ports[0]}"

    @property
    def pid(self) -> int:
        """The JVM's process id, also after its end."""
        assert self._process is not None, "the broker was never started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    def start(self) -> Self:
        """Start the broker; returns when it answers. Does nothing if it runs.

        Raises:
            JavaMissing, MavenMissing, FetchFailed: what it needs is not there.
            FolderBusy: another process runs a broker here.
            BrokerFailed: it ended or did not answer; the end of its log is in the message.
        """
        if self.running:
            return self
        self._java = self._java or find_java()
        self._jars = self._jars or kafka_jars(self._java)
        self.folder.mkdir(parents=True, exist_ok=True)
        with _owned(self.folder / "owner.lock") as lock:
            self._ports = self._ports or free_ports(self._wanted_port)
            self._format_once()
            properties = self._write_properties(self.folder / "data")
            with self.log_file.open("a") as log:
                command = self._command("kafka.Kafka", [str(properties)], heap_mb=self._heap_mb)
                self._process = JavaProcess(command, output=log, pass_fds=[lock.fileno()])
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """End the broker cleanly (SIGTERM), by force if it takes longer than STOP_TIMEOUT_S."""
        if self._process is not None and self._process.running:
            self._process.signal(signal.SIGTERM)
            if not self._process.wait(STOP_TIMEOUT_S):
                self.kill()

    def kill(self) -> None:
        """End the broker as a crash would (SIGKILL); the page cache keeps what it had acknowledged."""
        if self._process is not None and self._process.running:
            self._process.signal(signal.SIGKILL)
            if not self._process.wait(KILL_TIMEOUT_S):
                raise BrokerFailed(f"Process {self._process.pid} survived SIGKILL.")

    def send(self, number: signal.Signals) -> None:
        """Send the broker a signal: SIGSTOP makes it one that hangs, SIGCONT lets it go on."""
        assert self._process is not None, "the broker was never started"
        self._process.signal(number)

    def tool(self, main_class: str, arguments: Sequence[str]) -> str:
        """Run one of Kafka's own tools, for example ``org.apache.kafka.tools.TopicCommand``; its output.

        Raises:
            ToolFailed: it answered with another exit code than 0, or not at all.
        """
        return kafka_tool(main_class, arguments, jars=self._jars, java=self._java)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _command(self, main_class: str, arguments: Sequence[str], *, heap_mb: int) -> list[str]:
        assert self._java is not None
        assert self._jars is not None
        return _java_command(self._java, self._jars, main_class, arguments, heap_mb=heap_mb)

    def _write_properties(self, data: Path) -> Path:
        assert self._ports is not None
        settings = {**broker_settings(data, self._ports), **self._overrides}
        path = self.folder / "broker.properties"
        path.write_text(properties_text(settings))
        return path

    def _format_once(self) -> None:
        """Lay out the data folder, unless it is there: beside its place, then renamed to it."""
        data, forming = self.folder / "data", self.folder / "data.forming"
        shutil.rmtree(forming, ignore_errors=True)
        if data.exists():
            return
        properties = self._write_properties(forming)
        arguments = ["format", f"--cluster-id={self._cluster_id}", f"--config={properties}"]
        said = self.folder / "format.log"
        with said.open("w") as output:
            tool = JavaProcess(
                self._command("kafka.tools.StorageTool", arguments, heap_mb=TOOL_HEAP_MB), output=output
            )
        if not tool.wait(TOOL_TIMEOUT_S):
            tool.signal(signal.SIGKILL)
            tool.wait(KILL_TIMEOUT_S)
        if tool.exit_code != 0:
            text = said.read_text(errors="replace")[-LOG_TAIL_CHARS:].strip()
            raise BrokerFailed(f"Formatting ended with exit code {tool.exit_code} and said: {text}")
        forming.rename(data)

    def _wait_until_ready(self, process: JavaProcess) -> None:
        """Until the broker lists itself; the client reconnects by itself, an early end is noticed at once."""
        probe = AdminClient(
            {
                "bootstrap.servers": self.bootstrap,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 50,
                # Refused connections are what waiting looks like here.
                "log_level": 0,
            }
        )
        for _ in range(READY_ATTEMPTS_MAX):
            try:
                if probe.list_topics(timeout=READY_ATTEMPT_S).brokers:
                    return
            except KafkaException:
                pass
            if process.wait(READY_PAUSE_S):
                raise BrokerFailed(f"It ended; its log says: {self._log_tail()}")
        raise BrokerFailed(f"It did not answer at {self.bootstrap}; its log says: {self._log_tail()}")

    def _log_tail(self) -> str:
        return self.log_file.read_text(errors="replace")[-LOG_TAIL_CHARS:].strip() or "(nothing)"


def cluster_id_of(folder: Path) -> str:
    """Two brokers are two clusters; one folder stays one cluster. No chance is needed for that."""
    digest = hashlib.sha256(os.fsencode(folder)).digest()[:16]
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def kafka_tool(
    main_class: str, arguments: Sequence[str], *, jars: Path | None = None, java: Java | None = None
) -> str:
    """Run one of Kafka's own tools against any cluster; its standard output.

    Raises:
        ToolFailed: it answered with another exit code than 0, or not within TOOL_TIMEOUT_S.
    """
    java = java or find_java()
    command = _java_command(java, jars or kafka_jars(java), main_class, arguments, heap_mb=TOOL_HEAP_MB)
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TOOL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise ToolFailed(f"{main_class} took longer than {TOOL_TIMEOUT_S:.0f} s.") from late
    if answer.returncode != 0:
        said = (answer.stdout + answer.stderr)[-LOG_TAIL_CHARS:].strip()
        raise ToolFailed(f"{main_class} ended with exit code {answer.returncode}: {said}")
    return answer.stdout


@contextmanager
def bootstrap_or_local(
    folder: Path, *, port: int | None = None, environment: Mapping[str, str] | None = None
) -> Generator[str]:
    """The address in PERDURE_BOOTSTRAP, else that of a local broker which lives as long as the block."""
    given = (os.environ if environment is None else environment).get(BOOTSTRAP_VARIABLE)
    if given:
        yield given
        return
    with LocalKafka(folder, port=port) as broker:
        yield broker.bootstrap


@contextmanager
def _owned(path: Path) -> Generator[TextIO]:
    """Hold the folder's lock. The JVM inherits it, so it is free only when the broker is gone as well."""
    with path.open("w") as held:
        pause = threading.Event()
        for _ in range(LOCK_ATTEMPTS_MAX):
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pause.wait(LOCK_PAUSE_S)
        else:
            raise FolderBusy(f"It is {path.parent}.")
        yield held


def _java_command(
    java: Java, jars: Path, main_class: str, arguments: Sequence[str], *, heap_mb: int
) -> list[str]:
    flags = [f"-Xmx{heap_mb}m", *_JVM_FLAGS, *_LOG_FLAGS]
    return [str(java.binary), *flags, "-cp", f"{jars}/*", main_class, *arguments]
