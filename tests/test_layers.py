"""Imports between packages, libraries that only one folder uses, modules without I/O and clocks, and limits on the size
of folders and files.

The import contracts are in pyproject.toml under [tool.importlinter]. A contract that names an unknown module fails, and
for each contract a planted violation is found.
"""

import ast
import configparser
import graphlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grimp
import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
CONTRACTS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]
PACKAGES = tuple(CONTRACTS["root_packages"])
ROOTS = (*PACKAGES, "migrations")

PROMETHEUS = ("watcher/sources/prometheus/",)
STORE = ("watcher/store/", "migrations/")

# Each library that one part of the program wraps, and the files that may import the library.
HOMES = {
    "sqlalchemy": STORE,
    "alembic": STORE,
    "prometheus_api_client": PROMETHEUS,
    "requests": PROMETHEUS,
    "urllib3": PROMETHEUS,
    "influxdb_client": ("watcher/sources/influxdb/",),
    "psycopg": ("watcher/store/engines/postgresql.py",),
    "psutil": ("watcher/sources/host.py", "load_watcher/doctor/listening.py"),
    "apscheduler": ("watcher/service/",),
    "kubernetes_asyncio": ("watcher/platform/kube/",),
    "matplotlib": ("lab/backtest/charts.py", "lab/simulate/charts.py"),
    "google": ("agent/qrm/grpc/", "agent/qrm/runtime/"),
    "grpc": ("agent/qrm/grpc/", "agent/qrm/runtime/"),
}

MOST_ENTRIES = 16
MOST_LINES = 500
# Third-party files, and files that a program generates from definitions.
FOREIGN = {"vendor", "protos"}

CLOCK_METHODS = {"now", "utcnow", "today"}
IMPURE_CALLS = {"open", "input", "print"}
# Pure code uses only the arithmetic of given times from this module.
TIMELESS = {"struct_time", "strftime", "strptime", "mktime"}


def unknown_modules(contract: dict[str, Any]) -> list[str]:
    """Modules of these packages that a contract names and that do not exist."""
    named = [*contract.get("source_modules", ()), *contract.get("forbidden_modules", ())]
    named += [module.strip() for layer in contract.get("layers", ()) for module in re.split(r"[|:]", layer)]
    ignored = [module.strip() for pair in contract.get("ignore_imports", ()) for module in pair.split("->")]
    named += [module.removesuffix(".*") for module in ignored]
    return [module for module in named if module.split(".")[0] in PACKAGES and not exists(module)]


def exists(module: str) -> bool:
    path = REPOSITORY.joinpath(*module.split("."))
    return (path / "__init__.py").exists() or path.with_suffix(".py").exists()


def pure_modules() -> list[str]:
    """The sources of each contract whose modules are pure."""
    return [
        module
        for contract in CONTRACTS["contracts"]
        if contract["name"].startswith("pure:")
        for module in contract["source_modules"]
    ]


def modules_of(path: Path) -> str:
    return ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")


def sources() -> list[Path]:
    return sorted(path for root in ROOTS for path in (REPOSITORY / root).rglob("*.py"))


def lines(values: list[str]) -> str:
    return "\n".join(["", *values])


