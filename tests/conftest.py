"""Fixtures for all tests, and the clean environment of each test."""

import gc
import logging
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import hypothesis
import pytest

from tests.durations import SHORTEST_S, read_durations
from tests.real.parts import NodeExporter, PostgreSQL, Prometheus, Server
from tests.service import Service

# On a busy machine, an example may take long to generate and to run, which is not a fault of the code: there is no
# deadline. Except in CI, each run uses other examples; CI must not fail for an example that the change did not affect.
# LOAD_WATCHER_EXAMPLES: the number of examples of a test without its own number (make properties).
hypothesis.settings.register_profile(
    "load-watcher",
    max_examples=int(os.environ.get("LOAD_WATCHER_EXAMPLES", "40")),
    deadline=None,
    derandomize="CI" in os.environ,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("load-watcher")

# The tests of these folders start real programs or whole services.
HERE = Path(__file__).parent
SLOW_FOLDERS = ("../examples", "field", "real")
SLOW = tuple(f"{(HERE / name).resolve()}{os.sep}" for name in SLOW_FOLDERS)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import the slow folders for a selection without slow tests."""
    without = str(config.option.markexpr).endswith("not slow")
    return True if without and f"{collection_path}{os.sep}".startswith(SLOW) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect garbage neither while the tests are collected nor in the collected tests."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of slow folders. For several workers, sort the modules by recorded durations, longest first."""
    for item in items:
        if str(item.path).startswith(SLOW):
            item.add_marker(pytest.mark.slow)
    if hasattr(config, "workerinput"):
        seconds = read_durations()
        items.sort(key=lambda item: -seconds.get(module_of(item), SHORTEST_S))


def module_of(item: pytest.Item) -> str:
    return item.nodeid.split("::")[0].removesuffix(".py").replace("/", ".")


# Variables that change the behavior of load-watcher or of a library. Those that control the tests stay.
STEERING_PREFIXES = ("LOAD_WATCHER_", "METRICS_PROVIDER_", "DATADOG_", "KUBERNETES_", "OTEL_")
STEERING_NAMES = {
    "ENABLE_OPENSHIFT_AUTH",
    "INSECURE_SKIP_VERIFY",
    "KUBECONFIG",
    "KUBE_CONFIG",
    "LOG_LEVEL",
    "HOST_IP",
    "NODE_NAME",
    "NO_COLOR",
    "FORCE_COLOR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "ALL_PROXY",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
}
OF_THE_TESTS = {
    "LOAD_WATCHER_BENCHMARKS",
    "LOAD_WATCHER_CACHE",
    "LOAD_WATCHER_KUBERNETES",
    "LOAD_WATCHER_REAL_PARTS",
    "LOAD_WATCHER_REQUIRE_REAL",
}


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings in the environment of the test run do not reach the code under test."""
    for name in os.environ:
        steers = name.upper() in STEERING_NAMES or name.startswith(STEERING_PREFIXES)
        if steers and name not in OF_THE_TESTS:
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Changes of logging by a test, or by a tool that it runs (import-linter disables all loggers), end with the
    test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for logger in logging.Logger.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.disabled = False


class StartPrometheus(Protocol):
    """The type of `start_prometheus`: the keywords are those of `Prometheus`."""

    def __call__(self, **options: Any) -> Prometheus: ...


class RunService(Protocol):
    """The type of `run_service`: the arguments of `serve`, and the keywords of `Service`; `wait=False` only launches
    it."""

    def __call__(self, *arguments: str, wait: bool = True, **options: Any) -> Service: ...


@pytest.fixture
def running() -> Iterator[Callable[[Server], Server]]:
    """Ends each server that it is called with, after the test, in any state."""
    servers: list[Server] = []

    def remember(server: Server) -> Server:
        servers.append(server)
        return server

    yield remember
    for server in reversed(servers):
        server.kill()


@pytest.fixture
def start_prometheus(tmp_path: Path, running: Callable[[Server], Server]) -> StartPrometheus:
    """Start real Prometheus servers, each with its own directory and port; they end with the test."""
    started = 0

    def start(**options: Any) -> Prometheus:
        nonlocal started
        started += 1
        server = Prometheus(tmp_path / f"prometheus-{started}", **options)
        running(server)
        return server.start()

    return start


@pytest.fixture
def prometheus(start_prometheus: StartPrometheus) -> Prometheus:
    """An empty real Prometheus, ready, that takes remote writes."""
    return start_prometheus()


@pytest.fixture(scope="module")
def shared_prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """The same, one per module: for data that are costly to load and that tests only read."""
    with Prometheus(tmp_path_factory.mktemp("prometheus")) as server:
        yield server


@pytest.fixture
def node_exporter(tmp_path: Path, running: Callable[[Server], Server]) -> NodeExporter:
    """A real node exporter of this machine."""
    server = NodeExporter(tmp_path / "node-exporter")
    running(server)
    return server.start()


@pytest.fixture
def run_service(tmp_path: Path, running: Callable[[Server], Server]) -> RunService:
    """Run `load-watcher serve` as a process, each with its own directory and port; it ends with the test."""
    started = 0

    def run(*arguments: str, wait: bool = True, **options: Any) -> Service:
        nonlocal started
        started += 1
        directory = options.pop("directory", tmp_path / f"service-{started}")
        service = Service(directory, *arguments, **options)
        running(service)
        service.launch()
        return service.wait_ready() if wait else service

    return run


# The databases of tests of the store: a file, and a real PostgreSQL.
SERVER = (pytest.mark.real, pytest.mark.slow)
BOTH = ("sqlite", pytest.param("postgresql", marks=SERVER))


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgreSQL]:
    """One server for all tests of a worker; tests that damage it use their own."""
    with PostgreSQL(tmp_path_factory.mktemp("postgresql")) as server:
        yield server


@pytest.fixture(scope="session")
def shared_database(postgresql: PostgreSQL) -> str:
    """The URL of a database for tests that use different names of watchers."""
    return postgresql.new_database()


@pytest.fixture
def server_database(postgresql: PostgreSQL) -> str:
    """The URL of an empty database on a server."""
    return postgresql.new_database()


@pytest.fixture(params=BOTH)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database that does not exist yet, or is empty: a file, and one on a server."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'a.db'}"
    url: str = request.getfixturevalue("server_database")
    return url


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, text=True
    )
    if mounted.returncode:
        reason = f"cannot mount a tmpfs: {mounted.stderr.strip()}"
        if os.environ.get("LOAD_WATCHER_REQUIRE_REAL") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def enlarge(disk: Path) -> None:
    """Enlarge it to 64 MB."""
    subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
