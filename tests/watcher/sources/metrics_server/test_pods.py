"""Pod usage from metrics-server, with a small API server over a real socket."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from tests.conftest import RunService
from tests.fakes.kube import NODE_METRICS, POD_METRICS, PODS, Asked, FakeKube
from tests.fetches import failure_of
from tests.waiting import eventually
from tests.watcher.sources.metrics_server.test_provider import NOW, at, run
from watcher.core.kubernetes.wire import MinimalMetadata
from watcher.model import FindingKind
from watcher.platform.kube.client import LARGE_BODY
from watcher.sources.base import NoPodUsage, PodFetch, fetch_pods
from watcher.sources.errors import ProviderError, ProviderMalformed, ProviderRefused, ProviderUnreachable
from watcher.sources.metrics_server.pods import ContainerUsage, PodMetrics, read_pods
from watcher.sources.metrics_server.provider import MetricsServerProvider

ASKS_SELDOM = 3600.0


def asking(server: FakeKube, work: Callable[[MetricsServerProvider], Awaitable[Any]]) -> Any:
    """Run `work` with a provider that requests nodes once, and waits for responses long enough for a busy machine."""
    return run(server, work, resolution=ASKS_SELDOM, max_seconds=ASKS_SELDOM, timeout=25.0)


def fetch(server: FakeKube) -> PodFetch:
    """The first fetch of pods."""
    got: PodFetch = asking(server, lambda provider: fetch_pods(provider, NOW))
    return got


def failure(server: FakeKube) -> ProviderError:
    return failure_of(lambda: fetch(server))


def rows(got: PodFetch) -> dict[str, tuple[str, float, float, float]]:
    """Node, time, cores and bytes by NAMESPACE/NAME."""
    usage = got.usage
    columns = (usage.time.tolist(), usage.cores.tolist(), usage.memory.tolist())
    return {"/".join(pod): row for pod, *row in zip(usage.pods, usage.nodes, *columns, strict=True)}  # type: ignore[misc]


def two_pods(server: FakeKube) -> None:
    server.pod("default/web", node="a")
    server.pod("kube-system/dns", node="b")
    server.pod_usage("default/web", ("250m", "1Gi"), ("1234567n", "512Ki"), time=at(NOW - 12))
    server.pod_usage("kube-system/dns", ("0", "0"), time=at(NOW - 40), window="14.8s")


# --- readings --------------------------------------------------------------------------------------------------------


def test_a_pod_has_the_sum_of_its_containers_with_its_time_and_node():
    """The sum of whole numbers; an idle pod is kept."""
    with FakeKube() as server:
        two_pods(server)
        got = fetch(server)
    assert {
        "default/web": ["a", NOW - 12, 0.251234567, 2**30 + 2**19],
        "kube-system/dns": ["b", NOW - 40, 0.0, 0.0],
    } == rows(got)
    assert () == got.findings
    origin = got.origin
    assert ("KubernetesMetricsServer", 15.0, "working_set") == (origin.source, origin.span_s, origin.memory_kind)
    assert "metrics.k8s.io/v1beta1 pods containers.usage.cpu" == origin.cores


def test_pods_are_followed_to_their_nodes():
    """A pod that is created again under its name on another node; pods are watched, so the second fetch lists none."""
    with FakeKube() as server:
        two_pods(server)

        async def check(provider: MetricsServerProvider) -> None:
            await provider.fetch_pods(NOW)
            server.delete(PODS, "default/web")
            server.pod("default/web", node="c")

            async def moved():
                return rows(await provider.fetch_pods(NOW))["default/web"][0] == "c"

            await eventually(moved, what="the pod on its new node")

        asking(server, check)
    assert 1 == len([asked for asked in server.asked if (asked.verb, asked.resource) == ("list", PODS)])


def test_nodes_with_pods_are_known_to_have_usage():
    """metrics-server has no pod of d."""
    with FakeKube() as server:
        two_pods(server)
        server.pod("default/unmeasured", node="d")

        async def check(provider: MetricsServerProvider) -> None:
            await provider.fetch_pods(NOW)
            gaps = await provider.pod_gaps(NOW)
            assert frozenset({"a", "b", "d"}) == gaps.hosting
            assert "metrics-server has no metrics of its pods" in gaps.otherwise

        asking(server, check)


def test_pods_without_a_node_are_left_out_without_a_finding():
    """A pod that was just deleted, and one that is not scheduled yet: both are common."""
    with FakeKube() as server:
        two_pods(server)
        server.pod("default/pending")
        server.pod_usage("default/pending", ("1", "1Mi"), time=at(NOW - 5))
        server.pod_usage("default/gone", ("1", "1Mi"), time=at(NOW - 5))
        got = fetch(server)
    assert {"default/web", "kube-system/dns"} == set(rows(got))
    assert () == got.findings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("odd", "kept", "words"),
    [
        ({"timestamp": "yesterday"}, None, "invalid time 'yesterday'"),
        ({"containers": [{"usage": {"cpu": "many", "memory": "1Mi"}}]}, (np.nan, 2**20), "'many' is not a Kubernetes"),
        ({"containers": [{"usage": {"cpu": "1", "memory": "1Mb"}}]}, (1.0, np.nan), "'1Mb' is not a Kubernetes"),
        ({"containers": 7}, None, "Expected `array | null`"),
    ],
    ids=["time", "cpu", "memory", "shape"],
)
def test_an_invalid_pod_is_left_out_with_a_finding(odd: dict[str, Any], kept: tuple[float, float] | None, words: str):
    """It names the pod; the others are kept."""
    with FakeKube() as server:
        two_pods(server)
        server.pod("default/odd", node="a")
        server.pod_usage("default/odd", time=at(NOW - 5))
        server.put(POD_METRICS, "default/odd", **{"timestamp": at(NOW - 5), "window": "15s", "containers": [], **odd})
        got = fetch(server)
    (finding,) = got.findings
    assert (FindingKind.NON_FINITE, "pods") == (finding.kind, finding.metric)
    assert words in finding.reason
    assert "default/odd" in finding.reason
    found = rows(got)
    assert {"default/web", "kube-system/dns"} <= set(found)
    if kept is None:
        assert "default/odd" not in found
    else:
        np.testing.assert_array_equal(kept, found["default/odd"][2:])


@pytest.mark.parametrize("containers", [None, (), ({"cpu": "1"}, {"memory": "1Mi"})], ids=["null", "none", "partly"])
def test_a_sum_with_a_missing_part_is_unknown(containers: tuple[dict[str, str | int | float], ...] | None):
    """And not the sum of the rest."""
    read = None if containers is None else tuple(ContainerUsage(each) for each in containers)
    item = PodMetrics(MinimalMetadata("x", "a"), at(NOW), "", read)
    got = read_pods([item], {"a/x": "n"}, source="s", now=NOW)
    assert np.isnan([got.usage.cores[0], got.usage.memory[0]]).all()
    assert () == got.findings
    assert 0.0 == got.origin.span_s


def test_ten_thousand_invalid_pods_are_one_finding():
    """With the first names and the number."""
    items = [PodMetrics(MinimalMetadata(f"p{number:05d}", "a"), "never") for number in range(10_000)]
    got = read_pods(items, {f"a/p{number:05d}": "n" for number in range(10_000)}, source="s", now=NOW)
    (finding,) = got.findings
    assert "10000 (a/p00000, a/p00001, a/p00002, …)" in finding.reason


@pytest.mark.slow
def test_thousands_of_pods_are_read_in_one_page():
    """metrics-server does not support pages; an invalid pod among them is left out."""
    used = [{"name": "app", "usage": {"cpu": "1500m", "memory": "128Mi"}}, {"name": "proxy", "usage": {}}]
    items: list[dict[str, Any]] = [
        {"metadata": {"name": f"pod-{number:05d}", "namespace": "n" * 50}, "timestamp": at(NOW - 5), "containers": used}
        for number in range(20_000)
    ]
    items[7]["timestamp"] = 7
    body = json.dumps({"kind": "PodMetricsList", "metadata": {}, "items": items}).encode()
    assert len(body) > LARGE_BODY

    def fault(asked: Asked) -> web.Response | None:
        if asked.resource == POD_METRICS:
            return web.Response(body=body, content_type="application/json")
        if (asked.verb, asked.resource) == ("list", PODS):
            placed = [{"metadata": item["metadata"], "spec": {"nodeName": "a"}} for item in items]
            return web.json_response({"kind": "PodList", "metadata": {"resourceVersion": "1000"}, "items": placed})
        return None

    with FakeKube(fault=fault) as server:
        got = fetch(server)
    assert 19_999 == len(got.usage.pods)
    assert np.isnan(got.usage.cores).all()  # the proxy does not report a version
    (finding,) = got.findings
    assert f"{'n' * 50}/pod-00007" in finding.reason


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resource", [PODS, POD_METRICS])
def test_a_missing_right_is_reported_and_nodes_are_still_measured(resource: str):
    """With the rule that grants it."""
    with FakeKube(forbidden={("list", resource)}) as server:
        two_pods(server)
        server.node("a")
        server.usage("a", time=at(NOW - 5))

        async def check(provider: MetricsServerProvider) -> None:
            with pytest.raises(ProviderRefused) as caught:
                await provider.fetch_pods(NOW)
            group = "metrics.k8s.io" if resource == POD_METRICS else ""
            assert f'{{apiGroups: ["{group}"], resources: ["pods"], verbs: ["list"]}}' in caught.value.hint
            assert 2 == len((await provider.fetch(NOW - 300, NOW)).batches)

        asking(server, check)


def test_without_the_right_to_watch_pods_they_are_listed_and_it_is_reported():
    """The list is up to a minute old."""
    with FakeKube(forbidden={("watch", PODS)}) as server:
        two_pods(server)

        async def check(provider: MetricsServerProvider) -> None:
            async def reported():
                got = await provider.fetch_pods(NOW)
                assert 2 == len(got.usage.pods)
                return [finding for finding in got.findings if finding.kind is FindingKind.SOURCE]

            await eventually(reported, what="the finding")
            (finding,) = await reported()
            assert 'resources: ["pods"], verbs: ["watch"]' in finding.reason

        asking(server, check)


def test_without_any_pod_the_source_has_no_pods():
    """A metrics-server that has just started, and one whose pods are unknown."""
    with FakeKube() as server:
        assert isinstance(error := failure(server), NoPodUsage)
        assert "After its start" in error.hint
        server.pod_usage("default/gone", ("1", "1Mi"), time=at(NOW - 5))
        assert isinstance(error := failure(server), NoPodUsage)
        assert "returned 1 pods, but none of them is running in the cluster" in str(error)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (web.json_response({"kind": "Status", "status": "Failure", "code": 503}, status=503), ProviderUnreachable),
        (web.Response(text="<html>", content_type="text/html"), ProviderMalformed),
        (web.json_response({"kind": "Status", "status": "Failure", "code": 404}, status=404), ProviderRefused),
    ],
    ids=["503", "page", "404"],
)
def test_an_invalid_response_is_an_error_with_a_hint(answer: web.Response, kind: type[ProviderError]):
    """In the words of the source; only of pods, because the nodes are served."""

    def fault(asked: Asked) -> web.Response | None:
        if asked.resource != POD_METRICS:
            return None
        return web.Response(body=answer.body, status=answer.status, content_type=answer.content_type)

    with FakeKube(fault=fault) as server:
        two_pods(server)
        error = failure(server)
    assert type(error) is kind
    assert error.hint


def test_pods_are_only_requested_if_a_client_wants_them():
    """Neither listed nor watched otherwise, to save the API server's work."""
    with FakeKube() as server:
        two_pods(server)
        server.node("a")
        server.usage("a", time=at(NOW - 5))
        asking(server, lambda provider: provider.fetch(NOW - 300, NOW))
    assert {"v1/nodes", NODE_METRICS} == {asked.resource for asked in server.asked}


