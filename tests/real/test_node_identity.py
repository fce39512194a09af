"""Layouts of labels of other installations in a real Prometheus: nodes, findings, doctor and report."""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from load_watcher import main
from tests.conftest import RunService
from tests.doctor import doctor
from tests.fakes.kube import NODES, FakeKube
from tests.real.cluster_history import OUT_OF_ORDER
from tests.real.parts import Prometheus
from tests.real.remote_write import Series
from tests.service import Service
from tests.waiting import wait_for

pytestmark = pytest.mark.real

CPU = "instance:node_cpu_utilisation:rate5m"
COUNTER = "node_cpu_seconds_total"
Labels = Mapping[str, str]


def series(name: str, labels: Labels, value: float, *, minutes: float = 16.0, step: float = 15.0) -> Series:
    """A value that hardly changes, until now."""
    times = np.arange(time.time() - 60.0 * minutes, time.time() - 2.0, step)
    return Series({"__name__": name, **labels}, times, value + (np.arange(len(times)) % 7) / 1000.0)


def counter(name: str, labels: Labels, rate: float, *, minutes: float = 22.0, step: float = 15.0) -> Series:
    times = np.arange(time.time() - 60.0 * minutes, time.time() - 2.0, step)
    return Series({"__name__": name, **labels}, times, 1000.0 + rate * (times - times[0]))


def info(name: str, labels: Labels, *, minutes: float = 16.0, step: float = 15.0) -> Series:
    times = np.arange(time.time() - 60.0 * minutes, time.time() - 2.0, step)
    return Series({"__name__": name, **labels}, times, np.ones(len(times)))


def loads(service: Service) -> dict[str, int]:
    """CPU of the nodes in whole percent."""
    answer = service.get("/watcher")
    if answer.status != 200:
        return {}
    found = {}
    for node, document in answer.json()["data"]["NodeMetricsMap"].items():
        values = [each["value"] for each in document["metrics"] if each["type"] == "CPU" and each["operator"] == "AVG"]
        if values:
            found[node] = round(values[0])
    return found


def reasons(service: Service, kind: str) -> list[str]:
    entries = service.get("/api/v1/findings").json()["findings"]
    return [f"{entry['node']}: {entry['reason']}" for entry in entries if entry["kind"] == kind]


@pytest.fixture
def serve(prometheus: Prometheus, run_service: RunService) -> Callable[..., Service]:
    """The service with these series."""

    def begin(given: Iterable[Series], *, env: Mapping[str, str] | None = None) -> Service:
        prometheus.write(list(given))
        config = '[provider]\nmetrics = ["CPU"]\n'
        return run_service("--provider", "prometheus", "--address", prometheus.url, config=config, env=env or {})

    return begin


def expect(service: Service, expected: Mapping[str, int]) -> None:
    def reported() -> bool:
        found = loads(service)
        return found.keys() == expected.keys() and all(abs(found[node] - load) <= 2 for node, load in expected.items())

    wait_for(reported, what=f"the loads {expected}")


def by_rule(load: float, labels: Labels) -> list[Series]:
    return [series(CPU, labels, load / 100.0)]


def by_counters(load: float, labels: Labels) -> list[Series]:
    """Of two CPUs."""
    return [
        counter(COUNTER, {**labels, "cpu": cpu, "mode": mode}, rate)
        for cpu in ("0", "1")
        for mode, rate in (("idle", 1.0 - load / 100.0), ("user", load / 100.0))
    ]


LOADS = (90, 20, 35)
EACH = pytest.mark.parametrize("of", [by_rule, by_counters], ids=["rule", "counters"])
Layout = Callable[[float, Labels], list[Series]]


@EACH
def test_federated_machines_are_not_the_federated_server(serve: Callable[..., Service], of: Layout):
    """Without honor_labels: each machine by its own instance."""
    given: list[Series] = []
    for i, load in enumerate(LOADS, 1):
        labels = {"instance": "prometheus-k8s:9090", "job": "federate", "exported_instance": f"10.0.0.{i}:9100"}
        given += [*of(load, labels), info("node_uname_info", {**labels, "nodename": f"w-{i}"})]

    expect(serve(given), {"w-1": 90, "w-2": 20, "w-3": 35})


