"""GET /api/v1/nodemetrics: what koordlet would have reported, and what is said where that cannot be told."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.cluster.node_metrics import NodeMetricObject, read_node_metric
from tests.fakes.pods import publish_pods, small_pods
from tests.fakes.service import FakeService, Live
from tests.fakes.snapshots import END, WINDOWS, publish, small_fleet, snapshot_of
from watcher.core.koordinator.collect_policy import CollectPolicies, CollectPolicy, PolicyOverride, PolicyRule
from watcher.core.koordinator.report import (
    Capacity,
    NodeMetricReport,
    PodClass,
    go_duration,
    make_report,
    node_statuses,
    percentile,
    warm,
)
from watcher.core.kubernetes.node_facts import capacities_of
from watcher.core.kubernetes.objects import Node
from watcher.core.pods.coverage import PodCoverage
from watcher.model import Snapshot

VECTORS = json.loads((Path(__file__).parents[3] / "vectors" / "koordinator.json").read_text())["groups"]
PATH = "/api/v1/nodemetrics"
SIZES = {name: Capacity(4000, 1 << 30) for name in ("node-1", "node-2", "node-3")}
TYPES = ("avg", "p50", "p90", "p95", "p99")


def service(**options: Any) -> FakeService:
    return FakeService(**{"pods": publish_pods(small_pods()), "sizes": SIZES, **options})


def reported(snapshot: Snapshot, sizes: dict[str, Capacity], policy: CollectPolicy) -> NodeMetricReport:
    policies = [policy] * len(snapshot.nodes)
    return make_report(node_statuses(snapshot, capacities=sizes, pods=None, policies=policies))


def report(samples: dict[str, dict[str, list[float]]], **policy: Any) -> dict[str, Any]:
    made = reported(snapshot_of(samples), SIZES, CollectPolicy(**policy))
    return {name: msgspec.json.decode(body)["status"]["nodeMetric"] for name, body in made.objects.items()}


# --- koordlet's rules ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", VECTORS["percentile"]["cases"], ids=lambda case: case["id"])
def test_percentiles_are_samples(case):
    """koordlet's index rule; the order of the samples and empty slots between them do not matter."""
    values = np.full(2 * case["samples_1_to_n"], np.nan)
    values[::2] = np.arange(case["samples_1_to_n"], 0, -1)
    assert [case["expect"]] == percentile(values[:, None], case["p"]).tolist()


@pytest.mark.parametrize(("span", "expected"), [(149.0, False), (150.0, True), (299.0, True)])
def test_an_entry_is_warm_from_half_its_duration(span, expected):
    """By the times of the first and the last sample."""
    assert [expected, False] == warm(np.array([[END, END], [END - span, np.nan]]), 300).tolist()


@pytest.mark.parametrize(("seconds", "text"), [(30, "30s"), (300, "5m0s"), (3600, "1h0m0s"), (5430, "1h30m30s")])
def test_durations_are_written_as_go_does(seconds, text):
    """As metav1.Duration goes over the wire."""
    assert text == go_duration(seconds)


def test_percentiles_of_a_node_are_of_its_samples():
    """10, 20, …, 100 percent in turn: koordlet's p90 is the 90 percent sample, not something between."""
    tenths = [10.0 * (1 + slot % 10) for slot in range(60)]
    entry = report({"node-1": {"CPU": tenths, "Memory": [50.0] * 60}})["node-1"]["aggregatedNodeUsages"][1]
    resources = [entry["usage"][kind]["resources"] for kind in TYPES]
    assert "10m0s" == entry["duration"]
    assert ["2200m", "2000m", "3600m", "4000m", "4000m"] == [each["cpu"] for each in resources]
    assert {str(1 << 29)} == {each["memory"] for each in resources}


def test_the_aggregation_period_is_what_usage_is_averaged_over():
    """A load that rose from 20 to 80 percent three minutes ago."""
    samples = {"node-1": {"CPU": [20.0] * 48 + [80.0] * 12, "Memory": [10.0] * 60}}
    usages = {
        seconds: report(samples, aggregate_duration_s=seconds)["node-1"]["nodeUsage"]["resources"]["cpu"]
        for seconds in (60, 180, 300, 900)
    }
    assert {60: "3200m", 180: "3200m", 300: "2240m", 900: "1280m"} == usages


def test_entries_that_are_not_warm_are_there_and_empty():
    """Five minutes of samples are half of ten, but for one slot."""
    (short, middle, long) = report(small_fleet())["node-3"]["aggregatedNodeUsages"]
    assert set(TYPES) == set(short["usage"]) == set(middle["usage"])
    assert all({"cpu", "memory"} == set(short["usage"][kind]["resources"]) for kind in TYPES)
    assert [{}] * 10 == [each["usage"][kind] for each in (middle, long) for kind in TYPES]


