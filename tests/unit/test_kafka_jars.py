"""The jar cache: whole or absent, whatever happens to the fetch."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from perdure.connectors.java import Java
from perdure.connectors.kafka_jars import NEEDED, FetchFailed, MavenMissing, cache_folder, kafka_jars

JAVA = Java(Path("/usr/bin/java"), 17)

# A stand-in for Maven: notes that it ran, then does as PRETEND says.
MAVEN = """#!/bin/sh
echo ran >> "$MAVEN_RUNS"
for argument; do
    case "$argument" in -DoutputDirectory=*) out="${argument#-DoutputDirectory=}" ;; esac
done
mkdir -p "$out"
for jar in $MAVEN_JARS; do : > "$out/$jar"; done
echo "artifact not found" >&2
exit "$MAVEN_EXIT"
"""


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts the stand-in on PATH; the file that it notes its runs in."""
    binary = tmp_path / "bin" / "mvn"
    binary.parent.mkdir()
    binary.write_text(MAVEN)
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    runs = tmp_path / "runs"
    monkeypatch.setenv("PATH", f"{binary.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("MAVEN_RUNS", str(runs))
    monkeypatch.setenv("MAVEN_JARS", " ".join(NEEDED))
    monkeypatch.setenv("MAVEN_EXIT", "0")
    return runs


def test_jars_are_fetched_once(maven: Path, tmp_path: Path) -> None:
    """A second start finds the folder of the first and asks Maven nothing."""
    cache = tmp_path / "cache"
    folder = kafka_jars(JAVA, cache)
    assert kafka_jars(JAVA, cache) == folder
    assert sorted(path.name for path in folder.iterdir()) == sorted(NEEDED)
    assert maven.read_text() == "ran\n"


def test_a_failed_fetch_leaves_no_folder_that_the_next_start_trusts(
    maven: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maven's words are in the error; once it works, the next start fetches all of it."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("MAVEN_EXIT", "1")
    with pytest.raises(FetchFailed, match=r"artifact not found.*PERDURE_BOOTSTRAP"):
        kafka_jars(JAVA, cache)
    monkeypatch.setenv("MAVEN_EXIT", "0")
    assert all((kafka_jars(JAVA, cache) / name).is_file() for name in NEEDED)
    assert maven.read_text() == "ran\nran\n"


@pytest.mark.usefixtures("maven")
def test_a_fetch_that_brings_too_little_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exit code of 0 is not believed: the broker's and the tools' jars have to be there."""
    monkeypatch.setenv("MAVEN_JARS", NEEDED[0])
    with pytest.raises(FetchFailed, match=NEEDED[1]):
        kafka_jars(JAVA, tmp_path / "cache")


@pytest.mark.usefixtures("maven")
def test_what_a_killed_fetch_left_is_removed(tmp_path: Path) -> None:
    """A half-filled workshop of another process neither counts as jars nor stays."""
    left = tmp_path / "cache" / "fetching-1"
    (left / "jars").mkdir(parents=True)
    (left / "jars" / NEEDED[0]).write_bytes(b"half")
    folder = kafka_jars(JAVA, tmp_path / "cache")
    assert (folder / NEEDED[0]).read_bytes() == b""
    assert not left.exists()
    assert list((tmp_path / "cache").glob("fetching-*")) == []


def test_two_starts_at_once_fetch_once(maven: Path, tmp_path: Path) -> None:
    """The second waits for the first and uses what it fetched."""
    cache = tmp_path / "cache"
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(kafka_jars(JAVA, cache))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0] == found[1]
    assert maven.read_text() == "ran\n"


def test_without_maven_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Maven and no jars: the message offers Maven, a running Kafka and docker compose."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MavenMissing, match=r"Install Maven.*PERDURE_BOOTSTRAP.*docker compose"):
        kafka_jars(JAVA, tmp_path / "cache")


def test_cached_jars_need_no_maven(maven: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline and without Maven, a machine that once fetched still starts its broker."""
    folder = kafka_jars(JAVA, tmp_path / "cache")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert kafka_jars(JAVA, tmp_path / "cache") == folder
    assert maven.read_text() == "ran\n"


def test_the_cache_is_where_the_user_says(tmp_path: Path) -> None:
    """PERDURE_KAFKA_JARS, then the XDG cache, then .cache in the home folder."""
    assert cache_folder({"PERDURE_KAFKA_JARS": str(tmp_path)}) == tmp_path
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "perdure" / "kafka-jars"
    assert cache_folder({}) == Path.home() / ".cache" / "perdure" / "kafka-jars"
