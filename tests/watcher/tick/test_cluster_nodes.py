"""The nodes of the cluster from a small API server over a real socket: listed, followed, refused, unavailable and
back."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fakes.kube import NODES, FakeKube
from tests.fakes.kube_rules import status_object
from tests.waiting import eventually
from watcher.core.config.problems import SettingsError
from watcher.core.koordinator.report import Capacity
from watcher.core.kubernetes.errors import KubeForbidden
from watcher.core.naming.evidence import Evidence, KnownNode
from watcher.core.naming.name_resolver import NodeIndex
from watcher.platform.kube.credentials import KubeAccess
from watcher.platform.kube.settings import KubernetesSettings
from watcher.service.settings.loading import load
from watcher.tick.cluster_nodes import ClusterNodes, read_index, wanted

pytestmark = pytest.mark.slow

LABEL = "kubernetes.io/hostname"


def put(server: FakeKube, name: str, address: str, *, hostname: str = "", labels: Any = None, **metadata: Any) -> None:
    """A node as the API server stores it."""
    addresses = [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": hostname or name}]
    server.put(NODES, name, metadata={"labels": labels or {}, **metadata}, status={"addresses": addresses})


def follow(server: FakeKube, work: Callable[[ClusterNodes], Awaitable[None]], *, label: str = LABEL) -> None:
    """Run `work` with a started list of the cluster's nodes; it is closed afterwards, and no task remains."""

    async def inside() -> None:
        nodes = ClusterNodes(lambda: KubeAccess(server.url, "a test", token="a-token"), label=label)
        await nodes.start()
        try:
            await work(nodes)
        finally:
            await nodes.close()
        assert {asyncio.current_task()} == asyncio.all_tasks()

    asyncio.run(inside())


async def known(nodes: ClusterNodes) -> NodeIndex:
    """The nodes, once they are known."""
    await nodes.wait_known(60.0)
    index = await nodes.index()
    assert index is not None
    return index


async def means(nodes: ClusterNodes, name: str, *, is_now: str) -> None:
    """Wait until a name matches this node."""

    async def meant():
        index = await nodes.index()
        return index is not None and index.resolve((name,)).matches[name].node == is_now

    await eventually(meant, what=f"{name} to mean {is_now or 'no node'}")


def test_a_node_has_all_its_names():
    """Addresses, the configured label, the creation time; and a node without any of these."""
    with FakeKube() as server:
        created = "2026-01-02T03:04:05Z"
        put(
            server, "a", "10.0.0.1", hostname="a.lan", labels={"rack/name": "r1", LABEL: "x"}, creationTimestamp=created
        )
        server.put(NODES, "bare", metadata={"creationTimestamp": None})

        async def work(nodes: ClusterNodes) -> None:
            index = await known(nodes)
            addresses = (("InternalIP", "10.0.0.1"), ("Hostname", "a.lan"))
            assert KnownNode("a", addresses, "r1", 1767323045.0) == index.nodes["a"]
            assert KnownNode("bare") == index.nodes["bare"]
            assert Evidence.LABEL is index.resolve(("r1",)).matches["r1"].by
            assert "" == nodes.error_text()

        follow(server, work, label="rack/name")


def test_nodes_that_appear_change_and_disappear_are_followed():
    """A change that does not affect names keeps the index."""
    with FakeKube() as server:
        put(server, "a", "10.0.0.1")

        async def work(nodes: ClusterNodes) -> None:
            before = await known(nodes)
            put(server, "b", "10.0.0.2")
            await means(nodes, "10.0.0.2:9100", is_now="b")
            put(server, "b", "10.0.0.3")
            await means(nodes, "10.0.0.3", is_now="b")
            server.delete(NODES, "a")
            await means(nodes, "10.0.0.1", is_now="")
            assert before.resolve(("10.0.0.1",)).nodes == ("a",)  # earlier readers of the index see no change

            index = await nodes.index()
            put(server, "b", "10.0.0.3", annotations={"heartbeat": "1"})
            seen = server.versions(NODES)["b"]
            heard = nodes._informer.objects  # a change without an effect is not visible otherwise
            await eventually(lambda: heard["b"].metadata.resource_version == seen, what="the heartbeat")
            assert index is await nodes.index()

        follow(server, work)


def test_without_the_right_there_are_no_names_and_the_verb_is_reported():
    """Callers do not wait for it. Once it is granted, the nodes are known."""
    with FakeKube(forbidden={("list", NODES)}) as server:
        put(server, "a", "10.0.0.1")

        async def work(nodes: ClusterNodes) -> None:
            async with asyncio.timeout(30):
                await nodes.wait_known(600.0)
            assert (None, None) == (await nodes.index(), nodes.node_names())
            assert "cannot list nodes (403 Forbidden)" in nodes.error_text()
            assert "the source's names are used unchanged" in nodes.error_text()
            assert 'verbs: ["list"]' in nodes.error_text()
            server.forbidden.clear()
            await means(nodes, "10.0.0.1", is_now="a")
            assert ["a"] == list(nodes.node_names() or ())
            await eventually(lambda: not nodes.error_text(), what="the trouble to end")

        follow(server, work)


