"""The Kubernetes client with a real API server on a real etcd: the copy stays equal after compactions and crashes,
budgets and conflicts are respected, credentials are accepted, and metrics-server's API is read through it."""

import asyncio
import ssl
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.fakes.kube import FakeKube
from tests.real.kube import DEFINITIONS, ApiServer, Scheduler, find_kube_program
from tests.waiting import eventually, wait_for
from tests.watcher.service.settings.test_agents import NO_SELECTORS, SELECTORS
from watcher.agent_clients.discovery import PodEndpoints
from watcher.core.kubernetes.errors import KubeConflict, KubeForbidden, KubeNoApi, KubeUnauthorized
from watcher.core.kubernetes.objects import NODES, PODS, CustomObject, Taint
from watcher.core.kubernetes.wire import Resource
from watcher.core.pods.selector import PodSelection
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import AccessFinder, find_access
from watcher.platform.kube.eviction import EvictionOutcome, Evictor
from watcher.platform.kube.informer import Informer
from watcher.platform.kube.node_changes import add_taint, bind, remove_taint, set_condition
from watcher.platform.kube.parameters import Selector
from watcher.sources.base import Fetch
from watcher.sources.errors import ProviderUnreachable
from watcher.sources.metrics_server.provider import MetricsServerProvider

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]

SECONDS = 90.0
"""Seconds for each step that waits for other processes."""
QUICK = (0.05, 0.1, 0.2, 0.4, 0.8)
RUNNING = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
MERGE = {"Content-Type": "application/merge-patch+json"}


def asked(apiserver: ApiServer, ask: Callable[[KubeClient], Awaitable[Any]], **user: Any) -> Any:
    """The result of `ask` with a client of the real API, as its administrator or as another user of a kubeconfig."""
    path = apiserver.kubeconfig(apiserver.directory / "kubeconfig", **user)

    async def inside() -> Any:
        client = KubeClient(lambda: find_access(kubeconfig=path, environ={}), timeout=30.0)
        try:
            return await ask(client)
        finally:
            await client.close()

    return asyncio.run(inside())


def watched(
    apiserver: ApiServer, resource: Resource[Any], check: Callable[[Informer[Any]], Awaitable[None]], **options: Any
) -> None:
    """Let `check` use a started informer, which is closed afterwards."""

    async def inside(client: KubeClient) -> None:
        informer = Informer(client, resource, **{"delays": QUICK, **options})
        await informer.start()
        try:
            await check(informer)
        finally:
            await informer.close()

    asked(apiserver, inside)


def make_node(apiserver: ApiServer, name: str, **content: Any) -> None:
    """Create a node of four cores that is ready."""
    capacity = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    status = {"capacity": capacity, "conditions": [{"type": "Ready", "status": "True"}]}
    apiserver.make("/api/v1/nodes", metadata={"name": name, "labels": {"made": "here"}}, status=status, **content)


def make_pod(apiserver: ApiServer, name: str, *, node: str = "", **labels: str) -> str:
    """Create a pod, running if it is on a node; return its uid."""
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}}}
    spec: dict[str, Any] = {"containers": [container], **({"nodeName": node} if node else {})}
    made = apiserver.make("/api/v1/namespaces/default/pods", metadata={"name": name, "labels": labels}, spec=spec)
    if node:
        path = f"/api/v1/namespaces/default/pods/{name}/status"
        assert apiserver.ask("PATCH", path, {"status": RUNNING}, headers=MERGE).ok
    uid: str = made["metadata"]["uid"]
    return uid


def end_pod(apiserver: ApiServer, name: str) -> None:
    """End it as its kubelet does."""
    assert apiserver.ask("DELETE", f"/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds=0").ok


# --- the copy --------------------------------------------------------------------------------------------------------


