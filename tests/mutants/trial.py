"""Trying mutants: which tests reach a line, and what they say when it is changed."""

from __future__ import annotations

import ast
import importlib
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

import coverage
import pytest

from tests.mutants.operators import Mutant

PACKAGE: Final = "perdure.processors.machine"
TESTS: Final = "tests/unit/machine"
SLOW: Final = ("test_properties.py",)
"""They look at everything for seconds: what only they would notice deserves a test of its own."""
ALWAYS: Final = "test_product.py"
"""It plays the machine while it is imported, which is not told as the reach of a test."""
LIMIT_S: Final = 180.0
PRELOADED: Final = (
    "hypothesis",
    "jsonschema",
    "referencing",
    "perdure.schemas.codec",
    "perdure.topics.table",
)


@dataclass(frozen=True, slots=True)
class Reach:
    """(module, line) -> the tests that execute it; and how long each test takes."""

    tests: dict[tuple[str, int], set[str]]
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tests said."""

    is_killed: bool


class _Times:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration


def reach_of_tests(root: Path) -> Reach:
    """Run the tests once, in a fork, and learn what each reaches. Raises AssertionError if one fails."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "coverage"
        times = Path(folder) / "times"
        child = os.fork()
        if child == 0:
            os._exit(_learn(root, data, times))
        _, status = os.waitpid(child, 0)
        assert status == 0, "the tests fail without any mutant"
        known = coverage.CoverageData(str(data))
        known.read()
        tests: dict[tuple[str, int], set[str]] = {}
        for name in known.measured_files():
            for line, contexts in known.contexts_by_lineno(name).items():
                found = {context.rpartition("|")[0] for context in contexts}
                tests[Path(name).stem, line] = {each for each in found if each}
        lines = times.read_text(encoding="utf-8").splitlines()
        pairs = (line.split(" ", maxsplit=1) for line in lines)
        return Reach(tests, {nodeid: float(seconds) for seconds, nodeid in pairs})


def _learn(root: Path, data: Path, times: Path) -> int:
    os.environ["COVERAGE_FILE"] = str(data)
    plugin = _Times()
    options = [f"--cov={PACKAGE}", "--cov-branch", "--cov-context=test", "--cov-report="]
    code = _pytest(root, [*options, TESTS, *_without_slow()], [plugin])
    rows = (f"{seconds} {nodeid}" for nodeid, seconds in plugin.seconds.items())
    times.write_text("\n".join(rows), encoding="utf-8")
    return code


def _without_slow() -> list[str]:
    return [f"--ignore={TESTS}/{name}" for name in SLOW]


def _pytest(root: Path, arguments: Sequence[str], plugins: Sequence[object]) -> int:
    """Run pytest in this process, silently."""
    os.chdir(root)
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    fixed = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header"]
    # What was imported before the fork is not rewritten; how long a test may take is the trial's affair.
    fixed += ["-W", "ignore::pytest.PytestAssertRewriteWarning", "-o", "timeout=0"]
    return int(pytest.main([*fixed, *arguments], plugins=list(plugins)))


class _Planted(MetaPathFinder, Loader):
    """Gives one module of the machine with a fault in it."""

    def __init__(self, name: str, code: CodeType) -> None:
        self._name = name
        self._code = code

    def find_spec(
        self, fullname: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname == self._name else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


class _Only:
    """Of what is collected, these tests, the quick ones first."""

    def __init__(self, order: dict[str, float]) -> None:
        self._order = order

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        wanted = [item for item in items if item.nodeid in self._order]
        items[:] = sorted(wanted, key=lambda item: self._order[item.nodeid])


class Trial:
    """Tries mutants, some at a time, each in a fork of this process."""

    def __init__(self, root: Path, reach: Reach, jobs: int) -> None:
        self._root = root
        self._reach = reach
        self._jobs = jobs
        for name in PRELOADED:
            importlib.import_module(name)
        assert PACKAGE not in sys.modules
        self._check()

    def _check(self) -> None:
        """A fault that is none has to survive every test, or nothing that is killed proves anything."""
        source = (self._root / "processors" / "machine" / "purge.py").read_text(encoding="utf-8")
        harmless = Mutant("purge", "nothing", 1, 1, True, source, (("body", 0),), ast.parse(source).body[0])
        pid, pipe = self._begin(harmless)
        _, status = os.waitpid(pid, 0)
        os.close(pipe)
        assert status == 0, "the tests fail without any fault"

    def verdicts(self, mutants: Iterable[Mutant], end_s: float) -> Iterator[tuple[Mutant, Verdict]]:
        """Each mutant with its verdict, as they come in; none is begun after ``end_s`` (monotonic)."""
        waiting = iter(mutants)
        running: dict[int, tuple[int, Mutant, float]] = {}
        while True:
            while len(running) < self._jobs and time.monotonic() < end_s:
                mutant = next(waiting, None)
                if mutant is None:
                    break
                if not self._tests(mutant):
                    yield mutant, Verdict(is_killed=False)
                    continue
                pid, pipe = self._begin(mutant)
                running[pipe] = pid, mutant, time.monotonic() + LIMIT_S
            if not running:
                return
            ready, _, _ = select.select(list(running), [], [], 1.0)
            overdue = [pipe for pipe, (_, _, limit_s) in running.items() if limit_s < time.monotonic()]
            for pipe in {*ready, *overdue}:
                pid, mutant, _ = running.pop(pipe)
                if pipe not in ready:
                    os.kill(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
                os.close(pipe)
                yield mutant, Verdict(is_killed=status != 0)

    def _tests(self, mutant: Mutant) -> dict[str, float]:
        """The tests that may notice, with how long they take."""
        if mutant.is_at_import:
            return self._reach.seconds
        lines = range(mutant.first_line, mutant.last_line + 1)
        found = set[str]().union(*(self._reach.tests.get((mutant.module, line), set()) for line in lines))
        always = {nodeid for nodeid in self._reach.seconds if ALWAYS in nodeid}
        return {nodeid: self._reach.seconds.get(nodeid, 0.0) for nodeid in found | always}

    def _begin(self, mutant: Mutant) -> tuple[int, int]:
        """A fork that tries it; the pipe ends with the fork."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid:
            os.close(writing)
            return pid, reading
        os.close(reading)
        tests = self._tests(mutant)
        code = compile(mutant.tree(), f"{mutant.module}.py", "exec")
        sys.meta_path.insert(0, _Planted(f"{PACKAGE}.{mutant.module}", code))
        files = sorted({nodeid.partition("::")[0] for nodeid in tests})
        os._exit(_pytest(self._root, files, [_Only(tests)]) and 1)