@EACH
def test_exporters_on_the_pod_network_are_the_nodes_of_their_pods(serve: Callable[..., Service], of: Layout):
    """Through kube_pod_info."""
    given: list[Series] = []
    for i, load in enumerate(LOADS, 1):
        labels = {"instance": f"10.244.{i}.5:9100", "job": "node", "namespace": "mon", "pod": f"exporter-{i}"}
        pod = {"namespace": "mon", "pod": f"exporter-{i}", "node": f"w-{i}", "pod_ip": f"10.244.{i}.5"}
        given += [
            *of(load, labels),
            info("node_uname_info", {**labels, "nodename": f"exporter-{i}"}),
            info("kube_pod_info", {**pod, "job": "kube-state-metrics"}),
        ]

    expect(serve(given), {"w-1": 90, "w-2": 20, "w-3": 35})


def test_exporters_on_the_pod_network_are_found_by_their_address(serve: Callable[..., Service]):
    """If the scrape adds no labels of the pod, and the nodes are known."""
    given: list[Series] = []
    for i, load in enumerate(LOADS, 1):
        pod = {"namespace": "mon", "pod": f"exporter-{i}", "node": f"w-{i}", "pod_ip": f"10.244.{i}.5"}
        node = {"node": f"w-{i}", "internal_ip": f"10.0.0.{i}", "kubelet_version": "v1.34.0"}
        given += [
            *by_rule(load, {"instance": f"10.244.{i}.5:9100", "job": "node"}),
            info("kube_pod_info", pod),
            info("kube_node_info", node),
        ]

    expect(serve(given), {"w-1": 90, "w-2": 20, "w-3": 35})


@EACH
def test_machines_outside_of_the_cluster_are_reported(serve: Callable[..., Service], of: Layout):
    """kube-state-metrics has the nodes; the others are a finding."""
    given: list[Series] = []
    for i, load in enumerate(LOADS, 1):
        labels = {"instance": f"10.0.0.{i}:9100", "job": "node"}
        given += of(load, labels)
        if i < 3:
            node = {"node": f"w-{i}", "internal_ip": f"10.0.0.{i}", "kubelet_version": "v1.34.0"}
            given.append(info("kube_node_info", node))
    service = serve(given)

    expect(service, {"w-1": 90, "w-2": 20})
    assert any("1 of 3 series" in each and "10.0.0.3" in each for each in reasons(service, "unknown_node"))


def two_clusters(label: str, of: Layout) -> list[Series]:
    return [
        each
        for cluster, load in (("east", 15), ("west", 85))
        for node in ("w-1", "w-2")
        for each in of(load, {label: cluster, "node": node, "instance": f"{node}:9100", "job": "node"})
    ]


@EACH
def test_two_clusters_are_reported_with_the_label_that_differs(
    serve: Callable[..., Service], of: Layout, prometheus: Prometheus
):
    """Neither of them is served; the doctor fails."""
    service = serve([*two_clusters("k8s_cluster", of), *of(50, {"node": "other", "instance": "other:9100"})])

    expect(service, {"other": 50})
    found = wait_for(lambda: reasons(service, "ambiguous_node"), what="the finding")
    assert "label k8s_cluster is east and west for the nodes w-1, w-2" in found[0]
    reported = doctor("--provider", "prometheus", "--address", prometheus.url)
    assert 1 == reported.exit_code
    reported.one("samples", "fail", "label k8s_cluster is east and west")


def test_two_replicas_and_jobs_are_one_cluster(serve: Callable[..., Service]):
    """They scrape the same machines."""
    given = [
        each
        for more in ({"prometheus_replica": "a"}, {"prometheus_replica": "b", "cluster": "east"}, {"region": "x"})
        for i, load in enumerate(LOADS, 1)
        for each in by_rule(load, {"node": f"w-{i}", "instance": f"10.0.0.{i}:9100", "job": "node", **more})
    ]

    expect(serve(given), {"w-1": 90, "w-2": 20, "w-3": 35})


