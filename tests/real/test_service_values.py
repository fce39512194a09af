"""The values of /watcher equal those that Prometheus computes from the same samples."""

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import OF_THE_TESTS, STEERING_NAMES, STEERING_PREFIXES, RunService
from tests.real.fleet import DISKS, Fleet, by_node_label, make_fleet, node_exporter_series, recording_rule_series
from tests.real.parts import Prometheus
from tests.service import Service
from tests.waiting import wait_for

pytestmark = pytest.mark.real

RESOLUTION = 15
WINDOWS = ("5m", "10m", "15m")
CPU, MEMORY = "instance:node_cpu:ratio", "instance:node_memory_utilisation:ratio"
RECEIVE, TRANSMIT = "instance:node_network_receive_bytes:rate:sum", "instance:node_network_transmit_bytes:rate:sum"
DISK = "instance_device:node_disk_io_time_seconds:rate5m"
NODE = "node-0002"

Numbers = dict[tuple[str, str, str], float]
"""(name, operator, rollup) -> value."""


def off_the_edges(now: float) -> float:
    """The last time before `now` - 7 s that is the middle of a slot (at edges, versions of Prometheus differ)."""
    return (now - 7) // RESOLUTION * RESOLUTION - RESOLUTION / 2


@pytest.fixture(scope="module")
def fleet(shared_prometheus: Prometheus) -> Fleet:
    """Sixteen minutes of five nodes, as series of recording rules."""
    end = off_the_edges(time.time())
    fleet = make_fleet(5, start=end - 960, end=end, step=RESOLUTION, seed=11)
    shared_prometheus.write(recording_rule_series(fleet))
    return fleet


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, shared_prometheus: Prometheus, fleet: Fleet) -> Iterator[Service]:
    """One service with the shipped settings, when it has all its windows."""
    with pytest.MonkeyPatch.context() as environment:
        for name in os.environ.keys() - OF_THE_TESTS:
            if name.upper() in STEERING_NAMES or name.startswith(STEERING_PREFIXES):
                environment.delenv(name)
        arguments = ("--provider", "prometheus", "--address", shared_prometheus.url)
        with Service(tmp_path_factory.mktemp("service"), *arguments) as service:
            wait_for(lambda: has_window(service, "15m"), what="the 15-minute window", ignoring=(KeyError,))
            yield service


def has_window(service: Service, window: str) -> bool:
    return all(
        any(rollup == window for _, _, rollup in numbers_of(node))
        for node in service.get(f"/watcher?window={window}").json()["data"]["NodeMetricsMap"].values()
    )


def numbers_of(node: dict[str, Any]) -> Numbers:
    return {(metric["name"], metric["operator"], metric["rollup"]): metric["value"] for metric in node["metrics"]}


def nodes_of(service: Service, path: str = "/watcher") -> dict[str, Numbers]:
    nodes = service.get(path).json()["data"]["NodeMetricsMap"]
    return {name: numbers_of(node) for name, node in nodes.items()}


def truth(prometheus: Prometheus, expression: str, fleet: Fleet, *, after: float = 1.0) -> dict[str, float]:
    """The values of Prometheus, `after` seconds after the newest sample."""
    rows = prometheus.query(expression, time=fleet.times[-1] + after)
    return {row["metric"]["instance"]: float(row["value"][1]) for row in rows}


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(
    ("name", "unit"), [(CPU, 100.0), (MEMORY, 100.0), (RECEIVE, 1.0), (TRANSMIT, 1.0)], ids=["cpu", "mem", "rx", "tx"]
)
def test_averages_and_deviations_equal_those_of_promql(service, shared_prometheus, fleet, name, unit, window):
    """avg_over_time and stddev_over_time over the same samples, within 1e-9 (and the ten decimals of the API)."""
    nodes = nodes_of(service, f"/watcher?window={window}")
    assert fleet.nodes == list(nodes)
    for operator, function in (("AVG", "avg_over_time"), ("STD", "stddev_over_time")):
        expected = truth(shared_prometheus, f"{function}({name}[{window}])", fleet)
        for node in fleet.nodes:
            assert unit * expected[node] == pytest.approx(nodes[node][name, operator, window], rel=1e-9, abs=1e-10)