def test_a_copy_follows_the_pods_of_one_node(apiserver: ApiServer):
    """A bound pod is added with only the used fields; an ended one is removed."""
    make_node(apiserver, "copied")
    make_pod(apiserver, "first", node="copied", app="web")
    make_pod(apiserver, "elsewhere", node="another")

    async def check(informer: Informer[Any]) -> None:
        await informer.wait()
        pod = informer.objects["default/first"]
        assert {"default/first"} == set(informer.objects)
        assert ("copied", "Running", "Burstable", {"app": "web"}) == (
            pod.spec.node_name,
            pod.status.phase,
            pod.status.qos_class,
            pod.metadata.labels,
        )
        assert {"cpu": "100m"} == pod.spec.containers[0].resources.requests
        assert abs(pod.metadata.creation_timestamp.timestamp() - time.time()) < 3600
        await asyncio.to_thread(make_pod, apiserver, "second", node="copied")
        await eventually(lambda: "default/second" in informer.objects, what="the second", timeout=SECONDS)
        await asyncio.to_thread(end_pod, apiserver, "first")
        await eventually(lambda: {"default/second"} == set(informer.objects), what="the first to go", timeout=SECONDS)

    watched(apiserver, PODS, check, selector=Selector(fields="spec.nodeName=copied"))


def test_pods_are_found_by_labels_at_their_addresses(apiserver: ApiServer):
    """The ready ones of their namespace; the server accepts and refuses the same selectors as load-watcher."""
    for name, address in ("one", "10.1.0.1"), ("two", "10.1.0.2"):
        make_pod(apiserver, name, node=f"of-{name}", role="agent")
        status = {**RUNNING, "podIP": address, "podIPs": [{"ip": address}]}
        path = f"/api/v1/namespaces/default/pods/{name}/status"
        assert apiserver.ask("PATCH", path, {"status": status}, headers=MERGE).ok

    async def check(client: KubeClient) -> None:
        places = PodEndpoints(PodSelection("role in (agent)", 2023, "default"), client, key="agents.pods")
        both = {"10.1.0.1:2023": "of-one", "10.1.0.2:2023": "of-two"}
        assert both == {place.name: place.node for place in (await places.find()).places}
        await asyncio.to_thread(end_pod, apiserver, "two")

        async def alone():
            return ["of-one"] == [place.node for place in (await places.find()).places]

        await eventually(alone, what="the other to go", timeout=SECONDS)
        await places.close()

    asked(apiserver, check)
    for selector, taken in [*((each, True) for each in SELECTORS), *((each, False) for each in NO_SELECTORS)]:
        answer = apiserver.session.get(
            f"{apiserver.url}/api/v1/namespaces/default/pods", params={"labelSelector": selector}, timeout=30
        )
        assert (selector, taken) == (selector, answer.ok)


def test_a_large_list_is_read_in_pages(apiserver: ApiServer):
    """More than one page, all with one version."""
    for number in range(12):
        make_node(apiserver, f"page-{number:02}")
    listing = asked(apiserver, lambda client: client.list(NODES, selector=Selector(labels="made=here"), page=5))
    names = [node.metadata.name for node in listing.items if node.metadata.name.startswith("page-")]
    assert [f"page-{number:02}" for number in range(12)] == names


def test_a_bookmark_advances_a_watch_without_events(apiserver: ApiServer):
    """The server sends one shortly before it ends a watch; the next watch begins with it, without another list."""
    make_node(apiserver, "quiet")
    selector = Selector(fields="metadata.name=quiet")

    async def check(client: KubeClient) -> None:
        version, events = (await client.list(NODES, selector=selector)).version, []
        async for event in client.watch(NODES, since=version, selector=selector, seconds=5):
            events.append(event)
            if event.type == "OPENED":  # changes of objects that are not selected
                await asyncio.to_thread(make_node, apiserver, "noise")
        assert {"BOOKMARK"} == {event.type for event in events[1:]}  # one, or two
        assert int(version) < int(events[-1].version)

    asked(apiserver, check)