def lint(root: Path, contracts: Sequence[dict[str, Any]], directory: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter with these contracts over the packages in `root`."""
    config = configparser.ConfigParser()
    config["importlinter"] = {
        "root_packages": lines(CONTRACTS["root_packages"]),
        "include_external_packages": str(CONTRACTS["include_external_packages"]),
    }
    for number, contract in enumerate(contracts):
        config[f"importlinter:contract:{number}"] = {
            key: lines(value) if isinstance(value, list) else str(value) for key, value in contract.items()
        }
    file = directory / "contracts.ini"
    with file.open("w") as written:
        config.write(written)
    source = "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", source, "--no-cache", "--config", str(file)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}
    )


def violation(contract: dict[str, Any]) -> tuple[str, str]:
    """A module of the contract, and a module that it must not import."""
    if contract["type"] == "layers":
        return "watcher.core.windows.history", "watcher.api.routes"
    return contract["source_modules"][0], contract["forbidden_modules"][-1]


@pytest.mark.parametrize("contract", CONTRACTS["contracts"], ids=range(len(CONTRACTS["contracts"])))
def test_a_contract_names_only_modules_that_exist(contract: dict[str, Any]):
    assert not unknown_modules(contract)


def test_a_contract_that_names_an_unknown_module_is_detected():
    assert unknown_modules({"source_modules": ["watcher.gone"], "forbidden_modules": ["aiohttp"]}) == ["watcher.gone"]
    assert unknown_modules({"layers": ["load_watcher", "watcher.core | watcher.nowhere"]}) == ["watcher.nowhere"]


def test_each_package_of_the_laboratory_is_under_a_contract():
    named = {module for contract in CONTRACTS["contracts"] for module in contract.get("source_modules", ())}
    packages = {modules_of(path) for path in (REPOSITORY / "lab").iterdir() if path.name[0] not in "_."}
    assert packages <= named


def test_import_contracts(tmp_path: Path):
    done = lint(REPOSITORY, CONTRACTS["contracts"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CONTRACTS["contracts"])))
def test_a_planted_violation_of_a_contract_is_found(number: int, tmp_path: Path):
    contract = CONTRACTS["contracts"][number]
    for package in PACKAGES:
        shutil.copytree(REPOSITORY / package, tmp_path / package, ignore=shutil.ignore_patterns("web", "__pycache__"))
    importer, imported = violation(contract)
    path = tmp_path.joinpath(*importer.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    path.write_text(f"{path.read_text('utf-8')}\n\nimport {imported}  # planted\n")
    done = lint(tmp_path, [contract], tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert importer in done.stdout
    assert imported in done.stdout


def test_there_is_no_import_cycle():
    """Imports under TYPE_CHECKING and inside functions included."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    sorter = graphlib.TopologicalSorter(
        {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    )
    sorter.prepare()


def test_a_module_that_claims_purity_is_under_a_contract():
    covered = tuple(pure_modules())
    claiming = [
        modules_of(path)
        for path in sources()
        if re.search(r"\bpure\b(?! Python)", ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "", re.IGNORECASE)
    ]
    outside = [module for module in claiming if not any(f"{module}.".startswith(f"{one}.") for one in covered)]
    assert not outside, "guard these modules by a contract, or do not claim purity"


def imported_libraries(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and first name of each absolute import at any place in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module.partition(".")[0]


def leaks(path: str, source: str) -> list[str]:
    """Imports of a wrapped library outside of the file that wraps it."""
    return [
        f"{path}:{line} imports {library}, which belongs to {' and '.join(HOMES[library])}"
        for line, library in imported_libraries(ast.parse(source))
        if library in HOMES and not path.startswith(HOMES[library])
    ]


def impurities(source: str) -> list[str]:
    """Calls that read a clock, a file or a terminal."""
    tree = ast.parse(source)
    timely = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "time"
        for alias in node.names
        if alias.name not in TIMELESS
    }
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        owner, _, method = called.rpartition(".")
        if (
            called in IMPURE_CALLS | timely
            or (owner == "time" and method not in TIMELESS)
            or (owner and method in CLOCK_METHODS)
        ):
            found.append(f"line {node.lineno} calls {called}")
    return found


def test_a_wrapped_library_is_imported_by_its_part_only():
    found = [
        leak for path in sources() for leak in leaks(path.relative_to(REPOSITORY).as_posix(), path.read_text("utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("module", pure_modules())
def test_a_pure_module_reads_no_clock_and_opens_no_file(module: str):
    place = REPOSITORY.joinpath(*module.split("."))
    paths = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    found = [f"{path.name} {impurity}" for path in paths for impurity in impurities(path.read_text("utf-8"))]
    assert not found, f"{module}: {', '.join(found)}"


@pytest.mark.parametrize(
    "source",
    [
        "import time\nx = time.time()",
        "from time import monotonic as clock\nx = clock()",
        "import datetime\nx = datetime.datetime.now(datetime.UTC)",
        "from datetime import date\nx = date.today()",
        "def f(p):\n    return open(p).read()",
        "from pathlib import Path\nx = Path('a').open().read(), open('b')",
    ],
)
def test_reading_a_clock_or_a_file_is_detected(source: str):
    assert impurities(source)


def test_arithmetic_of_given_times_is_pure():
    assert not impurities(
        "import time\nfrom datetime import datetime, UTC\nx = datetime.fromtimestamp(1, UTC), time.time"
    )


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("watcher/api/routes.py", "import sqlalchemy as sa", 1),
        ("watcher/tick/tick.py", "def f():\n    from apscheduler.schedulers.asyncio import AsyncIOScheduler", 1),
        ("watcher/store/store.py", "from sqlalchemy import text\nimport alembic.command", 0),
        ("migrations/env.py", "from alembic import context", 0),
        ("watcher/sources/influxdb/provider.py", "import requests", 1),
    ],
)
def test_a_library_outside_of_its_folder_is_detected(path: str, source: str, expected: int):
    assert expected == len(leaks(path, source))


def folders_of(root: Path) -> Iterator[Path]:
    """The folder and all folders in it, without those of third-party files."""
    yield root
    for path in sorted(root.iterdir()):
        if path.is_dir() and path.name != "__pycache__" and path.name not in FOREIGN:
            yield from folders_of(path)


def too_large(root: Path) -> list[str]:
    """Folders with more than MOST_ENTRIES entries, and files with more than MOST_LINES lines."""
    found = []
    for folder in folders_of(root):
        entries = sorted(path for path in folder.iterdir() if path.name != "__pycache__")
        if len(entries) > MOST_ENTRIES:
            found.append(f"{folder.relative_to(root.parent)} has {len(entries)} entries")
        lengths = [(path, len(path.read_bytes().splitlines())) for path in entries if path.is_file()]
        found += [f"{path.relative_to(root.parent)} has {n} lines" for path, n in lengths if n > MOST_LINES]
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_no_folder_has_more_than_16_entries_and_no_file_more_than_500_lines(package: str):
    assert not too_large(REPOSITORY / package)


def fast_tests(path: Path) -> list[str]:
    """The tests of a file that are not marked slow."""
    tree = ast.parse(path.read_text("utf-8"))
    marks = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign)]
    if any(mark.startswith("pytestmark") and "slow" in mark for mark in marks):
        return []
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not any("mark.slow" in ast.unparse(each) for each in node.decorator_list)
    ]


