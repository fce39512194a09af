"""`load-watcher doctor` with Datadog: the checks are those of any source."""

import time
from pathlib import Path

import pytest

from cloud_tests.fake_datadog import API_KEY, APP_KEY, FakeDatadog
from tests.doctor import Reported, doctor
from tests.real.parts import free_port

pytestmark = pytest.mark.usefixtures("reachable")


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory, in which the database and the settings file are searched."""
    monkeypatch.chdir(tmp_path)


def minutes() -> list[float]:
    """A time in each of the last 20 minutes; the newest is recent at any time of the test."""
    now = time.time() // 10 * 10
    return [now - 60 * back for back in range(20)]


def ask(address: str, *arguments: str, token: str = API_KEY) -> Reported:
    """Run doctor with the Go service's environment variables."""
    names = {"METRICS_PROVIDER_NAME": "Datadog", "METRICS_PROVIDER_ADDRESS": address}
    keys = {"METRICS_PROVIDER_TOKEN": token, "METRICS_PROVIDER_APP_KEY": APP_KEY}
    return doctor("--set", "provider.metrics=CPU,Memory", *arguments, env=names | keys)


def test_the_results_for_datadog():
    """A working one, one without memory series, one that refuses a wrong key, and an unavailable one."""
    with FakeDatadog() as server:
        for at in minutes():
            server.put("system.cpu.idle", {"host": "node-1"}, [at], 40.0 + at % 7)
        half = ask(server.url)
        for at in minutes():
            server.put("system.mem.pct_usable", {"host": "node-1"}, [at], 0.5 + at % 7 / 100)
        well = ask(server.url)
        refused = ask(server.url, token="s3cret")
        elsewhere = ask(server.url, "--set", "provider.cluster_name=other")
    down = ask(f"http://127.0.0.1:{free_port()}")
    assert 0 == well.exit_code, str(well)
    well.one("series", "ok", "CPU: 100 - system.cpu.idle", "node names from host")
    well.one("cadence", "ok", "samples every 60 s")
    assert {"series"} == half.failed()
    half.one("series", "fail", "Memory: no samples of 1 - system.mem.pct_usable", "datadog.md")
    assert "cluster_name" not in half.one("series", "fail").cure
    assert "hosts match provider.cluster_name" in elsewhere.one("series", "fail", "Memory: ").cure
    assert "Connection refused" in down.one("source", "fail", "host and port of provider.address").what
    assert {"source"} == refused.failed()
    assert "an application key" in refused.one("source", "fail", "403").cure
    assert not any(secret in refused.output for secret in ("s3cret", APP_KEY))


def test_frozen_nodes_are_a_failure():
    """A source that repeats its values: soon no node would be served."""
    with FakeDatadog() as server:
        server.put("system.cpu.idle", {"host": "node-1"}, minutes(), 80.0)
        server.put("system.mem.pct_usable", {"host": "node-1"}, minutes(), 0.8)
        said = ask(server.url)
    said.one("samples", "fail", "partial_outage", "froze at the same time", "check their exporters")
    said.one("samples", "warn", "frozen: node-1")
    said.one("freshness", "warn", "node-1 (1 of 1 node)")