@pytest.mark.parametrize("window", WINDOWS)
def test_a_node_has_the_busiest_disk_of_each_slot(service, shared_prometheus, fleet, window):
    """Several devices of one node: the maximum in each slot, then the window over it."""
    nodes = nodes_of(service, f"/watcher?window={window}")
    # A subquery has steps at multiples of 15 s; each step uses the samples in the middle of the previous slot.
    steps = f"(max by (instance) ({DISK}))[{window}:{RESOLUTION}s]"
    assert len(DISKS) > 1
    for operator, function in (("AVG", "avg_over_time"), ("STD", "stddev_over_time")):
        expected = truth(shared_prometheus, f"{function}({steps})", fleet, after=RESOLUTION / 2 + 1)
        for node in fleet.nodes:
            assert 100 * expected[node] == pytest.approx(nodes[node][DISK, operator, window], rel=1e-9, abs=1e-10)


@pytest.mark.parametrize(
    ("operator", "expression"),
    [
        ("Latest", CPU),
        ("MAX", f"max_over_time({CPU}[15m])"),
        ("P50", f"quantile_over_time(0.5, {CPU}[15m])"),
        ("P90", f"quantile_over_time(0.9, {CPU}[15m])"),
        ("P95", f"quantile_over_time(0.95, {CPU}[15m])"),
        ("P99", f"quantile_over_time(0.99, {CPU}[15m])"),
    ],
)
def test_other_operators_equal_those_of_promql(service, shared_prometheus, fleet, operator, expression):
    """Percentiles interpolate linearly, as in PromQL."""
    nodes = nodes_of(service, f"/watcher?type=CPU&operator={operator}")
    expected = truth(shared_prometheus, expression, fleet)
    rollup = "" if operator == "Latest" else "15m"
    for node in fleet.nodes:
        assert 100 * expected[node] == pytest.approx(nodes[node][CPU, operator, rollup], rel=1e-9, abs=1e-10)


def test_parameters_are_combined_by_and(service, fleet):
    """?type, ?operator, ?host and ?window together select what matches all of them."""
    nodes = nodes_of(service, f"/watcher?type=Memory&operator=STD&operator=AVG&host={NODE}&window=10m")
    assert {NODE: {(MEMORY, "AVG", "10m"), (MEMORY, "STD", "10m")}} == {n: set(v) for n, v in nodes.items()}


def test_a_node_has_the_same_numbers_by_path_and_by_parameter(service, fleet):
    """/watcher/{host}, ?host= and the whole list are exactly equal."""
    everyone = nodes_of(service)
    assert {NODE: everyone[NODE]} == nodes_of(service, f"/watcher/{NODE}") == nodes_of(service, f"/watcher?host={NODE}")
    two = nodes_of(service, f"/watcher?host={NODE}&host=node-0005")
    assert {NODE: everyone[NODE], "node-0005": everyone["node-0005"]} == two


def test_the_format_of_the_kep_has_the_nodes_directly_under_data(service, fleet):
    """?shape=kep has no other differences."""
    default, kep = service.get("/watcher").json(), service.get("/watcher?shape=kep").json()
    assert default["data"]["NodeMetricsMap"] == kep["data"]
    assert {**default, "data": None} == {**kep, "data": None}


def test_the_document_has_its_times_and_its_source(service, fleet):
    """window.end is the newest sample, timestamp the fetch, Age the age of the newest sample."""
    before, answer, after = time.time(), service.get("/watcher"), time.time()
    document = answer.json()
    end = int(fleet.times[-1])
    assert "Prometheus" == document["source"]
    assert {"duration": "15m", "start": end - 900, "end": end} == document["window"]
    assert end < document["timestamp"] <= time.time()
    assert before - 2 < fleet.times[-1] + int(answer.headers["Age"]) <= after
    assert {end} == {node["sampled"] for node in document["data"]["NodeMetricsMap"].values()}


