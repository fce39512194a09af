"""Days of a cluster as Prometheus has them: recording rules, cAdvisor's series and those of kube-state-metrics."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.real.remote_write import Series

GIB = float(1 << 30)
CORES, MEMORY = 8.0, 32 * GIB
OUT_OF_ORDER = {"scrape_configs": [], "storage": {"tsdb": {"out_of_order_time_window": "30d"}}}
"""Configuration of a Prometheus that takes days of history at once."""


@dataclass(frozen=True)
class HistoryPod:
    """A pod that runs all the time: its owner, requests, and mean use of cores, which swings over the day."""

    name: str
    node: str
    owner: tuple[str, str]
    cores: float
    requested: float
    namespace: str = "shop"
    swing: float = 0.6


@dataclass(frozen=True)
class HistoryCluster:
    """Nodes and pods; the first node is hot around 10:00 UTC."""

    nodes: tuple[str, ...]
    pods: tuple[HistoryPod, ...]
    times: NDArray[np.float64]

    def load(self, pod: HistoryPod) -> NDArray[np.float64]:
        """Cores by time: the highest at 10:00 UTC, with noise that lasts for minutes."""
        hours = self.times / 3600.0 % 24.0
        daily = 1.0 + pod.swing * np.cos((hours - 10.0) / 24.0 * 2.0 * np.pi)
        noise = np.random.default_rng(zlib.crc32(pod.name.encode())).normal(0.0, 0.12, len(hours))
        return pod.cores * np.maximum(daily + np.convolve(noise, np.ones(5), mode="same"), 0.05)


def make_cluster(
    nodes: int, pods_per_node: int, *, end: float, days: float, step: float = 120.0, heavy: int = 1
) -> HistoryCluster:
    """The first `heavy` nodes have pods of 0.85 of their cores together, on average; the others of 0.3."""
    times = end - step * np.arange(int(days * 86400 / step), -1, -1, dtype=np.float64)
    names = tuple(f"node-{i:04d}" for i in range(1, nodes + 1))
    pods = []
    for i, node in enumerate(names):
        share = (0.6 if i < heavy else 0.3) * CORES / pods_per_node
        for k in range(pods_per_node):
            kind, name = ("DaemonSet", "log") if k == 0 else ("ReplicaSet", f"web-{k}-6d4b75c9f8")
            pods.append(HistoryPod(f"{name}-{i:04d}a", node, (kind, name), share, share * 1.5))
    return HistoryCluster(names, tuple(pods), times)


def rule_series(cluster: HistoryCluster) -> Iterator[Series]:
    """Utilization of the nodes by the recording rules of kube-prometheus: the pods, and 2 % of the system."""
    total = {node: np.full(len(cluster.times), 0.02) for node in cluster.nodes}
    for pod in cluster.pods:
        total[pod.node] = total[pod.node] + cluster.load(pod) / CORES
    for i, node in enumerate(cluster.nodes):
        labels = {"node": node, "instance": f"10.0.{i // 250}.{i % 250}:9100"}
        yield Series({"__name__": "instance:node_cpu:ratio", **labels}, cluster.times, np.minimum(total[node], 1.0))
        memory = 0.4 + 0.1 * total[node]
        yield Series({"__name__": "instance:node_memory_utilisation:ratio", **labels}, cluster.times, memory)


def node_exporter_series(cluster: HistoryCluster, *, cpus: int = 2) -> Iterator[Series]:
    """The node exporter's counters and gauges with the same load, for a Prometheus without recording rules."""
    step = float(np.median(np.diff(cluster.times)))
    for i, node in enumerate(cluster.nodes):
        labels = {"instance": f"10.0.{i // 250}.{i % 250}:9100", "job": "node-exporter"}
        busy = 0.02 + sum(cluster.load(pod) for pod in cluster.pods if pod.node == node) / CORES
        busy = np.minimum(busy, 1.0)
        for cpu in map(str, range(cpus)):
            for mode, share in (("user", busy), ("idle", 1.0 - busy)):
                values = np.cumsum(share) * step
                names = {"__name__": "node_cpu_seconds_total", "cpu": cpu, "mode": mode}
                yield Series({**names, **labels}, cluster.times, values)
        for name, size in (("MemTotal", MEMORY), ("MemAvailable", 0.55 * MEMORY)):
            values = np.full_like(cluster.times, size)
            yield Series({"__name__": f"node_memory_{name}_bytes", **labels}, cluster.times, values)
        ones = np.ones_like(cluster.times)
        yield Series({"__name__": "node_uname_info", "nodename": node, **labels}, cluster.times, ones)


def cadvisor_series(cluster: HistoryCluster) -> Iterator[Series]:
    step = float(np.median(np.diff(cluster.times)))
    for pod in cluster.pods:
        own = {"namespace": pod.namespace, "pod": pod.name, "container": "main"}
        labels = {**own, "node": pod.node, "id": f"/pod/{pod.name}"}
        used = np.cumsum(cluster.load(pod)) * step
        yield Series({"__name__": "container_cpu_usage_seconds_total", **labels}, cluster.times, used)
        memory = np.full_like(cluster.times, 0.5 * GIB)
        yield Series({"__name__": "container_memory_rss", **labels}, cluster.times, memory)


def state_series(cluster: HistoryCluster) -> Iterator[Series]:
    """What kube-state-metrics has about nodes and pods."""

    def series(name: str, value: float, **labels: str) -> Series:
        return Series({"__name__": name, "job": "kube-state-metrics", **labels}, cluster.times,
                      np.full_like(cluster.times, value))  # fmt: skip

    for node in cluster.nodes:
        for resource, unit, size in (("cpu", "core", CORES), ("memory", "byte", MEMORY)):
            labels = {"node": node, "resource": resource, "unit": unit}
            yield series("kube_node_status_capacity", size, **labels)
            yield series("kube_node_status_allocatable", 0.95 * size, **labels)
    for pod in cluster.pods:
        own = {"namespace": pod.namespace, "pod": pod.name}
        kind, owner = pod.owner
        yield series("kube_pod_info", 1.0, node=pod.node, created_by_kind=kind, created_by_name=owner, **own)
        yield series("kube_pod_owner", 1.0, owner_kind=kind, owner_name=owner, **own)
        yield series("kube_pod_status_phase", 1.0, phase="Running", **own)
        for resource, unit, size in (("cpu", "core", pod.requested), ("memory", "byte", GIB)):
            labels = {"container": "main", "node": pod.node, "resource": resource, "unit": unit, **own}
            yield series("kube_pod_container_resource_requests", size, **labels)