def test_a_node_needs_cpu_and_memory():
    """What a NodeMetric leaves out is zero to its readers."""
    snapshot = snapshot_of({"node-1": {"CPU": [50.0] * 60}, "node-2": {"CPU": [50.0] * 60, "Memory": [50.0] * 60}})
    made = reported(snapshot, SIZES, CollectPolicy())
    assert ["node-2"] == list(made.objects)
    assert {"node-1": "no samples of Memory in the last 300 s"} == made.missing


def test_capacities_are_those_of_the_nodes():
    """A node whose size is no quantity, or nothing, has none."""

    def node(**capacity: str) -> Node:
        return msgspec.convert({"status": {"capacity": capacity}}, Node)

    nodes = {
        "a": node(cpu="4", memory="16Gi"),
        "b": node(cpu="0", memory="16Gi"),
        "c": node(cpu="4"),
        "d": node(cpu="x", memory="1Gi"),
    }
    assert {"a": Capacity(4000, 16 << 30)} == capacities_of(nodes)


@given(
    cpu=st.lists(st.one_of(st.just(float("nan")), st.floats(0, 100)), min_size=1, max_size=70),
    memory=st.lists(st.one_of(st.just(float("nan")), st.floats(0, 100)), min_size=1, max_size=70),
    cores=st.integers(1, 10**6),
    size=st.integers(1, 2**45),
    seconds=st.sampled_from([60, 300, 900]),
)
def test_what_goes_over_the_wire_can_be_read(cpu, memory, cores, size, seconds):
    """Whatever is missing: no NaN, no more than the node has, and the scorers' reader of NodeMetrics takes it."""
    snapshot = snapshot_of({"node-1": {"CPU": cpu, "Memory": memory}})
    policy = CollectPolicy(aggregate_duration_s=seconds)
    made = reported(snapshot, {"node-1": Capacity(cores, size)}, policy)
    assert len(snapshot.nodes) == len(made.objects) + len(made.missing)
    for body in made.objects.values():
        assert b"nan" not in body.lower()
        read = read_node_metric(msgspec.json.decode(body, type=NodeMetricObject))
        assert read.usage is not None
        assert all({"cpu", "memory"} == set(usage) for usage in (read.usage, *read.aggregated.values()))
        assert all(0 <= usage["cpu"] <= cores for usage in (read.usage, *read.aggregated.values()))
        assert all(0 <= usage["memory"] <= size for usage in (read.usage, *read.aggregated.values()))


# --- through HTTP ----------------------------------------------------------------------------------------------------


def test_the_list_is_what_the_scorers_read_of_a_cluster():
    """Each number by the reader of the custom resource."""
    with Live(service()) as live:
        document = live.ask(PATH).json()
    assert ("slo.koordinator.sh/v1alpha1", "NodeMetricList") == (document["apiVersion"], document["kind"])
    assert ["node-1", "node-2", "node-3"] == [item["metadata"]["name"] for item in document["items"]]
    assert {
        "aggregateDurationSeconds": 300,
        "reportIntervalSeconds": 60,
        "nodeAggregatePolicy": {"durations": ["5m0s", "10m0s", "15m0s"]},
    } == document["items"][0]["spec"]["metricCollectPolicy"]
    read = read_node_metric(msgspec.convert(document["items"][0], NodeMetricObject))
    assert (END, 60.0) == (read.updated, read.interval)
    assert {"cpu": 1040, "memory": int(0.4 * (1 << 30))} == read.usage
    assert {"cpu": 1080, "memory": int(0.41 * (1 << 30))} == read.aggregated[("p99", 900.0)]
    assert {("a", "web-0"): {"cpu": 250, "memory": 1 << 30}} == {pod: each.usage for pod, each in read.pods.items()}


def test_pods_that_are_not_measured_whole_are_left_out():
    """As koordlet leaves out those whose query failed. Without pods at all there is no list of them."""
    with Live(service()) as live:
        pods = live.ask(f"{PATH}/node-2").json()["status"]["podsMetric"]
    usage = {"resources": {"cpu": "1500m", "memory": str(1 << 31)}}
    assert [{"namespace": "a", "name": "web-1", "podUsage": usage}] == pods
    with Live(service(pods=None)) as live:
        assert "podsMetric" not in live.ask(f"{PATH}/node-2").json()["status"]
        assert 1 == live.service.wanted


