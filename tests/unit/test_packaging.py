"""The package: what is declared is what is there."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import perdure

ROOT = Path(__file__).parents[2]
LAYERS = ("connectors", "console", "processors", "schemas", "testing", "topics")
HEAVY = ("anthropic", "confluent_kafka", "faust", "fastavro", "rich", "rocksdict", "starlette", "typer")
LOCKED_LINE = re.compile(
    r"^(?P<name>[a-z0-9-]+)(?P<extras>\[[a-z0-9,-]+\])?==(?P<version>[^ ]+)(?: ; (?P<marker>.+))? \\$"
)


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def _locked(name: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    found = [match for line in lines if (match := LOCKED_LINE.match(line))]
    return {match["name"]: match["version"] for match in found}


def _product_folders() -> list[Path]:
    found = [ROOT / layer for layer in LAYERS]
    for layer in LAYERS:
        found.extend(
            path for path in (ROOT / layer).rglob("*") if path.is_dir() and path.name != "__pycache__"
        )
    return found


def test_declared_packages_are_the_folders_with_modules(project: dict[str, Any]) -> None:
    """A folder with modules that is not in the list would be missing from the wheel."""
    folders = [path for path in _product_folders() if any(path.glob("*.py"))]
    names = {"perdure"} | {".".join(("perdure", *path.relative_to(ROOT).parts)) for path in folders}
    assert set(project["tool"]["setuptools"]["packages"]) == names


def test_each_folder_with_modules_is_a_regular_package() -> None:
    """Without an __init__.py, import-linter and the editable install overlook a folder."""
    folders = [path for path in _product_folders() if any(path.glob("*.py"))]
    assert [path for path in folders if not (path / "__init__.py").is_file()] == []


def test_data_files_are_declared(project: dict[str, Any]) -> None:
    """Each file beside the modules is matched by package-data, else it would be missing from the wheel."""
    declared = project["tool"]["setuptools"]["package-data"]
    taken: set[Path] = set()
    for package, patterns in declared.items():
        folder = ROOT.joinpath(*package.split(".")[1:])
        for pattern in patterns:
            found = set(folder.glob(pattern))
            assert found, f"{package} declares {pattern}, which matches nothing"
            taken |= found
    data = {path for folder in _product_folders() for path in folder.iterdir() if path.is_file()}
    assert {path for path in data if path.suffix not in {".py", ".pyc"}} - taken == set()


def test_the_facade_and_the_project_name_one_version(project: dict[str, Any]) -> None:
    """perdure.__version__ is the version of the distribution."""
    assert project["project"]["version"] == perdure.__version__


def test_importing_the_facade_loads_no_heavy_client() -> None:
    """A program that only names perdure pays for neither Kafka's client nor RocksDB nor a model SDK."""
    program = "import perdure, sys, json; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.check_output([sys.executable, "-c", program], cwd="/", text=True))
    assert "perdure" in loaded
    assert [name for name in HEAVY if name in loaded] == []


def test_the_core_needs_neither_faust_nor_rocksdb(project: dict[str, Any]) -> None:
    """A consumer of outcomes installs perdure without any extra."""
    names = {canonicalize_name(Requirement(line).name) for line in project["project"]["dependencies"]}
    assert names.isdisjoint({"anthropic", "faust-streaming", "rocksdict", "starlette", "typer"})


def _guarded(tree: ast.Module) -> set[ast.AST]:
    """What stands in a ``try`` that is ready for the library to be absent."""
    return {
        inside
        for node in ast.walk(tree)
        if isinstance(node, ast.Try)
        and any("ImportError" in ast.unparse(h.type) for h in node.handlers if h.type)
        for statement in node.body
        for inside in ast.walk(statement)
    }


