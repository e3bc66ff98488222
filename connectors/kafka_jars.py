"""Kafka's jars: fetched once through Maven, kept in a cache folder, never half there."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from perdure.connectors.java import Java
from perdure.schemas.errors import Stop

KAFKA_VERSION: Final = "4.2.0"
POM: Final = Path(__file__).with_name("local_kafka.pom.xml")
FETCH_TIMEOUT_S: Final = 600.0
NEEDED: Final = (f"kafka_2.13-{KAFKA_VERSION}.jar", f"kafka-tools-{KAFKA_VERSION}.jar")
_OUTPUT_TAIL_CHARS: Final = 2_000

_OTHER_WAYS: Final = "or set PERDURE_BOOTSTRAP to the address of a running Kafka; or run `docker compose up`."


class MavenMissing(Stop):
    """Kafka's jars are not in the cache and there is no Maven (`mvn`) to fetch them."""

    code = "maven_missing"
    remedy = f"Install Maven; {_OTHER_WAYS}"


class FetchFailed(Stop):
    """Maven could not fetch Kafka's jars."""

    code = "jars_fetch_failed"
    remedy = f"Mend what Maven says and start again; {_OTHER_WAYS}"


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Where jars are kept: PERDURE_KAFKA_JARS, else perdure's folder in the user's cache (XDG)."""
    environment = os.environ if environment is None else environment
    chosen = environment.get("PERDURE_KAFKA_JARS")
    if chosen:
        return Path(chosen)
    cache = environment.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "perdure" / "kafka-jars"


def kafka_jars(java: Java, cache: Path | None = None) -> Path:
    """The folder that holds exactly the jars of :data:`POM`, fetched if it is not there yet.

    The folder's name carries a digest of the pom, so another version never meets these jars. It appears by a
    rename once Maven is done with it; what a killed fetch left is removed by the next one. Concurrent callers
    wait for each other.

    Raises:
        MavenMissing: the jars have to be fetched and ``mvn`` is not on PATH.
        FetchFailed: Maven failed; its last lines are in the message.
    """
    cache = cache_folder() if cache is None else cache
    digest = hashlib.sha256(POM.read_bytes()).hexdigest()[:12]
    ready = cache / f"kafka-{KAFKA_VERSION}-{digest}"
    if ready.is_dir():
        return ready
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / "fetch.lock"):
        if not ready.is_dir():
            for left in cache.glob("fetching-*"):
                shutil.rmtree(left, ignore_errors=True)
            # Named after this process: the Maven of a fetch that was killed may still be writing to its own.
            _fetch(java, cache / f"fetching-{os.getpid()}", ready)
    return ready


@contextmanager
def _locked(path: Path) -> Generator[None]:
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _fetch(java: Java, workshop: Path, ready: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise MavenMissing
    workshop.mkdir()
    # Maven wants a file called pom.xml in a folder that it may write to.
    shutil.copyfile(POM, workshop / "pom.xml")
    jars = workshop / "jars"
    command = [
        maven, "--quiet", "--batch-mode", "--strict-checksums", "--file", str(workshop / "pom.xml"),
        "dependency:copy-dependencies", f"-DoutputDirectory={jars}", "-DincludeScope=runtime",
    ]  # fmt: skip
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
            env={**os.environ, "JAVA_HOME": str(java.home)},
        )
    except subprocess.TimeoutExpired as late:
        raise FetchFailed(f"It took longer than {FETCH_TIMEOUT_S:.0f} s.") from late
    missing = [name for name in NEEDED if not (jars / name).is_file()]
    if answer.returncode != 0 or missing:
        said = (answer.stdout + answer.stderr)[-_OUTPUT_TAIL_CHARS:].strip()
        raise FetchFailed(f"Exit code {answer.returncode}, missing {missing}: {said}")
    jars.rename(ready)
    shutil.rmtree(workshop)
