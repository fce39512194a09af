"""LoadAwareScheduling in a service: NodeMetrics of a cluster, percentiles, and the usage of pods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from scorers.cluster.node_metrics import NODE_METRIC_OBJECTS
from scorers.cluster.pods import PodInfo
from scorers.extender.hosting import InProcessLoad
from scorers.extender.service import SchedulingService
from tests.fakes.decisions import DecisionList
from tests.fakes.kube import FakeKube
from tests.fakes.pods import publish_pods
from tests.fakes.snapshots import END, WINDOWS, publish, snapshot_of, steady
from tests.scorers.simulated_cluster import info, rows, stamp
from tests.waiting import eventually
from watcher.core.koordinator.collect_policy import CollectPolicy
from watcher.core.koordinator.report import Capacity, NodeUsages, measure
from watcher.core.pods.published import PublishedPods
from watcher.core.publishing.documents import Published
from watcher.model import Snapshot, Window
from watcher.service.settings import loading

RESOURCE = f"{NODE_METRIC_OBJECTS.group_version}/{NODE_METRIC_OBJECTS.plural}"
POD = info(containers=[{"requests": {"cpu": "1", "memory": "1Gi"}}])


class Service:
    """A service that has published one tick, and pods once a plug-in requests them."""

    windows: tuple[Window, ...] = WINDOWS
    max_staleness = 300.0
    later = 0.0  # seconds since the tick, by the clock

    def __init__(self, kubeconfig: Path) -> None:
        self.decisions = DecisionList(kept=0.0)
        flags = {"kubernetes.kubeconfig": str(kubeconfig)}
        self.settings = loading.load(flags=flags, environ={}, file=None, cwd=kubeconfig.parent)
        self.published: Published | None = publish(snapshot_of({"a": {"CPU": steady(20), "Memory": steady(40)}}))
        self.pods: PublishedPods | None = None

    async def capacities(self) -> Mapping[str, Capacity]:
        return {}

    def request_pods(self) -> str:
        self.pods = publish_pods({("default", "p"): ("a", 0.25, 2.0**30)})
        return ""

    def measure(self, snapshot: Snapshot) -> NodeUsages:
        return measure(snapshot, policies=[CollectPolicy()] * len(snapshot.nodes))

    def now(self) -> float:
        return END + self.later

    def monotonic(self) -> float:
        return 1000.0


def ask(
    server: FakeKube,
    tmp_path: Path,
    args: Mapping[str, Any],
    step: str,
    *expected: float,
    change: Callable[[], None] = lambda: None,
    asked: PodInfo = POD,
) -> None:
    """Wait until this step of the node's score has each of these values in turn; `change` is called in between."""
    service = Service(server.kubeconfig(tmp_path / "config"))
    profile = {"plugins": [{"name": "LoadAwareScheduling", "args": dict(args)}]}
    scheduling = SchedulingService({"default": profile}, service, InProcessLoad(service))
    profiles, cluster = scheduling.extender.profiles, scheduling.table

    def is_there(value: float) -> bool:
        if "a" not in cluster.row:
            return False
        ((_, scores),) = profiles["default"].rank(asked, rows(cluster, "a"), now=END).parts
        return np.array_equal(scores.steps[step], [value], equal_nan=True)

    async def follow() -> None:
        async with scheduling.life(web.Application()):
            for value in expected:
                await eventually(partial(is_there, value), what=f"{step} to be {value}")
                change()

    asyncio.run(follow())


def node_metric(server: FakeKube, cpu: str) -> None:
    status = {"updateTime": stamp(END), "nodeMetric": {"nodeUsage": {"resources": {"cpu": cpu, "memory": "1Gi"}}}}
    server.put(RESOURCE, "a", status=status)


def test_node_metrics_of_the_cluster_are_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also if they change or are invalid."""
    with FakeKube() as server:
        server.define(RESOURCE, "NodeMetric")
        server.node("a", cpu="10", memory="100Gi")
        node_metric(server, "1500m")
        later = iter(["2500m", "none"])
        ask(
            server,
            tmp_path,
            {"nodeMetricSource": "cluster"},
            "cpu measured",
            1500,
            2500,
            float("nan"),
            change=lambda: node_metric(server, next(later, "none")),
        )
    assert "node a: invalid NodeMetric ignored: nodeUsage: cpu: 'none' is not a Kubernetes quantity" in caplog.text


def test_percentiles_of_the_windows_are_requested_if_needed(tmp_path: Path) -> None:
    """A load of 19 and 21 in turn has 21 as its 95th percentile."""
    with FakeKube() as server:
        server.node("a", cpu="10", memory="100Gi")
        ask(server, tmp_path, {"aggregated": {"scoreAggregationType": "p95"}}, "cpu measured", 2100)


def test_the_usage_of_pods_is_requested_if_needed(tmp_path: Path) -> None:
    """A prod pod that was just placed uses a quarter of a core."""
    with FakeKube() as server:
        server.node("a", cpu="10", memory="100Gi")
        resources = {"requests": {"cpu": "1"}}
        server.pod("p", node="a", spec={"containers": [{"name": "c", "resources": resources}]})
        args = {"nodeMetricSource": "windowsAndPods", "scoreAccordingProdUsage": True}
        ask(server, tmp_path, args, "cpu measured", 250)


def test_the_next_pod_of_a_workload_is_estimated_by_the_usage_of_the_others(tmp_path: Path) -> None:
    """Three minutes of one pod, a quarter of a core each, on a node that uses two cores."""
    owner = {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "controller": True}]}
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(END - 3600)}
    with FakeKube() as server:
        server.node("a", cpu="10", memory="100Gi")
        server.pod("p", node="a", metadata=owner, status={"conditions": [placed]})
        args = {
            "nodeMetricSource": "windowsAndPods",
            "estimator": "ownerHistoryEstimator",
            "ownerHistory": {"minReadings": 3},
        }
        ask(server, tmp_path, args, "cpu with the pod", 2250, asked=info(metadata=owner))
