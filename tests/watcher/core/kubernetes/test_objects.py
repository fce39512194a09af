"""Pods and nodes in the format of the API, and the fields that are kept."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from watcher.core.kubernetes.errors import KubeRefused
from watcher.core.kubernetes.objects import CustomObject, Node, Owner, Pod
from watcher.core.kubernetes.quantity import nano
from watcher.core.kubernetes.wire import MinimalMetadata, Resource, key_of

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
AMPLIFIED = "node.koordinator.sh/raw-allocatable"
POD: dict[str, Any] = {
    "kind": "Pod",
    "apiVersion": "v1",
    "metadata": {
        "name": "web-0",
        "namespace": "shop",
        "uid": "0b5f",
        "resourceVersion": "17",
        "creationTimestamp": "2026-11-21T10:00:00Z",
        "deletionTimestamp": "2026-11-21T10:05:00Z",
        "labels": {"app": "web", "koordinator.sh/qosClass": "LS"},
        "annotations": {
            LAST_APPLIED: "{…}",
            "scheduling.koordinator.sh/reserve-pod": "true",
            "kubernetes.io/config.source": "file",
            "notkoordinator.sh/x": "y",
        },
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "web", "uid": "7", "controller": True}
        ],
        "managedFields": [{"manager": "kubelet"}],
    },
    "spec": {
        "nodeName": "node-1",
        "priority": 9500,
        "priorityClassName": "koord-prod",
        "overhead": {"cpu": "250m"},
        "resources": {"requests": {"cpu": "2"}},
        "initContainers": [{"name": "proxy", "image": "x", "restartPolicy": "Always", "resources": {}}],
        "containers": [
            {"name": "main", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"gocrane.io/cpu": 2}}}
        ],
    },
    "status": {
        "phase": "Running",
        "qosClass": "Burstable",
        "startTime": "2026-11-21T10:00:01Z",
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "True",
                "lastProbeTime": None,
                "lastTransitionTime": "2026-11-21T10:00:02Z",
            },
            {"type": "ContainersReady", "status": "True", "lastTransitionTime": "2026-11-21T10:00:03Z"},
            {"type": "Ready", "status": "False", "lastTransitionTime": "2026-11-21T10:00:04Z"},
        ],
    },
}


def read(content: Any, kind: Any = Pod) -> Any:
    """An object, decoded from JSON."""
    return msgspec.json.decode(msgspec.json.encode(content), type=kind)


def test_a_pod_has_the_fields_that_plugins_and_the_agent_use():
    """Times as datetimes, quantities as texts, and sidecars distinguished from init containers."""
    pod: Pod = read(POD)

    assert "shop/web-0" == key_of(pod)
    assert ("0b5f", "17", "node-1") == (pod.metadata.uid, pod.metadata.resource_version, pod.spec.node_name)
    assert datetime(2026, 11, 21, 10, 5, tzinfo=UTC) == pod.metadata.deletion_timestamp
    assert (Owner("DaemonSet", "web", controller=True, api_version="apps/v1"),) == pod.metadata.owner_references
    assert (9500, "koord-prod") == (pod.spec.priority, pod.spec.priority_class_name)
    assert 2 * 10**9 == nano(pod.spec.containers[0].resources.limits["gocrane.io/cpu"])
    assert ["Always"] == [each.restart_policy for each in pod.spec.init_containers]
    assert pod.spec.resources is not None
    assert ({"cpu": "2"}, {"cpu": "250m"}) == (pod.spec.resources.requests, pod.spec.overhead)
    assert ("Running", "Burstable") == (pod.status.phase, pod.status.qos_class)
    assert ["PodScheduled", "Ready"] == [condition.type for condition in pod.status.conditions]


def test_an_empty_pod_is_valid():
    """Absent fields are empty or None; a priority of 0 is not an absent one."""
    pod: Pod = read({"metadata": {"name": "bare", "creationTimestamp": None}})
    assert (None, None, (), {}) == (pod.spec.priority, pod.spec.resources, pod.spec.containers, pod.metadata.labels)
    assert read({"spec": {"priority": 0}}).spec.priority == 0


@pytest.mark.parametrize(
    ("affinity", "forbids"),
    [
        ({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}, True),
        ({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}, True),
        ({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}, False),
        ({"nodeAffinity": None}, False),
        ({}, False),
    ],
)
def test_only_required_affinity_excludes_nodes(affinity: dict[str, Any], forbids: bool):
    assert forbids == read({"spec": {"affinity": affinity}}).spec.affinity


def test_annotations_of_other_programs_are_dropped():
    """They may be half of the size of a pod. Of a domain, only the whole name counts."""
    assert {"scheduling.koordinator.sh/reserve-pod": "true", "kubernetes.io/config.source": "file"} == read(
        POD
    ).metadata.annotations


def test_equal_parts_of_replicas_are_stored_once():
    """Pods still compare by value."""
    other = {**POD, "metadata": {**POD["metadata"], "name": "web-1", "labels": dict(POD["metadata"]["labels"])}}
    first, second = read(POD), read(other)

    assert first != second
    assert first.metadata.labels is second.metadata.labels
    assert first.metadata.owner_references is second.metadata.owner_references
    assert first.spec.containers[0].resources.requests is second.spec.containers[0].resources.requests
    assert first.status.phase is second.status.phase
    for one, other_one in zip(first.status.conditions, second.status.conditions, strict=True):
        assert one.type is other_one.type
        assert one.status is other_one.status


@pytest.mark.parametrize(
    ("kind", "content", "part"),
    [
        (Pod, {"metadata": {"namespace": "a namespace"}}, "metadata.namespace"),
        (Pod, {"metadata": {"annotations": {"koordinator.sh/a": "b"}}}, "metadata.annotations"),
        (Pod, {"spec": {"nodeName": "a node"}}, "spec.node_name"),
        (Pod, {"spec": {"priorityClassName": "a class"}}, "spec.priority_class_name"),
        (Pod, {"spec": {"nodeSelector": {"zone": "a"}}}, "spec.node_selector"),
        (Pod, {"spec": {"tolerations": [{"key": "a", "operator": "Exists"}]}}, "spec.tolerations"),
        (Pod, {"status": {"qosClass": "a class"}}, "status.qos_class"),
        (Pod, {"status": {"conditions": [{"type": "Ready", "reason": "a reason"}]}}, "status.conditions.0.reason"),
        (Node, {"status": {"capacity": {"cpu": "4"}}}, "status.capacity"),
        (Node, {"status": {"allocatable": {"cpu": "4"}}}, "status.allocatable"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_equal_parts_of_objects_are_stored_once(kind: type[Any], content: dict[str, Any], part: str):
    def found(item: Any) -> Any:
        for name in part.split("."):
            item = item[int(name)] if name.isdigit() else getattr(item, name)
        return item

    first, second = found(read(content, kind)), found(read(content, kind))
    assert first
    assert first is second


def test_a_node_has_the_fields_that_scheduling_needs():
    """Allocatable, addresses, taints, labels and conditions, but not images."""
    node: Node = read(
        {
            "metadata": {
                "name": "n",
                "labels": {"zone": "a"},
                "annotations": {"node.koordinator.sh/raw-allocatable": "{}"},
            },
            "spec": {"unschedulable": True, "taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": None}]},
            "status": {
                "capacity": {"cpu": "4"},
                "allocatable": {"cpu": "3800m"},
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-21T10:00:00Z"}],
                "images": [{"names": ["x"], "sizeBytes": 1}],
            },
        },
        Node,
    )
    assert ("n", {"zone": "a"}, True) == (key_of(node), node.metadata.labels, node.spec.unschedulable)
    assert ("k", "NoSchedule", "") == (node.spec.taints[0].key, node.spec.taints[0].effect, node.spec.taints[0].value)
    assert ("3800m", "10.0.0.1") == (node.status.allocatable["cpu"], node.status.addresses[0].address)
    assert ["Ready"] == [condition.type for condition in node.status.conditions]
    assert {AMPLIFIED: "{}"} == node.metadata.annotations


def test_a_custom_object_keeps_its_json():
    """For kinds without a declared type."""
    policy = read({"metadata": {"name": "p"}, "spec": {"rules": [{"name": "cpu"}]}}, CustomObject)
    assert ("p", {"rules": [{"name": "cpu"}]}, {}) == (key_of(policy), policy.spec, policy.status)


def test_paths_of_objects():
    """In all namespaces, in one, and of subresources."""
    policies = Resource("ensurance.crane.io", "v1alpha1", "nodeqoss", CustomObject)
    pods = Resource("", "v1", "pods", Pod)
    assert "/apis/ensurance.crane.io/v1alpha1/nodeqoss/a" == policies.path_of("a")
    assert "/api/v1/namespaces/shop/pods/web-0/eviction" == pods.path_of("shop/web-0", "eviction")
    assert ("nodeqoss.ensurance.crane.io", "pods") == (policies.full_name, pods.full_name)
    assert ("ensurance.crane.io/v1alpha1", "v1") == (policies.group_version, pods.group_version)
    assert MinimalMetadata("system:node", "") == read({"name": "system:node"}, MinimalMetadata)


@pytest.mark.parametrize("name", ["", "/", "a/", "/a", "a/b/c", "..", "a/..", "a?x=1", "a b", "ü", "a%2Fb", "a\n"])
def test_an_invalid_name_is_an_error_and_not_another_path(name: str):
    """Names also come from annotations, metrics and requests of others."""
    with pytest.raises(KubeRefused, match="is not a valid name of"):
        Resource("", "v1", "pods", Pod).path_of(name)
