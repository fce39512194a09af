"""The requests in a report, from the series of kube-state-metrics and of kube-scheduler."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from load_watcher import main
from tests.pod_request_cases import CASES, PodCase
from tests.real.cluster_history import OUT_OF_ORDER
from tests.real.parts import Prometheus
from tests.real.remote_write import Series
from watcher.core.kubernetes.objects import Container, Pod
from watcher.core.kubernetes.pod_resources import exact_amounts

pytestmark = [pytest.mark.real, pytest.mark.slow]

UNITS = {"cpu": "core", "memory": "byte"}
NANO = 10**9


class History:
    """Series over the last five hours, constant except for the load. Each pod has its own node, with its name."""

    def __init__(self) -> None:
        self.times = np.arange(time.time() - 5 * 3600, time.time() - 5.0, 60.0)
        self.series: list[Series] = []

    def add(self, name: str, value: float, **labels: str) -> None:
        self.series.append(Series({"__name__": name, **labels}, self.times, np.full_like(self.times, value)))

    def add_node(self, node: str) -> None:
        self.add("instance:node_cpu_utilisation:rate5m", 0.5, node=node, instance=f"{node}:9100", job="node-exporter")
        for part in ("capacity", "allocatable"):
            for resource, size in (("cpu", 64.0), ("memory", 2.0**36)):
                self.add(f"kube_node_status_{part}", size, node=node, resource=resource, unit=UNITS[resource])

    def add_pod(self, case: PodCase, *, policy: bool = True) -> None:
        """Add the series of kube-state-metrics (docs/metrics/workload/pod-metrics.md); earlier versions have no
        `restart_policy`: without `policy`."""
        pod = msgspec.convert(case.object(), Pod)
        own = {"namespace": "shop", "pod": case.name, "uid": pod.metadata.uid}
        self.add("kube_pod_info", 1.0, node=case.name, **own)
        self.add("kube_pod_status_phase", 1.0, phase="Running", **own)
        for each in pod.spec.containers:
            self._add_requests("kube_pod_container_resource_requests", each, node=case.name, **own)
        for each in pod.spec.init_containers:
            self._add_requests("kube_pod_init_container_resource_requests", each, node=case.name, **own)
            labels = {"restart_policy": each.restart_policy} if policy else {}
            self.add("kube_pod_init_container_info", 1.0, container=each.name, **labels, **own)
        overhead = exact_amounts(pod.spec.overhead)
        for resource, name in (("cpu", "kube_pod_overhead_cpu_cores"), ("memory", "kube_pod_overhead_memory_bytes")):
            if resource in overhead:
                self.add(name, overhead[resource] / NANO, **own)

    def _add_requests(self, name: str, container: Container, **labels: str) -> None:
        for resource, size in exact_amounts(container.resources.requests).items():
            more = {"container": container.name, "resource": resource, "unit": UNITS[resource]}
            self.add(name, size / NANO, **more, **labels)

    def add_of_scheduler(self, case: PodCase) -> None:
        """Add the series of kube-scheduler's /metrics/resources."""
        for resource, unit, size in (("cpu", "cores", case.milli / 1000), ("memory", "bytes", float(case.bytes))):
            own = {"namespace": "shop", "pod": case.name, "node": case.name, "scheduler": "default-scheduler"}
            self.add("kube_pod_resource_request", size, priority="0", resource=resource, unit=unit, **own)


def report(history: History, folder: Path) -> dict[str, Any]:
    with Prometheus(folder / "server", config=OUT_OF_ORDER) as server:
        server.write(history.series)
        given = ("--days", "0.125", "--no-simulation", "--file", str(folder / "report.html"))
        result = CliRunner().invoke(main.main, ["report", "--prometheus", server.url, *given])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return found


def requested(document: dict[str, Any]) -> dict[str, int]:
    """Millicores by node."""
    (cpu,) = (each for each in document["peaks"] if each["resource"] == "cpu")
    return {each["node"]: round(1000 * each["requested"]) for each in cpu["nodes"]}


def of_state_metrics() -> Iterator[PodCase]:
    yield from (each for each in CASES if each.in_series)


def test_requests_are_read_from_kube_state_metrics(tmp_path: Path):
    history = History()
    for case in of_state_metrics():
        history.add_node(case.name)
        history.add_pod(case)
    document = report(history, tmp_path)
    assert requested(document) == {case.name: case.milli for case in of_state_metrics()}
    assert any("no pod-level requests" in each for each in document["remarks"])
    assert not [each for each in document["missing"] if "restart_policy" in each["what"]]


def test_requests_are_read_from_kube_scheduler(tmp_path: Path):
    """They replace those of kube-state-metrics, which has neither pod-level requests nor resizes."""
    history = History()
    for case in CASES:
        history.add_node(case.name)
        history.add_pod(case)
        history.add_of_scheduler(case)
    document = report(history, tmp_path)
    assert requested(document) == {case.name: case.milli for case in CASES}
    assert not [each for each in document["remarks"] if "requests" in each]


def test_sidecars_without_a_restart_policy_are_reported(tmp_path: Path):
    history = History()
    history.add_node("sidecar")
    history.add_pod(next(case for case in CASES if case.name == "sidecar"), policy=False)
    document = report(history, tmp_path)
    assert requested(document) == {"sidecar": 1000}
    (found,) = (each for each in document["missing"] if "restart_policy" in each["what"])
    assert found["cure"].startswith("update kube-state-metrics")