def put(server: FakeKube, name: str, address: str, *, ready: str = "True", hostname: str = "") -> None:
    server.put(
        NODES,
        name,
        status={
            "addresses": [
                {"type": "InternalIP", "address": address},
                {"type": "Hostname", "address": hostname or name},
            ],
            "conditions": [{"type": "Ready", "status": ready}],
        },
    )


@EACH
def test_nodes_whose_names_are_addresses_are_found(serve: Callable[..., Service], of: Layout, tmp_path: Path):
    """The host names of the machines differ; the Kubernetes API has the addresses."""
    given: list[Series] = []
    with FakeKube() as server:
        for i, load in enumerate(LOADS, 1):
            put(server, f"10.0.0.{i}", f"10.0.0.{i}")
            labels = {"instance": f"10.0.0.{i}:9100", "job": "node"}
            given += [*of(load, labels), info("node_uname_info", {**labels, "nodename": f"oke-{i}"})]
        environ = {"KUBE_CONFIG": str(server.kubeconfig(tmp_path / "config"))}
        service = serve(given, env=environ)
        expect(service, {"10.0.0.1": 90, "10.0.0.2": 20, "10.0.0.3": 35})
        assert [] == reasons(service, "unknown_node")


def test_an_address_belongs_to_the_node_that_is_ready(serve: Callable[..., Service], tmp_path: Path):
    """The object of the replaced node still exists."""
    with FakeKube() as server:
        put(server, "old", "10.0.0.1", ready="Unknown")
        put(server, "new", "10.0.0.1")
        environ = {"KUBE_CONFIG": str(server.kubeconfig(tmp_path / "config"))}
        service = serve(by_rule(90, {"instance": "10.0.0.1:9100"}), env=environ)
        expect(service, {"new": 90})


def report_document(prometheus: Prometheus, folder: Path) -> dict[str, object]:
    """The document of a report of three hours."""
    given = ("--file", str(folder / "report.html"), "--days", "0.125", "--no-simulation")
    result = CliRunner().invoke(main.main, ["report", "--prometheus", prometheus.url, *given])
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads((folder / "report.json").read_text())
    return found


def test_a_report_names_nodes_as_kube_state_metrics_does(tmp_path: Path):
    """If the names are addresses, and beside nodes of a second cluster."""
    given: list[Series] = []
    long = {"minutes": 330.0, "step": 60.0}
    for i in (1, 2, 3):
        address = f"10.0.0.{i}"
        labels = {"instance": f"{address}:9100", "job": "node"}
        given += [
            series(CPU, labels, 0.5, **long),
            info("node_uname_info", {**labels, "nodename": f"oke-{i}"}, **long),
            info("kube_node_info", {"node": address, "internal_ip": address, "kubelet_version": "v1.34.0"}, **long),
        ]
        for part in ("capacity", "allocatable"):
            for resource, size in (("cpu", 8.0), ("memory", 2.0**35)):
                size_labels = {"node": address, "resource": resource}
                given.append(series(f"kube_node_status_{part}", size_labels, size, **long))
    for cluster, load in (("east", 0.15), ("west", 0.85)):
        labels = {"cluster": cluster, "node": "10.0.0.3", "instance": "10.0.0.3:9101", "job": "node"}
        given.append(series(CPU, labels, load, **long))
    with Prometheus(tmp_path / "server", config=OUT_OF_ORDER) as server:
        server.write(given)
        document = report_document(server, tmp_path)

    assert ["10.0.0.1", "10.0.0.2"] == sorted(each["node"] for each in document["peaks"][0]["nodes"])  # type: ignore[index]
    assert any("label cluster is east and west" in each for each in document["remarks"])  # type: ignore[attr-defined]
