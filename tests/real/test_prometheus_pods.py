"""Pod usage from cAdvisor's series in a real Prometheus, and in a real VictoriaMetrics."""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.conftest import RunService
from tests.fetches import Sections, sections, use
from tests.real.cadvisor import RealPod, address_of, by_address, by_node_label, cadvisor_series, uname_series
from tests.real.feed import Feed
from tests.real.parts import Prometheus, PromqlServer, VictoriaMetrics
from tests.real.remote_write import Series
from watcher.core.pods.coverage import PodGaps
from watcher.core.queries.matchers import parse_matchers
from watcher.model import FindingKind
from watcher.sources.base import NoPodUsage, PodFetch, fetch_pods
from watcher.sources.prometheus.provider import PrometheusProvider

pytestmark = pytest.mark.real

NODES = ("node-01", "node-02")
WEB = RealPod("web-0", "node-01", {"app": (1.5, 2e9), "sidecar": (0.25, 5e7)})
IDLE = RealPod("idle", "node-02", {"app": (0.0, 0.0)}, namespace="batch")


def run(config: Sections, work: Callable[[PrometheusProvider], Awaitable[Any]]) -> Any:
    return use(lambda: PrometheusProvider(*config), work, limit_s=60.0)


def fetch(server: PromqlServer, *, now: float, **settings: Any) -> PodFetch:
    """One fetch of pods."""
    config = sections(**{"address": server.url, "backoff": (0.05,), **settings})
    got: PodFetch = run(config, lambda provider: fetch_pods(provider, now))
    return got


def no_pods(server: PromqlServer, *, now: float, **settings: Any) -> NoPodUsage:
    with pytest.raises(NoPodUsage) as caught:
        fetch(server, now=now, **settings)
    return caught.value


