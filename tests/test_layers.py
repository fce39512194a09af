"""Which way the arrows go: what imports what, which libraries stay in which file, and what reads no clock.

The import contracts stand in pyproject.toml under [tool.importlinter]. Modules that they name and that do not exist yet
are left out here until they do; a contract can be written before the room it guards.
"""

import ast
import configparser
import tomllib
from collections.abc import Iterator
from pathlib import Path

import importlinter.cli
import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
ROOTS = ("watcher", "scorers", "agent", "migrations")
CONTRACTS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]

# Rooms of several files; a name is the beginning of a path.
PROMETHEUS = ("watcher/providers/prometheus.py", "watcher/providers/prometheus_")
STORE = ("watcher/store/", "migrations/")

# Each library that a part of ours wraps, and the files that may import it: elsewhere it is a leak of that part.
HOMES = {
    "sqlalchemy": STORE,
    "alembic": STORE,
    "prometheus_api_client": PROMETHEUS,
    "requests": PROMETHEUS,
    "urllib3": PROMETHEUS,
    "influxdb_client": ("watcher/providers/influxdb_flux.py",),
    "psycopg": ("watcher/store/postgresql.py",),
    "psutil": ("watcher/providers/host.py", "watcher/doctor/listening.py"),
    "apscheduler": ("watcher/server.py",),
    "kubernetes_asyncio": ("watcher/kube/",),
    "matplotlib": ("scorers/simulate/pictures.py",),
    "google": ("agent/qrm/wire.py", "agent/qrm/protos/"),
    "grpc": tuple(
        f"agent/qrm/{name}" for name in ("channel.py", "server.py", "endpoint.py", "runtime/cri.py", "protos/")
    ),
}

CLOCK_METHODS = {"now", "utcnow", "today"}
IMPURE_CALLS = {"open", "input", "print"}
# What pure code has of this module is the arithmetic of times that it was given.
TIMELESS = {"struct_time", "strftime", "strptime", "mktime"}


def exists(module: str) -> bool:
    path = REPOSITORY.joinpath(*module.split("."))
    return (path / "__init__.py").exists() or path.with_suffix(".py").exists()


def existing(modules: list[str]) -> list[str]:
    """Those of ours that exist, and all that are not ours."""
    return [module for module in modules if module.split(".")[0] not in ROOTS or exists(module)]


def contract_names() -> list[str]:
    return [contract["name"] for contract in CONTRACTS["contracts"]]


def pure_modules() -> list[str]:
    """The sources, so far as they exist, of every contract that says its modules are pure."""
    return [
        module
        for contract in CONTRACTS["contracts"]
        if "are pure" in contract["name"]
        for module in existing(contract["source_modules"])
    ]


def sources() -> list[Path]:
    return sorted(path for root in ROOTS for path in (REPOSITORY / root).rglob("*.py"))


def lines(values: list[str]) -> str:
    return "\n".join(["", *values])


@pytest.mark.parametrize("name", contract_names())
def test_import_contract(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (contract,) = (contract for contract in CONTRACTS["contracts"] if contract["name"] == name)
    config = configparser.ConfigParser()
    config["importlinter"] = {
        "root_packages": lines(CONTRACTS["root_packages"]),
        "include_external_packages": str(CONTRACTS["include_external_packages"]),
    }
    config["importlinter:contract:1"] = {
        key: lines(value) if isinstance(value, list) else str(value)
        for key, value in {
            **contract,
            "source_modules": existing(contract["source_modules"]),
            "forbidden_modules": existing(contract["forbidden_modules"]),
        }.items()
    }
    file = tmp_path / "contracts.ini"
    with file.open("w") as written:
        config.write(written)
    code = importlinter.cli.lint_imports(config_filename=str(file), no_cache=True, no_logo=True)
    assert 0 == code, capsys.readouterr().out


def imported_libraries(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and first name of every absolute import, wherever in the file it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module.partition(".")[0]


def leaks(path: str, source: str) -> list[str]:
    """Imports of a wrapped library outside the file that wraps it."""
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


def test_a_library_that_a_part_wraps_is_imported_by_that_part_alone():
    found = [
        leak for path in sources() for leak in leaks(path.relative_to(REPOSITORY).as_posix(), path.read_text("utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("module", pure_modules())
def test_a_pure_module_reads_no_clock_and_opens_nothing(module: str):
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
def test_reading_a_clock_or_a_file_is_noticed(source: str):
    assert impurities(source)


def test_arithmetic_of_given_times_is_pure():
    assert not impurities(
        "import time\nfrom datetime import datetime, UTC\nx = datetime.fromtimestamp(1, UTC), time.time"
    )


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("watcher/api/handlers.py", "import sqlalchemy as sa", 1),
        ("watcher/refresh.py", "def f():\n    from apscheduler.schedulers.asyncio import AsyncIOScheduler", 1),
        ("watcher/store/keeper.py", "from sqlalchemy import text\nimport alembic.command", 0),
        ("migrations/env.py", "from alembic import context", 0),
        ("watcher/providers/influxdb.py", "import requests", 1),
    ],
)
def test_a_library_outside_its_home_is_noticed(path: str, source: str, expected: int):
    assert expected == len(leaks(path, source))