WITHOUT_FAST_TESTS = {"watcher/koordinator"}  # each test runs the service


@pytest.mark.parametrize(
    "room",
    [
        path.parent.relative_to(REPOSITORY / "tests").as_posix()
        for package in PACKAGES
        for path in sorted((REPOSITORY / "tests" / package).glob("**/__init__.py"))
        if path.parent.relative_to(REPOSITORY / "tests").as_posix() not in WITHOUT_FAST_TESTS
    ],
)
def test_each_room_has_fast_tests(room: str):
    assert any(fast_tests(path) for path in (REPOSITORY / "tests" / room).rglob("test_*.py"))


def test_a_file_of_slow_tests_is_detected(tmp_path: Path):
    path = tmp_path / "test_a.py"
    path.write_text("import pytest\n\n@pytest.mark.slow\ndef test_a(): ...\n\ndef test_b(): ...\n")
    assert fast_tests(path) == ["test_b"]
    path.write_text("import pytest\npytestmark = [pytest.mark.real, pytest.mark.slow]\ndef test_a(): ...\n")
    assert not fast_tests(path)


def test_a_large_folder_and_a_large_file_are_detected(tmp_path: Path):
    inner, vendor = tmp_path / "package" / "inner", tmp_path / "package" / "vendor"
    inner.mkdir(parents=True)
    vendor.mkdir()
    (vendor / "long.js").write_text("line\n" * 501)
    (tmp_path / "package" / "a.py").write_text("line\n" * 500)
    for number in range(16):
        (inner / f"{number}.py").touch()
    assert not too_large(tmp_path / "package")
    (inner / "16.py").write_text("line\n" * 501)
    assert too_large(tmp_path / "package") == ["package/inner has 17 entries", "package/inner/16.py has 501 lines"]
