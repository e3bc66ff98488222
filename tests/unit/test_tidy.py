"""Rules about the source text itself. A fault is listed with its place, all of them at once."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = ("connectors", "console", "processors", "schemas", "testing", "topics")
BESIDE = ("benchmarks", "chaos", "examples", "simulator", "tests")
MODULE_LINES_MAX = 499
MODULE_LINES_MEDIAN_MAX = 199
FUNCTION_LINES_MAX = 69
LINE_CHARS_MAX = 110

# The owner of clocks and of chance; everything else in the product is handed them.
CLOCK_OWNER = "processors/clock.py"
CHANCE_AND_TIME_MODULES = {"random", "secrets", "time", "uuid"}
CHANCE_AND_TIME_CALLS = {
    "asyncio.get_event_loop().time", "asyncio.get_running_loop().time", "date.today", "datetime.date.today",
    "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.now", "datetime.utcnow", "loop.time",
    "os.getrandom", "os.urandom", "ulid.ULID", "ULID",
}  # fmt: skip
# File -> why it may ask the machine itself. Tests, examples and benchmarks may: they are the world outside.
CHANCE_AND_TIME_ALLOWED: dict[str, str] = {}
# A generator that is given its seed draws nothing from the machine: the model log is one seed, one history.
SEEDED = "random.Random"

# Modules that nothing in the product imports, and why each is there all the same.
PUBLIC: dict[str, str] = {
    "testing/bed.py": "the test kit, which tests of agents import",
}

# What the pure machine may import beside schemas and itself: nothing that waits, asks or touches anything.
PURE_MODULES = {
    "__future__", "base64", "collections", "dataclasses", "decimal", "enum", "functools", "hashlib", "hmac",
    "itertools", "json", "math", "msgspec", "operator", "re", "string", "types", "typing",
}  # fmt: skip

ADDRESS = re.compile(r"https?://([^/\s\"'<>]+)[^\s\"'<>]*")
REGISTRY_WORDS = re.compile(r"pypi|python[h]osted|npm|crates|maven|repo1|proxy\.|registry|rubygems|index\.")
INDEX_OPTIONS = re.compile(r"--(extra-)?index-url|--find-links|--trusted-host|<repository>|<mirror>")
MACHINE_PATH = re.compile(r"(?<![\w.~}*/:-])/(work|root|home|Users)/\w")


def _product_files() -> list[Path]:
    layers = [path for layer in LAYERS for path in (ROOT / layer).rglob("*.py")]
    return sorted([ROOT / "__init__.py", *layers])


def _all_modules() -> list[Path]:
    beside = [path for folder in BESIDE for path in (ROOT / folder).rglob("*.py")]
    return sorted([*_product_files(), *beside])


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def _dotted(node: ast.AST) -> str:
    """``datetime.now`` for that attribute; calls inside are kept as ``()``."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            return f"{_dotted(value)}.{attribute}"
        case ast.Call(func=function):
            return f"{_dotted(function)}()"
        case _:
            return "?"


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of each import, wherever it stands; for ``from a import b`` both a and a.b."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{_name(path)}:{node.lineno} imports relatively"
            assert node.module is not None
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def test_modules_stay_short() -> None:
    """No module has 500 lines or more."""
    long = {_name(path): len(path.read_text().splitlines()) for path in _all_modules()}
    assert {name: lines for name, lines in long.items() if lines > MODULE_LINES_MAX} == {}


def test_most_modules_are_much_shorter() -> None:
    """The median of the product's modules is below 200 lines."""
    lines = [len(path.read_text().splitlines()) for path in _product_files() if path.name != "__init__.py"]
    assert statistics.median(lines) <= MODULE_LINES_MEDIAN_MAX