def test_only_nodes_with_known_pod_usage_have_a_list_of_pods():
    """An empty one if the source measures the node and finds no pods. Readings are valid for some minutes."""
    covered = PodCoverage({"node-1": END, "node-2": END - 301.0, "node-3": END}, {}, 300.0)
    with Live(service(pods=publish_pods(small_pods(), coverage=covered))) as live:
        status = {name: live.ask(f"{PATH}/{name}").json()["status"] for name in SIZES}
    assert ["web-0"] == [each["name"] for each in status["node-1"]["podsMetric"]]
    assert [] == status["node-3"]["podsMetric"]
    assert status["node-3"]["nodeMetric"]["nodeUsage"] == status["node-3"]["nodeMetric"]["systemUsage"]
    assert "podsMetric" not in status["node-2"]
    assert "systemUsage" not in status["node-2"]["nodeMetric"]
    with Live(service()) as live:
        assert "podsMetric" not in live.ask(f"{PATH}/node-3").json()["status"]


def test_a_source_without_the_memory_of_pods_does_not_know_their_usage():
    """An empty list would mean that all usage is the system's."""
    pods = {pod: (node, cores, float("nan")) for pod, (node, cores, _) in small_pods().items()}
    with Live(service(pods=publish_pods(pods))) as live:
        status = live.ask(f"{PATH}/node-1").json()["status"]
    assert "podsMetric" not in status
    assert "systemUsage" not in status["nodeMetric"]


def test_one_node_is_the_one_of_the_list():
    """Byte for byte, in each coding; ETags tell them apart and hold."""
    with Live(service()) as live:
        everything, one = live.ask(PATH), live.ask(f"{PATH}/node-2")
        packed = live.ask(PATH, headers={"Accept-Encoding": "gzip"})
        again = live.ask(f"{PATH}/node-2", headers={"If-None-Match": one.headers["ETag"]})
    assert one.body in everything.body
    assert everything.body == gzip.decompress(packed.body)
    assert 3 == len({answer.headers["ETag"] for answer in (everything, one, packed)})
    assert (304, b"") == (again.status, again.body)
    assert "1" == one.headers["Age"]


def test_nodes_of_unknown_size_are_left_out():
    """Percent of nobody knows what is no amount."""
    with Live(service(sizes={"node-2": SIZES["node-2"]})) as live:
        assert ["node-2"] == [item["metadata"]["name"] for item in live.ask(PATH).json()["items"]]
        answer = live.ask(f"{PATH}/node-1")
    assert (404, "no_node_metric") == (answer.status, answer.error["code"])
    assert "capacity" in answer.error["message"]
    assert "kubernetes.node_names" in answer.error["hint"]


@pytest.mark.parametrize(
    ("options", "path", "status", "code"),
    [
        ({"sizes": {}}, PATH, 404, "no_node_metric"),
        ({"published": None}, PATH, 404, "no_metrics"),
        ({"published": None}, f"{PATH}/node-1", 404, "no_metrics"),
        ({"clock": 1400.0}, PATH, 503, "stale"),
        ({"clock": 1400.0}, f"{PATH}/node-1", 503, "stale"),
        ({}, f"{PATH}/node-9", 404, "unknown_host"),
        ({}, f"{PATH}?host=node-1", 400, "bad_request"),
        ({"published": publish(snapshot_of(small_fleet(), lost={"node-4": END}))}, PATH, 503, "partial_outage"),
    ],
)
def test_what_is_not_known_is_an_error(options, path, status, code):
    """As of /watcher: never an empty list."""
    with Live(service(**options)) as live:
        answer = live.ask(path)
    assert (status, code) == (answer.status, answer.error["code"])


def test_a_report_stands_for_its_interval():
    """A newer snapshot is reported when the next interval has begun."""
    later = snapshot_of({"node-1": {"CPU": [75.0] * 60, "Memory": [75.0] * 60}}, end=END + 30.0)
    first = int(END + 1) // 60

    def at(live: Live, timestamp: float) -> str:
        live.service.published = publish(replace(later, timestamp=timestamp), tag=f"t{timestamp}")
        return live.ask(f"{PATH}/node-1").json()["status"]["nodeMetric"]["nodeUsage"]["resources"]["cpu"]

    with Live(service()) as live:
        live.ask(PATH)
        assert "1040m" == at(live, first * 60 + 59.0)
        assert "3000m" == at(live, first * 60 + 60.0)


def test_a_report_that_is_too_old_is_made_anew():
    """Where the interval is longer than what is served at all."""
    policies = CollectPolicies(CollectPolicy(report_interval_s=3600))
    with Live(service(collect_policies=policies)) as live:
        assert 200 == live.ask(PATH).status
        live.service.clock += 400.0
        live.service.published = publish(snapshot_of(small_fleet()), tag="t2", monotonic=live.service.clock)
        assert "1" == live.ask(PATH).headers["Age"]


# --- the collect policy of each node ---------------------------------------------------------------------------------

RISING = {"CPU": [20.0] * 48 + [80.0] * 12, "Memory": [10.0] * 60}
FLEET = dict.fromkeys(("cpu-1", "gpu-1", "gpu-2"), RISING)
LARGE = {name: Capacity(4000, 1 << 30) for name in FLEET}


