"""How the service starts, stops, reloads, dies and comes back: as a process, with real signals and a real database."""

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
    """Wait until it has ended by itself."""
    assert service.process is not None
    return service.process.wait(timeout)


def wait_for_log(service: Service, text: str) -> None:
    wait_for(lambda: text in service.log(), what=f"{text!r} in the log")


def without_time(answer: Answer) -> dict[str, Any]:
    return {node: found["metrics"] for node, found in answer.json()["data"]["NodeMetricsMap"].items()}


# --- starting --------------------------------------------------------------------------------------------------------


def test_two_services_do_not_share_a_file(run_service: RunService):
    """The second is refused, and told who has it."""
    first = run_service(config=FAST)
    database = first.directory / "load-watcher.db"
    second = run_service("--store-url", f"sqlite:///{database}", wait=False)
    assert 1 == exit_code(second)
    assert f"{database} is in use by process {first.pid}" in second.log()
    assert f"127.0.0.1:{first.port}" in second.log()
    assert "Traceback" not in second.log()
    assert 200 == first.get("/healthz").status


def test_a_port_in_use_is_named(run_service: RunService):
    """One line, no traceback, exit code 1."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        service = run_service(wait=False, port=other.getsockname()[1])
        assert 1 == exit_code(service)
    assert f"cannot listen on 127.0.0.1:{service.port}" in service.log()
    assert service.log().count("already in use") == 1
    assert f"load-watcher doctor --only port --port {service.port} names its process" in service.log()
    assert "set --port" in service.log()
    assert "Traceback" not in service.log()


def test_wrong_settings_are_all_named(run_service: RunService):
    """Exit code 2, each problem with its key."""
    service = run_service(config='[refresh]\ninterval = "soon"\n[sever]\nport = 1\n', wait=False)
    assert 2 == exit_code(service)
    assert "refresh.interval" in service.log()
    assert "server" in service.log()
    assert "Traceback" not in service.log()


def damage(database: Path) -> None:
    """Overwrite the middle of every page but the first."""
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


def test_a_corrupt_database_stops_the_start_with_a_way_out(damaged: Service, run_service: RunService):
    """Exit code 1, the file untouched, and what to do. With `set-aside`, for clusters: the file is renamed, with a
    finding, and the service runs."""
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


def test_a_newer_database_is_not_touched(run_service: RunService):
    """After a rollback: exit code 1, and which versions there are."""
    service = run_service(config=FAST)
    service.stop()
    with contextlib.closing(sqlite3.connect(service.directory / "load-watcher.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    service.launch()
    assert 1 == exit_code(service)
    assert "newer version" in service.log()
    assert "9999" in service.log()


# --- stopping --------------------------------------------------------------------------------------------------------


def test_sigterm_ends_with_zero_beside_idle_and_slow_clients(run_service: RunService):
    """A connection that is kept alive, and one that never ends its request, hold up nothing."""
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
def test_sigterm_ends_with_zero_while_the_source_hangs(
    start_prometheus: StartPrometheus, run_service: RunService, frozen: bool
):
    """What is asked and not answered is hung up, well within ten seconds."""
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


def test_the_last_window_outlives_a_stop(start_prometheus: StartPrometheus, run_service: RunService):
    """SIGTERM writes what was served last; the next start serves the very same, without a source."""
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
    """Remembers every document that a service served, in their order."""

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


def test_a_kill_at_any_moment_loses_at_most_the_tick_in_flight(
    start_prometheus: StartPrometheus, run_service: RunService
):
    """Twice: killed at a random moment of its ticks, it serves after the start what it had served before, values
    and times alike, though the source is away."""
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


def test_sighup_takes_over_another_source(start_prometheus: StartPrometheus, run_service: RunService):
    """The old document stays until the new source has answered; then that one's nodes are served as well."""
    one, other = start_prometheus(), start_prometheus()
    with Feed(one, ["a", "b"]), Feed(other, ["a", "b", "c"]):
        service = run_service(config=config_for(one))
        assert {"a", "b"} == set(without_time(service.wait_for_status(200)))
        one.pause()  # whatever is served from now on comes from the other
        reload(service, config_for(other))

        def taken_over() -> bool:
            answer = service.get("/watcher")
            assert 200 == answer.status, answer.text
            return set(without_time(answer)) == {"a", "b", "c"}

        wait_for(taken_over, what="the other source's nodes")
        before = service.get("/watcher").json()["window"]["end"]
        wait_for(lambda: service.get("/watcher").json()["window"]["end"] > before, what="the other source's samples")
        assert other.url in service.log()
        one.resume()  # or the feed would wait for it
    wait_for_log(service, "settings reloaded")


