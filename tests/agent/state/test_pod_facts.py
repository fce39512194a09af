"""The facts of a pod, from its object in the API and from the kubelet."""

from typing import Any

import msgspec
import pytest

from agent.model import ContainerState, PodState
from agent.qos import QosClass
from agent.state.pod_facts import AgentPod, facts_of
from agent.state.readings import PodFacts
from tests.fakes.kubelet import pod

UID = "04e5e9e7-8d95-44dd-9af7-ab944405fff8"
HASH = "7c2f3f0ad4f1a9d5b6c3e8f0a1b2c3d4"


def read(content: dict[str, Any]) -> PodFacts:
    return facts_of(msgspec.convert(msgspec.json.decode(msgspec.json.encode(content)), AgentPod))


def test_all_facts_of_a_pod():
    content = pod("web-7d9c-x", UID)
    identity = content["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    assert read(content) == PodFacts(
        PodState(
            namespace="default",
            name="web-7d9c-x",
            uid=UID,
            qos=QosClass.BURSTABLE,
            priority=0,
            start_time=1795248001.0,
            labels={"app": "web", "pod-template-hash": "7d9c"},
            owner="ReplicaSet/web-7d9c",
            phase="Running",
            grace_seconds=45.0,
            memory_request=256 << 20,
            containers=(ContainerState("main", identity, cpu_request=0.25, cpu_limit=1.0),),
        ),
        group_uid=UID,
        created=1795248000.0,
    )


@pytest.mark.parametrize(
    ("volumes", "found"),
    [(None, False), ([{"name": "a", "emptyDir": {}}], False), ([{"name": "a", "hostPath": {"path": "/sys"}}], True)],
)
def test_which_pods_mount_directories_of_the_host(volumes: list[dict[str, Any]] | None, found: bool):
    assert found is read(pod("a", UID, spec={"volumes": volumes})).pod.host_paths


def test_an_empty_pod_has_defaults_and_no_running_container():
    found = read({"metadata": {"name": "a", "namespace": "b", "uid": UID}}).pod
    assert (found.qos, found.priority, found.start_time, found.phase) == (QosClass.UNKNOWN, 0, None, "Pending")
    assert (found.owner, found.daemon, found.static, found.terminating) == ("", False, False, False)
    assert not found.managed
    assert (found.grace_seconds, found.containers) == (30.0, ())


@pytest.mark.parametrize(
    ("annotations", "static"),
    [
        ({"kubernetes.io/config.source": "api"}, False),
        ({"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": HASH}, True),
        ({"kubernetes.io/config.source": "http", "kubernetes.io/config.hash": HASH}, True),
        ({"kubernetes.io/config.mirror": HASH}, False),
        ({"kubernetes.io/config.source": "api", "kubernetes.io/config.mirror": HASH}, False),
        ({"kubernetes.io/config.hash": HASH}, False),
        ({}, False),
    ],
)
def test_static_pods_of_the_kubelet(annotations: dict[str, str], static: bool):
    """The kubelet sets the source of each pod (Crane then treats all pods as static), and the uid of a static pod is
    its hash. Other annotations of pods in the API are set by users."""
    content = pod("a", HASH if static else UID)
    content["metadata"]["annotations"] = annotations
    found = read(content)
    assert (static, HASH if static else UID) == (found.pod.static, found.group_uid)


def test_terminating_daemon_and_priority_of_a_pod():
    content = pod("a", UID, spec={"priority": 2_000_001_000, "terminationGracePeriodSeconds": 0})
    content["metadata"]["deletionTimestamp"] = "2026-11-21T09:00:00Z"
    content["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "controller": True}
    ]
    found = read(content).pod
    assert (found.terminating, found.daemon, found.owner) == (True, True, "DaemonSet/agent")
    assert (found.priority, found.grace_seconds) == (2_000_001_000, 0.0)


