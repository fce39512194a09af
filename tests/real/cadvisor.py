"""Pods as in the series of the kubelets' cAdvisor: containers, pause containers, and the cgroups above them, which are
sums."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.real.remote_write import Series


@dataclass(frozen=True)
class RealPod:
    """A pod with the cores and bytes of each container, by name; the pause container is added."""

    name: str
    node: str
    containers: Mapping[str, tuple[float, float]]
    namespace: str = "default"

    @property
    def cores(self) -> float:
        return sum(cores for cores, _ in self.containers.values())

    @property
    def memory(self) -> float:
        return sum(memory for _, memory in self.containers.values())


def by_node_label(node: str) -> dict[str, str]:
    """As kube-prometheus relabels the kubelets."""
    return {"instance": f"{address_of(node)}:10250", "node": node, "job": "kubelet"}


def by_address(node: str) -> dict[str, str]:
    """Without relabelling: only the address of the kubelet."""
    return {"instance": f"{address_of(node)}:10250", "job": "kubelet"}


def address_of(node: str) -> str:
    """A unique address per node, for names that end with a number."""
    return f"10.0.{int(node[-2:])}.1"


def cadvisor_series(
    *pods: RealPod,
    times: NDArray[np.float64],
    labels: Mapping[str, Mapping[str, str]],
) -> Iterator[Series]:
    """The series of these pods, including those of the pause container and of the cgroups; `labels` gives the labels of
    a node."""
    for pod in pods:
        group = f"/kubepods/burstable/pod-{pod.name}"
        for container, (cores, memory) in {**pod.containers, "POD": (0.01, 1e6)}.items():
            own = {"container": container, "pod": pod.name, "namespace": pod.namespace, "id": f"{group}/{container}"}
            yield from _usage({**own, **labels[pod.node]}, cores=cores, memory=memory, times=times)
        whole = {"pod": pod.name, "namespace": pod.namespace, "id": group, **labels[pod.node]}
        yield from _usage(whole, cores=pod.cores + 0.01, memory=pod.memory + 1e6, times=times)
    for node in {pod.node for pod in pods}:
        yield from _usage({"id": "/", **labels[node]}, cores=99.0, memory=99e9, times=times)
        yield from _usage({"id": "/kubepods", **labels[node]}, cores=98.0, memory=98e9, times=times)


def _usage(own: Mapping[str, str], *, cores: float, memory: float, times: NDArray[np.float64]) -> Iterator[Series]:
    up = 5000.0 + times - times[0]
    yield Series({"__name__": "container_cpu_usage_seconds_total", "cpu": "total", **own}, times, cores * up)
    yield Series({"__name__": "container_memory_rss", **own}, times, np.full_like(times, memory))


def uname_series(node: str, *, times: NDArray[np.float64]) -> Series:
    """node_uname_info of the node exporter at the same address."""
    own = {"__name__": "node_uname_info", "instance": f"{address_of(node)}:9100", "job": "node-exporter"}
    return Series({**own, "nodename": node}, times, np.ones_like(times))
