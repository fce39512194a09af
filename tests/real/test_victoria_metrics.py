"""Differences of a real VictoriaMetrics from Prometheus, and that the provider's results are equal.

test_prometheus_provider.py tests equal samples, for each candidate and each label.
"""

import struct
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import RunService
from tests.real.fleet import Fleet, by_node_label, recording_rule_series
from tests.real.parts import Server, VictoriaMetrics
from tests.real.remote_write import Series
from tests.real.test_prometheus_provider import STEP, by_key, failure, fetch, fleet_until_now, samples
from tests.waiting import wait_for
from watcher.sources.errors import ProviderRefused
from watcher.sources.settings import QuerySettings

pytestmark = pytest.mark.real

STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
"""The marker that Prometheus writes at the end of a series."""


@pytest.fixture
def victoria(tmp_path: Path, running: Callable[[Server], Server]) -> VictoriaMetrics:
    """An empty VictoriaMetrics with its default settings."""
    server = VictoriaMetrics(tmp_path / "victoria-metrics")
    running(server)
    server.start()
    return server


def rising_fleet() -> Fleet:
    """Three nodes whose CPU rises by two points with each sample, so that all values differ."""
    fleet = fleet_until_now()
    fleet.cpu[:] = np.linspace(0.02, 0.02 * len(fleet.times), len(fleet.times)) % 0.97
    return fleet


def test_the_newest_half_minute_of_an_expression_has_real_values(victoria: VictoriaMetrics):
    """In a range query, VictoriaMetrics repeats the value of 30 s ago for later times."""
    fleet = rising_fleet()
    victoria.write(recording_rule_series(fleet, labels=by_node_label))
    now = time.time()
    query = QuerySettings("100 * instance:node_cpu:ratio", "percent", guard="instance:node_cpu:ratio")
    got = samples(by_key(fetch(victoria, until=now, queries={"CPU": query}))["CPU"])

    last = max(at for found in got.values() for at in found)
    assert now - STEP < last <= now
    for row, node in enumerate(fleet.nodes):
        for at, value in got[node].items():
            assert value == pytest.approx(100 * fleet.cpu[row][fleet.times <= at][-1]), now - at


def test_the_end_of_a_series_is_not_a_sample(victoria: VictoriaMetrics):
    """VictoriaMetrics returns the staleness markers, which Prometheus does not; a NaN would be a finding."""
    fleet = fleet_until_now(2)
    gone, lives = fleet.nodes
    fleet.cpu[0, -2:] = STALE
    victoria.write(recording_rule_series(fleet, labels=by_node_label))
    assert "NaN" in str(victoria.query("instance:node_cpu:ratio[1m]", time=time.time()))
    (batch,) = fetch(victoria, until=time.time(), metrics=("CPU",)).batches

    assert np.isfinite(batch.value).all()
    found = samples(batch)
    assert (fleet.times[-3], fleet.times[-1]) == pytest.approx((max(found[gone]), max(found[lives])), abs=1e-3)


def test_a_new_node_has_its_name_at_once(victoria: VictoriaMetrics):
    """VictoriaMetrics evaluates instant queries 30 s ago, when a new node had neither series nor name."""
    now = time.time()
    labels = {"instance": "10.0.0.1:9100", "job": "node-exporter"}
    victoria.write(
        [
            Series({"__name__": "instance:node_cpu:ratio", **labels}, [now - 5], [0.5]),
            Series({"__name__": "node_uname_info", **labels, "nodename": "new"}, [now - 5], [1.0]),
        ]
    )
    (batch,) = fetch(victoria, until=now, metrics=("CPU",)).batches

    assert ("new",) == batch.nodes


def test_a_query_beyond_the_limits_is_refused(victoria: VictoriaMetrics):
    """With 422, where Prometheus has 400."""
    victoria.write(recording_rule_series(fleet_until_now()))
    bad = failure(victoria, queries={"CPU": QuerySettings("sum(", "ratio")})

    assert isinstance(bad, ProviderRefused)
    assert "422" in str(bad)
    assert "provider.queries" in bad.hint


def test_the_service_serves_windows_from_it(victoria: VictoriaMetrics, run_service: RunService):
    """Windows of 15 minutes for all nodes with the means of the samples, and no failure of the source."""
    fleet = fleet_until_now()
    victoria.write(recording_rule_series(fleet, labels=by_node_label))
    service = run_service("--provider", "prometheus", "--address", victoria.url)

    def whole() -> bool:
        answer = service.get("/watcher?type=CPU&operator=AVG")
        return answer.status == 200 and answer.body.count(b'"rollup":"15m"') == len(fleet.nodes)

    wait_for(whole, what="fifteen minutes of every node", timeout=60)
    nodes = service.get("/watcher?type=CPU&operator=AVG&window=5m").json()["data"]["NodeMetricsMap"]
    for row, node in enumerate(fleet.nodes):
        (average,) = [one["value"] for one in nodes[node]["metrics"] if one["operator"] == "AVG"]
        assert average == pytest.approx(100 * fleet.cpu[row, -20:].mean())
    found = {one["kind"] for one in service.get("/api/v1/findings").json()["findings"]}
    assert not found & {"query_failed", "no_series", "unknown_node", "non_finite", "clock_skew"}
