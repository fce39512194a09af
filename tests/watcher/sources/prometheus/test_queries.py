"""Queries of Prometheus: candidates, labels, guards and times."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watcher.core.naming.candidates import NamingEvidence
from watcher.core.naming.identity import identify
from watcher.core.naming.name_resolver import without_port
from watcher.core.queries.promql import is_plain
from watcher.model import METRIC_BY_KEY, SOURCE_UNITS
from watcher.sources.config import InstantQuery, RangeQuery
from watcher.sources.prometheus.evidence_queries import profile
from watcher.sources.prometheus.plans import NodeLabel, among, labels_of, make_plan
from watcher.sources.prometheus.queries import (
    CANDIDATES,
    QueryCandidate,
    candidates,
)
from watcher.sources.settings import ProviderSettings, QuerySettings

CPU = METRIC_BY_KEY["CPU"]
RAW_CPU = CANDIDATES["CPU"][2]


# --- plain or expression ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "expression",
    [
        "up",
        "instance:node_cpu:ratio",
        "  instance:node_cpu:ratio ",
        'x{a="b"}',
        'x{a="b",c=~"d|e",}',
        "x{ a != 'b' , c !~ `d\"` }",
        'x{a="} with \\" quotes {"}',
        '{__name__="x"}',
        '{"utf8.name", a="b"}',
        '{"utf8.name", "k8s.node"="b"}',
        'x{"k8s.node"=~"b"}',
        "x{}",
    ],
)
def test_a_metric_name_or_selector_is_plain(expression: str):
    """A range can be appended to it."""
    assert is_plain(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "1 - x",
        "rate(x[5m])",
        "x[5m]",
        "x offset 5m",
        "x @ 100",
        "sum(x)",
        'x{a="b"} * 100',
        "-x",
        "(x)",
        "",
        "100",
        'x{a="b"',
        'x{a="b}',
        "x y",
    ],
)
def test_anything_else_is_an_expression(expression: str):
    """A range cannot be appended, so it must be evaluated at chosen times."""
    assert not is_plain(expression)


# --- candidates ------------------------------------------------------------------------------------------------------


def test_candidates_are_in_the_documented_order():
    """Recording rule of kube-prometheus, rule of the mixin, raw series; each with its unit and smoothing."""
    assert [
        ("instance:node_cpu:ratio", "ratio", 300.0),
        ("instance:node_cpu_utilisation:rate5m", "ratio", 300.0),
        ('node_cpu_seconds_total{mode="idle",cpu=~"0|1"}', "ratio", 300.0),
        ('windows_cpu_time_total{mode="idle"}', "ratio", 300.0),
    ] == [(one.evidence, one.unit, one.smoothing_s) for one in candidates(CPU, None)]
    assert [
        ("instance:node_network_receive_bytes:rate:sum", "bytes/s", 180.0),
        ("instance:node_network_receive_bytes_excluding_lo:rate5m", "bytes/s", 300.0),
        ('node_network_receive_bytes_total{device!="lo"}', "bytes/s", 180.0),
        ("windows_net_bytes_received_total", "bytes/s", 180.0),
    ] == [(one.evidence, one.unit, one.smoothing_s) for one in candidates(METRIC_BY_KEY["NetworkReceive"], None)]
    assert [0.0, 0.0, 0.0] == [one.smoothing_s for one in candidates(METRIC_BY_KEY["Memory"], None)]


@pytest.mark.parametrize("key", sorted(CANDIDATES))
def test_each_candidate_gives_its_metric(key: str):
    """Its unit can be converted; an expression has raw series as its guard, and a place for the label."""
    for candidate in CANDIDATES[key]:
        assert SOURCE_UNITS[candidate.unit][0] is METRIC_BY_KEY[key].unit
        assert is_plain(candidate.expression) or (is_plain(candidate.raw) and "<label>" in candidate.expression)


def test_energy_and_gpu_are_queried_only_on_request():
    """They are not in the default metrics, but have candidates."""
    assert not {"EnergyPackage", "EnergyHost", "GPU"} & {metric.key for metric in ProviderSettings().wanted}
    assert {"EnergyPackage", "EnergyCore", "EnergyPlatform", "EnergyHost", "GPU"} <= set(CANDIDATES)


def test_a_configured_query_is_the_only_candidate():
    """Another expression would silently change the meaning."""
    configured = QuerySettings("  my:cpu  ", "percent", smoothing=60.0)

    assert (QueryCandidate("configured", "my:cpu", "percent", 60.0),) == candidates(CPU, configured)


def test_only_an_expression_has_a_guard():
    """Plain series have samples with their own times."""
    plain, computed = (
        QuerySettings("my:cpu", "ratio", guard="raw"),
        QuerySettings("my:cpu * 1", "ratio", guard="raw"),
    )

    assert ["", "raw"] == [candidates(CPU, one)[0].raw for one in (plain, computed)]


def test_a_comment_in_an_expression_keeps_the_rest():
    """Expressions of several lines may have them."""
    (commented,) = candidates(CPU, QuerySettings("my:cpu / 2 # halves", "ratio", guard="raw"))
    question = plan(commented, interval=15.0).question(15.0, 30.0, resolution=15)

    assert isinstance(question, RangeQuery)
    assert "halves\n) and on" in question.query
    assert profile(commented.evidence, labels=("node",)).endswith("halves\n)")


def test_utf8_label_names_are_quoted_in_each_query():
    """As Prometheus 3 requires it: {"k8s.node.name"="x"}, by ("k8s.node.name")."""
    label = NodeLabel("k8s.node.name")
    assert 'count by (node, "k8s.node.name") (x)' == profile("x", labels=("node", label.label))
    assert '"k8s.node.name"=~"a"' == str(among(label.label, ["a"]))
    settled = make_plan(CPU, RAW_CPU, label=label, scrape_interval=15.0, rejected=())
    assert 'avg by ("k8s.node.name") (' in settled.expression
    assert ' and on ("k8s.node.name") (' in settled.guarded()


# --- labels that distinguish nodes -----------------------------------------------------------------------------------


def rows(count: int, **labels: str) -> list[dict[str, str]]:
    """Label sets; `#` is the number of the row."""
    return [{name: text.replace("#", str(row)) for name, text in labels.items()} for row in range(count)]


@pytest.mark.parametrize(
    ("series", "labels"),
    [
        (rows(4, node="n#", kubernetes_node="k#", instance="i#:1"), ("node",)),
        (rows(4, kubernetes_node="k#", nodename="h#", instance="i#:1"), ("kubernetes_node",)),
        (rows(4, Hostname="h#", instance="10.244.0.#:9400"), ("Hostname",)),
        (rows(4, instance="i#:1"), ("instance",)),
        # Equal in all rows: the node of the Prometheus itself, or the name of the cluster.
        (rows(4, node="one", kubernetes_node="k#", instance="i#:1"), ("kubernetes_node",)),
        ([*rows(2, node="n#", instance="a#:1"), *rows(2, node="n#", instance="b#:2")], ("node",)),
        ([*rows(3, node="n#", instance="i#:1"), {"instance": "x:1", "job": "else"}], ("instance",)),
        # Federated series beside others.
        (
            [
                *rows(2, exported_instance="10.0.0.#:9100", instance="prometheus:9090"),
                *rows(2, instance="10.1.0.#:9100"),
            ],
            ("exported_instance", "instance"),
        ),
        ([], None),
    ],
)
def test_an_expression_is_grouped_by_the_fewest_labels_that_distinguish_nodes(
    series: list[dict[str, str]], labels: tuple[str, ...] | None
):
    """By one label if that is sufficient."""
    label = labels_of(series, identify(series, NamingEvidence()))

    assert labels == (label.labels if label else None)


def test_several_labels_are_one_name():
    """Without labels that a series does not have."""
    label = NodeLabel("node", ("k8s.cluster",))

    assert 'node, "k8s.cluster"' == label.text
    assert "node=a, k8s.cluster=b" == label.key({"node": "a", "k8s.cluster": "b", "job": "c"})
    assert "node=a" == label.key({"node": "a"})
    assert label.key({"job": "c"}) is None


@pytest.mark.parametrize(
    ("instance", "host"),
    [
        ("10.0.0.1:9100", "10.0.0.1"),
        ("worker-1", "worker-1"),
        ("worker-1.example.com:443", "worker-1.example.com"),
        ("[2001:db8::1]:9100", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("2001:db8::1", "2001:db8::1"),
        ("2001:db8::9100", "2001:db8::9100"),
        ("host:http", "host"),
        ("node-1:metrics", "node-1"),
        ("[::1]:metrics", "::1"),
        ("host:-", "host:-"),
        ("host:", "host:"),
        (":9100", ":9100"),
        ("[broken:9100", "[broken:9100"),
        ("[a]b", "[a]b"),
        ("", ""),
    ],
)
def test_an_instance_loses_only_its_port(instance: str, host: str):
    """And the brackets of IPv6; a bare IPv6 address has no port."""
    assert host == without_port(instance)


# --- queries ---------------------------------------------------------------------------------------------------------


def plan(candidate: QueryCandidate, *, interval: float | None = None, label: str = "node"):
    return make_plan(CPU, candidate, label=NodeLabel(label), scrape_interval=interval, rejected=())


@pytest.mark.parametrize(("span", "whole"), [(60.0, 60), (60.2, 61), (0.1, 1), (0.0, 1), (120.0, 120)])
def test_plain_series_are_queried_by_a_range_selector(span: float, whole: int):
    """An instant query at the end, over whole seconds that cover the span."""
    question = plan(CANDIDATES["CPU"][0]).question(1000.0 - span, 1000.0, resolution=15)

    assert InstantQuery(f"instance:node_cpu:ratio[{whole}s]", 1000.0) == question


def test_a_raw_expression_is_grouped_by_the_label_and_guarded():
    """A node whose exporter was silent for two scrape intervals is left out."""
    question = plan(RAW_CPU, interval=30.0, label="kubernetes_node").question(1000.0, 1100.0, resolution=15)

    expression = (
        "(1 - avg by (kubernetes_node) (min by (kubernetes_node, cpu) (sum without (mode)"
        ' (rate(node_cpu_seconds_total{mode=~"idle|iowait|steal"}[5m])) / ignoring (cpu) group_left ()'
        ' (max without (cpu) (sum without (mode) (rate(node_cpu_seconds_total{cpu=~"0|1"}[5m]))'
        ' and ignoring (mode) node_cpu_seconds_total{mode="user",cpu=~"0|1"}) or max without (cpu) (0 * sum without'
        ' (mode) (rate(node_cpu_seconds_total{mode=~"idle|iowait|steal",cpu=~"0|1"}[5m])) + 1)) >= 0)))'
        ' and on (kubernetes_node) (count_over_time(node_cpu_seconds_total{mode="idle",cpu=~"0|1"}[60s]) > 0)'
    )
    assert RangeQuery(expression, 1020, 1080, 30) == question


def test_the_guard_is_not_part_of_the_shown_expression():
    """Otherwise a new scrape interval would look like another expression and remove the history."""
    assert plan(RAW_CPU, interval=30.0).expression == plan(RAW_CPU, interval=15.0).expression


def test_a_configured_expression_without_a_guard_is_marked():
    """In the reason of its plan; one with a guard is guarded like a built-in one."""
    bare = plan(candidates(CPU, QuerySettings("my:cpu / 2", "ratio"))[0], interval=15.0)
    guarded = plan(candidates(CPU, QuerySettings("my:cpu / 2", "ratio", guard="raw"))[0], interval=15.0)

    assert "no guard" in bare.reason
    assert RangeQuery("my:cpu / 2", 15, 30, 15) == bare.question(15.0, 30.0, resolution=15)
    assert RangeQuery("my:cpu / 2", 15, 75, 15) == bare.question(15.0, 30.0, resolution=15, beyond=40.0)
    assert RangeQuery("(my:cpu / 2) and on (node) (count_over_time(raw[30s]) > 0)", 15, 30, 15) == guarded.question(
        15.0, 30.0, resolution=15
    )


def test_an_unknown_scrape_interval_counts_as_a_minute_with_a_reason():
    """The default of Prometheus."""
    unknown = plan(RAW_CPU, interval=None)

    assert 60.0 == unknown.scrape_interval
    assert "assumed" in unknown.reason
    assert "measured" in plan(RAW_CPU, interval=60.0).reason


@given(
    since=st.floats(1e9, 2e9),
    span=st.floats(0.0, 4000.0),
    interval=st.integers(1, 400),
    resolution=st.integers(1, 60),
)
@settings(max_examples=100, deadline=None)
def test_steps_of_a_range_are_aligned_to_slots(since: float, span: float, interval: int, resolution: int):
    """A whole number of slots apart, at most the maximum cadence, within the span: later fetches have the same
    times."""
    question = plan(RAW_CPU, interval=float(interval)).question(since, since + span, resolution=resolution)

    step = resolution * math.ceil(max(min(interval, 120), 30) / resolution)  # a tenth of the average over 5 minutes
    if question is None:
        assert math.ceil(since / step) > math.floor((since + span) / step)
        return
    assert isinstance(question, RangeQuery)
    assert step == question.step
    assert question.start % step == question.end % step == 0
    assert since <= question.start <= question.end <= since + span
    assert question.start - since < step > since + span - question.end


def test_the_profile_has_each_label_once():
    """One query shows whether series exist and which labels name their nodes."""
    assert "count by (node, instance) (up)" == profile("up", labels=("node", "instance", "node"))


def test_a_few_values_are_matched_literally():
    """The dots of an address are escaped."""
    assert r'instance=~"a|b\\.c"' == str(among("instance", ["a", "b.c"]))
