"""/metrics: the windows of nodes and the service's own health, in the format of Prometheus."""

import gzip
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.pods import publish_pods, small_pods
from tests.fakes.service import HEALTHY, FakeService, Live
from tests.fakes.snapshots import large_fleet, publish, small_fleet, snapshot_of, steady
from tests.real.parts import find_program, program_environment
from watcher.api.telemetry import Telemetry, coverage
from watcher.core.publishing.compression import Encoding
from watcher.core.publishing.exposition import FAMILIES, PREFIX, View, node_windows
from watcher.model import METRICS, MetricType, Operator, ProviderHealth, Unit
from watcher.platform.telemetry.instruments import CONTENT_TYPE
from watcher.sources.base import QueryPlan
from watcher.tick.shared import TickStats

EVERYTHING = View(tuple(MetricType), tuple(Operator), ("5m", "10m", "15m"))
AWKWARD = 'a"b\\nc\nd ü{}\\'


def samples_of(text: str | bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """All samples of an exposition by name and labels; duplicates are an error, as in Prometheus."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(text.decode() if isinstance(text, bytes) else text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def value(text: bytes, name: str, **labels: str) -> float | None:
    """One sample; None if it does not exist."""
    return samples_of(text).get((name, frozenset(labels.items())))


def exposed(service: FakeService, *, view: View | None = None) -> bytes:
    """The page of a service."""
    telemetry = Telemetry(version="1.2.3", view=view)
    telemetry.watch(service.view)
    return telemetry.exposition()


# --- node windows ----------------------------------------------------------------------------------------------------


def test_by_default_cpu_and_memory_of_each_node_are_exposed():
    """AVG and STD of 15 minutes, as ratios."""
    found = {key: number for key, number in samples_of(exposed(FakeService())).items() if key[0].startswith(PREFIX)}
    name = PREFIX + "utilisation_ratio"

    assert 3 * 2 * 2 == len(found)
    labels = {"node": "node-1", "resource": "CPU", "operator": "AVG", "window": "15m"}
    assert 0.26 == found[name, frozenset(labels.items())]
    assert 0.01 == found[name, frozenset({**labels, "operator": "STD"}.items())]
    # five minutes of node-3 are under the requested window
    assert 0.2 == found[name, frozenset({**labels, "node": "node-3", "resource": "Memory"}.items())]


def test_each_metric_has_a_family_in_base_units():
    """Exactly one family."""
    members = [key for family in FAMILIES for key in family.members]
    assert sorted(metric.key for metric in METRICS) == sorted(members)

    fleet = {"n": {metric.key: steady(50) for metric in METRICS}}
    found = samples_of(
        node_windows(snapshot_of(fleet), replace(EVERYTHING, operators=(Operator.AVG,), windows=("5m",)))
    )
    assert len(METRICS) == len(found)
    for (name, _), number in found.items():
        assert (0.5 if name.endswith("_ratio") else 50.0) == number
    units = {Unit.PERCENT: "_ratio", Unit.WATTS: "_watts", Unit.BYTES_PER_SECOND: "_bytes_per_second"}
    for family in FAMILIES:
        for metric in METRICS:
            if metric.key in family.members:
                assert family.name.endswith(units.get(metric.unit, "_packets_per_second"))


def test_more_types_operators_and_windows_are_exposed_if_configured():
    """They multiply; Latest has no window and exists once."""
    text = node_windows(snapshot_of({"n": {"CPU": steady(50), "Storage": steady(7)}}), EVERYTHING)
    found = samples_of(text)

    assert 2 * (7 * 3 + 1) == len(found)
    labels = {"node": "n", "resource": "Storage", "operator": "P95", "window": "10m"}
    assert 0.08 == found[PREFIX + "utilisation_ratio", frozenset(labels.items())]
    assert 1 == text.count(b"# TYPE")


@pytest.mark.parametrize("operators", [(Operator.P95,), (Operator.STD,)])
def test_only_the_configured_operators_are_exposed(operators):
    """The AVG that is added to each selection for schedulers is not exposed."""
    text = node_windows(snapshot_of(small_fleet()), View(operators=operators))

    assert {operators[0].value} == {dict(labels)["operator"] for _, labels in samples_of(text)}


def test_a_node_without_a_window_is_left_out():
    """Its latest sample is not an average."""
    text = node_windows(snapshot_of({"new": {"CPU": [5.0]}, "old": {"CPU": steady(5)}}), View())

    assert {"old"} == {dict(labels)["node"] for _, labels in samples_of(text)}


def test_names_are_escaped():
    """Any user of the cluster may choose them."""
    text = node_windows(snapshot_of({AWKWARD: {"CPU": steady(50)}}), View())

    assert {AWKWARD} == {dict(labels)["node"] for _, labels in samples_of(text)}


def test_without_values_the_page_is_empty():
    """Not even a header."""
    assert b"" == node_windows(snapshot_of({}), View())
    assert b"" == node_windows(snapshot_of({"n": {"GPU": steady(5)}}), View())
    assert b"" == node_windows(snapshot_of(small_fleet()), View(windows=("1h",)))


def test_pages_of_large_fleets_are_complete():
    """They are written in chunks of a thousand nodes."""
    fleet = large_fleet(1001)
    found = samples_of(node_windows(snapshot_of(fleet), View(operators=(Operator.AVG,), types=(MetricType.CPU,))))

    assert {dict(labels)["node"] for _, labels in found} == set(fleet)
    assert np.isfinite(list(found.values())).all()


def test_stale_windows_are_not_exposed():
    """A flat line would look like a value."""
    service = FakeService()
    telemetry = Telemetry(version="1")
    telemetry.watch(service.view)
    assert PREFIX.encode() in telemetry.exposition()
    service.clock += service.max_staleness
    page = telemetry.exposition()

    assert PREFIX.encode() not in page
    assert 301.0 == value(page, "load_watcher_snapshot_age_seconds")


def test_nodes_are_written_once_per_snapshot():
    """For any number of scrapes; those of the next tick are written again."""
    service = FakeService()
    telemetry = Telemetry(version="1")
    telemetry.watch(service.view)
    first = telemetry.exposition()
    name = {"node": "node-1", "resource": "CPU", "operator": "AVG", "window": "15m"}
    # an equal tag means the same snapshot, so the cached page is served
    service.published = publish(snapshot_of({"node-1": {"CPU": steady(99)}}), tag="t1")
    assert 0.26 == value(telemetry.exposition(), PREFIX + "utilisation_ratio", **name)
    service.published = publish(snapshot_of({"node-1": {"CPU": steady(99)}}), tag="t2")
    assert 0.99 == value(telemetry.exposition(), PREFIX + "utilisation_ratio", **name)
    assert 0.26 == value(first, PREFIX + "utilisation_ratio", **name)


def test_pods_are_counted_while_they_are_known():
    """Without pods there is neither a number nor an age."""
    assert not any("load_watcher_pods" in line for line in exposed(FakeService()).decode().splitlines())
    page = exposed(FakeService(pods=publish_pods({}))).decode()
    assert "load_watcher_pods 0.0" in page
    assert "pods_age" not in page


# --- the service itself ----------------------------------------------------------------------------------------------


def test_a_source_with_a_partial_response_is_up_and_partial():
    """Both, so that alerts on either metric keep their meaning."""
    page = exposed(FakeService(provider_health=ProviderHealth(True, "store-2 is away", 1.0)))
    assert (1.0, 1.0) == tuple(value(page, f"load_watcher_provider_{name}") for name in ("up", "partial"))


@pytest.mark.parametrize("cluster", ["", "prod-1"])
def test_the_cluster_name_has_its_own_metric(cluster: str):
    """For joins. No other series changes, so dashboards work with and without a name."""
    page = Telemetry(version="1.2.3", cluster=cluster).exposition()
    assert bool(cluster) == (b'load_watcher_cluster_info{cluster="prod-1"} 1.0' in page)
    assert page.count(b"cluster=") == bool(cluster)


def test_each_number_of_the_state_is_exposed_once():
    snapshot = snapshot_of(small_fleet(), ages={"node-2": 130.0}, lost={"gone": 1.0}, quarantined={"frozen", "stuck"})
    service = FakeService(
        published=publish(snapshot, age_s=4.0),
        provider_health=ProviderHealth(False, "down", 1.0),
        clock=1010.0,
        pods=publish_pods(small_pods(), age_s=2.0),
        stats=TickStats(ticks=10, failed=3, skipped=2, query_failures={("refused", "m"): 4, ("unreachable", ""): 3}),
        plans={"m": QueryPlan("m", 'rate(x{a="b"}[5m])', "ratio", "node", 300.0, "configured")},
        counts={"jump": 5, "stale": 0},
        status=replace(HEALTHY, ok=False, size_bytes=123, queued=7, dropped=8, lost_decisions=9),
    )
    page = exposed(service)

    for name, labels, expected in [
        ("snapshot_age_seconds", {}, 14.0),
        ("nodes", {}, 3.0),
        ("nodes_held", {}, 1.0),
        ("pods", {}, 3.0),
        ("pods_age_seconds", {}, 12.0),
        ("nodes_lost", {}, 1.0),
        ("nodes_quarantined", {}, 2.0),
        ("provider_up", {}, 0.0),
        ("provider_partial", {}, 0.0),
        ("provider_failures_total", {"kind": "refused", "metric": "m"}, 4.0),
        ("provider_failures_total", {"kind": "unreachable", "metric": ""}, 3.0),
        ("provider_query_info", {"metric": "m", "expression": 'rate(x{a="b"}[5m])', "node_label": "node"}, 1.0),
        ("refresh_total", {"outcome": "ok"}, 7.0),
        ("refresh_total", {"outcome": "failed"}, 3.0),
        ("ticks_skipped_total", {}, 2.0),
        ("findings_total", {"kind": "jump"}, 5.0),
        ("findings_total", {"kind": "stale"}, 0.0),
        ("store_ok", {}, 0.0),
        ("store_size_bytes", {}, 123.0),
        ("store_queued_ticks", {}, 7.0),
        ("store_dropped_records_total", {}, 8.0),
        ("store_lost_decisions_total", {}, 9.0),
        ("build_info", {"version": "1.2.3"}, 1.0),
    ]:
        assert expected == value(page, f"load_watcher_{name}", **labels), name


def test_unknown_values_are_not_exposed():
    """A provider without a request is neither up nor down; without a snapshot there is no age."""
    page = exposed(FakeService(published=None, provider_health=ProviderHealth(None, "", 0.0)))

    for name in ("provider_up", "snapshot_age_seconds", "nodes"):
        assert value(page, f"load_watcher_{name}") is None


def test_a_counter_does_not_decrease():
    """A failure is counted before its tick."""
    service = FakeService(stats=TickStats(ticks=5, failed=1))
    telemetry = Telemetry(version="1")
    telemetry.watch(service.view)
    seen = []
    for ticks, failed in ((5, 1), (5, 2), (6, 2), (7, 2)):
        service.stats.ticks, service.stats.failed = ticks, failed
        seen.append(value(telemetry.exposition(), "load_watcher_refresh_total", outcome="ok"))

    assert [4.0, 4.0, 4.0, 5.0] == seen


def test_coverage_is_the_share_of_expected_samples():
    """By hand: 60 of 60 slots and 20 of 60 over 15 minutes; 20 and 20 of 20 over five."""
    found = coverage(snapshot_of({"a": {"CPU": steady(5)}, "b": {"CPU": steady(5, slots=20)}}))

    assert {"5m": 1.0, "10m": 0.75, "15m": 0.666667} == found
    assert {} == coverage(snapshot_of({}))


def test_the_stages_of_a_tick_are_timed():
    """A clock that is set back gives no negative time, which would break the sum."""
    telemetry = Telemetry(version="1")
    for seconds in (0.02, 3.0, -1.0):
        telemetry.observe_refresh("fetch", seconds)
    page = telemetry.exposition()
    name = "load_watcher_refresh_duration_seconds"

    assert 3.0 == value(page, f"{name}_count", stage="fetch")
    assert 3.02 == value(page, f"{name}_sum", stage="fetch")
    assert 2.0 == value(page, f"{name}_bucket", stage="fetch", le="0.025")


def test_requests_are_timed_by_route():
    """Buckets are cumulative; times above the last bound are in +Inf."""
    telemetry = Telemetry(version="1")
    for seconds in (0.00005, 0.0001, 0.002, 60.0):
        telemetry.count_request(route="watcher", status=200, seconds=seconds)
    telemetry.count_request(route="watcher", status=503, seconds=0.001)
    page = telemetry.exposition()
    name = "load_watcher_http_request_duration_seconds"

    assert 4.0 == value(page, "load_watcher_http_requests_total", route="watcher", code="200")
    assert 1.0 == value(page, "load_watcher_http_requests_total", route="watcher", code="503")
    assert 2.0 == value(page, f"{name}_bucket", route="watcher", le="0.0001")
    assert 4.0 == value(page, f"{name}_bucket", route="watcher", le="0.0025")
    assert 5.0 == value(page, f"{name}_bucket", route="watcher", le="+Inf")
    assert 5.0 == value(page, f"{name}_count", route="watcher")


def test_two_services_in_one_process_have_separate_registries():
    first, second = Telemetry(version="1"), Telemetry(version="2")
    first.count_request(route="watcher", status=200, seconds=0.0)

    assert b'route="watcher"' not in second.exposition()


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_page_is_served_plain_and_compressed_with_its_content_type():
    with Live() as live:
        plain = live.ask("/metrics")
        zipped = live.ask("/metrics", headers={"Accept-Encoding": "gzip;q=1.0,identity;q=0.5"})

    assert CONTENT_TYPE == plain.headers["Content-Type"] == zipped.headers["Content-Type"]
    assert "gzip" == zipped.headers["Content-Encoding"]
    labels = {"node": "node-1", "resource": "CPU", "operator": "AVG", "window": "15m"}
    for page in (plain.body, gzip.decompress(zipped.body)):
        assert 0.26 == value(page, PREFIX + "utilisation_ratio", **labels)
        assert value(page, "process_resident_memory_bytes")


@pytest.mark.parametrize("encoding", [Encoding.IDENTITY, Encoding.GZIP])
def test_a_page_without_a_service_is_valid(encoding):
    """As while the process starts."""
    page = Telemetry(version="1").exposition(encoding=encoding)

    assert samples_of(gzip.decompress(page) if encoding is Encoding.GZIP else page)


def test_each_metric_is_documented():
    """In docs/reference/api.md, by its full name or after that of its family."""
    telemetry = Telemetry(version="1", view=EVERYTHING)
    fleet = {"n": {metric.key: steady(50) for metric in METRICS}}
    telemetry.watch(FakeService(published=publish(snapshot_of(fleet))).view)
    telemetry.observe_refresh("tick", 0.1)
    text = (Path(__file__).parents[3] / "docs" / "reference" / "api.md").read_text()
    families = {family.name for family in text_string_to_metric_families(telemetry.exposition().decode())}
    ours = {name for name in families if name.startswith("load_watcher_")}

    assert {"load_watcher_findings", "load_watcher_node_power_watts", "load_watcher_store_ok"} <= ours
    assert [] == [
        name for name in sorted(ours) if name not in text and f"`_{name.removeprefix('load_watcher_')}" not in text
    ]


@pytest.mark.real
def test_promtool_reports_no_problem():
    """The checks of Prometheus for a page with all metrics."""
    fleet = {name: {metric.key: steady(50) for metric in METRICS} for name in ("node-1", AWKWARD)}
    service = FakeService(
        published=publish(snapshot_of(fleet)),
        stats=TickStats(5, 1, 1, {("refused", "m"): 4}),
        plans={"m": QueryPlan("m", 'rate(x{a="b"}[5m])', "ratio", "node", 300.0, "configured")},
        counts={"jump": 5},
    )
    telemetry = Telemetry(version="1", view=EVERYTHING)
    telemetry.watch(service.view)
    telemetry.observe_refresh("tick", 0.1)
    telemetry.count_request(route="watcher", status=200, seconds=0.1)
    page = telemetry.exposition()
    found = subprocess.run(
        [find_program("promtool"), "check", "metrics"],
        input=page,
        capture_output=True,
        env=program_environment(),
    )

    assert (0, b"", b"") == (found.returncode, found.stdout, found.stderr)