def test_after_a_crash_and_a_compaction_the_objects_are_listed_again(apiserver: ApiServer):
    """The server dies, an object is deleted in etcd, etcd compacts: 410, and the deleted object is removed from the
    copy."""
    make_node(apiserver, "stays")
    make_node(apiserver, "ghost")

    async def check(informer: Informer[Any]) -> None:
        await informer.wait()
        assert {"stays", "ghost"} <= set(informer.objects)
        await asyncio.to_thread(apiserver.kill)
        await eventually(lambda: informer.error, what="the crash to be seen", timeout=SECONDS)
        apiserver.etcd.remove("/registry/minions/ghost")
        apiserver.etcd.compact()
        await asyncio.to_thread(apiserver.start)
        await eventually(lambda: "ghost" not in informer.objects, what="the ghost to go", timeout=SECONDS)
        assert "stays" in informer.objects
        await asyncio.to_thread(make_node, apiserver, "new")
        await eventually(lambda: "new" in informer.objects, what="the new node", timeout=SECONDS)
        assert informer.error is None

    watched(apiserver, NODES, check)


def test_custom_resources_follow_their_definition(apiserver: ApiServer):
    """Absent, then read as JSON, then absent again."""
    resource = Resource("ensurance.crane.io", "v1alpha1", "nodeqoss", CustomObject)

    async def check(informer: Informer[Any]) -> None:
        with pytest.raises(KubeNoApi):
            await informer.wait()
        name = await asyncio.to_thread(apiserver.define, resource, "NodeQOS")
        policy = {"apiVersion": resource.group_version, "kind": "NodeQOS", "metadata": {"name": "p"}}
        await asyncio.to_thread(lambda: apiserver.make(resource.path, **policy, spec={"rules": [{"name": "cpu"}]}))
        await eventually(lambda: informer.objects, what="the policy", timeout=SECONDS)
        assert {"rules": [{"name": "cpu"}]} == informer.objects["p"].spec
        await asyncio.to_thread(apiserver.ask, "DELETE", f"{DEFINITIONS}/{name}")
        await eventually(lambda: not informer.objects, what="the policy to go", timeout=SECONDS)

    watched(apiserver, resource, check, watch_seconds=5)


# --- changes ---------------------------------------------------------------------------------------------------------