def test_while_the_api_is_unavailable_the_last_list_stays():
    """When it is back, changes made meanwhile are applied."""
    with FakeKube() as server:
        put(server, "a", "10.0.0.1")

        async def work(nodes: ClusterNodes) -> None:
            await known(nodes)
            server.fault = lambda _: web.json_response(status_object(503, "the server is starting"), status=503)
            server.drop_connections()
            await eventually(nodes.error_text, what="the trouble")
            assert "the last list of nodes is used" in nodes.error_text()
            await means(nodes, "10.0.0.1", is_now="a")
            server.delete(NODES, "a")
            put(server, "b", "10.0.0.1")
            server.fault = lambda _: None
            await means(nodes, "10.0.0.1", is_now="b")
            await eventually(lambda: not nodes.error_text(), what="the trouble to end")

        follow(server, work)


def test_no_caller_waits_longer_than_requested():
    """An API that does not respond: the wait ends, and is not repeated."""
    with FakeKube(delay=600.0) as server:

        async def work(nodes: ClusterNodes) -> None:
            for _ in range(2):
                await nodes.wait_known(0.05)
            assert await nodes.index() is None

        follow(server, work)


# --- from the settings -----------------------------------------------------------------------------------------------

PROMETHEUS = {"provider.name": "prometheus", "provider.address": "http://prometheus:9090"}
IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}


@pytest.mark.parametrize(
    ("flags", "environ", "expected"),
    [
        (PROMETHEUS, {}, False),
        (PROMETHEUS, IN_CLUSTER, True),
        (PROMETHEUS, {"KUBE_CONFIG": "config"}, True),
        (PROMETHEUS | {"kubernetes.kubeconfig": "config"}, {}, True),
        (PROMETHEUS | {"kubernetes.node_names": "on"}, {}, True),
        (PROMETHEUS | {"kubernetes.node_names": "off"}, IN_CLUSTER, False),
        ({}, IN_CLUSTER, False),  # metrics-server
        ({"provider.name": "host"}, IN_CLUSTER, False),
        ({"provider.name": "host", "kubernetes.node_names": "on"}, IN_CLUSTER, True),
    ],
)
def test_when_names_of_the_cluster_are_used(tmp_path: Path, flags, environ, expected):
    """By default if a cluster is known and the source does not have its names already."""
    (tmp_path / "config").write_text("{}")
    settings = load(flags=flags, environ=environ, cwd=tmp_path)
    assert expected == wanted(settings, environ=environ)


def test_the_kubeconfig_of_the_cluster_takes_precedence(tmp_path: Path):
    """Over that of the provider."""
    for name in ("one", "other"):
        (tmp_path / name).write_text("{}")
    flags = PROMETHEUS | {"kubernetes.kubeconfig": "one"}
    assert (
        tmp_path / "one" == load(flags=flags, environ={"KUBE_CONFIG": "other"}, cwd=tmp_path)[KubernetesSettings].path
    )
    assert (
        tmp_path / "other"
        == load(flags=PROMETHEUS, environ={"KUBE_CONFIG": "other"}, cwd=tmp_path)[KubernetesSettings].path
    )
    assert load(flags=PROMETHEUS, environ={}, cwd=tmp_path)[KubernetesSettings].path is None


def test_a_context_belongs_to_a_kubeconfig(tmp_path: Path):
    """Its own, or that of the provider; a file that is not read need not exist."""
    (tmp_path / "config").write_text("{}")
    chosen = PROMETHEUS | {"kubernetes.context": "production"}
    with pytest.raises(SettingsError, match=r"kubernetes\.kubeconfig: is not set, and kubernetes\.context"):
        load(flags=chosen, environ={}, cwd=tmp_path)
    assert (
        "production" == load(flags=chosen, environ={"KUBE_CONFIG": "config"}, cwd=tmp_path)[KubernetesSettings].context
    )
    flags = {"provider.name": "metrics-server", "kubernetes.kubeconfig": "config"}
    assert (
        tmp_path / "config"
        == load(flags=flags, environ={"KUBE_CONFIG": "nowhere"}, cwd=tmp_path)[KubernetesSettings].path
    )
    with pytest.raises(SettingsError, match="does not exist"):
        load(flags=flags | {"kubernetes.kubeconfig": "nowhere"}, environ={}, cwd=tmp_path)


async def test_a_single_listing_returns_the_index_or_the_error(tmp_path: Path):
    """For doctor: the error has its hint."""
    with FakeKube() as server:
        put(server, "a", "10.0.0.1", labels={LABEL: "host-a"})
        flags = PROMETHEUS | {"kubernetes.kubeconfig": str(server.kubeconfig(tmp_path / "config"))}
        settings = load(flags=flags, environ={}, cwd=tmp_path)
        index = await read_index(settings)
        assert {"10.0.0.1:9100": "a", "host-a": "a"} == {
            name: index.resolve((name,)).matches[name].node for name in ("10.0.0.1:9100", "host-a")
        }
        server.forbidden.add(("list", NODES))
        with pytest.raises(KubeForbidden, match="cannot list nodes"):
            await read_index(settings)


def test_the_capacity_of_nodes_is_known():
    """If the node object has one."""
    with FakeKube() as server:
        server.node("a", cpu="4", memory="8Gi")
        put(server, "bare", "10.0.0.1")

        async def work(nodes: ClusterNodes) -> None:
            await nodes.wait_known(60.0)
            assert {"a": Capacity(4000, 8 << 30)} == await nodes.capacities()

        follow(server, work)