def samples(*, ago: float = 2.0, step: float = 15.0, span: float = 600.0) -> np.ndarray:
    """Times until `ago` seconds ago."""
    return time.time() - ago - step * np.arange(int(span // step), -1, -1)


def labels(of: Callable[[str], Mapping[str, str]], **more: str) -> dict[str, Mapping[str, str]]:
    return {node: {**of(node), **more} for node in NODES}


def rows(got: PodFetch) -> dict[str, tuple[str, float, float, float]]:
    """Node, time, cores and bytes by NAMESPACE/NAME; each pod once."""
    usage = got.usage
    columns = (usage.time.tolist(), usage.cores.tolist(), usage.memory.tolist())
    assert len(set(usage.pods)) == len(usage.pods)
    return {"/".join(pod): row for pod, *row in zip(usage.pods, usage.nodes, *columns, strict=True)}  # type: ignore[misc]


def expect(found: tuple[str, float, float, float], pod: RealPod, at: float) -> None:
    node, reported_at, cores, memory = found
    assert pod.node == node
    assert reported_at == pytest.approx(at, abs=1e-3)
    assert cores == pytest.approx(pod.cores, rel=1e-6, abs=1e-9)
    assert memory == pod.memory


@pytest.fixture(scope="module")
def victoria_metrics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VictoriaMetrics]:
    with VictoriaMetrics(tmp_path_factory.mktemp("victoria-metrics")) as server:
        yield server


# --- queries of one set of series ------------------------------------------------------------------------------------


class Cluster:
    """The series of several tests, distinguished by a label `cluster`, and the matcher of one of them."""

    def __init__(self, server: PromqlServer) -> None:
        self.server = server
        self.times = samples()
        self.now = float(self.times[-1]) + 1.0
        self.number = 0

    def write(self, series: Any) -> dict[str, Any]:
        """Store these series; return the settings that select only them."""
        self.number += 1
        name = f"c{self.number}"
        self.server.write([Series({**one.labels, "cluster": name}, one.times, one.values) for one in series])
        return {"matchers": parse_matchers(f'cluster="{name}"')}


@pytest.fixture(scope="module")
def cluster(shared_prometheus: Prometheus) -> Cluster:
    return Cluster(shared_prometheus)


def test_a_pod_is_the_sum_of_its_real_containers(cluster: Cluster):
    """Neither the pause container nor a cgroup; an idle pod has zeros; times are those of the samples."""
    mine = cluster.write(cadvisor_series(WEB, IDLE, times=cluster.times, labels=labels(by_node_label)))
    got = fetch(cluster.server, now=cluster.now, **mine)
    found = rows(got)
    assert {"default/web-0", "batch/idle"} == set(found)
    expect(found["default/web-0"], WEB, cluster.times[-1])
    expect(found["batch/idle"], IDLE, cluster.times[-1])
    assert () == got.findings
    assert (120.0, "rss", "Prometheus") == (got.origin.span_s, got.origin.memory_kind, got.origin.source)
    assert "by (namespace, pod, node)" in got.origin.cores
    assert "[120s]" in got.origin.cores


def test_the_matchers_are_in_each_query(cluster: Cluster):
    """Two clusters with pods of the same names are separate."""
    other = replace(WEB, containers={"app": (9.0, 9e9)})
    mine = cluster.write(cadvisor_series(WEB, times=cluster.times, labels=labels(by_node_label)))
    theirs = cluster.write(cadvisor_series(other, times=cluster.times, labels=labels(by_node_label)))
    expect(rows(fetch(cluster.server, now=cluster.now, **mine))["default/web-0"], WEB, cluster.times[-1])
    expect(rows(fetch(cluster.server, now=cluster.now, **theirs))["default/web-0"], other, cluster.times[-1])


@pytest.mark.parametrize("label", ["k8sClusterId", "rancher_cluster"])
def test_any_label_of_clusters_separates_their_pods(cluster: Cluster, label: str):
    """By the rule of the loads of nodes: nodes of several clusters with one name are not served."""
    mine = cluster.write(
        [
            one._replace(labels={**one.labels, label: name})
            for name in ("east", "west")
            for one in cadvisor_series(WEB, times=cluster.times, labels=labels(by_node_label))
        ]
    )
    with pytest.raises(NoPodUsage, match=f"label {label} is east and west"):
        fetch(cluster.server, now=cluster.now, **mine)


def test_the_pressure_of_pods_is_read_with_that_of_nodes(cluster: Cluster):
    """The cgroup of the pod and its containers have a series each; the highest counts. Without any, a finding."""
    usage = list(cadvisor_series(WEB, times=cluster.times, labels=labels(by_node_label)))
    of = {"namespace": "default", "pod": "web-0", **by_node_label("node-01")}
    pressure = [
        Series(
            {"__name__": f"container_pressure_{resource}_waiting_seconds_total", **of, **container},
            cluster.times,
            share * (cluster.times - cluster.times[0]),
        )
        for resource, whole in (("cpu", 0.3), ("memory", 0.2))
        for container, share in (({}, whole), ({"container": "app"}, whole / 2))
    ]
    without, mine = cluster.write(usage), cluster.write([*usage, *pressure])
    metrics = ("CPU", "PressureCPU")
    got = fetch(cluster.server, now=cluster.now, metrics=metrics, **without)
    assert [FindingKind.NO_SERIES] == [each.kind for each in got.findings]
    assert "psi=1" in got.findings[0].reason
    got = fetch(cluster.server, now=cluster.now, metrics=metrics, **mine)
    assert () == got.findings
    assert got.usage.pressure is not None
    np.testing.assert_allclose(got.usage.pressure[:, 0], [30.0, 20.0, np.nan], rtol=1e-3)
    assert fetch(cluster.server, now=cluster.now, **mine).usage.pressure is None


@pytest.mark.parametrize("job", ["kubelet", "other"])
def test_one_series_of_another_target_removes_no_pod(cluster: Cluster, job: str):
    """A series with labels exported_LABEL, in the job of all pods, or of one of two jobs."""
    of = {node: {**by_node_label(node), "job": "kubelet" if node == "node-01" else job} for node in NODES}
    usage = list(cadvisor_series(WEB, IDLE, times=cluster.times, labels=of))
    renamed = renamed_labels(replace(WEB, containers={"app": (9.0, 9e9)}), cluster.times)[:2]
    found = fetch(cluster.server, now=cluster.now, **cluster.write([*usage, *renamed]))
    assert {"default/web-0", "batch/idle"} == set(rows(found))
    expect(rows(found)["default/web-0"], WEB, cluster.times[-1])
    expect(rows(found)["batch/idle"], IDLE, cluster.times[-1])
    assert [FindingKind.DUPLICATE_SERIES] == [each.kind for each in found.findings]
    assert "series of job kubelet" in found.findings[0].reason


def renamed_labels(pod: RealPod, times: np.ndarray) -> list[Series]:
    """The series of a cAdvisor whose target has labels namespace and pod: one in a pod, without honor_labels."""
    target = {"namespace": "monitoring", "pod": "cadvisor-1", "container": "cadvisor", "instance": "10.244.1.5:8080"}
    return [
        one._replace(labels={**{f"exported_{k}" if k in target else k: v for k, v in one.labels.items()}, **target})
        for one in cadvisor_series(pod, times=times, labels={"node-01": {"node": "node-01", "job": "kubelet"}})
    ]


def test_a_pod_of_cadvisor_does_not_have_the_usage_of_the_node(cluster: Cluster):
    """Its target adds its own labels namespace and pod to the series of the node's cgroups, in the job of the
    kubelets."""
    usage = cadvisor_series(WEB, times=cluster.times, labels=labels(by_node_label))
    mine = cluster.write([*usage, *renamed_labels(WEB, cluster.times)])
    assert {"default/web-0"} == set(rows(fetch(cluster.server, now=cluster.now, **mine)))


def test_a_container_of_two_jobs_counts_once(cluster: Cluster):
    """And so does a restarted one with another id."""
    twice = [
        *cadvisor_series(WEB, times=cluster.times, labels=labels(by_node_label)),
        *cadvisor_series(WEB, times=cluster.times, labels=labels(by_node_label, job="kubelet-too")),
    ]
    again = [Series({**one.labels, "id": one.labels["id"] + "-again"}, one.times, one.values) for one in twice[:2]]
    mine = cluster.write([*twice, *again])
    expect(rows(fetch(cluster.server, now=cluster.now, **mine))["default/web-0"], WEB, cluster.times[-1])


def test_cpus_with_separate_series_are_summed(cluster: Cluster):
    """As of a cAdvisor outside of a kubelet."""
    series = []
    for one in cadvisor_series(WEB, times=cluster.times, labels=labels(by_node_label)):
        if "cpu" in one.labels:
            halves = np.asarray(one.values) / 2.0
            series += [Series({**one.labels, "cpu": cpu}, one.times, halves) for cpu in ("cpu00", "cpu01")]
        else:
            series.append(one)
    found = rows(fetch(cluster.server, now=cluster.now, **cluster.write(series)))
    expect(found["default/web-0"], WEB, cluster.times[-1])


def test_nodes_behind_addresses_have_the_names_of_their_exporters(cluster: Cluster):
    """The port of cAdvisor differs from that of the node exporter."""
    series = [
        *cadvisor_series(WEB, IDLE, times=cluster.times, labels=labels(by_address)),
        *(uname_series(node, times=cluster.times) for node in NODES),
    ]
    found = rows(fetch(cluster.server, now=cluster.now, **cluster.write(series)))
    expect(found["default/web-0"], WEB, cluster.times[-1])
    expect(found["batch/idle"], IDLE, cluster.times[-1])


def test_nodes_without_names_are_their_addresses(cluster: Cluster):
    """Without the port."""
    mine = cluster.write(cadvisor_series(WEB, times=cluster.times, labels=labels(by_address)))
    found = rows(fetch(cluster.server, now=cluster.now, **mine))
    assert address_of("node-01") == found["default/web-0"][0]


@pytest.mark.parametrize("label", ["machine", "nothing_has_it"])
def test_a_configured_label_is_used_if_the_series_have_it(cluster: Cluster, label: str):
    """It is set for the nodes' series: cAdvisor's may lack it, and then the default labels are used."""
    of = {node: {**by_node_label(node), "machine": f"m-{node}"} for node in NODES}
    mine = cluster.write(cadvisor_series(WEB, times=cluster.times, labels=of))
    found = rows(fetch(cluster.server, now=cluster.now, node_label=label, **mine))
    assert ("m-node-01" if label == "machine" else "node-01") == found["default/web-0"][0]


def test_rare_scrapes_need_a_longer_span(cluster: Cluster):
    """Four scrapes, so that a rate remains if one fails."""
    times = samples(step=60.0)
    mine = cluster.write(cadvisor_series(WEB, times=times, labels=labels(by_node_label)))
    got = fetch(cluster.server, now=float(times[-1]) + 1.0, **mine)
    assert 240.0 == got.origin.span_s
    expect(rows(got)["default/web-0"], WEB, times[-1])


def test_a_pod_with_one_sample_has_no_rate_yet(cluster: Cluster):
    """Its memory is known, its cores are not."""
    series = [
        *cadvisor_series(WEB, times=cluster.times, labels=labels(by_node_label)),
        *cadvisor_series(IDLE, times=cluster.times[-1:], labels=labels(by_node_label)),
    ]
    found = rows(fetch(cluster.server, now=cluster.now, **cluster.write(series)))
    assert np.isnan(found["batch/idle"][2])
    assert 0.0 == found["batch/idle"][3]


def test_a_removed_pod_keeps_the_time_of_its_last_sample(cluster: Cluster):
    """So that readers can detect it; a pod that moved is there twice, each with its own time."""
    before, after = cluster.times[:-6], cluster.times[-6:]
    moved = replace(WEB, node="node-02")
    series = [
        *cadvisor_series(WEB, times=before, labels=labels(by_node_label)),
        *cadvisor_series(moved, IDLE, times=after, labels=labels(by_node_label)),
    ]
    got = fetch(cluster.server, now=cluster.now, **cluster.write(series))
    usage = got.usage
    places = {node: at for pod, node, at in zip(usage.pods, usage.nodes, usage.time, strict=True) if pod[1] == "web-0"}
    assert {"node-01", "node-02"} == set(places)
    assert places["node-01"] == pytest.approx(before[-1], abs=1e-3)
    assert places["node-02"] == pytest.approx(after[-1], abs=1e-3)


def test_thousands_of_pods_are_read(cluster: Cluster):
    """All of them, each with its node."""
    pods = [
        RealPod(
            f"p{number:04d}", NODES[number % 2], {"app": (0.001 * number, 1e6 * number)}, namespace=f"n{number % 7}"
        )
        for number in range(3000)
    ]
    times = cluster.times[-10:]
    mine = cluster.write(cadvisor_series(*pods, times=times, labels=labels(by_node_label)))
    found = rows(fetch(cluster.server, now=cluster.now, **mine))
    assert 3000 == len(found)
    for pod in pods[::500]:
        expect(found[f"{pod.namespace}/{pod.name}"], pod, times[-1])


def test_without_cadvisor_there_is_no_pod_usage(cluster: Cluster):
    """The error names what is missing, and a remedy."""
    mine = cluster.write([uname_series("node-01", times=cluster.times)])
    error = no_pods(cluster.server, now=cluster.now, **mine)
    assert "no series of container_cpu_usage_seconds_total" in str(error)
    assert "/metrics/cadvisor" in error.hint


def without_containers(series: Any) -> list[Series]:
    """As with cri-dockerd: a pod has only its own cgroup."""
    return [one for one in series if "container" not in one.labels]


def test_a_pod_without_series_of_containers_is_its_own_cgroup(cluster: Cluster):
    """With cri-dockerd. A pod of a node with containerd is the sum of its containers, and not of both; both have a
    pause container of 0.01 cores, which only the cgroup includes."""
    docker = without_containers(cadvisor_series(WEB, times=cluster.times, labels=labels(by_node_label)))
    containerd = cadvisor_series(IDLE, times=cluster.times, labels=labels(by_node_label))
    found = rows(fetch(cluster.server, now=cluster.now, **cluster.write([*docker, *containerd])))
    assert {"default/web-0", "batch/idle"} == set(found)
    whole = replace(WEB, containers={**WEB.containers, "": (0.01, 1e6)})
    expect(found["default/web-0"], whole, cluster.times[-1])
    expect(found["batch/idle"], IDLE, cluster.times[-1])


def test_the_cause_of_a_node_without_pods_depends_on_its_cadvisor_series(cluster: Cluster):
    """node-02 has the series of its cgroups, node-03 has only machine_cpu_cores, node-04 nothing."""
    bare = [one for one in cadvisor_series(IDLE, times=cluster.times, labels=labels(by_node_label)) if named(one)]
    machine = {"__name__": "machine_cpu_cores", **by_node_label("node-03")}
    web = cadvisor_series(WEB, times=cluster.times, labels=labels(by_node_label))
    mine = cluster.write([*web, *bare, Series(machine, cluster.times, np.full_like(cluster.times, 8.0))])

    async def story(provider: PrometheusProvider) -> PodGaps:
        await provider.fetch_pods(cluster.now)
        return await provider.pod_gaps(cluster.now)

    gaps = run(sections(address=cluster.server.url, backoff=(0.05,), **mine), story)
    assert "is not scraped" in gaps.otherwise
    assert {"node-01", "node-02", "node-03"} == set(gaps.causes)
    assert "is scraped, but has no series with a label pod" in gaps.causes["node-03"]


def named(one: Series) -> bool:
    return "pod" not in one.labels


def test_the_hint_for_a_scraped_cadvisor_without_pods_is_about_labels(cluster: Cluster):
    """Not about the scrape."""
    series = cadvisor_series(WEB, times=cluster.times, labels=labels(by_node_label))
    error = no_pods(cluster.server, now=cluster.now, **cluster.write([one for one in series if named(one)]))
    assert 'although container_cpu_usage_seconds_total{pod="", cluster=' in str(error)
    assert "metric_relabel_configs" in error.hint
    assert "to scrape" not in error.hint


def test_without_memory_series_only_memory_is_missing(cluster: Cluster):
    """These metrics are often dropped to save space."""
    series = [
        one
        for one in cadvisor_series(WEB, times=cluster.times, labels=labels(by_node_label))
        if one.labels["__name__"] != "container_memory_rss"
    ]
    found = rows(fetch(cluster.server, now=cluster.now, **cluster.write(series)))
    assert found["default/web-0"][2] == pytest.approx(WEB.cores)
    assert np.isnan(found["default/web-0"][3])


def test_victoria_metrics_gives_the_same_usage(victoria_metrics: VictoriaMetrics):
    """MetricsQL's rate includes the sample before the span, which for a steady counter is the same."""
    times = samples(ago=1.0)
    victoria_metrics.write(cadvisor_series(WEB, IDLE, times=times, labels=labels(by_node_label)))
    found = rows(fetch(victoria_metrics, now=float(times[-1]) + 1.0))
    assert {"default/web-0", "batch/idle"} == set(found)
    expect(found["default/web-0"], WEB, times[-1])
    expect(found["batch/idle"], IDLE, times[-1])


# --- over time -------------------------------------------------------------------------------------------------------


def test_discovery_runs_once_and_again_without_samples(prometheus: Prometheus):
    """Series that appear later are found."""

    async def story(provider: PrometheusProvider) -> None:
        with pytest.raises(NoPodUsage):
            await provider.fetch_pods(time.time())
        times = samples()
        prometheus.write(list(cadvisor_series(WEB, times=times, labels=labels(by_node_label))))
        got = await provider.fetch_pods(float(times[-1]) + 1.0)
        assert (("default", "web-0"),) == got.usage.pods
        with pytest.raises(NoPodUsage, match="no longer has samples"):
            await provider.fetch_pods(float(times[-1]) + 3600.0)
        with pytest.raises(NoPodUsage, match="no series of container_cpu"):
            await provider.fetch_pods(float(times[-1]) + 3600.0)
        assert 1 == len((await provider.fetch_pods(float(times[-1]) + 1.0)).usage.pods)

    run(sections(address=prometheus.url), story)


def test_a_mixed_cluster_names_the_nodes_without_pod_usage(prometheus: Prometheus, run_service: RunService):
    """In the pods, the findings and the doctor: node-02 runs cri-dockerd, and node-03 is not scraped."""
    times = samples(ago=0.0, step=5.0)
    series = list(cadvisor_series(WEB, times=times, labels=labels(by_node_label)))
    series += without_containers(cadvisor_series(IDLE, times=times, labels=labels(by_node_label)))
    prometheus.write(series)
    with Feed(prometheus, [*NODES, "node-03"]):
        config = f"""
            [provider]
            name = "prometheus"
            address = "{prometheus.url}"
            [refresh]
            interval = "10s"
            resolution = "1s"
            pods = "on"
        """
        service = run_service(config=config)
        document = service.wait_for_status(200, "/api/v1/pods", timeout=90.0).json()
        assert [["batch", "default"], ["idle", "web-0"]] == [document["namespace"], document["pod"]]
        assert {"node-01", "node-02"} == set(document["measured"])
        assert ["node-03"] == list(document["unknown"])
        other = service.get("/api/v1/pods?host=node-03")
        assert (404, "no_pods") == (other.status, other.json()["error"]["code"])
        assert "on node 'node-03' is unknown" in other.json()["error"]["message"]
        assert "cAdvisor of the kubelet is not scraped" in other.json()["error"]["hint"]
        reasons = [each["reason"] for each in service.get("/api/v1/findings").json()["findings"]]
        assert any("no pod usage for 1 of 3 nodes; node-03: cAdvisor of the kubelet is not" in each for each in reasons)


def test_a_service_serves_pods_once_a_client_requests_them(prometheus: Prometheus, run_service: RunService):
    """From the 404 that starts the collection to pods on their nodes, and in /metrics."""
    times = samples(ago=0.0, step=5.0)
    prometheus.write(list(cadvisor_series(WEB, IDLE, times=times, labels=labels(by_node_label))))
    with Feed(prometheus, list(NODES)):
        config = f"""
            [provider]
            name = "prometheus"
            address = "{prometheus.url}"
            [refresh]
            interval = "10s"  # eight seconds for a refresh; without a window yet they come every resolution
            resolution = "1s"
        """
        service = run_service(config=config)
        first = service.get("/api/v1/pods")
        assert (404, "no_pods") == (first.status, first.json()["error"]["code"])
        document = service.wait_for_status(200, "/api/v1/pods?host=node-01", timeout=90.0).json()
        assert ["web-0"] == document["pod"]
        assert document["time"] == pytest.approx([times[-1]], abs=1e-3)  # cores decrease while no sample follows
        assert [int(WEB.memory)] == document["bytes"]
        assert "load_watcher_pods 2.0" in service.get("/metrics").text
        assert "unknown_host" == service.get("/api/v1/pods?host=node-99").json()["error"]["code"]
