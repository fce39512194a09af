"""Requests and limits of pods during an in-place resize."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from watcher.core.kubernetes.objects import Pod
from watcher.core.kubernetes.resize import resize_state, spec_in_effect

INFEASIBLE = [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]
DEFERRED = [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}]


def resources(requests: str, limits: str = "") -> dict[str, Any]:
    return {"requests": {"cpu": requests}, **({"limits": {"cpu": limits}} if limits else {})}


def container(requests: str, limits: str = "", **fields: Any) -> dict[str, Any]:
    return {"name": "main", "resources": resources(requests, limits), **fields}


def pod(spec: dict[str, Any], status: dict[str, Any]) -> Pod:
    return msgspec.convert({"metadata": {"name": "p"}, "spec": spec, "status": status}, Pod)


@pytest.mark.parametrize(
    ("spec", "actual", "granted", "conditions", "requests"),
    [
        # kube-scheduler counts the largest of spec, actual and granted resources
        ("500m", "3", "3", [], "3"),
        ("3", "500m", "500m", DEFERRED, "3"),
        ("1", "2", "3", [], "3"),
        ("1", "3", "2", [], "3"),
        ("1", "2", None, [], "2"),
        # the spec of an infeasible resize does not count
        ("3", "500m", "1", INFEASIBLE, "1"),
        # equal amounts in other notations
        ("1", "1000m", "1.0", [], "1"),
    ],
)
def test_requests_of_a_container(spec: str, actual: str, granted: str | None, conditions: list[Any], requests: str):
    """As component-helpers' determineEffectiveRequests."""
    status: dict[str, Any] = {"name": "main", "resources": resources(actual)}
    if granted is not None:
        status["allocatedResources"] = {"cpu": granted}
    found = spec_in_effect(
        pod({"containers": [container(spec)]}, {"containerStatuses": [status], "conditions": conditions})
    )
    assert found.containers[0].resources.requests == {"cpu": requests}


@pytest.mark.parametrize(
    ("conditions", "limits"), [([], "3"), (DEFERRED, "3"), (INFEASIBLE, "2")], ids=["granted", "deferred", "infeasible"]
)
def test_limits_of_a_container(conditions: list[Any], limits: str) -> None:
    """As component-helpers' determineEffectiveLimits: allocatedResources has no limits."""
    status = {"name": "main", "resources": resources("1", "2"), "allocatedResources": {"cpu": "9"}}
    found = spec_in_effect(
        pod({"containers": [container("1", "3")]}, {"containerStatuses": [status], "conditions": conditions})
    )
    assert found.containers[0].resources.limits == {"cpu": limits}


def test_a_sidecar_is_resized_and_another_init_container_is_not() -> None:
    spec = {
        "containers": [container("1")],
        "initContainers": [
            {"name": "sidecar", "restartPolicy": "Always", "resources": resources("1")},
            {"name": "setup", "resources": resources("1")},
        ],
    }
    statuses = [{"name": name, "resources": resources("5")} for name in ("sidecar", "setup")]
    found = spec_in_effect(pod(spec, {"initContainerStatuses": statuses}))
    assert [each.resources.requests for each in found.init_containers] == [{"cpu": "5"}, {"cpu": "1"}]


@pytest.mark.parametrize(
    ("conditions", "requests"),
    [([], {"cpu": "4", "memory": "1Gi"}), (INFEASIBLE, {"cpu": "4", "memory": 0})],
    ids=["granted", "infeasible"],
)
def test_pod_level_resources_have_their_own_status(conditions: list[Any], requests: dict[str, Any]) -> None:
    """Only resources that the spec names count (Kubernetes 1.36)."""
    whole = {"requests": {"cpu": "2", "memory": "1Gi"}}
    status = {"resources": resources("3"), "allocatedResources": {"cpu": "4", "hugepages-2Mi": "2Mi"}}
    found = spec_in_effect(
        pod({"containers": [container("1")], "resources": whole}, {**status, "conditions": conditions})
    )
    assert found.resources is not None
    assert found.resources.requests == requests


@pytest.mark.parametrize(
    ("actual", "limits"), [("5", {"cpu": "5"}), ("", {"cpu": "3"})], ids=["other limits", "no limits"]
)
def test_limits_of_a_pod_with_an_infeasible_resize_are_the_actual_ones_if_any(actual: str, limits: dict[str, str]):
    status = {"resources": resources("3", actual), "conditions": INFEASIBLE}
    found = spec_in_effect(pod({"containers": [container("1")], "resources": resources("2", "3")}, status))
    assert found.resources is not None
    assert found.resources.limits == limits


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"containerStatuses": [{"name": "main"}]},
        {"containerStatuses": [{"name": "main", "allocatedResources": {"cpu": "9"}}]},
        {"containerStatuses": [{"name": "main", "resources": resources("1"), "allocatedResources": {"cpu": "1"}}]},
        {"containerStatuses": [{"name": "ended", "resources": resources("9")}]},
        {"resources": resources("9")},
    ],
    ids=["none", "no resources", "only granted", "equal", "unknown container", "no pod-level resources"],
)
def test_a_pod_without_a_resize_stores_no_resources_of_its_status(status: dict[str, Any]) -> None:
    """Otherwise the copy of the pods would have the resources of each container twice."""
    found = pod({"containers": [container("1")]}, status)
    assert spec_in_effect(found) is found.spec
    assert resize_state(found) == ((), (), None, None, False)


def test_an_invalid_quantity_in_the_status_is_an_error() -> None:
    status = {"containerStatuses": [{"name": "main", "resources": resources("much")}]}
    with pytest.raises(ValueError, match="'much' is not a Kubernetes quantity"):
        spec_in_effect(pod({"containers": [container("1")]}, status))
