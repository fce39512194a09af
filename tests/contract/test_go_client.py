"""The real Go client of the Trimaran plug-ins with responses of load-watcher: it decodes the sent values.

`client/` is a small Go module on github.com/paypal/load-watcher at the version that scheduler-plugins pins. It is built
once and kept in the cache; the first build downloads and compiles client-go, so its timeout is long.
"""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.conftest import RunService
from tests.fakes.service import FakeService, Live
from tests.fakes.snapshots import END, large_fleet, publish, small_fleet, snapshot_of, steady
from tests.modules.programs import find_go
from tests.real.parts import UNPACKED
from tests.waiting import wait_for
from watcher.core.publishing.wire import WatcherDocument
from watcher.model import SnapshotForecasts

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(900)]

SOURCE = Path(__file__).with_name("client")
AWKWARD = ('no"de\\ ü☃\u2028 </script>', "knoten-ÄÖÜ.example", "x" * 253)

Ask = Callable[..., list[dict[str, Any]]]


def lacking(reason: str) -> None:
    if os.environ.get("LOAD_WATCHER_REQUIRE_REAL") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def go_client() -> Path:
    """The path of the client program."""
    if (go := find_go()) is None:
        lacking("Go is neither on PATH nor in the cache: run make kubernetes")
    program = UNPACKED / "go-client" / "client"
    program.parent.mkdir(parents=True, exist_ok=True)
    build = [str(go), "build", "-trimpath", "-ldflags=-s -w", "-o", str(program), "."]
    done = subprocess.run(build, cwd=SOURCE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=800)
    if done.returncode:
        lacking(f"go build failed (is the module proxy reachable?):\n{done.stdout[-2000:]}")
    return program


