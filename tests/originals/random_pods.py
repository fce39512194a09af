"""Random pods for the comparisons of scheduling plug-ins, as JSON objects of the Kubernetes API."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

GIB = 1 << 30
GPU = "example.com/gpu"
COMPUTE = ("cpu", "memory")


def chance(source: random.Random, probability: float) -> bool:
    return source.random() < probability


def set_by_chance(
    source: random.Random, into: dict[str, Any], name: str, probability: float, value: Callable[[], Any]
) -> None:
    """Set a field with this probability."""
    if chance(source, probability):
        into[name] = value()


def cpu(source: random.Random, milli: int) -> str:
    """Millicores in one of the spellings of a quantity."""
    return source.choice([f"{milli}m", f"{milli / 1000:g}"])


def memory(source: random.Random, size: float) -> str:
    """Bytes in one of the spellings of a quantity, rounded to its unit."""
    whole = int(size)
    return source.choice([str(whole), f"{whole >> 10}Ki", f"{max(1, whole >> 20)}Mi", f"{whole // 10**6}M"])


def quantity(source: random.Random, resource: str, amount: int) -> str:
    """An amount in millicores for cpu, mebibytes for memory, thousandths otherwise."""
    if resource == "cpu":
        return cpu(source, amount)
    if resource.endswith("memory"):
        return memory(source, amount << 20)
    return str(amount if resource.endswith("-cpu") else amount // 1000)


def resources(source: random.Random, names: Sequence[str] = COMPUTE) -> dict[str, Any]:
    """Requests and limits; either may be missing, 0, or in the wrong relation."""
    requests, limits = {}, {}
    for name in names:
        amount = source.choice([0, 50, 100, 250, 333, 500, 1000, 1500, 2000, source.randint(1, 9000)])
        if chance(source, 0.7):
            requests[name] = quantity(source, name, amount)
        if chance(source, 0.5):
            limit = source.choice([amount, amount * 2, amount + 777])
            limits[name] = quantity(source, name, 0 if chance(source, 0.05) else limit)
    found = {"requests": requests, "limits": limits}
    return {part: amounts for part, amounts in found.items() if amounts or chance(source, 0.1)}


def pod(source: random.Random, name: str, *, node: str = "", names: Sequence[str] = COMPUTE) -> dict[str, Any]:
    """A pod with containers, sometimes with init containers, sidecars, overhead, pod-level resources; on a node,
    sometimes with an in-place resize under way."""
    containers = [
        {"name": f"c{i}", "resources": resources(source, names)} for i in range(source.choice([1, 1, 1, 2, 3]))
    ]
    spec: dict[str, Any] = {"containers": containers}
    if chance(source, 0.25):
        spec["initContainers"] = [_init_container(source, f"i{i}", names) for i in range(source.choice([1, 2]))]
    if chance(source, 0.12):
        spec["overhead"] = {"cpu": "250m", "memory": "120Mi"}
    if chance(source, 0.08):
        spec["resources"] = _pod_level_resources(source)
    status: dict[str, Any] = {"phase": "Running"}
    if node:
        spec["nodeName"] = node
        if chance(source, 0.15):
            _resize(source, spec, status)
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def _pod_level_resources(source: random.Random) -> dict[str, Any]:
    """Pod-level resources; the API server adds missing requests, unless all is empty."""
    found = resources(source) if chance(source, 0.8) else {}
    if any(found.values()):
        defaults = {
            name: quantity(source, name, source.choice([0, 100, 1500, source.randint(1, 9000)])) for name in COMPUTE
        }
        found["requests"] = {**defaults, **found.get("limits", {}), **found.get("requests", {})}
    return found


def has_defaults(pod: dict[str, Any]) -> bool:
    """Whether a reduced pod still has the requests that the API server adds to pod-level resources."""
    found = pod.get("spec", {}).get("resources") or {}
    return not any(found.values()) or set(COMPUTE) <= found.get("requests", {}).keys()


def _init_container(source: random.Random, name: str, names: Sequence[str]) -> dict[str, Any]:
    container: dict[str, Any] = {"name": name, "resources": resources(source, names)}
    if chance(source, 0.4):
        container["restartPolicy"] = "Always"
    return container


def _resize(source: random.Random, spec: dict[str, Any], status: dict[str, Any]) -> None:
    """Resources in the status that differ from the spec."""
    for part in ("containers", "initContainers"):
        statuses = [_status(source, each["name"]) for each in spec.get(part, ()) if chance(source, 0.8)]
        if statuses:
            status[f"{part.removesuffix('s')}Statuses"] = statuses
    if "resources" in spec and chance(source, 0.7):
        status["resources"] = resources(source)
        set_by_chance(source, status, "allocatedResources", 0.6, lambda: resources(source).get("requests", {}))
    if chance(source, 0.4):
        reason = source.choice(["Infeasible", "Deferred"])
        status["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}]


def _status(source: random.Random, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "ready": True, "image": "", "imageID": "", "restartCount": 0}
    set_by_chance(source, found, "resources", 0.8, lambda: resources(source))
    set_by_chance(source, found, "allocatedResources", 0.6, lambda: resources(source).get("requests", {}))
    return found


def without_resize(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod as it is when a resize is not reported."""
    fields = ("containerStatuses", "initContainerStatuses", "resources", "allocatedResources")
    return {**pod, "status": {name: value for name, value in pod.get("status", {}).items() if name not in fields}}
