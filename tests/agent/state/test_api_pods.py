"""Pods of a node from the Kubernetes API, over a real socket."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from agent.state.api_pods import InformerPods
from agent.state.readings import PodsUnknown
from tests.fakes.kube import PODS, FakeKube
from tests.fakes.kubelet import pod
from tests.waiting import eventually
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import KubeAccess


def put(kube: FakeKube, name: str, uid: str, node: str = "node-1", **given: object) -> None:
    content = pod(name, uid, **given)
    content["spec"]["nodeName"] = node
    kube.put(PODS, f"default/{name}", **{part: content[part] for part in ("metadata", "spec", "status")})


def watching(kube: FakeKube, inside: Callable[[InformerPods], Awaitable[None]]) -> None:
    async def run() -> None:
        client = KubeClient(lambda: KubeAccess(kube.url, "a test", token=kube.token))
        source = InformerPods(client, "node-1")
        await source.start()
        try:
            await inside(source)
        finally:
            await source.close()
            await client.close()

    asyncio.run(run())


def keys(source: InformerPods, *, monotonic: float = 1000.0) -> list[str] | str:
    """The keys of the pods, or the reason why they are unknown."""
    try:
        return [each.pod.key for each in source.listing(monotonic=monotonic, max_age=30.0)]
    except PodsUnknown as error:
        return str(error)


def test_only_the_pods_of_this_node_are_listed():
    with FakeKube() as kube:
        put(kube, "b", "2")
        put(kube, "a", "1")
        put(kube, "other", "3", node="node-2")

        async def inside(source: InformerPods) -> None:
            assert "has not responded yet" in keys(source)
            await eventually(lambda: keys(source) == ["default/a", "default/b"], what="both pods")
            one, _ = source.listing(monotonic=1000.0, max_age=30.0)
            put(kube, "c", "4")
            kube.delete(PODS, "default/b")
            await eventually(lambda: keys(source) == ["default/a", "default/c"], what="what changed")
            assert source.listing(monotonic=1000.0, max_age=30.0)[0] is one

        watching(kube, inside)
        listed = [each for each in kube.asked if each.verb in ("list", "watch")]
        assert {each.parameters["fieldSelector"] for each in listed} == {"spec.nodeName=node-1"}


@pytest.mark.slow
def test_a_copy_without_updates_becomes_too_old(caplog):
    with FakeKube() as kube:
        put(kube, "a", "1")

        async def inside(source: InformerPods) -> None:
            await eventually(lambda: keys(source) == ["default/a"], what="the pod")
            kube.forbidden.add(("list", PODS))
            kube.forbidden.add(("watch", PODS))
            kube.drop_connections()
            await eventually(lambda: "cannot watch pods" in caplog.text, what="the watch to fail")
            assert keys(source, monotonic=1030.0) == ["default/a"]
            assert "31 s old" in keys(source, monotonic=1031.0)
            kube.forbidden.clear()
            await eventually(lambda: keys(source, monotonic=1100.0) == ["default/a"], what="the pod again")

        watching(kube, inside)


def test_an_invalid_pod_is_left_out(caplog):
    with FakeKube() as kube:
        put(kube, "a", "1")
        put(kube, "b", "2", spec={"containers": [{"name": "main", "resources": {"limits": {"cpu": "much"}}}]})

        async def inside(source: InformerPods) -> None:
            await eventually(lambda: keys(source) == ["default/a"], what="the good pod")
            assert keys(source) == ["default/a"]

        watching(kube, inside)
    assert len([each for each in caplog.messages if "ignoring the pod default/b" in each]) == 1