def test_an_eviction_waits_for_its_budget(apiserver: ApiServer):
    """The server's 429 is respected: with a Retry-After of 10 s while it has not processed the budget yet."""
    uid = make_pod(apiserver, "guarded", node="evicting", app="guarded")
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    guard = {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}
    slept: list[float] = []

    def allow(disruptions: int) -> None:
        status = {"observedGeneration": 1, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}
        body = {"status": {**status, "disruptionsAllowed": disruptions}}
        assert apiserver.ask("PATCH", f"{budgets}/guard/status", body, headers=MERGE).ok

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await asyncio.to_thread(allow, len(slept) // 2)

    async def check(client: KubeClient) -> None:
        evictor = Evictor(client, sleep=sleep)
        other = await evictor.evict("default/guarded", within=60, uid="another")
        assert (EvictionOutcome.GONE, 1) == (other.outcome, other.tries)
        await asyncio.to_thread(lambda: apiserver.make(budgets, metadata={"name": "guard"}, spec=guard))
        refused = await evictor.evict("default/guarded", within=0, uid=uid)
        assert (EvictionOutcome.PROTECTED, 1) == (refused.outcome, refused.tries)
        evicted = await evictor.evict("default/guarded", within=600, uid=uid, grace_seconds=7)
        assert (EvictionOutcome.EVICTED, 3) == (evicted.outcome, evicted.tries)
        assert (await client.get(PODS, "default/guarded")).metadata.deletion_timestamp is not None
        await asyncio.to_thread(end_pod, apiserver, "guarded")
        assert EvictionOutcome.GONE is (await evictor.evict("default/guarded", within=60)).outcome

    asked(apiserver, check)
    assert [10.0, 5.0] == slept


def test_a_namespace_that_is_being_deleted_needs_no_eviction(apiserver: ApiServer):
    """Its pods are deleted anyway; the 403 of the server is not a missing right."""
    apiserver.make("/api/v1/namespaces", metadata={"name": "ending"})
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main", "image": "x"}]}}
    apiserver.make("/api/v1/namespaces/ending/pods", **pod)
    assert apiserver.ask("DELETE", "/api/v1/namespaces/ending").ok
    reported = asked(apiserver, lambda client: Evictor(client).evict("ending/p", within=0))
    assert EvictionOutcome.GONE is reported.outcome


def test_concurrent_taints_of_several_writers_are_all_kept(apiserver: ApiServer):
    """Despite conflicts: each of six concurrent writers adds its own."""
    make_node(apiserver, "tainted")

    async def add_all(client: KubeClient) -> None:
        await asyncio.gather(*(add_taint(client, "tainted", Taint(f"k{number}", "NoSchedule")) for number in range(4)))
        assert not await add_taint(client, "tainted", Taint("k1", "NoSchedule"))
        assert await remove_taint(client, "tainted", key="k1", effect="NoSchedule")
        taints = (await client.get(NODES, "tainted")).spec.taints
        assert ["k0", "k2", "k3"] == sorted(taint.key for taint in taints)

    asked(apiserver, add_all)


def test_a_condition_is_added_beside_those_of_the_kubelet(apiserver: ApiServer):
    """The server keeps its transition time."""
    make_node(apiserver, "hot")

    async def check(client: KubeClient) -> None:
        assert await set_condition(client, "hot", "Interference", status=True, now=1e9, reason="CPU", message="m")
        assert not await set_condition(client, "hot", "Interference", status=True, now=2e9, reason="CPU", message="m")
        assert await set_condition(client, "hot", "Interference", status=False, now=1.5e9)
        conditions = {each.type: each for each in (await client.get(NODES, "hot")).status.conditions}
        assert {"Ready": "True", "Interference": "False"} == {name: each.status for name, each in conditions.items()}
        since = conditions["Interference"].last_transition_time
        assert since is not None
        assert 1.5e9 == since.timestamp()

    asked(apiserver, check)


def test_a_pod_is_bound_once(apiserver: ApiServer):
    """By the client of load-watcher."""
    uid = make_pod(apiserver, "bound")

    async def check(client: KubeClient) -> None:
        await bind(client, "default/bound", node="copied", uid=uid)
        with pytest.raises(KubeConflict, match="already assigned"):
            await bind(client, "default/bound", node="another", uid=uid)
        pod = await client.get(PODS, "default/bound")
        assert "copied" == pod.spec.node_name
        assert ["PodScheduled"] == [condition.type for condition in pod.status.conditions]

    asked(apiserver, check)


def test_a_binding_of_the_scheduler_is_in_the_copy(apiserver: ApiServer, tmp_path: Path):
    """The real kube-scheduler places a pod on the only node with the label."""
    make_node(apiserver, "wanted")
    body = {"metadata": {"labels": {"disk": "fast"}}}
    assert apiserver.ask("PATCH", "/api/v1/nodes/wanted", body, headers=MERGE).ok

    async def check(informer: Informer[Any]) -> None:
        await informer.wait()
        spec = {"containers": [{"name": "main", "image": "x"}], "nodeSelector": {"disk": "fast"}}
        pod = {"metadata": {"name": "placed"}, "spec": spec}
        await asyncio.to_thread(lambda: apiserver.make("/api/v1/namespaces/default/pods", **pod))
        await eventually(lambda: "default/placed" in informer.objects, what="the pod", timeout=SECONDS)

    with Scheduler(tmp_path, apiserver):
        watched(apiserver, PODS, check, selector=Selector(fields="spec.nodeName=wanted"))


# --- credentials -----------------------------------------------------------------------------------------------------


def test_a_client_certificate_is_accepted(apiserver: ApiServer):
    """Instead of a token."""
    both = str(apiserver.directory / "client.pem")
    user = {"client-certificate": both, "client-key": both}
    assert asked(apiserver, lambda client: client.list(NODES), **user).version


def test_an_unknown_user_and_a_missing_right_are_distinguished(apiserver: ApiServer):
    """The error of a missing right has the rule."""
    with pytest.raises(KubeUnauthorized):
        asked(apiserver, lambda client: client.list(NODES), token="unknown")
    with pytest.raises(KubeForbidden) as caught:
        asked(apiserver, lambda client: client.list(NODES), token=apiserver.nobodys)
    assert 'resources: ["nodes"], verbs: ["list"]' in caught.value.hint
    assert not asked(apiserver, lambda client: client.is_allowed("list", NODES), token=apiserver.nobodys)
    assert asked(apiserver, lambda client: client.is_allowed("list", NODES))


def test_kubectl_sees_changes_of_the_client(apiserver: ApiServer, tmp_path: Path):
    """With the commands of the tests with the fake server."""
    make_node(apiserver, "seen")
    asked(apiserver, lambda client: add_taint(client, "seen", Taint("ours", "PreferNoSchedule", "yes")))
    config = apiserver.kubeconfig(tmp_path / "config")
    flags = [f"--kubeconfig={config}", f"--cache-dir={tmp_path / 'cache'}"]
    command = [str(find_kube_program("kubectl")), *flags, "get", "node", "seen", "-o", "jsonpath={.spec.taints[0]}"]
    done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, env={"HOME": str(tmp_path)})
    assert '{"effect":"PreferNoSchedule","key":"ours","value":"yes"}' == done.stdout


