"""`load-watcher doctor` with Datadog and SignalFx: the checks are those of any source."""

import time
from pathlib import Path

import pytest

from cloud_tests.fake_datadog import API_KEY, APP_KEY, FakeDatadog
from cloud_tests.fake_signalfx import TOKEN, FakeSignalFx
from tests.doctor import Told, doctor
from tests.real.parts import free_port

pytestmark = pytest.mark.usefixtures("reachable")


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database and the settings file are looked for in the working directory."""
    monkeypatch.chdir(tmp_path)


def minutes() -> list[float]:
    """A time in each of the last 20 minutes; the newest is recent, whatever the time of the test."""
    now = time.time() // 10 * 10
    return [now - 60 * back for back in range(20)]


def ask(name: str, address: str, *arguments: str, **secrets: str) -> Told:
    """By the Go service's names for the environment."""
    names = {"METRICS_PROVIDER_NAME": name, "METRICS_PROVIDER_ADDRESS": address}
    keys = {f"METRICS_PROVIDER_{key.upper()}": value for key, value in secrets.items()}
    return doctor("--set", "provider.metrics=CPU,Memory", *arguments, env=names | keys)


def test_datadog():
    """Well, and refused for a wrong key."""
    with FakeDatadog() as server:
        for at in minutes():
            server.put("system.cpu.idle", {"host": "node-1"}, [at], 40.0 + at % 7)
            server.put("system.mem.pct_usable", {"host": "node-1"}, [at], 0.5 + at % 7 / 100)
        well = ask("Datadog", server.url, token=API_KEY, app_key=APP_KEY)
        refused = ask("Datadog", server.url, token="s3cret", app_key=APP_KEY)
    assert 0 == well.exit_code, str(well)
    well.one("series", "ok", "CPU: 100 - system.cpu.idle", "node names from host")
    well.one("cadence", "ok", "samples every 60 s")
    assert {"source"} == refused.failed()
    assert "an application key" in refused.one("source", "fail", "403").cure
    assert not any(secret in refused.output for secret in ("s3cret", APP_KEY))


def test_signalfx():
    """Well, without the series of the memory, and refused for a wrong token."""
    with FakeSignalFx() as server:
        for at in minutes():
            server.put("cpu.utilization", {"host": "node-1"}, [at], 20.0 + at % 7)
        half = ask("SignalFx", server.url, token=TOKEN)
        for at in minutes():
            server.put("memory.utilization", {"host": "node-1"}, [at], 30.0 + at % 7)
        well = ask("SignalFx", server.url, token=TOKEN)
        refused = ask("SignalFx", server.url, token="s3cret")
        elsewhere = ask("SignalFx", server.url, "--set", "provider.cluster_name=other", token=TOKEN)
    down = ask("SignalFx", f"http://127.0.0.1:{free_port()}", token=TOKEN)
    assert 0 == well.exit_code, str(well)
    well.one("series", "ok", "Memory: ", "node names from host")
    assert {"series"} == half.failed()
    half.one("series", "fail", 'Memory: no samples of host:* AND sf_metric:"memory.utilization"', "signalfx.md")
    assert "cluster_name" not in half.one("series", "fail").cure
    assert "hosts match provider.cluster_name" in elsewhere.one("series", "fail", "Memory: ").cure
    assert "Connection refused" in down.one("source", "fail", "host and port of provider.address").what
    assert "an access token" in refused.one("source", "fail", "401").cure
    assert "s3cret" not in refused.output


def test_all_nodes_stand_still():
    """A source that repeats itself: before long nothing would be served, so it is a failure."""
    with FakeSignalFx() as server:
        for name in ("cpu.utilization", "memory.utilization"):
            server.put(name, {"host": "node-1"}, minutes(), 20.0)
        said = ask("SignalFx", server.url, token=TOKEN)
    said.one("samples", "fail", "partial_outage", "froze at the same time", "check their exporters")
    said.one("samples", "warn", "frozen: node-1")
    said.one("freshness", "warn", "node-1 (1 of 1 node)")