@pytest.mark.parametrize(
    ("owners", "owner"),
    [
        ([{"kind": "ReplicaSet", "name": "web-7d9c", "controller": True}], "ReplicaSet/web-7d9c"),
        ([{"kind": "Workflow", "name": "w"}, {"kind": "Job", "name": "j", "controller": True}], "Job/j"),
        ([{"kind": "Workflow", "name": "w"}], ""),
        ([{"kind": "Workflow", "name": "w", "controller": False}], ""),
    ],
)
def test_only_a_controller_recreates_a_pod(owners: list[dict[str, Any]], owner: str):
    content = pod("a", UID)
    content["metadata"]["ownerReferences"] = owners
    found = read(content).pod
    assert (found.owner, found.managed) == (owner, bool(owner))


def test_extended_resources():
    limits = {"gocrane.io/cpu": "2", "gocrane.io/memory": "1Gi", "memory": "2Gi"}
    containers = [
        {"name": "a", "resources": {"limits": limits, "requests": {"gocrane.io/cpu": "2"}}},
        {"name": "b", "resources": {"limits": {"gocrane.io/cpu": "500m"}, "requests": {"gocrane.io/cpu": "500m"}}},
        {"name": "c", "resources": {"limits": {"cpu": "1"}}},
    ]
    running = [{"name": each, "state": {"running": {}}, "containerID": f"cri-o://{each}"} for each in "abc"]
    found = read(pod("a", UID, spec={"containers": containers}, status={"containerStatuses": running}))
    assert (found.pod.extended_cpu_limit, found.pod.extended_memory_limit) == (2.5, 1 << 30)
    assert [each.extended_cpu_limit for each in found.pod.containers] == [2.0, 0.5, None]
    assert [each.id for each in found.pod.containers] == ["a", "b", "c"]
    assert (found.extended, found.extended_cpu_request) == ({"a", "b"}, 2.5)


def test_only_running_containers_and_sidecars_have_a_group():
    statuses = [
        {"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "containerID": "docker://1"},
        {"name": "unknown", "state": {"running": {}}, "containerID": "docker://2"},
    ]
    inits = [
        {"name": "setup", "state": {"terminated": {"exitCode": 0}}, "containerID": "docker://3"},
        {"name": "proxy", "state": {"running": {}}, "containerID": "docker://4"},
    ]
    spec = {"initContainers": [{"name": "setup"}, {"name": "proxy", "restartPolicy": "Always"}]}
    status = {"containerStatuses": statuses, "initContainerStatuses": inits}
    assert [each.name for each in read(pod("a", UID, spec=spec, status=status)).pod.containers] == ["proxy"]


def test_a_limit_of_0_is_none_and_an_invalid_quantity_is_refused():
    for value, expected in (("0", None), ("100m", 0.1)):
        spec = {"containers": [{"name": "main", "resources": {"limits": {"cpu": value}}}]}
        assert read(pod("a", UID, spec=spec)).pod.containers[0].cpu_limit == expected
    spec = {"containers": [{"name": "main", "resources": {"limits": {"cpu": "much"}}}]}
    with pytest.raises(ValueError, match="much"):
        read(pod("a", UID, spec=spec))


def test_null_lists_and_maps_are_read_as_empty():
    status = {"containerStatuses": None, "initContainerStatuses": None, "startTime": None}
    assert read(pod("a", UID, status=status)).pod.containers == ()


@pytest.mark.parametrize(
    ("spec", "actual", "conditions", "request_"),
    [
        ("500m", "3", [], 3.0),
        ("3", "500m", [], 3.0),
        ("3", "500m", ["Deferred"], 3.0),
        ("3", "500m", ["Infeasible"], 0.5),
    ],
    ids=["smaller", "larger", "deferred", "infeasible"],
)
def test_requests_during_a_resize(spec: str, actual: str, conditions: list[str], request_: float):
    """The request that the kubelet still guarantees counts, so that the container is not throttled below it."""
    content = pod("a", UID)
    (container,), (status,) = content["spec"]["containers"], content["status"]["containerStatuses"]
    container["resources"] = {"requests": {"cpu": spec, "memory": "2Gi"}}
    status["resources"] = {"requests": {"cpu": actual, "memory": "1Gi"}}
    content["status"]["conditions"] = [{"type": "PodResizePending", "reason": reason} for reason in conditions]
    found = read(content).pod
    assert found.containers[0].cpu_request == request_
    assert found.memory_request == (1 if conditions == ["Infeasible"] else 2) << 30


RUNNING = [{"name": each, "state": {"running": {}}, "containerID": f"cri-o://{each}"} for each in "ab"]
TWO = [{"name": "a", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}, {"name": "b"}]


def test_pod_level_requests_count_for_the_pod():
    """Any container may use the part that no container requests."""
    whole = {"requests": {"cpu": "4", "memory": "3Gi"}}
    spec = {"containers": TWO, "resources": whole, "overhead": {"memory": "128Mi"}}
    found = read(pod("a", UID, spec=spec, status={"containerStatuses": RUNNING})).pod
    assert [each.cpu_request for each in found.containers] == [4.0, 3.0]
    assert found.memory_request == (3 << 30) + (128 << 20)


def test_an_infeasible_resize_of_the_pod_does_not_count():
    whole = {"requests": {"cpu": "8"}}
    status = {
        "containerStatuses": RUNNING,
        "resources": {"requests": {"cpu": "2"}},
        "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}],
    }
    found = read(pod("a", UID, spec={"containers": TWO, "resources": whole}, status=status)).pod
    assert [each.cpu_request for each in found.containers] == [2.0, 1.0]


def test_sidecars_count_in_what_a_pod_requests():
    """Ended init containers keep their share of the node as well, as kube-scheduler counts them."""
    proxy = {
        "name": "b",
        "restartPolicy": "Always",
        "resources": {"requests": {"memory": "2Gi", "gocrane.io/cpu": "1"}},
    }
    setup = {"name": "setup", "resources": {"requests": {"memory": "512Mi"}}}
    spec = {"containers": TWO[:1], "initContainers": [proxy, setup]}
    found = read(pod("a", UID, spec=spec))
    assert (found.pod.memory_request, found.extended_cpu_request) == (3 << 30, 1.0)


NODE_OWNER = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "n", "controller": True}