def fleet_of(*rules: PolicyRule, **options: Any) -> FakeService:
    policies = CollectPolicies(rules=rules, windows=WINDOWS)
    options = {"labels": {"gpu-2": {"pool": "a", "zone": "b"}}, **options}
    return service(published=publish(snapshot_of(FLEET)), sizes=LARGE, collect_policies=policies, **options)


def test_some_nodes_have_a_policy_of_their_own():
    """By name or by label; the first rule that fits counts, and what it does not say stays."""
    rules = (
        PolicyRule(PolicyOverride(aggregate_duration_s=900), names=("gpu-*",), labels=(("pool", "a"),)),
        PolicyRule(
            PolicyOverride(report_interval_s=30, aggregate_duration_s=60, durations_s=(300,)), names=("gpu-?", "x")
        ),
    )
    with Live(fleet_of(*rules)) as live:
        items = {item["metadata"]["name"]: item for item in live.ask(PATH).json()["items"]}
        assert "max-age=30, must-revalidate" == live.ask(PATH).headers["Cache-Control"]
    found = {
        name: (
            item["spec"]["metricCollectPolicy"]["reportIntervalSeconds"],
            item["status"]["nodeMetric"]["nodeUsage"]["resources"]["cpu"],
            [each["duration"] for each in item["status"]["nodeMetric"]["aggregatedNodeUsages"]],
        )
        for name, item in items.items()
    }
    every = ["5m0s", "10m0s", "15m0s"]
    assert {"cpu-1": (60, "2240m", every), "gpu-1": (30, "3200m", ["5m0s"]), "gpu-2": (60, "1280m", every)} == found
    assert ["5m0s"] == items["gpu-1"]["spec"]["metricCollectPolicy"]["nodeAggregatePolicy"]["durations"]


def test_each_node_is_reported_anew_in_its_own_interval():
    """One every two minutes, the others every one; the list and each node by itself say the same."""
    rule = PolicyRule(PolicyOverride(report_interval_s=120), names=("gpu-1",))
    start = (int(END) // 120 + 1) * 120.0

    def at(live: Live, seconds: float, percent: float) -> dict[str, str]:
        later = snapshot_of({name: {"CPU": [percent] * 60, "Memory": [10.0] * 60} for name in FLEET}, end=END + seconds)
        live.service.published = publish(replace(later, timestamp=start + seconds), tag=f"t{seconds}")
        usage = {
            item["metadata"]["name"]: item["status"]["nodeMetric"]["nodeUsage"]["resources"]["cpu"]
            for item in live.ask(PATH).json()["items"]
        }
        one = live.ask(f"{PATH}/gpu-1").json()["status"]["nodeMetric"]["nodeUsage"]["resources"]["cpu"]
        assert one == usage["gpu-1"]
        return {name: usage[name] for name in ("cpu-1", "gpu-1")}

    with Live(fleet_of(rule)) as live:
        assert {"cpu-1": "400m", "gpu-1": "400m"} == at(live, 0.0, 10.0)
        assert {"cpu-1": "400m", "gpu-1": "400m"} == at(live, 59.0, 20.0)
        assert {"cpu-1": "1200m", "gpu-1": "400m"} == at(live, 60.0, 30.0)
        assert {"cpu-1": "1600m", "gpu-1": "1600m"} == at(live, 120.0, 40.0)


def test_what_an_object_of_the_cluster_says_goes_before_the_settings():
    """Part by part; koordlet reports no more often than every 30 s, and a duration that is not kept is left out."""
    rule = PolicyRule(PolicyOverride(report_interval_s=120, aggregate_duration_s=900))
    spec = PolicyOverride(report_interval_s=5, durations_s=(300, 1800))
    policies = CollectPolicies(rules=(rule,), specs={"a": spec}, windows=WINDOWS)
    assert [CollectPolicy(30, 900, (300,)), CollectPolicy(120, 900, None)] == policies.of_all(["a", "b"], lambda _: {})
    assert (1800,) == policies.unserved((300, 1800))


def test_what_is_no_pods_is_the_systems():
    """node-2 uses 1.5 cores for web-1; job, whose memory nobody told, is left out of both."""
    classes = {("a", "web-1"): PodClass("koord-prod", "LS")}
    with Live(service(classes=classes)) as live:
        status = live.ask(f"{PATH}/node-2").json()["status"]
    usage = status["nodeMetric"]["nodeUsage"]["resources"]
    (pod,) = status["podsMetric"]
    assert ("koord-prod", "LS") == (pod["priority"], pod["qos"])
    system = status["nodeMetric"]["systemUsage"]["resources"]
    assert max(0, int(usage["cpu"][:-1]) - 1500) == int(system["cpu"][:-1])
    assert max(0, int(usage["memory"]) - (1 << 31)) == int(system["memory"])
