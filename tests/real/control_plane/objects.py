"""Objects that tests create on a real API server, where no controller and no kubelet runs."""

from typing import Any

from tests.real.kube import ApiServer

MERGE = {"Content-Type": "application/merge-patch+json"}
CAPACITY = {"cpu": "4", "memory": "8Gi", "pods": "110"}
RUNNING = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def path_of(name: str) -> str:
    """Return the path of a pod, NAMESPACE/NAME, or of a node, NAME."""
    namespace, _, pod = name.rpartition("/")
    return f"/api/v1/namespaces/{namespace}/pods/{pod}" if namespace else f"/api/v1/nodes/{name}"


def read(api: ApiServer, name: str) -> dict[str, Any]:
    """Return a pod or node."""
    answer = api.ask("GET", path_of(name))
    assert answer.ok, answer.text
    found: dict[str, Any] = answer.json()
    return found


def make_node(api: ApiServer, name: str, **capacity: str) -> None:
    """Create a node that is ready, by default with four cores."""
    status = {"capacity": {**CAPACITY, **capacity}, "conditions": [{"type": "Ready", "status": "True"}]}
    api.make("/api/v1/nodes", metadata={"name": name}, status=status)


def make_pod(api: ApiServer, name: str, *, spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    """Create a pod, NAMESPACE/NAME, with one container; return it."""
    namespace, _, pod = name.rpartition("/")
    whole = {"containers": [{"name": "main", "image": "x"}], **(spec or {})}
    made: dict[str, Any] = api.make(
        f"/api/v1/namespaces/{namespace}/pods", metadata={"name": pod, **metadata}, spec=whole
    )
    return made


def run_pod(
    api: ApiServer, name: str, *, node: str, spec: dict[str, Any] | None = None, **metadata: Any
) -> dict[str, Any]:
    """Create a pod on a node, with the status that its kubelet would report; return it."""
    made = make_pod(api, name, spec={**(spec or {}), "nodeName": node}, **metadata)
    statuses = [
        {
            "name": each["name"],
            "image": each["image"],
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "containerID": f"containerd://{made['metadata']['uid'].replace('-', '') * 2}",
            "state": {"running": {}},
        }
        for each in made["spec"]["containers"]
    ]
    return patch_status(api, name, {**RUNNING, "containerStatuses": statuses})


def patch_status(api: ApiServer, name: str, status: dict[str, Any]) -> dict[str, Any]:
    """Merge into the status of a pod or node; return the object."""
    answer = api.ask("PATCH", f"{path_of(name)}/status", {"status": status}, headers=MERGE)
    assert answer.ok, answer.text
    changed: dict[str, Any] = answer.json()
    return changed


def end_pod(api: ApiServer, name: str) -> None:
    """Delete a pod as its kubelet does, at once."""
    assert api.ask("DELETE", f"{path_of(name)}?gracePeriodSeconds=0").ok
