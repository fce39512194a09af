"""The pods of the node from the Kubernetes API and from the kubelet, as the manager's pod type."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.qrm.cluster.pod_source import LingeringPods, NodePodSources, QrmPodObject, api_pods, kubelet_pods, qrm_pod
from agent.qrm.pods import PodContainer, QrmPod
from agent.state.kubelet import kubelet_access
from agent.state.readings import PodsUnknown
from tests.fakes.kube import PODS, FakeKube
from tests.waiting import eventually
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import find_access

HASH = "0123456789abcdef0123456789abcdef"


def understood(**content: Any) -> QrmPod | None:
    return qrm_pod(msgspec.convert({"metadata": {}, **content}, QrmPodObject))


def test_a_pod_of_the_api_is_read_with_all_fields_that_plugins_use():
    requests = {"cpu": "250m", "memory": "1Gi", "example.org/card": "2", "ephemeral-storage": "0"}
    found = understood(
        metadata={
            "namespace": "shop",
            "name": "web",
            "uid": "u1",
            "labels": {"app": "web"},
            "annotations": {"kubernetes.io/pod-role": "ETL", "example.org/any": "x"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "web-1", "controller": True}],
        },
        spec={
            "containers": [
                {"name": "main", "resources": {"requests": requests, "limits": {"cpu": "1"}}},
                {"name": "side", "resources": {"limits": {"cpu": "1500m"}}},
            ],
            "initContainers": [{"name": "first"}, {"name": "proxy", "restartPolicy": "Always"}],
        },
        status={
            "phase": "Running",
            "qosClass": "Burstable",
            "containerStatuses": [
                {"name": "main", "containerID": "containerd://abc", "state": {"running": {}}},
                {"name": "side", "containerID": "containerd://old", "state": {"terminated": {}}},
            ],
            "initContainerStatuses": [{"name": "proxy", "containerID": "cri-o://def", "state": {"running": {}}}],
        },
    )
    assert found == QrmPod(
        "u1",
        "shop",
        "web",
        labels={"app": "web"},
        annotations={"kubernetes.io/pod-role": "ETL", "example.org/any": "x"},
        qos_class="Burstable",
        containers=(
            PodContainer("first", init=True),
            PodContainer("proxy", id="def", init=True, restarts=True),
            PodContainer("main", {"cpu": 0.25, "memory": 2.0**30, "example.org/card": 2.0}, "abc"),
            PodContainer("side", {"cpu": 1.5}),
        ),
    )
    assert found.role == "ETL"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_pods_that_have_ended_are_left_out(phase: str):
    assert understood(status={"phase": phase}) is None


OF_KUBELET = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "controller": True}


def of_api(**metadata: Any) -> QrmPod:
    content = {"metadata": metadata, "spec": {"nodeName": "node-1"}}
    found = qrm_pod(msgspec.convert(content, QrmPodObject), from_api=True)
    assert found is not None
    return found


def test_a_static_pod_from_the_kubelet_equals_its_mirror_pod_from_the_api():
    """The kubelet's own pod has its source in an annotation; the mirror pod is owned by the node."""
    local = understood(metadata={"uid": HASH, "annotations": {"kubernetes.io/config.source": "file"}})
    mirror = of_api(uid="m", annotations={"kubernetes.io/config.mirror": HASH}, ownerReferences=[OF_KUBELET])
    assert local is not None
    assert [(each.uid, each.static) for each in (local, mirror)] == [(HASH, True)] * 2


@pytest.mark.parametrize(
    "owner",
    [
        {**OF_KUBELET, "name": "node-2"},
        {**OF_KUBELET, "controller": False},
        {**OF_KUBELET, "kind": "ReplicaSet"},
    ],
)
def test_annotations_of_a_user_do_not_change_the_uid_or_make_a_pod_static(owner: dict[str, Any]):
    """A user of the API can set both annotations. The uid of another pod stays that of the other pod."""
    claims = {
        "kubernetes.io/config.source": "file",
        "kubernetes.io/config.hash": "victim",
        "kubernetes.io/config.mirror": "victim",
    }
    found = of_api(uid="own", annotations=claims, ownerReferences=[owner])
    assert (found.uid, found.static) == ("own", False)


