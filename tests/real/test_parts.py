"""The real components start, store data, and can be paused, killed and protected: other tests depend on this."""

import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import requests

from tests.conftest import StartPrometheus
from tests.modules.programs import helm
from tests.real.fleet import Fleet, between, by_node_label, make_fleet, node_exporter_series, recording_rule_series
from tests.real.parts import NodeExporter, Prometheus, find_helm, new_secret, run_program
from tests.real.remote_write import Series
from tests.waiting import PATIENCE_SECONDS, wait_for

pytestmark = pytest.mark.real


def recent_fleet(nodes: int, *, seconds: float = 960.0) -> Fleet:
    """Load up to a few seconds ago, so that no sample is in the future."""
    now = time.time()
    return make_fleet(nodes, start=now - seconds - 7, end=now - 7, seed=7)


def values_by(label: str, rows: list[dict]) -> dict[str, float]:
    return {row["metric"][label]: float(row["value"][1]) for row in rows}


def test_written_samples_are_read_back(prometheus):
    fleet = recent_fleet(3)
    prometheus.write(recording_rule_series(fleet))
    rows = prometheus.query("instance:node_cpu:ratio[20m]", time=fleet.times[-1] + 1)
    assert fleet.nodes == sorted(row["metric"]["instance"] for row in rows)
    for row in rows:
        node = fleet.nodes.index(row["metric"]["instance"])
        times, values = np.array(row["values"], dtype=np.float64).T
        np.testing.assert_allclose(times, fleet.times, atol=0.0006)
        np.testing.assert_array_equal(values, fleet.cpu[node])


def test_each_recording_rule_has_one_series_per_node_and_disks_two(prometheus):
    fleet = recent_fleet(2, seconds=60)
    prometheus.write(recording_rule_series(fleet))
    counts = values_by("__name__", prometheus.query('count by (__name__) ({job="node-exporter"})'))
    assert counts.pop("instance_device:node_disk_io_time_seconds:rate5m") == 4
    assert counts == {
        "instance:node_cpu:ratio": 2,
        "instance:node_memory_utilisation:ratio": 2,
        "instance:node_network_receive_bytes:rate:sum": 2,
        "instance:node_network_transmit_bytes:rate:sum": 2,
        "instance:node_network_receive_drop_excluding_lo:rate5m": 2,
        "instance:node_network_transmit_drop_excluding_lo:rate5m": 2,
    }


@pytest.mark.parametrize(
    ("expression", "truth"),
    [
        (
            'sum by (node) (rate(node_cpu_seconds_total{mode!~"idle|iowait|steal"}[5m]))'
            " / count by (node) (sum by (node, cpu) (rate(node_cpu_seconds_total[5m])))",
            lambda fleet: fleet.cpu,
        ),
        ("1 - node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes", lambda fleet: fleet.memory[:, -1:]),
        ('sum by (node) (rate(node_network_receive_bytes_total{device!="lo"}[5m]))', lambda fleet: fleet.receive),
        ('rate(node_disk_io_time_seconds_total{device="sda"}[5m])', lambda fleet: fleet.disk[:, 0]),
    ],
)
def test_raw_counters_give_the_load_from_which_they_were_made(shared_prometheus, raw_fleet, expression, truth):
    rows = values_by("node", shared_prometheus.query(expression, time=raw_fleet.times[-1] + 1))
    # rate over five minutes of 15 s samples spans the last 19 steps, extrapolated to the whole range.
    expected = truth(raw_fleet)[:, -19:].mean(axis=1)
    np.testing.assert_allclose([rows[node] for node in raw_fleet.nodes], expected, rtol=1e-6)


@pytest.fixture(scope="module")
def raw_fleet(shared_prometheus) -> Fleet:
    fleet = recent_fleet(5)
    shared_prometheus.write(node_exporter_series(fleet, labels=by_node_label, uname=True))
    return fleet


def test_uname_info_names_the_node(shared_prometheus, raw_fleet):
    rows = shared_prometheus.query("node_uname_info")
    assert raw_fleet.nodes == sorted(row["metric"]["nodename"] for row in rows)
    assert all(row["metric"]["instance"].endswith(":9100") for row in rows)


def test_a_history_can_be_extended(prometheus):
    fleet = recent_fleet(1, seconds=300)
    series = recording_rule_series(fleet)
    middle = fleet.times[10]
    prometheus.write(between(series, 0, middle))
    prometheus.write(between(series, middle, fleet.times[-1]))
    (row,) = prometheus.query("count_over_time(instance:node_cpu:ratio[10m])", time=fleet.times[-1] + 1)
    assert str(len(fleet.times)) == row["value"][1]


