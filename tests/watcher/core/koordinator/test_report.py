"""GET /api/v1/nodemetrics: what koordlet would report, and the response while values are unknown."""

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
def test_percentiles_follow_the_index_rule_of_koordlet(case):
    """The order of the samples, and empty slots between them, do not matter."""
    values = np.full(2 * case["samples_1_to_n"], np.nan)
    values[::2] = np.arange(case["samples_1_to_n"], 0, -1)
    assert [case["expect"]] == percentile(values[:, None], case["p"]).tolist()


@pytest.mark.parametrize(("span", "expected"), [(149.0, False), (150.0, True), (299.0, True)])
def test_an_entry_has_values_from_half_of_its_duration(span, expected):
    """By the times of the first and the last sample."""
    assert [expected, False] == warm(np.array([[END, END], [END - span, np.nan]]), 300).tolist()


@pytest.mark.parametrize(("seconds", "text"), [(30, "30s"), (300, "5m0s"), (3600, "1h0m0s"), (5430, "1h30m30s")])
def test_durations_have_the_format_of_go(seconds, text):
    """That of metav1.Duration."""
    assert text == go_duration(seconds)


def test_percentiles_of_a_node_are_samples():
    """10, 20, …, 100 percent in turn: koordlet's p90 is the sample of 90 percent, without interpolation."""
    tenths = [10.0 * (1 + slot % 10) for slot in range(60)]
    entry = report({"node-1": {"CPU": tenths, "Memory": [50.0] * 60}})["node-1"]["aggregatedNodeUsages"][1]
    resources = [entry["usage"][kind]["resources"] for kind in TYPES]
    assert "10m0s" == entry["duration"]
    assert ["2200m", "2000m", "3600m", "4000m", "4000m"] == [each["cpu"] for each in resources]
    assert {str(1 << 29)} == {each["memory"] for each in resources}


def test_usage_is_averaged_over_the_aggregation_period():
    """A load that rose from 20 to 80 percent three minutes ago."""
    samples = {"node-1": {"CPU": [20.0] * 48 + [80.0] * 12, "Memory": [10.0] * 60}}
    usages = {
        seconds: report(samples, aggregate_duration_s=seconds)["node-1"]["nodeUsage"]["resources"]["cpu"]
        for seconds in (60, 180, 300, 900)
    }
    assert {60: "3200m", 180: "3200m", 300: "2240m", 900: "1280m"} == usages


def test_entries_with_less_than_half_of_their_duration_are_present_and_empty():
    """Five minutes of samples are half of ten, except for one slot."""
    (short, middle, long) = report(small_fleet())["node-3"]["aggregatedNodeUsages"]
    assert set(TYPES) == set(short["usage"]) == set(middle["usage"])
    assert all({"cpu", "memory"} == set(short["usage"][kind]["resources"]) for kind in TYPES)
    assert [{}] * 10 == [each["usage"][kind] for each in (middle, long) for kind in TYPES]


def test_a_node_needs_cpu_and_memory():
    """Readers take a missing value of a NodeMetric as 0."""
    snapshot = snapshot_of({"node-1": {"CPU": [50.0] * 60}, "node-2": {"CPU": [50.0] * 60, "Memory": [50.0] * 60}})
    made = reported(snapshot, SIZES, CollectPolicy())
    assert ["node-2"] == list(made.objects)
    assert {"node-1": "no samples of Memory in the last 300 s"} == made.missing


def test_capacities_are_those_of_the_cluster():
    """A node whose capacity is missing or not a quantity has none."""

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
def test_the_list_is_valid_for_any_samples(cpu, memory, cores, size, seconds):
    """No NaN, no more than the node's capacity, and the scorers' reader of NodeMetrics accepts it."""
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


def test_the_scorers_read_the_list_as_custom_resources():
    """Each number is read by the reader of the custom resource."""
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


def test_pods_with_an_incomplete_usage_are_left_out():
    """As koordlet leaves out pods whose query failed. Without any pod, the list is absent."""
    with Live(service()) as live:
        pods = live.ask(f"{PATH}/node-2").json()["status"]["podsMetric"]
    usage = {"resources": {"cpu": "1500m", "memory": str(1 << 31)}}
    assert [{"namespace": "a", "name": "web-1", "podUsage": usage}] == pods
    with Live(service(pods=None)) as live:
        assert "podsMetric" not in live.ask(f"{PATH}/node-2").json()["status"]
        assert 1 == live.service.wanted