def _third_party(layers: tuple[str, ...], *, guarded: bool) -> set[str]:
    """Distributions that the modules of these layers import; guarded imports only if asked for."""
    providers = importlib.metadata.packages_distributions()
    names: set[str] = set()
    for path in (path for layer in layers for path in (ROOT / layer).rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node in set(ast.walk(tree)) - (set() if guarded else _guarded(tree)):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module)
    tops = {name.split(".")[0] for name in names} - {"perdure"} - set(sys.stdlib_module_names)
    return {str(canonicalize_name(providers[top][0])) for top in tops}


def test_each_library_that_is_imported_is_declared(project: dict[str, Any]) -> None:
    """Records and topics import the core's libraries only; the rest may import those of the extras."""
    core = {canonicalize_name(Requirement(line).name) for line in project["project"]["dependencies"]}
    extras = {
        canonicalize_name(Requirement(line).name)
        for lines in project["project"]["optional-dependencies"].values()
        for line in lines
    }
    assert _third_party(("schemas", "topics"), guarded=False) - core == set()
    assert _third_party(LAYERS, guarded=True) - core - extras == set()


def test_the_extra_all_holds_every_other_extra(project: dict[str, Any]) -> None:
    """An extra that is added is part of `all`."""
    extras = dict(project["project"]["optional-dependencies"])
    (everything,) = extras.pop("all")
    assert Requirement(everything).extras == set(extras)


def test_the_console_script_points_at_a_function(project: dict[str, Any]) -> None:
    """`perdure` on the command line ends in a function that exists."""
    for target in project["project"]["scripts"].values():
        module, function = target.split(":")
        path = ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py")
        assert re.search(rf"^def {function}\(", path.read_text(), re.MULTILINE), target


def test_type_checkers_see_the_tree_under_the_packages_name() -> None:
    """The link that mypy_path and extraPaths point at leads to the root, on any machine."""
    link = ROOT / ".typing" / "perdure"
    assert link.readlink() == Path("..")
    assert link.resolve() == ROOT
    assert (ROOT / "py.typed").is_file()


def test_the_lock_satisfies_every_requirement(project: dict[str, Any]) -> None:
    """A requirement that was added or raised without `make lock` is found here."""
    wanted = [*project["project"]["dependencies"]]
    for name, lines in project["project"]["optional-dependencies"].items():
        wanted.extend(lines if name != "all" else [])
    locked = _locked("runtime.txt")
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), requirement
    tools = (ROOT / "requirements" / "dev.in").read_text().splitlines()
    locked = _locked("dev.txt")
    for requirement in (Requirement(line) for line in tools if line and not line.startswith("#")):
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), requirement


def test_the_two_locks_agree() -> None:
    """What production installs is what the tests ran with."""
    assert _locked("runtime.txt").items() <= _locked("dev.txt").items()


@pytest.mark.parametrize("name", ["dev.txt", "runtime.txt"])
def test_locks_carry_hashes_and_nothing_of_the_machine(name: str) -> None:
    """Each pinned line is followed by a hash; no option and no address stands in the file."""
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        assert line.startswith(("    --hash=sha256:", "    #")) or LOCKED_LINE.match(line), line
        assert not LOCKED_LINE.match(line) or following.startswith("    --hash=sha256:"), line
        assert "//" not in line


def test_what_is_asked_for_with_an_extra_is_pinned_with_it() -> None:
    """Otherwise pip, checking hashes, meets the newest release before the pin, and refuses the whole lock."""
    text = (ROOT / "requirements" / "dev.txt").read_text()
    found = [match for line in text.splitlines() if (match := LOCKED_LINE.match(line))]
    pinned = {match["name"]: set((match["extras"] or "").strip("[]").split(",")) for match in found}
    for name in pinned:
        try:
            wanted = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # of another platform
        for each in map(Requirement, wanted):
            applies = each.marker is None or each.marker.evaluate({"extra": ""})
            if applies and (other := canonicalize_name(each.name)) in pinned:
                assert each.extras <= pinned[other], f"{name} asks for {each}"