def test_special_values_and_single_samples_survive(prometheus):
    now = time.time() - 1
    prometheus.write(
        [
            ({"__name__": "odd", "kind": "nan"}, now, float("nan")),
            ({"__name__": "odd", "kind": "infinite"}, [now], [float("-inf")]),
            Series({"__name__": "odd", "kind": "ü"}, [now - 1, now], [1e-300, -0.1]),
        ]
    )
    rows = {row["metric"]["kind"]: row["value"][1] for row in prometheus.query("odd")}
    assert rows == {"nan": "NaN", "infinite": "-Inf", "ü": "-0.1"}


def test_a_paused_prometheus_hangs_and_resumes(prometheus):
    prometheus.pause()
    with pytest.raises(requests.ReadTimeout):
        prometheus.session.get(f"{prometheus.url}/-/ready", timeout=0.1)
    prometheus.resume()
    assert prometheus.is_ready()


def test_a_paused_prometheus_still_stops(prometheus):
    prometheus.pause()
    assert 0 == prometheus.stop()
    assert not prometheus.is_running()


def test_after_a_crash_it_restarts_on_the_same_port_with_its_data(prometheus):
    fleet = recent_fleet(1, seconds=60)
    prometheus.write(recording_rule_series(fleet))
    port = prometheus.port
    prometheus.kill()
    with pytest.raises(requests.ConnectionError):
        prometheus.is_ready()
    prometheus.restart()
    assert port == prometheus.port
    (row,) = prometheus.query("instance:node_cpu:ratio", time=fleet.times[-1])
    assert fleet.cpu[0, -1] == float(row["value"][1])


def test_cpu_seconds_grow_with_work(prometheus):
    before = prometheus.cpu_seconds()

    def has_worked() -> bool:
        prometheus.write([({"__name__": "work"}, [time.time() - 1], [1.0])])
        prometheus.query("sum(sum_over_time(work[1h]))")
        return prometheus.cpu_seconds() > before

    wait_for(has_worked, what="CPU time to grow")


def test_basic_authentication_over_tls(start_prometheus: StartPrometheus):
    password = new_secret()
    server = start_prometheus(tls=True, basic_auth=("watcher", password))
    assert server.url.startswith("https://")
    server.write([({"__name__": "up"}, [time.time() - 1], [1.0])])
    assert 1 == len(server.query("up"))
    ready, authority = f"{server.url}/-/ready", str(server.ca_file)
    wrong = requests.get(ready, auth=("watcher", "wrong"), verify=authority, timeout=PATIENCE_SECONDS)
    assert 401 == wrong.status_code
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(ready, timeout=PATIENCE_SECONDS)


def test_client_certificates_are_required(start_prometheus: StartPrometheus):
    server = start_prometheus(client_certificates=True)
    assert server.is_ready()
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{server.url}/-/ready", verify=str(server.ca_file), timeout=PATIENCE_SECONDS)


def test_node_exporter_reports_this_machine(node_exporter: NodeExporter):
    answer = node_exporter.session.get(f"{node_exporter.url}/metrics", timeout=PATIENCE_SECONDS)
    assert "node_cpu_seconds_total{" in answer.text
    assert "node_memory_MemTotal_bytes " in answer.text


def test_a_configuration_that_prometheus_refuses_fails_the_test_with_its_message(tmp_path: Path):
    server = Prometheus(tmp_path / "broken", config="scrape_configs: 7")
    with pytest.raises(pytest.fail.Exception, match="cannot unmarshal"):
        server.start()
    assert not server.is_running()


@pytest.mark.parametrize("program", ["promtool", "wrk"])
def test_programs_can_run(program):
    # wrk prints its version and usage, and ends with 1; the run shows that its libraries were found.
    assert run_program(program, "--version").stdout.startswith((f"{program} ", f"{program},"))


def test_helm_reports_the_version_of_its_module():
    """The linker sets it; without the stamps of `tests.modules.programs`, it would be v3.22."""
    done = subprocess.run([find_helm(), "version", "--short"], capture_output=True, text=True, timeout=60, check=True)
    assert f"v{helm().version}" == done.stdout.strip().partition("+")[0]


def test_five_thousand_nodes_are_loaded_in_seconds(prometheus):
    fleet = recent_fleet(5000)
    cpu_and_memory = [
        one
        for one in recording_rule_series(fleet)
        if one.labels["__name__"] in {"instance:node_cpu:ratio", "instance:node_memory_utilisation:ratio"}
    ]
    prometheus.write(cpu_and_memory)
    (row,) = prometheus.query("count(instance:node_cpu:ratio)", time=fleet.times[-1])
    assert "5000" == row["value"][1]
