"""What is read of a pod's object, as the API and the kubelet have it."""

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


def test_all_that_is_read_of_a_pod():
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
    )


def test_an_empty_pod_has_defaults_and_nothing_running():
    found = read({"metadata": {"name": "a", "namespace": "b", "uid": UID}}).pod
    assert (found.qos, found.priority, found.start_time, found.phase) == (QosClass.UNKNOWN, 0, None, "Pending")
    assert (found.owner, found.daemon, found.static, found.terminating) == ("", False, False, False)
    assert not found.managed
    assert (found.grace_seconds, found.containers) == (30.0, ())


@pytest.mark.parametrize(
    ("annotations", "static", "group"),
    [
        ({"kubernetes.io/config.source": "api"}, False, UID),
        ({"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": HASH}, True, HASH),
        ({"kubernetes.io/config.source": "http", "kubernetes.io/config.hash": HASH}, True, HASH),
        (
            {
                "kubernetes.io/config.source": "file",
                "kubernetes.io/config.hash": HASH,
                "kubernetes.io/config.mirror": HASH,
            },
            True,
            HASH,
        ),
        ({"kubernetes.io/config.mirror": HASH}, True, HASH),
        ({"kubernetes.io/config.hash": HASH}, False, UID),
        ({}, False, UID),
    ],
)
def test_static_pods_and_their_mirrors(annotations: dict[str, str], static: bool, group: str):
    """The kubelet says of every pod where it is from; upstream takes all of them for static then."""
    content = pod("a", UID)
    content["metadata"]["annotations"] = annotations
    found = read(content)
    assert (static, group) == (found.pod.static, found.group_uid)


def test_who_is_terminating_who_is_a_daemon_and_who_has_priority():
    content = pod("a", UID, spec={"priority": 2_000_001_000, "terminationGracePeriodSeconds": 0})
    content["metadata"]["deletionTimestamp"] = "2026-11-21T09:00:00Z"
    content["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "agent", "controller": True}]
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
    assert [each.extended_cpu_limit for each in found.containers] == [2.0, 0.5, None]
    assert [each.id for each in found.containers] == ["a", "b", "c"]
    assert (found.extended, found.extended_cpu_request) == ({"a", "b"}, 2.5)


def test_only_what_runs_has_a_group_sidecars_too():
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
    assert [each.name for each in read(pod("a", UID, spec=spec, status=status)).containers] == ["proxy"]


def test_a_limit_of_0_is_none_and_a_quantity_that_is_none_is_refused():
    for value, expected in (("0", None), ("100m", 0.1)):
        spec = {"containers": [{"name": "main", "resources": {"limits": {"cpu": value}}}]}
        assert read(pod("a", UID, spec=spec)).containers[0].cpu_limit == expected
    spec = {"containers": [{"name": "main", "resources": {"limits": {"cpu": "much"}}}]}
    with pytest.raises(ValueError, match="much"):
        read(pod("a", UID, spec=spec))


def test_null_where_go_writes_null():
    status = {"containerStatuses": None, "initContainerStatuses": None, "startTime": None}
    assert read(pod("a", UID, status=status)).containers == ()


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