@pytest.mark.slow
def test_a_timeout_does_not_stop_the_watch():
    """The first list of a large cluster may take longer than a tick; it is used in the next minute."""
    with FakeKube() as server:
        two_pods(server)
        server.delay = 0.4

        async def check(provider: MetricsServerProvider) -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await provider.fetch_pods(NOW)

            async def there():
                return len((await provider.fetch_pods(NOW)).usage.pods) == 2

            await eventually(there, what="the pods")

        asking(server, check)
    assert 1 == len([asked for asked in server.asked if (asked.verb, asked.resource) == ("list", PODS)])


@pytest.mark.slow
def test_the_service_serves_the_usage_of_pods(tmp_path: Path, run_service: RunService):
    """From a kubeconfig and one setting to the response for a node."""
    with FakeKube() as server:
        two_pods(server)
        now = time.time()
        for node, pod in (("a", "default/web"), ("b", "kube-system/dns")):
            server.node(node)
            server.usage(node, time=at(now - 5))
            server.pod_usage(pod, ("250m", "1Gi"), time=at(now - 5))
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        config = '[provider]\nname = "metrics-server"\n[refresh]\npods = "on"\n'
        service = run_service(config=config, env={"KUBE_CONFIG": str(kubeconfig)})
        document = service.wait_for_status(200, "/api/v1/pods?host=b", timeout=90.0).json()
        assert (["kube-system"], ["dns"], ["b"]) == (document["namespace"], document["pod"], document["node"])
        assert ([0.25], [2**30], "working_set") == (document["cores"], document["bytes"], document["bytes_kind"])
        assert {"a", "b"} == set(service.get("/watcher").json()["data"]["NodeMetricsMap"])
        status = service.get("/api/v1/nodemetrics/b").json()["status"]
        assert {"cpu": "1000m", "memory": str(2 << 30)} == status["nodeMetric"]["nodeUsage"]["resources"]
        assert ["dns"] == [pod["name"] for pod in status["podsMetric"]]