def test_columns_have_the_same_numbers(service, fleet):
    """/api/v1/columns has the same snapshot, node by node."""
    columns, nodes = service.get("/api/v1/columns").json(), nodes_of(service)
    assert list(nodes) == columns["nodes"]
    for column in columns["columns"]:
        key = (column["name"], column["operator"], column["window"])
        assert [nodes[node][key] for node in columns["nodes"]] == column["values"]
    assert {CPU, MEMORY, RECEIVE, TRANSMIT, DISK} < set(columns["sampled"])


def test_each_encoding_has_the_same_document(service, fleet):
    """The client of the test decodes gzip; identity needs no decoding."""
    plain, zipped = (service.get("/watcher", headers={"Accept-Encoding": coding}) for coding in ("identity", "gzip"))
    assert "gzip" == zipped.headers["Content-Encoding"]
    assert plain.body == zipped.body
    assert plain.headers["ETag"] != zipped.headers["ETag"]
    again = service.get("/watcher", headers={"Accept-Encoding": "gzip", "If-None-Match": zipped.headers["ETag"]})
    assert (304, b"") == (again.status, again.body)


def test_metrics_have_the_windows_as_ratios(service, fleet):
    """/metrics has CPU and Memory, AVG and STD of 15 minutes, in base units."""
    exposition, nodes = service.get("/metrics").text, nodes_of(service)
    prefix = f'load_watcher_node_utilisation_ratio{{node="{NODE}",resource="CPU",operator="AVG",window="15m"}} '
    (line,) = [line for line in exposition.splitlines() if line.startswith(prefix)]
    assert nodes[NODE][CPU, "AVG", "15m"] / 100 == pytest.approx(float(line.removeprefix(prefix)), rel=1e-9)


def test_the_history_has_the_stored_windows(service, fleet):
    """Those of the first tick, within their precision of 1e-6."""
    path = f"/api/v1/history?host={NODE}&type=CPU&operator=AVG&window=15m"
    (series,) = wait_for(lambda: service.get(path).json()["series"], what="the stored window")
    assert nodes_of(service)[NODE][CPU, "AVG", "15m"] == pytest.approx(series["points"][-1][1], rel=2e-6)


def test_raw_counters_give_the_load_from_which_they_were_made(prometheus: Prometheus, run_service: RunService):
    """Without recording rules: CPU and memory from node exporters' series, nodes by their label."""
    end = off_the_edges(time.time())
    fleet = make_fleet(3, start=end - 1500, end=end, step=RESOLUTION, seed=3)
    prometheus.write(node_exporter_series(fleet, labels=by_node_label))
    service = run_service("--provider", "prometheus", "--address", prometheus.url)
    wait_for(lambda: has_window(service, "5m"), what="the 5-minute window", ignoring=(KeyError,))
    nodes = nodes_of(service, "/watcher?window=5m")
    assert fleet.nodes == list(nodes)
    # memory's last 20 steps; each evaluation uses the previous sample
    expected = 100 * fleet.memory[:, -21:-1].mean(axis=1)
    for row, node in enumerate(fleet.nodes):
        assert expected[row] == pytest.approx(nodes[node][MEMORY, "AVG", "5m"], abs=1.0)
        assert 0 < nodes[node][CPU, "AVG", "5m"] < 100
    sources = {source["type"]: source for source in service.get("/api/v1/findings").json()["sources"]}
    assert "node" == sources["CPU"]["node_label"]
    assert "node_cpu_seconds_total" in sources["CPU"]["expression"]
    assert "no series of instance:node_cpu:ratio" in sources["CPU"]["reason"]


def test_the_host_provider_serves_this_machine(run_service: RunService):
    """Within seconds after the start, with its name in Kubernetes."""
    service = run_service(env={"NODE_NAME": "worker-7"})
    answer = service.wait_for_status(200)
    assert "Host" == answer.json()["source"]
    (name,) = answer.json()["data"]["NodeMetricsMap"]
    assert "worker-7" == name
    numbers = nodes_of(service)["worker-7"]
    for metric in (CPU, MEMORY):
        assert 0 <= numbers[metric, "Latest", ""] <= 100
    assert service.get("/watcher/worker-7").json()["data"] == answer.json()["data"]
    assert 404 == service.get("/watcher/worker-8").status
