"""`load-watcher report` with the servers of users: without recording rules, VictoriaMetrics, behind a gateway, and
servers that are slow, end, or lack data."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from load_watcher import main
from tests.real.cluster_history import (
    OUT_OF_ORDER,
    HistoryCluster,
    cadvisor_series,
    make_cluster,
    node_exporter_series,
    rule_series,
    state_series,
)
from tests.real.parts import Prometheus, VictoriaMetrics, new_secret
from tests.real.proxy import FaultyProxy, hang_beyond, once_asked, only_with
from tests.waiting import wait_for

pytestmark = [pytest.mark.real, pytest.mark.slow]

HOUR_S = 3600


@pytest.fixture(scope="module")
def cluster() -> HistoryCluster:
    """Four nodes, of which the first is hot in the morning, for a day and a half."""
    return make_cluster(4, 5, end=time.time() - 5.0, days=1.6)


@pytest.fixture(scope="module")
def full(cluster: HistoryCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus with all series that the report uses."""
    with Prometheus(tmp_path_factory.mktemp("full"), config=OUT_OF_ORDER) as server:
        server.write([*rule_series(cluster), *cadvisor_series(cluster), *state_series(cluster)])
        yield server


def run(url: str, folder: Path, *arguments: str, days: float = 1.5, **more: Any) -> Result:
    given = ("--file", str(folder / "report.html"), "--days", str(days), "--no-simulation")
    return CliRunner().invoke(main.main, ["report", "--prometheus", url, *given, *arguments], **more)


def document_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return found