def test_functions_stay_short() -> None:
    """No function has 70 lines or more, its signature and docstring included."""
    long = [
        f"{_name(path)}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path in _all_modules()
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert long == []


DIRECTIVE = re.compile(r"  # (?:noqa|type: ignore|pyright: ignore)")


def test_lines_fit() -> None:
    """No line is longer than 110 characters; directives to tools do not count."""
    long = [
        f"{_name(path)}:{number}"
        for path in _all_modules()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(DIRECTIVE.split(line)[0].rstrip()) > LINE_CHARS_MAX
    ]
    assert long == []


def _only_seeded(path: Path) -> set[str]:
    """``random`` itself, if all that is taken from it is Random."""
    taken = {name for _, name in _imports(path) if name.startswith("random.")}
    plain = any(
        isinstance(node, ast.Import) and any(alias.name == "random" for alias in node.names)
        for node in ast.walk(_tree(path))
    )
    return {"random"} if taken == {SEEDED} and not plain else set()


def _is_unseeded(call: ast.Call) -> bool:
    return _dotted(call.func) in {"Random", SEEDED} and not call.args and not call.keywords


def test_one_module_owns_clocks_and_chance() -> None:
    """Outside processors/clock.py nothing in the product reads a clock or draws a random number."""
    assert (ROOT / CLOCK_OWNER).is_file()
    faults: list[str] = []
    for path in _product_files():
        if _name(path) == CLOCK_OWNER or _name(path) in CHANCE_AND_TIME_ALLOWED:
            continue
        faults.extend(
            f"{_name(path)}:{line} imports {name}"
            for line, name in _imports(path)
            if name.split(".")[0] in CHANCE_AND_TIME_MODULES and name not in {SEEDED, *_only_seeded(path)}
        )
        faults.extend(
            f"{_name(path)}:{node.lineno} calls {_dotted(node.func)}"
            for node in ast.walk(_tree(path))
            if isinstance(node, ast.Call)
            and (_dotted(node.func) in CHANCE_AND_TIME_CALLS or _is_unseeded(node))
        )
    assert sorted(set(faults)) == []


def test_the_machine_is_pure() -> None:
    """processors/machine imports schemas, itself and modules that compute; nothing else."""
    faults: list[str] = []
    for path in (ROOT / "processors" / "machine").rglob("*.py"):
        for line, name in _imports(path):
            inside = name.startswith(("perdure.schemas", "perdure.processors.machine"))
            # `from perdure.processors import machine` yields the parent too.
            if not inside and name != "perdure.processors" and name.split(".")[0] not in PURE_MODULES:
                faults.append(f"{_name(path)}:{line} imports {name}")
    assert faults == []


def _mentioned(path: Path) -> set[str]:
    """Every perdure name that a module imports or holds as text (lazy imports, ``python -m``)."""
    names = {name for _, name in _imports(path)}
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.update(
                re.findall(r"perdure(?:\.\w+)+", node.value) if len(node.value) < LINE_CHARS_MAX else ()
            )
    return names


def _entry_points() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    scripts = {target.split(":")[0] for target in project["scripts"].values()}
    run = set(re.findall(r"-m (perdure(?:\.\w+)+)", (ROOT / "Makefile").read_text()))
    return scripts | run | {f"{name}.__main__" for name in run}  # what -m runs of a package


def test_no_module_is_dead() -> None:
    """Each module of the product can be reached from an entry point, the facade or a public module."""
    modules = {
        ".".join(("perdure", *path.relative_to(ROOT).with_suffix("").parts)): path
        for path in _product_files()
    }
    by_name = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    public = {".".join(("perdure", *Path(name).with_suffix("").parts)) for name in PUBLIC}
    waiting = ["perdure", *_entry_points(), *public]
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in by_name and name not in reached:
            reached.add(name)
            waiting.extend(_mentioned(by_name[name]))
            waiting.extend(name.rpartition(".")[:1])
    assert sorted(set(by_name) - reached) == []


def test_each_exception_still_has_its_file() -> None:
    """A file that was moved or removed leaves no exception behind."""
    assert [name for name in [*CHANCE_AND_TIME_ALLOWED, *PUBLIC] if not (ROOT / name).is_file()] == []


def test_each_test_says_its_claim() -> None:
    """Every test has a docstring, and its first paragraph is one sentence that ends."""
    faults: list[str] = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                claim = (ast.get_docstring(node) or "").split("\n\n")[0].strip()
                if not claim.endswith((".", "?", "!", ")")):
                    faults.append(f"{_name(path)}:{node.lineno} {node.name}")
    assert faults == []


def _texts() -> Iterator[tuple[str, str]]:
    """Every text file that is or would be committed."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git work tree: which files are the project's cannot be told")
    for name in sorted(set(listed.stdout.split("\0")) - {""}):
        path = ROOT / name
        if path.is_file() and not path.is_symlink():
            try:
                yield name, path.read_text()
            except UnicodeDecodeError:
                continue


def test_no_file_names_a_package_registry_or_a_path_of_one_machine() -> None:
    """What is committed installs from wherever its user installs, and lies wherever its user put it."""
    faults: list[str] = []
    for name, text in _texts():
        for number, line in enumerate(text.splitlines(), 1):
            hosts = [match.group(1) for match in ADDRESS.finditer(line)]
            if any(REGISTRY_WORDS.search(host) for host in hosts):
                faults.append(f"{name}:{number} names a registry")
            if INDEX_OPTIONS.search(line) and name != _name(Path(__file__)):
                faults.append(f"{name}:{number} chooses a package index")
            if MACHINE_PATH.search(line):
                faults.append(f"{name}:{number} holds a path of one machine")
    assert faults == []


@pytest.mark.parametrize(
    ("line", "pattern", "found"),
    [
        ("see https://example" + ".org/simple", "registry", False),
        ("url = https://repo.ma" + "ven.example.org/x", "registry", True),
        ("cd /ho" + "me/someone/project", "path", True),
        ("a/home/b and ~/home/b and $HOME/work/x", "path", False),
        ("data in /var/lib/kafka", "path", False),
    ],
)
def test_the_patterns_find_what_they_are_for(line: str, pattern: str, found: bool) -> None:
    """A rule that can no longer find anything would pass for ever."""
    if pattern == "path":
        assert bool(MACHINE_PATH.search(line)) is found
    else:
        assert any(REGISTRY_WORDS.search(match.group(1)) for match in ADDRESS.finditer(line)) is found


def test_pure_modules_are_part_of_python() -> None:
    """The machine's list of allowed imports names the standard library, and the library of its structs."""
    assert PURE_MODULES - {"msgspec"} <= set(sys.stdlib_module_names)