def test_an_owner_that_does_not_control_the_pod_is_not_its_owner():
    daemon = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d"}
    owners = [daemon, {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "controller": True}]
    assert not of_api(uid="u", ownerReferences=owners).daemon
    assert of_api(uid="u", ownerReferences=[{**daemon, "controller": True}]).daemon


class Listed:
    """A source with these pods."""

    def __init__(self, *pods: QrmPod) -> None:
        self.pods = pods

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def listing(self, *, monotonic: float, max_age: float) -> tuple[QrmPod, ...]:
        return self.pods

    def age(self, *, monotonic: float) -> float | None:
        return 0.0


def test_an_empty_list_of_a_restarted_kubelet_ends_no_pod(caplog: pytest.LogCaptureFixture):
    """The pods keep their allocations until they were missing for half a minute, and are not updated meanwhile."""
    pod = QrmPod("u", "shop", "web", containers=(PodContainer("c", {"cpu": 1.0}, id="running"),))
    kubelet = Listed(pod)
    source = LingeringPods(kubelet)
    assert source.listing(monotonic=0.0, max_age=60.0) == [pod]
    kubelet.pods = ()
    for now in (10.0, 29.0):
        (kept,) = source.listing(monotonic=now, max_age=60.0)
        assert kept
        assert (kept.uid, [each.id for each in kept.containers]) == ("u", [""])
    assert [each.getMessage() for each in caplog.records] == [
        "the response of the kubelet has no pods; 1 pods keep their allocations for 30 s"
    ]
    assert source.listing(monotonic=30.0, max_age=60.0) == []
    kubelet.pods = (pod,)
    assert source.listing(monotonic=31.0, max_age=60.0) == [pod]


def test_of_two_pods_with_one_uid_the_one_whose_annotation_has_the_uid_is_refused(caplog: pytest.LogCaptureFixture):
    """The API gives a pod its uid. Of two mirror pods, the older one could not know the uid of the other."""
    real = QrmPod("victim", "bank", "db", created=1795946400.0)
    forged = QrmPod("victim", "a", "hog", static=True, created=1795942800.0)
    static = QrmPod(HASH, "kube-system", "etcd", static=True, created=1795939200.0)
    copied = QrmPod(HASH, "a", "etcd", static=True, created=1795939201.0)
    source = NodePodSources([Listed(forged, real, copied, static)])
    for _ in range(2):
        assert source.listing(monotonic=0.0) == (real, static)
    assert [each.getMessage() for each in caplog.records] == [
        f"ignoring the pod a/etcd: it has the uid {HASH} of the pod kube-system/etcd",
        "ignoring the pod a/hog: it has the uid victim of the pod bank/db",
    ]


@pytest.mark.parametrize(
    ("whole", "own", "expected"),
    [
        ("8", [None], [8.0]),
        ("8", [None, None, None], [4.0, 2.0, 2.0]),
        ("8", ["3", None, None], [3.0, 3.0, 2.0]),
        ("500m", [None, None], [0.25, 0.25]),
        ("8", ["3", "2"], [6.0, 2.0]),
        ("8", ["3", "5"], [3.0, 5.0]),
        ("1", ["3", None], [3.0, None]),
    ],
)
def test_containers_without_requests_share_the_request_of_the_pod(
    whole: str, own: list[str | None], expected: list[float | None]
):
    """A container without a request gets CPUs too, so that it does not run on the CPUs of other containers."""
    containers = [
        {"name": f"c{at}", "resources": {"requests": {} if cpu is None else {"cpu": cpu}}} for at, cpu in enumerate(own)
    ]
    setup = [{"name": "setup", "resources": {}}]
    spec = {"resources": {"requests": {"cpu": whole}}, "containers": containers, "initContainers": setup}
    found = understood(spec=spec)
    assert found is not None
    assert [each.requests.get("cpu") for each in found.containers] == [None, *expected]


