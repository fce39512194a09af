"""Start, stop, reload, crash and restart of the service: as a process, with real signals and a real database."""

import contextlib
import random
import signal
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunService, StartPrometheus
from tests.real import proxy as faults
from tests.real.clock import FakedClock
from tests.real.feed import Feed
from tests.real.parts import Prometheus, new_secret
from tests.real.proxy import FaultyProxy
from tests.service import Answer, Service
from tests.waiting import PATIENCE_SECONDS, wait_for

pytestmark = pytest.mark.real

FAST = """
[refresh]
interval = "1s"
resolution = "1s"
max_staleness = "2m"
"""


def exit_code(service: Service, *, timeout: float = PATIENCE_SECONDS) -> int:
    """Wait until it ends, and return its exit code."""
    assert service.process is not None
    return service.process.wait(timeout)


def wait_for_log(service: Service, text: str) -> None:
    wait_for(lambda: text in service.log(), what=f"{text!r} in the log")


def without_time(answer: Answer) -> dict[str, Any]:
    return {node: found["metrics"] for node, found in answer.json()["data"]["NodeMetricsMap"].items()}


# --- starting --------------------------------------------------------------------------------------------------------


def test_two_services_cannot_use_one_file(run_service: RunService):
    """The second one is refused with the process of the first."""
    first = run_service(config=FAST)
    database = first.directory / "load-watcher.db"
    second = run_service("--store-url", f"sqlite:///{database}", wait=False)
    assert 1 == exit_code(second)
    assert f"{database} is in use by process {first.pid}" in second.log()
    assert f"127.0.0.1:{first.port}" in second.log()
    assert "Traceback" not in second.log()
    assert 200 == first.get("/healthz").status