@pytest.fixture
def ask(go_client: Path) -> Ask:
    """The output of the client for each address: {"error": …} or {"metrics": …}."""

    def asked(*addresses: str) -> list[dict[str, Any]]:
        done = subprocess.run([go_client, *addresses], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return asked


def url(live: Live) -> str:
    return f"http://127.0.0.1:{live.port}"


def nodes_of(outcome: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    assert "error" not in outcome, outcome
    return {name: node["metrics"] or [] for name, node in outcome["metrics"]["data"]["NodeMetricsMap"].items()}


def check_equal(theirs: dict[str, Any], body: bytes) -> None:
    """Each sent node, metric, label and number is decoded."""
    ours = msgspec.json.decode(body, type=WatcherDocument)
    decoded = theirs["metrics"]
    assert (decoded["timestamp"], decoded["source"]) == (ours.timestamp, ours.source)
    assert decoded["window"] == {"duration": ours.window.duration, "start": ours.window.start, "end": ours.window.end}
    nodes = nodes_of(theirs)
    assert set(nodes) == set(ours.data.NodeMetricsMap)
    for name, node in ours.data.NodeMetricsMap.items():
        assert [(m["name"], m["type"], m["operator"], m.get("rollup", "")) for m in nodes[name]] == [
            (m.name, m.type, m.operator, m.rollup) for m in node.metrics
        ]
        assert np.allclose([m["value"] for m in nodes[name]], [m.value for m in node.metrics], rtol=1e-14, atol=1e-10)


def test_ordinary_responses_are_decoded_completely(ask: Ask):
    """Two nodes with a window of 15 minutes, one with five minutes; the transport requests gzip."""
    with Live(FakeService(published=publish(snapshot_of(small_fleet())))) as live:
        (theirs,) = ask(url(live))
        check_equal(theirs, live.ask("/watcher").body)
    assert {metric["rollup"] for metric in nodes_of(theirs)["node-1"]} == {"15m"}


def test_an_address_with_a_slash_at_its_end_works(ask: Ask):
    """The client requests //watcher then."""
    with Live() as live:
        plain, slashed = ask(url(live), url(live) + "/")
    assert plain == slashed
    assert nodes_of(plain)


def test_unusual_names_are_decoded_unchanged(ask: Ask):
    """Quotes, backslashes, other scripts, line separators, the longest names."""
    fleet = {name: {"CPU": steady(12.3456789), "Memory": steady(7.0)} for name in AWKWARD}
    with Live(FakeService(published=publish(snapshot_of(fleet, source='Prom"\\é')))) as live:
        (theirs,) = ask(url(live))
        check_equal(theirs, live.ask("/watcher").body)
    assert set(nodes_of(theirs)) == set(AWKWARD)


def test_missing_values_are_absent_and_not_zero(ask: Ask):
    """A node without memory, one with a single sample, two that fill half of a shorter window."""
    fleet = {
        "cpu-only": {"CPU": steady(55)},
        "new": {"CPU": [33.0], "Memory": [44.0]},
        "five-minutes": {"CPU": steady(50, slots=12), "Memory": steady(20, slots=12)},
        "ten-minutes": {"CPU": steady(50, slots=20), "Memory": steady(20, slots=20)},
    }
    with Live(FakeService(published=publish(snapshot_of(fleet)))) as live:
        (theirs,) = ask(url(live))
        check_equal(theirs, live.ask("/watcher").body)
    nodes = nodes_of(theirs)
    assert {metric["type"] for metric in nodes["cpu-only"]} == {"CPU"}
    assert {(metric["operator"], metric["value"]) for metric in nodes["new"]} == {("Latest", 33.0), ("Latest", 44.0)}
    assert {metric["rollup"] for metric in nodes["five-minutes"] if metric["operator"] == "AVG"} == {"5m"}
    assert {metric["rollup"] for metric in nodes["ten-minutes"] if metric["operator"] == "AVG"} == {"10m"}
    assert all(metric["value"] > 0 for metrics in nodes.values() for metric in metrics)


def test_forecasts_are_decoded_if_configured(ask: Ask):
    """The client requests /watcher without parameters, so a server returns what operator=FORECAST gives there; the
    averages that the plug-ins use are still among the values."""
    key = ("instance:node_cpu:ratio", "6h")
    bounds, states = np.array([78.25, np.nan, 100.0]), np.array([0, 1, 0], dtype=np.uint8)
    snapshot = replace(
        snapshot_of(small_fleet()),
        forecasts=SnapshotForecasts("6h", 0.95, {key: bounds}, {key: bounds / 100.0}, {key: states}),
    )
    with Live(FakeService(published=publish(snapshot))) as live:
        body = live.ask("/watcher?operator=AVG&operator=STD&operator=FORECAST").body

    class Fixed(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Fixed) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        (theirs,) = ask(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    check_equal(theirs, body)
    found = {
        name: {(m["operator"], m["rollup"]): m["value"] for m in metrics if m["type"] == "CPU"}
        for name, metrics in nodes_of(theirs).items()
    }
    assert 78.25 == found["node-1"]["FORECAST", "6h"]
    assert ("FORECAST", "6h") not in found["node-2"]
    assert all(("AVG", "15m") in values or ("AVG", "10m") in values for values in found.values())


def test_five_thousand_nodes_are_decoded(ask: Ask):
    """Megabytes, compressed."""
    with Live(FakeService(published=publish(snapshot_of(large_fleet(5000))))) as live:
        (theirs,) = ask(url(live))
        check_equal(theirs, live.ask("/watcher").body)
    assert 5000 == len(nodes_of(theirs))
    assert END == theirs["metrics"]["window"]["end"]


def test_after_an_error_the_client_keeps_its_last_copy(ask: Ask):
    """No metrics (404) and stale ones (503) are errors for it, never an empty map; so is an unavailable service."""
    silent, stale = FakeService(published=None), FakeService(clock=1000.0 + 301.0)
    with Live(silent) as none, Live(stale) as old:
        outcomes = ask(url(none), url(old), "http://127.0.0.1:1")
    assert ["error" in outcome for outcome in outcomes] == [True, True, True], outcomes


def test_a_running_service_is_decoded(ask: Ask, run_service: RunService):
    """The whole program with this machine's load."""
    service = run_service("--provider", "host", env={"NODE_NAME": "worker-1"})
    service.wait_for_status(200)

    def both() -> list[Any]:
        body = service.get("/watcher").body
        (theirs,) = ask(service.url)
        same = theirs["metrics"]["timestamp"] == json.loads(body)["timestamp"]  # a tick may occur in between
        return [theirs, body] if same else []

    theirs, body = wait_for(both, what="the same snapshot twice")
    check_equal(theirs, body)
    assert {"worker-1"} == set(nodes_of(theirs))