# --- metrics-server, through the aggregation layer -------------------------------------------------------------------


@contextmanager
def aggregated(apiserver: ApiServer, port: int) -> Iterator[None]:
    """Let the real API server forward metrics.k8s.io to a port of this machine, as it does to metrics-server."""
    service = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
    apiserver.make("/api/v1/namespaces/default/services", metadata={"name": "metrics"}, spec=service)
    spec = {
        "group": "metrics.k8s.io",
        "version": "v1beta1",
        "insecureSkipTLSVerify": True,
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "service": {"namespace": "default", "name": "metrics", "port": port},
    }
    services = "/apis/apiregistration.k8s.io/v1/apiservices"
    apiserver.make(services, metadata={"name": "v1beta1.metrics.k8s.io"}, spec=spec)
    served = "/apis/metrics.k8s.io/v1beta1/nodes"
    wait_for(lambda: apiserver.ask("GET", served).ok, what="the aggregated API", timeout=SECONDS)
    yield
    assert apiserver.ask("DELETE", f"{services}/v1beta1.metrics.k8s.io").ok
    wait_for(lambda: apiserver.ask("GET", served).status_code == 404, what="its end", timeout=SECONDS)


async def test_the_metrics_server_source_reads_through_the_real_api(apiserver: ApiServer):
    """Capacity from the real server, usage through its aggregation layer; a node without usage is reported."""
    make_node(apiserver, "busy")
    make_node(apiserver, "silent")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("localhost").configure_cert(tls)
    now = time.time()
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now - 20))

    with FakeKube(token="", tls=tls) as metrics:
        metrics.usage("busy", time=at, cpu="1", memory="4Gi")
        with aggregated(apiserver, metrics.port):
            access = AccessFinder.of(apiserver.kubeconfig(apiserver.directory / "kubeconfig"))
            provider = MetricsServerProvider(access, resolution=1.0, max_seconds=900.0, timeout=30.0)
            await provider.start()
            try:
                fetch: Fetch = await eventually(
                    lambda: provider.fetch(now - 900, now + 60), what="an answer", ignoring=(ProviderUnreachable,)
                )
            finally:
                await provider.close()
            assert {"CPU": 25.0, "Memory": 50.0} == {
                batch.metric.key: float(value)
                for batch in fetch.batches
                for series, value in zip(batch.series, batch.value, strict=True)
                if batch.nodes[series] == "busy"
            }
            assert "silent" in {finding.node for finding in fetch.findings}