def missing(document: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The missing data, by their first word."""
    return {each["what"].partition(" ")[0]: each for each in document["missing"]}


def test_counters_of_the_node_exporter_are_sufficient_for_the_load(cluster: HistoryCluster, tmp_path: Path):
    """Without recording rules, cAdvisor and kube-state-metrics: nodes with their names, and the requirements of the
    rest."""
    with Prometheus(tmp_path / "server", config=OUT_OF_ORDER) as server:
        server.write(node_exporter_series(cluster))
        result = run(server.url, tmp_path)
    assert result.exit_code == 0, result.output
    document = document_of(tmp_path)
    assert document["nodes"] == 4
    first = document["peaks"][0]["nodes"][0]
    assert (first["node"], first["peak_percent"] > 90.0, first["capacity"]) == ("node-0001", True, None)
    assert [each["memory_mean"] for each in document["hot"]["nodes"]] == pytest.approx([45.0] * 4, abs=0.1)
    assert "rate(" in document["queries"][0]["expression"]
    assert set(missing(document)) == {
        "kube_node_status_allocatable",
        "kube_pod_container_resource_requests",
        "container_cpu_usage_seconds_total",
    }
    assert all(each["cure"] for each in document["missing"])


def test_nodes_with_rules_beside_nodes_without(cluster: HistoryCluster, tmp_path: Path):
    """The rules cover two of four nodes, whose counters exist as well: each node is in the report, once."""
    covered = {"node-0001", "node-0002"}
    with Prometheus(tmp_path / "server", config=OUT_OF_ORDER) as server:
        rules = [each for each in rule_series(cluster) if covered & set(each.labels.values())]
        assert rules
        server.write([*rules, *node_exporter_series(cluster)])
        result = run(server.url, tmp_path)
    assert result.exit_code == 0, result.output
    document = document_of(tmp_path)
    assert document["nodes"] == 4
    means = {each["node"]: each["memory_mean"] for each in document["hot"]["nodes"]}
    assert set(means) == {f"node-000{number}" for number in range(1, 5)}
    assert {node for node, mean in means.items() if mean != pytest.approx(45.0, abs=0.1)} == covered


def test_victoria_metrics_gives_the_same_findings(full: Prometheus, cluster: HistoryCluster, tmp_path: Path):
    end = str(int(cluster.times[-1]) // HOUR_S * HOUR_S)
    (tmp_path / "prometheus").mkdir()
    with VictoriaMetrics(tmp_path / "server", flags=["-retentionPeriod=1y"]) as server:
        server.write([*rule_series(cluster), *cadvisor_series(cluster), *state_series(cluster)])
        result = run(server.url, tmp_path, "--end", end)
    assert result.exit_code == 0, result.output
    assert run(full.url, tmp_path / "prometheus", "--end", end).exit_code == 0
    found, expected = document_of(tmp_path), document_of(tmp_path / "prometheus")
    assert found["missing"] == []
    assert found["hot"]["node_hours"] == pytest.approx(expected["hot"]["node_hours"], abs=1.0)
    for a, b in zip(found["peaks"][0]["nodes"], expected["peaks"][0]["nodes"], strict=True):
        assert (a["peak"], a["mean"], a["requested"]) == pytest.approx((b["peak"], b["mean"], b["requested"]), rel=0.05)
    shares = [{each["workload"]: each["share"] for each in one["workloads"]["workloads"]} for one in (found, expected)]
    assert shares[0] == pytest.approx(shares[1], abs=0.01)


def test_a_gateway_that_needs_a_token_and_a_tenant(full: Prometheus, tmp_path: Path):
    token = new_secret()
    (tmp_path / "token").write_text(token + "\n")
    tenant = ("--set", 'provider.headers={"X-Scope-OrgID" = "team-7"}')
    with FaultyProxy(full.url) as gateway:
        gateway.fault = only_with({"Authorization": f"Bearer {token}", "X-Scope-OrgID": "team-7"})
        refused = run(gateway.url, tmp_path, *tenant)
        taken = run(gateway.url, tmp_path, *tenant, "--token-file", str(tmp_path / "token"))
    assert refused.exit_code == 2
    assert "credentials are required (401)" in refused.stderr
    assert "token" in refused.stderr
    assert taken.exit_code == 0, taken.output
    assert document_of(tmp_path)["missing"] == []
    assert token not in (tmp_path / "report.html").read_text() + taken.output


def test_a_server_with_a_certificate_of_a_private_ca(cluster: HistoryCluster, tmp_path: Path):
    with Prometheus(tmp_path / "server", config=OUT_OF_ORDER, tls=True) as server:
        server.write(rule_series(cluster))
        refused = run(server.url, tmp_path)
        taken = run(server.url, tmp_path, "--ca-file", str(server.ca_file))
    assert refused.exit_code == 2
    assert "ca_file" in refused.stderr
    assert taken.exit_code == 0, taken.output
    assert document_of(tmp_path)["nodes"] == 4


def test_queries_that_time_out_are_split(full: Prometheus, cluster: HistoryCluster, tmp_path: Path):
    """The server responds to at most 150 steps in time; the report equals that of a fast server."""
    end = ("--end", str(int(cluster.times[-1]) // HOUR_S * HOUR_S))
    (tmp_path / "fast").mkdir()
    with FaultyProxy(full.url) as slow:
        slow.fault = hang_beyond(150)
        result = run(slow.url, tmp_path, *end, "--timeout", "2s")
    assert result.exit_code == 0, result.output
    assert run(full.url, tmp_path / "fast", *end).exit_code == 0
    found, expected = document_of(tmp_path), document_of(tmp_path / "fast")
    assert [found[part] for part in ("hot", "peaks", "workloads", "missing")] == [
        expected[part] for part in ("hot", "peaks", "workloads", "missing")
    ]
    requests = {each["purpose"]: each["requests"] for each in found["queries"]}
    assert requests["CPU of nodes"] == 16  # 2,160 steps of 60 s


def test_a_server_that_ends_while_nodes_are_read(cluster: HistoryCluster, tmp_path: Path):
    with Prometheus(tmp_path / "server", config=OUT_OF_ORDER) as server:
        server.write(rule_series(cluster))
        with FaultyProxy(server.url) as way:
            way.fault = once_asked("max_over_time(instance:node_cpu", server.kill)
            result = run(way.url, tmp_path)
    assert result.exit_code == 2
    assert "unavailable" in result.stderr
    assert "kubectl -n monitoring port-forward" in result.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["server"]


def test_a_server_that_ends_while_pods_are_read(cluster: HistoryCluster, tmp_path: Path):
    """The figures of nodes are written; for the rest, the error and its remedy, and no zeros."""
    with Prometheus(tmp_path / "server", config=OUT_OF_ORDER) as server:
        server.write([*rule_series(cluster), *cadvisor_series(cluster), *state_series(cluster)])
        with FaultyProxy(server.url) as way:
            way.fault = once_asked("rate(container_cpu_usage", server.kill)
            result = run(way.url, tmp_path)
    assert result.exit_code == 0, result.output
    document = document_of(tmp_path)
    assert document["peaks"][0]["cluster"]["requested"] > 1.0
    assert document["workloads"] is None
    lost = missing(document)["container_cpu_usage_seconds_total"]
    assert "unavailable" in lost["what"]
    assert "running" in lost["cure"]
    assert "The workloads are unknown" in document["findings"]["workloads"]


def test_hours_of_data_in_a_report_of_three_days(tmp_path: Path):
    """The means are those of the hours with values, hours without values are unknown, and nothing is simulated."""
    end = int(time.time()) // HOUR_S * HOUR_S  # at the end of the report, so that both have the mean of the same time
    short = make_cluster(4, 5, end=float(end), days=3.0 / 24.0)
    with Prometheus(tmp_path / "server", config=OUT_OF_ORDER) as server:
        server.write([*rule_series(short), *cadvisor_series(short), *state_series(short)])
        page = ("--file", str(tmp_path / "report.html"), "--days", "3")
        result = CliRunner().invoke(main.main, ["report", "--prometheus", server.url, *page])
    assert result.exit_code == 0, result.output
    document = document_of(tmp_path)
    assert "hours have values" in document["findings"]["hot"]
    assert 1.9 <= document["hot"]["known_hours"] <= 3.1  # a report ends with a whole hour
    assert None in document["hot"]["by_day"][0]
    load = float(np.mean([sum(short.load(pod) for pod in short.pods)]))
    assert document["peaks"][0]["cluster"]["mean"] == pytest.approx(load + 4 * 8 * 0.02, rel=0.1)
    assert sum(each["mean_cores"] for each in document["workloads"]["workloads"]) == pytest.approx(load, rel=0.1)
    assert all(each["bound"] is None for each in document["peaks"][0]["nodes"])
    assert "less than two days of recorded pods" in document["findings"]["policies"]


def test_the_first_minutes_of_a_server(tmp_path: Path):
    """The values begin after the default end of the report (the last whole hour), so --end is set to some minutes
    ago."""
    begins = int(time.time()) // HOUR_S * HOUR_S - HOUR_S + 600
    young = make_cluster(2, 2, end=begins + 900.0, days=900.0 / 86400.0, step=60.0)
    with Prometheus(tmp_path / "server", config=OUT_OF_ORDER) as server:
        server.write(rule_series(young))
        result = run(server.url, tmp_path, "--end", str(begins + 900))
    assert result.exit_code == 2
    assert "begins after the last whole hour" in result.stderr
    assert "after the next whole hour" in result.stderr


def test_a_server_with_pods_and_no_load_of_nodes(cluster: HistoryCluster, tmp_path: Path):
    with Prometheus(tmp_path / "server", config=OUT_OF_ORDER) as server:
        server.write([*cadvisor_series(cluster), *state_series(cluster)])
        result = run(server.url, tmp_path)
    assert result.exit_code == 2
    assert "no CPU utilization of nodes" in result.stderr
    assert "scrape a node exporter on each node" in result.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["server"]


def test_pods_are_read_on_a_sample_of_a_large_cluster(tmp_path: Path):
    """60 nodes with a budget for the pods of 30: all nodes have figures, the hot node's pods are exact."""
    large = make_cluster(60, 3, end=time.time() - 5.0, days=1.1, step=240.0)
    with Prometheus(tmp_path / "server", config=OUT_OF_ORDER) as server:
        server.write([*rule_series(large), *cadvisor_series(large), *state_series(large)])
        result = run(server.url, tmp_path, "--max-samples", "300000", days=1.0)
    assert result.exit_code == 0, result.output
    document = document_of(tmp_path)
    assert len(document["hot"]["nodes"]) == 60
    workloads = document["workloads"]
    assert (len(workloads["sample"]["nodes"]), workloads["sample"]["hottest"]) == (30, ["node-0001"])
    assert workloads["sample"]["total"] == 60
    assert sum(each["pods"] for each in workloads["workloads"]) == pytest.approx(180, abs=3)
    reported = (large.times >= document["begins"]) & (
        large.times <= document["ends"]
    )  # 1.1 days contain some hours twice
    truth = float(np.mean(np.sum([large.load(pod) for pod in large.pods], axis=0)[reported]))
    assert workloads["total_cores"] == pytest.approx(truth, rel=0.05)
    assert "on 30 of 60 nodes" in result.stdout
    assert "Estimated from the pods on 30 of 60 nodes" in (tmp_path / "report.html").read_text()


def test_an_interrupt_leaves_no_files(full: Prometheus, tmp_path: Path):
    """While a query runs: the exit code is that of an interrupt, without a traceback."""
    with FaultyProxy(full.url) as way:
        way.fault = hang_beyond(1)
        page = ("--prometheus", way.url, "--file", str(tmp_path / "report.html"))
        command = [sys.executable, "-m", "load_watcher", "report", *page]
        # A job in the background of a shell inherits SIGINT as ignored.
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as process:
            wait_for(lambda: way.waiting > 0, what="a query that has no answer")
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert output.strip().endswith("Aborted!")
    assert "Traceback" not in output
    assert list(tmp_path.iterdir()) == []