@pytest.mark.parametrize(
    ("annotations", "owners", "static", "group"),
    [
        ({"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": HASH}, [], False, UID),
        ({"kubernetes.io/config.mirror": HASH}, [], False, UID),
        ({"kubernetes.io/config.mirror": HASH}, [{**NODE_OWNER, "controller": False}], False, UID),
        ({"kubernetes.io/config.mirror": HASH}, [NODE_OWNER], True, HASH),
        ({"kubernetes.io/config.mirror": HASH}, [{**NODE_OWNER, "name": "node-2"}], False, UID),
        ({"kubernetes.io/config.mirror": HASH}, [{**NODE_OWNER, "apiVersion": "example.com/v1"}], False, UID),
        ({"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": HASH}, [NODE_OWNER], False, UID),
    ],
)
def test_annotations_in_the_api_do_not_define_the_identity(annotations, owners, static, group):
    """A user who may create pods may write them; only the kubelet makes a mirror pod."""
    content = pod("a", UID)
    content["metadata"]["annotations"] = annotations
    content["metadata"]["ownerReferences"] = owners
    content["spec"]["nodeName"] = "node-1"
    found = facts_of(msgspec.convert(msgspec.json.decode(msgspec.json.encode(content)), AgentPod), from_api=True)
    assert (static, group) == (found.pod.static, found.group_uid)


def test_a_pod_of_a_daemon_set_has_the_daemon_set_as_its_controller():
    content = pod("a", UID)
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d"}
    for controller in (False, True):
        content["metadata"]["ownerReferences"] = [{**owner, "controller": controller}]
        assert read(content).pod.daemon is controller
    content["metadata"]["ownerReferences"] = [{**owner, "apiVersion": "example.com/v1", "controller": True}]
    assert not read(content).pod.daemon