def test_only_nodes_with_known_pod_usage_have_a_list_of_pods():
    """The list is empty if the source measures the node and finds no pods. Readings are valid for some minutes."""
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


def test_a_source_without_the_memory_of_pods_has_no_list_of_pods():
    """With an empty list, all usage would be that of the system."""
    pods = {pod: (node, cores, float("nan")) for pod, (node, cores, _) in small_pods().items()}
    with Live(service(pods=publish_pods(pods))) as live:
        status = live.ask(f"{PATH}/node-1").json()["status"]
    assert "podsMetric" not in status
    assert "systemUsage" not in status["nodeMetric"]


def test_the_document_of_a_node_equals_its_part_of_the_list():
    """Byte for byte, in each encoding; the ETags of encodings differ, and are stable."""
    with Live(service()) as live:
        everything, one = live.ask(PATH), live.ask(f"{PATH}/node-2")
        packed = live.ask(PATH, headers={"Accept-Encoding": "gzip"})
        again = live.ask(f"{PATH}/node-2", headers={"If-None-Match": one.headers["ETag"]})
    assert one.body in everything.body
    assert everything.body == gzip.decompress(packed.body)
    assert 3 == len({answer.headers["ETag"] for answer in (everything, one, packed)})
    assert (304, b"") == (again.status, again.body)
    assert "1" == one.headers["Age"]


def test_nodes_of_unknown_capacity_are_left_out():
    """Percentages without a capacity are not amounts."""
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
def test_unknown_data_are_an_error(options, path, status, code):
    """As for /watcher: never an empty list."""
    with Live(service(**options)) as live:
        answer = live.ask(path)
    assert (status, code) == (answer.status, answer.error["code"])


def test_a_report_is_valid_for_its_interval():
    """A newer snapshot is reported when the next interval begins."""
    later = snapshot_of({"node-1": {"CPU": [75.0] * 60, "Memory": [75.0] * 60}}, end=END + 30.0)
    first = int(END + 1) // 60

    def at(live: Live, timestamp: float) -> str:
        live.service.published = publish(replace(later, timestamp=timestamp), tag=f"t{timestamp}")
        return live.ask(f"{PATH}/node-1").json()["status"]["nodeMetric"]["nodeUsage"]["resources"]["cpu"]

    with Live(service()) as live:
        live.ask(PATH)
        assert "1040m" == at(live, first * 60 + 59.0)
        assert "3000m" == at(live, first * 60 + 60.0)


def test_a_report_that_is_too_old_is_replaced_within_its_interval():
    """If the interval is longer than the maximum age of responses."""
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


def test_a_node_may_have_its_own_policy():
    """By name or by label. The first matching rule counts; values that it does not set stay."""
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


def test_each_node_is_reported_in_its_own_interval():
    """One every two minutes, the others every minute; the list and the document of each node agree."""
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


def test_an_object_of_the_cluster_takes_precedence_over_the_settings():
    """For each value. koordlet reports at most every 30 s; a duration beyond the kept history is left out."""
    rule = PolicyRule(PolicyOverride(report_interval_s=120, aggregate_duration_s=900))
    spec = PolicyOverride(report_interval_s=5, durations_s=(300, 1800))
    policies = CollectPolicies(rules=(rule,), specs={"a": spec}, windows=WINDOWS)
    assert [CollectPolicy(30, 900, (300,)), CollectPolicy(120, 900, None)] == policies.of_all(["a", "b"], lambda _: {})
    assert (1800,) == policies.unserved((300, 1800))


def test_usage_beyond_that_of_pods_is_the_systems():
    """node-2 uses 1.5 cores for web-1; job, whose memory is unknown, is in neither."""
    classes = {("a", "web-1"): PodClass("koord-prod", "LS")}
    with Live(service(classes=classes)) as live:
        status = live.ask(f"{PATH}/node-2").json()["status"]
    usage = status["nodeMetric"]["nodeUsage"]["resources"]
    (pod,) = status["podsMetric"]
    assert ("koord-prod", "LS") == (pod["priority"], pod["qos"])
    system = status["nodeMetric"]["systemUsage"]["resources"]
    assert max(0, int(usage["cpu"][:-1]) - 1500) == int(system["cpu"][:-1])
    assert max(0, int(usage["memory"]) - (1 << 31)) == int(system["memory"])
