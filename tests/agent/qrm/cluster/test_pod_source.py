"""Pods as the manager wants them, from the API and from the kubelet."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.qrm.cluster.pod_source import NodePodSources, QrmPodObject, api_pods, kubelet_pods, qrm_pod
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


def test_everything_that_plugins_want():
    requests = {"cpu": "250m", "memory": "1Gi", "example.org/card": "2", "ephemeral-storage": "0"}
    found = understood(
        metadata={
            "namespace": "shop",
            "name": "web",
            "uid": "u1",
            "labels": {"app": "web"},
            "annotations": {"kubernetes.io/pod-role": "ETL", "example.org/any": "x"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "web-1"}],
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
        owner_kinds=frozenset({"ReplicaSet"}),
        containers=(
            PodContainer("first", init=True),
            PodContainer("proxy", id="def", init=True, restarts=True),
            PodContainer("main", {"cpu": 0.25, "memory": 2.0**30, "example.org/card": 2.0}, "abc"),
            PodContainer("side", {"cpu": 1.5}),
        ),
    )
    assert found.role == "ETL"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_pods_that_have_ended_are_none(phase: str):
    assert understood(status={"phase": phase}) is None


@pytest.mark.parametrize(
    "annotations",
    [
        {"kubernetes.io/config.source": "api", "kubernetes.io/config.mirror": HASH},
        {"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": HASH},
    ],
)
def test_a_static_pod_is_the_same_to_the_api_and_the_kubelet(annotations: dict[str, str]):
    found = understood(metadata={"uid": "another", "annotations": annotations})
    assert found is not None
    assert found.uid == HASH


def test_a_quantity_that_is_none():
    with pytest.raises(ValueError, match="many"):
        understood(spec={"containers": [{"name": "c", "resources": {"requests": {"cpu": "many"}}}]})


class Known:
    """Who knows these pods, heard of `age` seconds ago."""

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


def test_who_knows_well_is_believed_then_who_knows_at_all():
    assert names(Known("b", "a")) == ["a", "b"]
    assert names(Known("api"), Known("kubelet")) == ["api"]
    assert names(Known("api", age=61.0), Known("kubelet")) == ["kubelet"]
    assert names(Known("api", age=3600.0), Known(why="it is away")) == ["api"], "a copy is better than nothing"
    with pytest.raises(PodsUnknown, match="it is away"):
        names(Known(why="it is away"), Known(why="and so is this"))
    with pytest.raises(PodsUnknown, match="neither the Kubernetes API nor a kubelet is configured"):
        names()


def test_the_age_is_that_of_the_pods_in_use():
    def age(*sources: Known) -> float | None:
        return NodePodSources(sources).age(monotonic=0.0)

    assert age(Known("api", age=1.0), Known("kubelet")) == 1.0
    assert age(Known("api", age=61.0), Known("kubelet", age=2.0)) == 2.0
    assert age(Known("api", age=3600.0), Known("kubelet", age=70.0)) == 3600.0
    assert age(Known(why="it is away"), Known("kubelet", age=70.0)) == 70.0
    assert age(Known(why="it is away")) is None


async def test_from_the_api_and_on_while_it_is_away(tmp_path: Path):
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
            assert again[0] is listed[0], "what did not change is not read again"
            kube.delete(PODS, "shop/web")
            kube.pod("shop/new", node="node-1")
            await eventually(
                lambda: [pod.key for pod in pods.listing(monotonic=3.0)] == ["shop/new"], what="the change"
            )
        finally:
            await pods.close()
            await client.close()


async def test_a_kubelet_that_nobody_hears():
    source = kubelet_pods(kubelet_access("http://127.0.0.1:9"), interval=10.0)
    with pytest.raises(PodsUnknown, match="the kubelet has not responded yet"):
        source.listing(monotonic=0.0, max_age=1.0)
    await source.close()