def test_pod_level_requests_and_a_resize_that_the_node_cannot_grant():
    """As kube-scheduler counts them: the spec of an infeasible resize does not count."""
    found = understood(
        spec={
            "resources": {"requests": {"cpu": "6", "example.org/card": "1"}, "limits": {"memory": "2Gi"}},
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "70"}}}],
        },
        status={
            "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}],
            "containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": "4"}}}],
        },
    )
    assert found is not None
    assert found.requests == {"cpu": 6.0, "memory": 2.0**31}
    assert found.containers[0].requests == {"cpu": 6.0, "memory": 2.0**31}, "the container has what the pod requests"


def test_an_invalid_quantity_is_an_error():
    with pytest.raises(ValueError, match="many"):
        understood(spec={"containers": [{"name": "c", "resources": {"requests": {"cpu": "many"}}}]})


class Known:
    """A source with these pods, `age` seconds old, or the reason `why` it has none."""

    def __init__(self, *names: str, age: float = 0.0, why: str = "") -> None:
        self.pods = [QrmPod(name, "ns", name) for name in names]
        self.seconds, self.why = age, why

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def listing(self, *, monotonic: float, max_age: float) -> list[QrmPod | None]:
        if self.why or self.seconds > max_age:
            raise PodsUnknown(self.why or "too old")
        return [*self.pods, None]

    def age(self, *, monotonic: float) -> float | None:
        return None if self.why else self.seconds


def names(*sources: Known) -> list[str]:
    return [pod.name for pod in NodePodSources(sources).listing(monotonic=0.0)]


def test_the_first_source_with_recent_pods_is_used_then_the_first_with_any():
    assert names(Known("b", "a")) == ["a", "b"]
    assert names(Known("api"), Known("kubelet")) == ["api"]
    assert names(Known("api", age=61.0), Known("kubelet")) == ["kubelet"]
    assert names(Known("api", age=3600.0), Known(why="it is away")) == ["api"], "a copy is better than nothing"
    with pytest.raises(PodsUnknown, match="it is away"):
        names(Known(why="it is away"), Known(why="and so is this"))
    with pytest.raises(PodsUnknown, match="neither the Kubernetes API nor a kubelet is configured"):
        names()


def test_the_age_is_that_of_the_source_in_use():
    def age(*sources: Known) -> float | None:
        return NodePodSources(sources).age(monotonic=0.0)

    assert age(Known("api", age=1.0), Known("kubelet")) == 1.0
    assert age(Known("api", age=61.0), Known("kubelet", age=2.0)) == 2.0
    assert age(Known("api", age=3600.0), Known("kubelet", age=70.0)) == 3600.0
    assert age(Known(why="it is away"), Known("kubelet", age=70.0)) == 70.0
    assert age(Known(why="it is away")) is None


async def test_api_pods_are_those_of_the_node_and_follow_its_changes(tmp_path: Path):
    with FakeKube() as kube:
        kube.pod("shop/web", node="node-1")
        kube.pod("shop/other", node="node-2")
        bad = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "many"}}}]}
        kube.pod("shop/bad", node="node-1", spec=bad)
        config = kube.kubeconfig(tmp_path / "config")
        client = KubeClient(lambda: find_access(kubeconfig=config, context=None, environ={}))
        pods = NodePodSources([api_pods(client, "node-1")])
        with pytest.raises(PodsUnknown, match="has not responded yet"):
            pods.listing(monotonic=0.0)
        await pods.start()
        try:
            listed = await eventually(lambda: pods.listing(monotonic=1.0), what="the pods", ignoring=(PodsUnknown,))
            assert [pod.key for pod in listed] == ["shop/web"]
            again = pods.listing(monotonic=2.0)
            assert again[0] is listed[0], "an unchanged pod is not read again"
            kube.delete(PODS, "shop/web")
            kube.pod("shop/new", node="node-1")
            await eventually(
                lambda: [pod.key for pod in pods.listing(monotonic=3.0)] == ["shop/new"], what="the change"
            )
        finally:
            await pods.close()
            await client.close()


async def test_pods_are_unknown_if_the_kubelet_does_not_respond():
    source = kubelet_pods(kubelet_access("http://127.0.0.1:9"), interval=10.0)
    with pytest.raises(PodsUnknown, match="the kubelet has not responded yet"):
        source.listing(monotonic=0.0, max_age=1.0)
    await source.close()
