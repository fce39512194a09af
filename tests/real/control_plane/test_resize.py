"""In-place resize and pod-level resources: what the API server stores. No kubelet runs, so the tests write its part of
the status."""

from __future__ import annotations

from typing import Any

import pytest

from tests.modules.programs import kubernetes
from tests.real.control_plane.objects import MERGE, make_node, make_pod, patch_status, path_of, read, run_pod
from tests.real.kube import ApiServer
from tests.real.test_kube_apiserver import asked
from watcher.core.kubernetes.objects import PODS

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]

LARGE, SMALL = {"cpu": "3", "memory": "1Gi"}, {"cpu": "500m", "memory": "1Gi"}
PENDING = {"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": "node has no room"}


@pytest.fixture(scope="module", autouse=True)
def node(cluster: ApiServer) -> None:
    """The node of the pods; the API server refuses a resize on an unknown node."""
    make_node(cluster, "resizing")


def resize(api: ApiServer, pod: str, spec: dict[str, Any]) -> tuple[int, str]:
    """Request a resize as `kubectl patch --subresource resize` does; return status and message."""
    strategic = {"Content-Type": "application/strategic-merge-patch+json"}
    answer = api.ask("PATCH", f"{path_of(pod)}/resize", {"spec": spec}, headers=strategic)
    return answer.status_code, answer.json().get("message", "")


def container(**requests: str) -> dict[str, Any]:
    """The container of a pod with these requests."""
    return {"name": "main", "image": "x", "resources": {"requests": requests}}


def run(api: ApiServer, name: str, requests: dict[str, str], *, of_pod: dict[str, Any] | None = None) -> dict[str, Any]:
    """Create a pod, with pod-level resources if given, whose kubelet has granted the requests of the container and
    reports them; otherwise it cannot be resized."""
    spec = {"containers": [container(**requests)], **({"resources": of_pod} if of_pod else {})}
    made = run_pod(api, name, node="resizing", spec=spec)
    (status,) = made["status"]["containerStatuses"]
    granted = {**status, "allocatedResources": requests, "resources": {"requests": requests}}
    return patch_status(api, name, {"containerStatuses": [granted]})


def test_a_pod_of_a_kubelet_without_resize_cannot_be_resized(cluster: ApiServer) -> None:
    """Its status does not have the resources that are set."""
    run_pod(cluster, "default/old", node="resizing", spec={"containers": [container(**LARGE)]})
    code, message = resize(cluster, "default/old", {"containers": [container(**SMALL)]})
    assert 422 == code
    assert "Pod running on node without support for resize" in message


def test_a_resize_changes_the_spec_and_not_the_granted_resources(cluster: ApiServer) -> None:
    """Both are there until the kubelet has acted; `allocatedResources` and `resources` of the status are its own."""
    made = run(cluster, "default/resized", LARGE)
    assert (200, "") == resize(cluster, "default/resized", {"containers": [container(**SMALL)]})
    found = read(cluster, "default/resized")
    assert SMALL == found["spec"]["containers"][0]["resources"]["requests"]
    (status,) = found["status"]["containerStatuses"]
    assert (LARGE, {"requests": LARGE}) == (status["allocatedResources"], status["resources"])
    assert made["metadata"].get("generation", 0) < found["metadata"]["generation"]
    pod = asked(cluster, lambda client: client.get(PODS, "default/resized"))
    assert SMALL == pod.spec.containers[0].resources.requests


def test_a_deferred_resize_is_a_condition(cluster: ApiServer) -> None:
    """The kubelet writes it, and the API server keeps its reason."""
    run(cluster, "default/deferred", SMALL)
    assert (200, "") == resize(cluster, "default/deferred", {"containers": [container(**LARGE)]})
    found = patch_status(cluster, "default/deferred", {"conditions": [PENDING]})
    (condition,) = (each for each in found["status"]["conditions"] if each["type"] == "PodResizePending")
    assert ("True", "Deferred") == (condition["status"], condition["reason"])


def test_resources_change_only_through_the_subresource(cluster: ApiServer) -> None:
    """An update of the pod itself is refused, and so is a resize that would change the QoS class."""
    run(cluster, "default/fixed", SMALL)
    body = {"spec": {"containers": [container(**LARGE)]}}
    answer = cluster.ask("PATCH", path_of("default/fixed"), body, headers=MERGE)
    assert 422 == answer.status_code
    guaranteed = {"name": "main", "resources": {"requests": SMALL, "limits": SMALL}}
    code, message = resize(cluster, "default/fixed", {"containers": [guaranteed]})
    assert 422 == code
    assert "Pod QOS Class may not change as a result of resizing" in message


def test_pod_level_resources_are_stored_and_decide_the_qos_class(cluster: ApiServer) -> None:
    """Containers may have none of their own, or less; the copy has both."""
    whole = {"requests": LARGE, "limits": LARGE}
    made = make_pod(cluster, "default/whole", spec={"resources": whole})
    assert whole == made["spec"]["resources"]
    assert "Guaranteed" == made["status"]["qosClass"]
    made = make_pod(
        cluster,
        "default/both",
        spec={"resources": {"requests": LARGE}, "containers": [container(**SMALL)]},
    )
    assert (LARGE, SMALL) == (
        made["spec"]["resources"]["requests"],
        made["spec"]["containers"][0]["resources"]["requests"],
    )
    assert "Burstable" == made["status"]["qosClass"]
    pod = asked(cluster, lambda client: client.get(PODS, "default/both"))
    assert (LARGE, SMALL) == (pod.spec.resources.requests, pod.spec.containers[0].resources.requests)


def test_containers_must_fit_into_the_pod_level_requests(cluster: ApiServer) -> None:
    """Otherwise, the API server refuses the pod."""
    spec = {"resources": {"requests": SMALL}, "containers": [container(**LARGE)]}
    answer = cluster.ask("POST", "/api/v1/namespaces/default/pods", {"metadata": {"name": "no"}, "spec": spec})
    assert 422 == answer.status_code
    assert "must be greater than or equal to aggregate container requests" in answer.json()["message"]


def test_pod_level_resources_can_be_resized_since_1_36(cluster: ApiServer) -> None:
    """If the node declares the feature; the status then has what the kubelet has granted to the pod. Earlier versions
    refuse the request and do not store that part of the status."""
    feature = "InPlacePodLevelResourcesVerticalScaling"
    patch_status(cluster, "resizing", {"declaredFeatures": [feature]})
    run(cluster, "default/pod-level", {"cpu": "100m"}, of_pod={"requests": LARGE})
    patch_status(cluster, "default/pod-level", {"resources": {"requests": LARGE}, "allocatedResources": LARGE})
    code, message = resize(cluster, "default/pod-level", {"resources": {"requests": SMALL}})
    found = read(cluster, "default/pod-level")
    if minor() >= 36:
        assert (200, SMALL) == (code, found["spec"]["resources"]["requests"])
        assert (LARGE, {"requests": LARGE}) == (found["status"]["allocatedResources"], found["status"]["resources"])
    else:
        assert 422 == code
        assert "pod-level resources" in message
        assert not {"allocatedResources", "resources"} & set(found["status"])


def minor() -> int:
    """Return the minor version of Kubernetes under test."""
    return int(kubernetes().version.split(".")[1])
