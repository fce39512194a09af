"""Pods with the requests that kube-scheduler counts for them: the examples of the pages of the Kubernetes documentation
about sidecar containers, pod overhead, pod-level resources and in-place resize, and further cases of their rules."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

MI = 1 << 20


class PodCase(NamedTuple):
    """A pod, and its effective requests in millicores and bytes. `in_series`: kube-state-metrics has all of it."""

    name: str
    spec: dict[str, Any]
    milli: int
    bytes: int
    status: Mapping[str, Any] = MappingProxyType({})
    in_series: bool = True

    def object(self, **spec: Any) -> dict[str, Any]:
        """The pod as in the Kubernetes API."""
        metadata = {"name": self.name, "namespace": "shop", "uid": f"uid-{self.name}"}
        return {"metadata": metadata, "spec": {**self.spec, **spec}, "status": {"phase": "Running", **self.status}}


def container(name: str, cpu: str, memory: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "resources": asked(cpu, memory), **more}


def asked(cpu: str, memory: str) -> dict[str, Any]:
    return {"requests": {"cpu": cpu, "memory": memory}}


def resize(pending: str, spec: str, actual: str, granted: str) -> dict[str, Any]:
    """A container whose CPU is being resized, and its status."""
    conditions = [{"type": "PodResizePending", "status": "True", "reason": pending}] if pending else []
    reported = {
        "name": "pause",
        "resources": asked(actual, "200Mi"),
        "allocatedResources": asked(granted, "200Mi")["requests"],
    }
    return {
        "spec": {"containers": [container("pause", spec, "200Mi")]},
        "status": {"conditions": conditions, "containerStatuses": [reported]},
    }


APP = container("app", "500m", "100Mi")
PROXY = container("proxy", "1", "64Mi", restartPolicy="Always")
LOGS = container("logs", "250m", "32Mi", restartPolicy="Always")
SETUP = container("setup", "2", "50Mi")
POD_LEVEL: Mapping[str, Any] = {"requests": {"cpu": "1", "memory": "100Mi"}, "limits": {"cpu": "1", "memory": "200Mi"}}

CASES = (
    PodCase("one", {"containers": [APP]}, 500, 100 * MI),
    PodCase("two", {"containers": [APP, container("web", "1500m", "100Mi")]}, 2000, 200 * MI),
    PodCase("sidecar", {"containers": [APP], "initContainers": [PROXY]}, 1500, 164 * MI),
    PodCase("sidecars", {"containers": [APP], "initContainers": [PROXY, LOGS]}, 1750, 196 * MI),
    PodCase("setup", {"containers": [APP], "initContainers": [SETUP]}, 2000, 100 * MI),
    PodCase("setup-twice", {"containers": [APP], "initContainers": [SETUP, {**SETUP, "name": "b"}]}, 2000, 100 * MI),
    PodCase("sidecar-first", {"containers": [APP], "initContainers": [PROXY, SETUP]}, 3000, 164 * MI),
    PodCase("sidecar-last", {"containers": [APP], "initContainers": [SETUP, PROXY]}, 2000, 164 * MI, in_series=False),
    PodCase("between", {"containers": [APP], "initContainers": [PROXY, SETUP, LOGS]}, 3000, 196 * MI, in_series=False),
    # Pod Overhead: two containers of 0.5 and 1.5 CPUs in Kata Containers with Firecracker
    PodCase(
        "kata",
        {
            "containers": [APP, container("nginx", "1500m", "100Mi")],
            "overhead": {"cpu": "250m", "memory": "120Mi"},
        },
        2250,
        320 * MI,
    ),
    PodCase("overhead-only", {"containers": [{"name": "c"}], "overhead": {"cpu": "250m"}}, 250, 0),
    # Assign pod-level resources: one container requests half, the other nothing
    PodCase(
        "pod-level",
        {"containers": [container("a", "500m", "50Mi"), {"name": "b"}], "resources": POD_LEVEL},
        1000,
        100 * MI,
        in_series=False,
    ),
    PodCase(
        "pod-level-cpu",
        {
            "containers": [APP],
            "initContainers": [PROXY],
            "resources": {"requests": {"cpu": "6"}},
            "overhead": {"cpu": "250m", "memory": "120Mi"},
        },
        6250,
        284 * MI,
        in_series=False,
    ),
    # Resize CPU and memory of containers: 700m to 800m, and to more than the node has
    PodCase("growing", milli=800, bytes=200 * MI, in_series=False, **resize("", "800m", "700m", "800m")),
    PodCase("shrinking", milli=700, bytes=200 * MI, in_series=False, **resize("", "300m", "700m", "300m")),
    PodCase("deferred", milli=1000, bytes=200 * MI, in_series=False, **resize("Deferred", "1", "700m", "700m")),
    PodCase("infeasible", milli=700, bytes=200 * MI, in_series=False, **resize("Infeasible", "1000", "700m", "700m")),
)