def test_a_used_port_is_reported(run_service: RunService):
    """One line, without a traceback, exit code 1."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        service = run_service(wait=False, port=other.getsockname()[1])
        assert 1 == exit_code(service)
    assert f"cannot listen on 127.0.0.1:{service.port}" in service.log()
    assert service.log().count("already in use") == 1
    assert f"load-watcher doctor --only port --port {service.port} names its process" in service.log()
    assert "set --port" in service.log()
    assert "Traceback" not in service.log()


def test_all_invalid_settings_are_reported(run_service: RunService):
    """Exit code 2, each problem with its key."""
    service = run_service(config='[refresh]\ninterval = "soon"\n[sever]\nport = 1\n', wait=False)
    assert 2 == exit_code(service)
    assert "refresh.interval" in service.log()
    assert "server" in service.log()
    assert "Traceback" not in service.log()


def damage(database: Path) -> None:
    """Overwrite the middle of each page except the first."""
    garbage = random.Random(3)
    with database.open("r+b") as file:
        for page in range(4096, database.stat().st_size, 4096):
            file.seek(page + 8)
            file.write(garbage.randbytes(512))


@pytest.fixture
def damaged(run_service: RunService) -> Service:
    """A service that was stopped, and whose database is damaged."""
    service = run_service(config=FAST)
    service.wait_for_status(200)
    service.stop()
    damage(service.directory / "load-watcher.db")
    return service


def test_a_corrupt_database_prevents_the_start_with_a_remedy(damaged: Service, run_service: RunService):
    """Exit code 1; the file is not changed. With `set-aside`, for clusters: the file is renamed with a finding, and the
    service runs."""
    database = damaged.directory / "load-watcher.db"
    before = database.read_bytes()
    damaged.launch()
    assert 1 == exit_code(damaged)
    assert f"{database} is damaged" in damaged.log()
    assert "store.on_unusable" in damaged.log()
    assert "Traceback" not in damaged.log()
    assert before == database.read_bytes()
    options = ("--set", "store.on_unusable=set-aside")
    service = run_service(*options, config=FAST, directory=damaged.directory)
    service.wait_for_status(200)
    assert list(damaged.directory.glob("load-watcher.db.unusable-*"))
    (finding,) = [one for one in service.get("/api/v1/findings").json()["findings"] if one["kind"] == "store"]
    assert "set_aside" == finding["remedy"]
    assert "damaged" in finding["reason"]


def test_a_newer_database_is_not_changed(run_service: RunService):
    """After a rollback: exit code 1, with both versions."""
    service = run_service(config=FAST)
    service.stop()
    with contextlib.closing(sqlite3.connect(service.directory / "load-watcher.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    service.launch()
    assert 1 == exit_code(service)
    assert "newer version" in service.log()
    assert "9999" in service.log()


# --- stopping --------------------------------------------------------------------------------------------------------


def test_sigterm_ends_the_service_despite_idle_and_slow_clients(run_service: RunService):
    """Exit code 0. A kept-alive connection and an endless request delay nothing."""
    service = run_service(config=FAST)
    service.wait_for_status(200)
    with (
        socket.create_connection(("127.0.0.1", service.port)) as idle,
        socket.create_connection(("127.0.0.1", service.port)) as slow,
    ):
        idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle.recv(12) == b"HTTP/1.1 200"
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHo")
        assert 0 == service.stop()
    assert "Traceback" not in service.log()


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen Prometheus", "trickling proxy"])
def test_sigterm_ends_the_service_while_the_source_hangs(
    start_prometheus: StartPrometheus, run_service: RunService, frozen: bool
):
    """Pending queries are cancelled, within ten seconds."""
    prometheus = start_prometheus()
    with Feed(prometheus, 3), FaultyProxy(prometheus.url) as proxy:
        service = run_service("--provider", "prometheus", "--address", proxy.url)
        service.wait_for_status(200)
        service.stop()
        if frozen:
            prometheus.pause()
        proxy.fault = faults.trickle
        asked = proxy.questions
        service.launch()
        service.wait_ready()
        wait_for(lambda: proxy.questions > asked, what="a question under way")
        assert 0 == service.stop()
        assert "Traceback" not in service.log()
        prometheus.resume()


def test_the_last_window_is_served_after_a_restart(start_prometheus: StartPrometheus, run_service: RunService):
    """SIGTERM writes the last served data; the next start serves the same data without a source."""
    prometheus = start_prometheus()
    with Feed(prometheus, 3, history=400.0), FaultyProxy(prometheus.url) as proxy:
        service = run_service("--provider", "prometheus", "--address", proxy.url, config=FAST)
        service.wait_for_status(200)
        proxy.fault = faults.unavailable
        service.wait_for_status(503, "/watcher/health")
        before = service.get("/watcher")
        assert 0 == service.stop()
        service.launch()
        service.wait_ready()
        after = service.get("/watcher")
        assert before.json() == after.json()
        assert int(before.headers["Age"]) <= int(after.headers["Age"])
        assert "restored 3 nodes" in service.log()


# --- kill -9 ---------------------------------------------------------------------------------------------------------


class Onlooker:
    """Stores each served document in order."""

    def __init__(self, service: Service) -> None:
        self.seen: list[dict[str, Any]] = []
        self._service = service
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="onlooker", daemon=True)

    def __enter__(self) -> "Onlooker":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            with contextlib.suppress(OSError):
                document = self._service.get("/watcher").json()
                if "data" in document and document not in self.seen[-1:]:
                    self.seen.append(document)


def test_a_kill_at_any_moment_loses_at_most_the_current_tick(
    start_prometheus: StartPrometheus, run_service: RunService
):
    """Twice: killed at a random moment of its ticks, the service serves the earlier values with their times after the
    start, although the source is down."""
    moments = random.Random(7)
    prometheus = start_prometheus()
    with Feed(prometheus, 20, history=400.0), FaultyProxy(prometheus.url) as proxy:
        service = run_service("--provider", "prometheus", "--address", proxy.url, config=FAST)
        for _ in range(2):
            with Onlooker(service) as onlooker:
                wait_for(lambda: len(onlooker.seen) >= 2, what="two documents")
                threading.Event().wait(moments.uniform(0.0, 1.0))
                service.kill()
            proxy.fault = faults.unavailable
            service.launch()
            service.wait_ready()
            restored = service.get("/watcher")
            assert 200 == restored.status
            document = restored.json()
            newer = document["timestamp"] > onlooker.seen[-1]["timestamp"]
            assert newer or document in onlooker.seen[-2:]
            assert 20 == len(document["data"]["NodeMetricsMap"])
            proxy.fault = faults.passed_on
    assert "Traceback" not in service.log()
    assert " error " not in service.log()


# --- SIGHUP ----------------------------------------------------------------------------------------------------------


def reload(service: Service, config: str) -> None:
    service.config_file.write_text(config)
    assert service.process is not None
    service.process.send_signal(signal.SIGHUP)


def config_for(prometheus: Prometheus) -> str:
    return f'{FAST}\n[provider]\nname = "prometheus"\naddress = "{prometheus.url}"\n'


def test_sighup_changes_the_source(start_prometheus: StartPrometheus, run_service: RunService):
    """The old document stays until the new source has responded; then its nodes are served too."""
    one, other = start_prometheus(), start_prometheus()
    with Feed(one, ["a", "b"]), Feed(other, ["a", "b", "c"]):
        service = run_service(config=config_for(one))
        assert {"a", "b"} == set(without_time(service.wait_for_status(200)))
        one.pause()  # later documents are from the other source
        reload(service, config_for(other))

        def taken_over() -> bool:
            answer = service.get("/watcher")
            assert 200 == answer.status, answer.text
            return set(without_time(answer)) == {"a", "b", "c"}

        wait_for(taken_over, what="the other source's nodes")
        before = service.get("/watcher").json()["window"]["end"]
        wait_for(lambda: service.get("/watcher").json()["window"]["end"] > before, what="the other source's samples")
        assert other.url in service.log()
        one.resume()  # otherwise the feed would wait for it
    wait_for_log(service, "settings reloaded")


def test_the_last_of_many_sighups_takes_effect(run_service: RunService):
    """Faster than the reloads: settings that changed during a reload are loaded, and ticks continue."""
    service = run_service(config=FAST)
    before = service.wait_for_status(200).json()["timestamp"]
    for staleness in range(60, 90):
        reload(service, FAST.replace("2m", f"{staleness}s"))
    reload(service, FAST.replace("2m", "99s"))
    wait_for(lambda: service.get("/readyz").json()["max_staleness_s"] == 99, what="the last settings")
    wait_for(lambda: service.get("/watcher").json()["timestamp"] > before, what="ticks to go on")
    assert 0 == service.stop()
    assert "Traceback" not in service.log()


def test_sighup_with_invalid_settings_changes_nothing(prometheus: Prometheus, run_service: RunService):
    """The problems are logged, and the old settings stay; valid ones are loaded afterwards."""
    secret = new_secret()
    with Feed(prometheus, ["a", "b"]):
        service = run_service(config=config_for(prometheus))
        before = service.wait_for_status(200).json()
        reload(service, config_for(prometheus) + f'token = "{secret}"\ntokn = "{secret}"\ntimeout = "1h"\n')
        wait_for_log(service, "settings not reloaded")
        assert "provider.tokn" in service.log()
        assert "provider.timeout" in service.log()
        assert secret not in service.log()
        wait_for(lambda: service.get("/watcher").json()["timestamp"] > before["timestamp"], what="ticks to go on")
        reload(service, config_for(prometheus))
        wait_for_log(service, "settings reloaded")
        assert 200 == service.get("/watcher").status


# --- the disk and the clock ------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", directory], capture_output=True, text=True
    )
    if mounting.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounting.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


def test_a_full_disk_delays_no_response(small_disk: Path, prometheus: Prometheus, run_service: RunService):
    """Requests are served, and /readyz reports it; with space, missed data are written. One log line for the begin and
    one for the end."""
    with Feed(prometheus, 50):
        database = small_disk / "load-watcher.db"
        service = run_service("--store-url", f"sqlite:///{database}", config=config_for(prometheus))
        service.wait_for_status(200)
        with contextlib.suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))

        def store() -> dict[str, Any]:
            return dict(service.get("/readyz").json()["detail"]["store"])

        wait_for(lambda: not store()["ok"], what="the full disk to be found")
        assert "full" in store()["error"]
        before = service.get("/watcher").json()["timestamp"]
        wait_for(lambda: service.get("/watcher").json()["timestamp"] > before + 2, what="answers to go on")
        # because the service is new, not because of the disk
        assert service.get("/readyz").json().get("error", {}).get("code") in (None, "warming_up")
        subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
        wait_for(lambda: store()["ok"], what="the store to recover")
        assert 0 == service.stop()
    assert 1 == service.log().count("saving to the database fails")
    assert 1 == service.log().count("saving to the database works again")


def wait_for_hour(service: Service, offset: int) -> int:
    """Wait until documents have this time, relative to the machine's clock; meanwhile the service is alive and serves
    data with a low age by the monotonic clock. Returns the timestamp of the document.

    If the clock is set ahead between a sample and the end of its tick, the tick seems to take an hour, until the next
    one.
    """
    found = 0

    def there() -> bool:
        nonlocal found
        assert 200 == service.get("/healthz").status
        answer = service.get("/watcher")
        if offset == 0 and answer.status == 503 and answer.json()["error"]["code"] == "stale":
            return False
        assert 200 == answer.status, answer.text
        assert int(answer.headers["Age"]) < 15
        found = answer.json()["timestamp"]
        return abs(found - time.time() - offset) < 60

    wait_for(there, what=f"documents of {offset} s from now")
    return found


def test_a_clock_that_is_set_back_and_forth_by_an_hour(tmp_path: Path, run_service: RunService):
    """The published data stay, with an age by the monotonic clock. After the step back, the history is fetched again.
    Ticks, liveness and the log are not affected by either step."""
    clock = FakedClock(tmp_path)
    service = run_service(config=FAST.replace('"1s"', '"2s"', 1), env=clock.environment)
    service.wait_for_status(200)
    clock.set(-3600)
    before = wait_for_hour(service, -3600)

    def found() -> list[str]:
        kinds = [one["kind"] for one in service.get("/api/v1/findings").json()["findings"]]
        return [kind for kind in kinds if kind == "clock_step"]

    # If the clock is set during a tick, its document has the new time, and the next tick detects the step.
    wait_for(found, what="the finding")
    wait_for(lambda: service.get("/watcher").json()["timestamp"] > before + 2, what="ticks to go on")
    clock.set(0)
    before = wait_for_hour(service, 0)
    wait_for(lambda: service.get("/watcher").json()["timestamp"] > before + 2, what="ticks to go on")
    assert 1 == service.log().count("wall clock stepped back")
    assert 0 == service.stop()
    assert "Traceback" not in service.log()


def test_a_service_that_was_paused_continues(run_service: RunService):
    """Stopped for several of its intervals, as on a suspended machine: alive and ticking at once."""
    service = run_service(config=FAST)
    before = service.wait_for_status(200).json()["timestamp"]
    service.pause()
    wait_for(lambda: time.time() > before + 4, what="some intervals to pass")
    service.resume()
    service.wait_for_status(200, "/healthz")
    wait_for(lambda: service.get("/watcher").json()["timestamp"] > before + 3, what="ticks to go on")
    assert 0 == service.stop()
    assert "Traceback" not in service.log()
