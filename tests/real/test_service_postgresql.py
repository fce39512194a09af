"""The service with its database on a real PostgreSQL: as a process, with a real source."""

import time
from pathlib import Path

import pytest

from tests.conftest import RunService, StartPrometheus
from tests.real import proxy as faults
from tests.real.feed import Feed
from tests.real.parts import PostgreSQL
from tests.real.proxy import FaultyProxy
from tests.waiting import wait_for

pytestmark = pytest.mark.real

FAST = """
[refresh]
interval = "1s"
resolution = "1s"
max_staleness = "2m"
"""


def test_a_service_whose_server_starts_later_and_restarts(
    start_prometheus: StartPrometheus, run_service: RunService, tmp_path: Path
):
    """The service starts without its database, and serves; the database starts, and ticks are stored; it is restarted;
    the service is killed, and serves stored data before it queries its source. The password is shown nowhere."""
    prometheus = start_prometheus()
    with PostgreSQL(tmp_path / "postgresql") as database:
        url = database.new_database()
        database.stop()
        password = tmp_path / "password"
        password.write_text(database.password)
        plain = url.replace(f":{database.password}", "")
        with Feed(prometheus, 3, history=400.0), FaultyProxy(prometheus.url) as proxy:
            service = run_service(
                *("--provider", "prometheus", "--address", proxy.url, "--store-url", plain),
                *("--set", f"store.password_file={password}"),
                config=FAST,
                env={"POD_NAME": "load-watcher-0"},
            )

            def stored() -> bool:
                return bool(service.get("/readyz").json()["detail"]["store"]["ok"])

            service.wait_for_status(200)
            assert not stored()
            assert 503 == service.get("/api/v1/history?host=node-0").status
            database.start()
            wait_for(stored, what="the database to be found")
            wait_for(lambda: last_stored(database, url) > 0.0, what="a tick")
            database.restart()
            restarted = time.time()
            wait_for(lambda: last_stored(database, url) > restarted, what="a tick after the restart")
            node = next(iter(service.get("/watcher").json()["data"]["NodeMetricsMap"]))
            service.kill()
            proxy.fault = faults.unavailable
            service.launch()
            service.wait_ready()
            assert 200 == service.get("/watcher").status
            history = service.get(f"/api/v1/history?host={node}&window=5m").json()
            assert history["series"]
            shown = service.log() + service.get("/readyz").text + service.get("/metrics").text
        assert "restored 3 nodes" in service.log()
        assert 2 >= service.log().count("saving to the database fails")
        assert database.password not in shown
        assert [("load-watcher-0",)] == database.execute("SELECT watcher FROM tick", database=url.rpartition("/")[2])
        assert 0 == service.stop()


def last_stored(database: PostgreSQL, url: str) -> float:
    """The end of the last stored tick, 0 without one."""
    rows = database.execute('SELECT "end" FROM tick', database=url.rpartition("/")[2])
    return float(rows[0][0]) if rows else 0.0
