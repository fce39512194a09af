"""DaemonSets that pods of the API name as their controllers, over a real socket."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agent.qrm.cluster.pod_source import api_pods
from agent.qrm.pods import QrmPod
from agent.state.api_pods import InformerPodList, InformerPods
from agent.state.daemon_sets import DaemonSetOwners, DaemonSetReference
from agent.state.readings import PodsUnknown
from tests.fakes.kube import PODS, FakeKube
from tests.fakes.kubelet import pod
from tests.waiting import eventually
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import KubeAccess

DAEMON_SETS = "apps/v1/daemonsets"
OWNER = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "cni", "uid": "d-1", "controller": True}


def put_pod(kube: FakeKube, name: str, owner: dict[str, Any]) -> None:
    content = pod(name, f"uid-{name}")
    content["metadata"]["ownerReferences"] = [owner]
    content["spec"]["nodeName"] = "node-1"
    kube.put(PODS, f"default/{name}", **{part: content[part] for part in ("metadata", "spec", "status")})


def with_client(kube: FakeKube, inside: Callable[[KubeClient], Awaitable[None]]) -> None:
    async def run() -> None:
        client = KubeClient(lambda: KubeAccess(kube.url, "a test", token=kube.token))
        try:
            await inside(client)
        finally:
            await client.close()

    asyncio.run(run())


def reads(kube: FakeKube) -> list[str]:
    return [each.key for each in kube.asked if each.resource == DAEMON_SETS]


def test_only_a_daemonset_that_exists_recreates_its_pods(caplog: pytest.LogCaptureFixture) -> None:
    """A user who may create pods may name any controller. Agent and manager ignore a false one."""
    with FakeKube() as kube:
        kube.put(DAEMON_SETS, "default/cni", metadata={"uid": "d-1"})
        put_pod(kube, "real", OWNER)
        put_pod(kube, "forged", {**OWNER, "uid": "d-2"})
        put_pod(kube, "invented", {**OWNER, "name": "none"})

        async def inside(client: KubeClient) -> None:
            agent, manager = InformerPods(client, "node-1"), api_pods(client, "node-1")
            sources: list[InformerPodList[Any, Any]] = [agent, manager]
            for source in sources:
                await source.start()
            try:

                def daemons(source: InformerPodList[Any, Any]) -> list[str]:
                    found = source.listing(monotonic=0.0, max_age=30.0)
                    pods = [each if isinstance(each, QrmPod) else each.pod for each in found]
                    assert 3 == len(pods)
                    return [each.name for each in pods if each.daemon]

                def only_the_real_one() -> bool:
                    return all(["real"] == daemons(source) for source in sources)

                await eventually(only_the_real_one, what="the answers", ignoring=(PodsUnknown, AssertionError))
                forged, *_ = agent.listing(monotonic=0.0, max_age=30.0)
                assert ("", False) == (forged.pod.owner, forged.pod.managed)
                before = len(reads(kube))
                assert ["real"] == daemons(agent)
                assert before == len(reads(kube)), "an answer is kept"
            finally:
                for source in sources:
                    await source.close()

        with_client(kube, inside)
    said = [each for each in caplog.messages if "no DaemonSet" in each]
    assert 2 * 2 == len(said), said
    assert "no DaemonSet default/cni has the uid d-2 that pods name" in "".join(said)


def test_a_daemonset_is_treated_as_existing_until_the_api_answers(caplog: pytest.LogCaptureFixture) -> None:
    """Without the right, or while the API is unavailable; this is logged once and retried."""
    reference = DaemonSetReference("default", "none", "d-1")
    times = itertools.count(0.0, 31.0)

    with FakeKube() as kube, caplog.at_level(logging.WARNING):
        kube.forbidden.add(("get", DAEMON_SETS))

        async def inside(client: KubeClient) -> None:
            owners = DaemonSetOwners(client, monotonic=lambda: next(times))
            await owners.start()
            try:

                def treated_as_existing() -> bool:
                    assert frozenset() == owners.missing([reference])
                    return 3 <= len(reads(kube))

                await eventually(treated_as_existing, what="three attempts")
                kube.forbidden.clear()
                await eventually(lambda: owners.missing([reference]) == {reference}, what="the answer")
            finally:
                await owners.close()

        with_client(kube, inside)
    assert 1 == len([each for each in caplog.messages if "are treated as existing" in each])
    assert "daemonsets" in caplog.text


def test_a_daemonset_that_existed_is_read_again() -> None:
    """After ten minutes; until then, the response is kept."""
    reference = DaemonSetReference("default", "cni", "d-1")
    now = 0.0
    with FakeKube() as kube:
        kube.put(DAEMON_SETS, "default/cni", metadata={"uid": "d-1"})

        async def inside(client: KubeClient) -> None:
            nonlocal now
            owners = DaemonSetOwners(client, monotonic=lambda: now)
            await owners.start()
            try:

                def missing() -> bool:
                    """Each read is 100 s after the previous one."""
                    nonlocal now
                    now += 100.0
                    return owners.missing([reference]) == {reference}

                def read_twice() -> bool:
                    assert not missing()
                    return 2 <= len(reads(kube))

                await eventually(read_twice, what="two answers")
                kube.delete(DAEMON_SETS, "default/cni")
                await eventually(missing, what="the last answer")
            finally:
                await owners.close()

        with_client(kube, inside)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a/b", "..", "a" * 300, "a b", "%2e"])
def test_an_invalid_daemonset_name_prevents_no_other_read(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The API only requires that the name of an owner is not empty, so users decide the order of the reads."""
    with FakeKube() as kube:
        kube.put(DAEMON_SETS, "default/cni", metadata={"uid": "d-1"})
        put_pod(kube, "real", OWNER)
        put_pod(kube, "invalid", {**OWNER, "name": name})
        put_pod(kube, "zz-forged", {**OWNER, "name": "zz"})

        async def inside(client: KubeClient) -> None:
            pods = InformerPods(client, "node-1")
            await pods.start()
            try:

                def only_the_real_one() -> bool:
                    found = [each.pod for each in pods.listing(monotonic=0.0, max_age=30.0)]
                    return ["real"] == [each.name for each in found if each.daemon]

                await eventually(only_the_real_one, what="the answers", ignoring=(PodsUnknown,))
            finally:
                await pods.close()

        with_client(kube, inside)
    assert {"default/cni", "default/zz"} == set(reads(kube))
    assert 2 == len([each for each in caplog.messages if "no DaemonSet" in each])


def test_an_error_of_one_daemonset_prevents_no_other_read(caplog: pytest.LogCaptureFixture) -> None:
    """An object that cannot be read, for example because a proxy damages it."""
    damaged, later = DaemonSetReference("default", "a", "d-1"), DaemonSetReference("default", "b", "d-2")
    with FakeKube() as kube:
        kube.put(DAEMON_SETS, "default/a", metadata={"uid": 7})

        async def inside(client: KubeClient) -> None:
            owners = DaemonSetOwners(client)
            await owners.start()
            try:
                await eventually(lambda: owners.missing([damaged, later]) == {later}, what="the answer")
            finally:
                await owners.close()

        with_client(kube, inside)
    assert 1 == reads(kube).count("default/a")
    assert 1 == len([each for each in caplog.messages if "are treated as existing" in each])