def test_the_last_of_many_sighups_counts(run_service: RunService):
    """Faster than they can be followed: settings that changed during a reload are not forgotten, and ticks go on."""
    service = run_service(config=FAST)
    before = service.wait_for_status(200).json()["timestamp"]
    for staleness in range(60, 90):
        reload(service, FAST.replace("2m", f"{staleness}s"))
    reload(service, FAST.replace("2m", "99s"))
    wait_for(lambda: service.get("/readyz").json()["max_staleness_s"] == 99, what="the last settings")
    wait_for(lambda: service.get("/watcher").json()["timestamp"] > before, what="ticks to go on")
    assert 0 == service.stop()
    assert "Traceback" not in service.log()


def test_sighup_with_bad_settings_changes_nothing(prometheus: Prometheus, run_service: RunService):
    """Their problems are logged, the old settings go on; good ones are taken afterwards."""
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


def test_a_full_disk_delays_no_answer_and_is_survived(
    small_disk: Path, prometheus: Prometheus, run_service: RunService
):
    """Answers go on, /readyz tells; with room again what was missed is written. One log line each way."""
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
        # of a service that is so young; the disk is no reason
        assert service.get("/readyz").json().get("error", {}).get("code") in (None, "warming_up")
        subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
        wait_for(lambda: store()["ok"], what="the store to recover")
        assert 0 == service.stop()
    assert 1 == service.log().count("saving to the database fails")
    assert 1 == service.log().count("saving to the database works again")


def wait_for_hour(service: Service, offset: int) -> int:
    """Until documents are of that time, relative to the machine's; all the while it is alive and serves something
    whose age, by the monotonic clock, is small. Returns the timestamp of the document.

    Of a clock that is set ahead between a sample and the end of its tick the service must think that the tick took an
    hour, until the next one.
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
    """What is published stays, and ages by the monotonic clock; the history is fetched anew after the step back; ticks,
    liveness and the log take no harm, neither then nor when the clock is right again."""
    clock = FakedClock(tmp_path)
    service = run_service(config=FAST.replace('"1s"', '"2s"', 1), env=clock.environment)
    service.wait_for_status(200)
    clock.set(-3600)
    before = wait_for_hour(service, -3600)

    def found() -> list[str]:
        kinds = [one["kind"] for one in service.get("/api/v1/findings").json()["findings"]]
        return [kind for kind in kinds if kind == "clock_step"]

    # If the clock is set in the middle of a tick, its document is of the new time, and the next tick finds the step.
    wait_for(found, what="the finding")
    wait_for(lambda: service.get("/watcher").json()["timestamp"] > before + 2, what="ticks to go on")
    clock.set(0)
    before = wait_for_hour(service, 0)
    wait_for(lambda: service.get("/watcher").json()["timestamp"] > before + 2, what="ticks to go on")
    assert 1 == service.log().count("wall clock stepped back")
    assert 0 == service.stop()
    assert "Traceback" not in service.log()


def test_a_service_that_was_frozen_goes_on(run_service: RunService):
    """Stopped for many of its own intervals, as on a suspended machine: alive and ticking at once when it wakes."""
    service = run_service(config=FAST)
    before = service.wait_for_status(200).json()["timestamp"]
    service.pause()
    wait_for(lambda: time.time() > before + 4, what="some intervals to pass")
    service.resume()
    service.wait_for_status(200, "/healthz")
    wait_for(lambda: service.get("/watcher").json()["timestamp"] > before + 3, what="ticks to go on")
    assert 0 == service.stop()
    assert "Traceback" not in service.log()
