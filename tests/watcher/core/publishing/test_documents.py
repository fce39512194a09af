"""Snapshots as bytes: for any samples, the documents are valid, finite, and agree with each other."""

import gzip
import json
import re
from collections import Counter
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.snapshots import END, WINDOWS, publish, small_fleet, snapshot_of, steady
from watcher.core.publishing.compression import Encoding, deflate, gzip_of
from watcher.core.publishing.documents import columns, encode, number_texts, select, to_wire
from watcher.core.publishing.selection import Selection, Shape
from watcher.core.publishing.wire import KepWatcherDocument, WatcherDocument
from watcher.model import METRIC_BY_KEY, MetricType, Operator, Unit

pytestmark = pytest.mark.slow

NUMBER = re.compile(rb'"value":([^,}\]]*)')
M5, M10, M15 = WINDOWS
moderate = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])

# Samples in the history are reviewed: finite, percentages from 0 to 100, others within the square root of the largest
# double.
percent = st.one_of(st.floats(0, 100), st.floats(0, 1e-6), st.just(0.0), st.just(100.0))
amount = st.one_of(st.floats(0, 1e9), st.floats(-1e-6, 1e-6), st.just(0.0), st.floats(1e14, 1e17))


def series(values: st.SearchStrategy[float]) -> st.SearchStrategy[list[float]]:
    """A few repeated values: hypothesis draws four numbers instead of sixty, and windows still differ."""
    few = st.lists(values, min_size=1, max_size=4)
    return st.builds(lambda some, slots: [some[slot % len(some)] for slot in range(slots)], few, st.integers(1, 61))


names = st.one_of(
    st.sampled_from(["a", "node-1", "n.example.com", 'q"uote', "back\\slash", "ü☃", "\u2028", "null", ""]),
    st.text(st.characters(codec="utf-8"), max_size=6),
)
# Each unit, and each way in which the selection treats types
KEYS = (
    "CPU",
    "Memory",
    "Storage",
    "NetworkTransmit",
    "NetworkTransmitDrop",
    "EnergyPackage",
    "EnergyHost",
    "PressureIO",
)
nodes = st.fixed_dictionaries(
    {}, optional={key: series(percent if METRIC_BY_KEY[key].unit is Unit.PERCENT else amount) for key in KEYS}
).filter(bool)
fleets = st.dictionaries(names, nodes, min_size=1, max_size=5)
selections = st.builds(
    Selection,
    st.sampled_from(WINDOWS),
    st.none() | st.lists(st.sampled_from(MetricType), min_size=1, unique=True).map(tuple),
    st.none() | st.lists(st.sampled_from(Operator), min_size=1, unique=True).map(tuple),
)


def parse(body: bytes) -> WatcherDocument:
    return msgspec.json.decode(body, type=WatcherDocument)


def node_of(samples: dict[str, list[float]], selection: Selection) -> list[tuple[str, str, str]]:
    """Type, operator and rollup of all metrics that a node with these samples has."""
    document = parse(encode(snapshot_of({"n": samples}), selection).text)
    return [(m.type, m.operator, m.rollup) for m in document.data.NodeMetricsMap["n"].metrics]


# --- for any samples -----------------------------------------------------------------------------------------------


@moderate
@given(fleets, selections)
def test_every_document_is_valid_and_agrees_with_the_model(fleet, selection):
    """The templates write what the model's types encode: the same keys, values and order."""
    text = encode(snapshot_of(fleet), selection).text
    document = parse(text)

    assert json.loads(text, parse_constant=pytest.fail) == json.loads(msgspec.json.encode(document))
    assert set(document.data.NodeMetricsMap) <= set(fleet)


@moderate
@given(fleets, selections)
def test_numbers_are_short_and_have_no_exponent(fleet, selection):
    """At most 15 significant digits, and at most the 18 digits that the Go client reads exactly."""
    for literal in NUMBER.findall(encode(snapshot_of(fleet), selection).text):
        assert re.fullmatch(rb"-?\d+(\.\d+)?", literal)
        digits = literal.lstrip(b"-").replace(b".", b"")
        assert len(digits) <= 18
        assert len(digits.strip(b"0")) <= 15
        assert abs(float(literal)) < 1e15


@moderate
@given(fleets, selections)
def test_a_node_has_each_metric_and_operator_at_most_once(fleet, selection):
    """The plug-ins use the first or the last of several, so there is only one."""
    for node in parse(encode(snapshot_of(fleet), selection).text).data.NodeMetricsMap.values():
        seen = Counter((metric.name, metric.operator) for metric in node.metrics)
        assert {1} == set(seen.values())


@moderate
@given(fleets, selections)
def test_latest_precedes_avg(fleet, selection):
    """TargetLoadPacking uses the last of the two."""
    for node in parse(encode(snapshot_of(fleet), selection).text).data.NodeMetricsMap.values():
        operators: dict[str, list[str]] = {}
        for metric in node.metrics:
            operators.setdefault(metric.name, []).append(metric.operator)
        for order in operators.values():
            assert order == sorted(order, key=[operator.value for operator in Operator].index)
            assert order.index("Latest") < order.index("AVG") if {"Latest", "AVG"} <= set(order) else True


@moderate
@given(fleets, selections)
def test_cpu_and_memory_never_come_without_avg_or_latest(fleet, selection):
    """LoadVariationRiskBalancing takes a CPU with only, for example, P95 as idle."""
    for node in parse(encode(snapshot_of(fleet), selection).text).data.NodeMetricsMap.values():
        for kind in ("CPU", "Memory"):
            operators = {metric.operator for metric in node.metrics if metric.type == kind}
            assert not operators or operators & {"AVG", "Latest"}


@moderate
@given(fleets, selections, st.sampled_from(Shape), st.sampled_from([Encoding.GZIP, Encoding.ZSTD]))
def test_compressed_bodies_decode_to_the_plain_body(fleet, selection, shape, encoding):
    """Both encodings and both shapes, made in any order."""
    document = encode(snapshot_of(fleet), selection)
    decode = gzip.decompress if encoding is Encoding.GZIP else zstandard.ZstdDecompressor().decompress

    other = Shape.KEP if shape is Shape.WATCHER else Shape.WATCHER
    for asked in (shape, other, shape):
        assert document.body(asked) == decode(document.body(asked, encoding))


@moderate
@given(fleets, selections)
def test_both_shapes_have_the_same_nodes(fleet, selection):
    """Only their place differs."""
    document = encode(snapshot_of(fleet), selection)
    kep = msgspec.json.decode(document.body(Shape.KEP), type=KepWatcherDocument)

    assert parse(document.body(Shape.WATCHER)).data.NodeMetricsMap == kep.data


@moderate
@given(fleets, selections, st.data())
def test_a_slice_has_only_the_requested_nodes(fleet, selection, data):
    """Rows that are not in the document are skipped; the order is that of the snapshot."""
    snapshot = snapshot_of(fleet)
    document = encode(snapshot, selection)
    whole = parse(document.text).data.NodeMetricsMap
    rows = data.draw(st.lists(st.integers(0, len(snapshot.nodes) - 1), max_size=6))
    part = parse(document.subset(rows, Shape.WATCHER)).data.NodeMetricsMap

    assert {snapshot.nodes[row] for row in rows} & set(whole) == set(part)
    assert all(whole[name] == node for name, node in part.items())
    assert list(part) == [name for name in snapshot.nodes if name in part]
    assert all(document.has(row) == (snapshot.nodes[row] in whole) for row in range(len(snapshot.nodes)))


@moderate
@given(fleets, selections)
def test_a_packed_document_gives_the_same_responses(fleet, selection):
    """It has no plain text any more."""
    plain, packed = (encode(snapshot_of(fleet), selection) for _ in range(2))
    packed.compress()
    packed.pack()

    rows = range(len(fleet))
    assert not packed.is_ready(Shape.WATCHER, Encoding.IDENTITY)
    assert [plain.subset([row], Shape.KEP) for row in rows] == [packed.subset([row], Shape.KEP) for row in rows]
    for shape in Shape:
        assert packed.body(shape) == plain.body(shape)
        for encoding in (Encoding.GZIP, Encoding.ZSTD):
            assert packed.body(shape, encoding) == plain.body(shape, encoding)
            assert packed.is_ready(shape, encoding)


@moderate
@given(fleets, selections)
def test_columns_have_the_values_of_the_document(fleet, selection):
    """The scorers' client must see the same load as the Go client."""
    snapshot = snapshot_of(fleet)
    document = parse(encode(snapshot, selection).text)
    described = columns(snapshot, selection)
    ours = {
        (node, metric.name, metric.operator, metric.rollup): metric.value
        for node, metrics in document.data.NodeMetricsMap.items()
        for metric in metrics.metrics
    }
    theirs = {
        (node, column.name, column.operator, column.window): value
        for column in described.columns
        for node, value in zip(described.nodes, column.values, strict=True)
        if value is not None
    }

    assert ours.keys() == theirs.keys()
    assert all(ours[key] == pytest.approx(theirs[key], rel=1e-14, abs=1e-10) for key in ours)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=20))
def test_to_wire_drops_only_values_that_cannot_be_written(given_values):
    """Not finite or not below 1e15: dropped. Others are rounded to 15 digits and 10 decimals."""
    wire = to_wire(np.array(given_values, dtype=np.float64))
    for before, after in zip(given_values, wire.tolist(), strict=True):
        if np.isnan(after):
            assert not abs(before) < 1e15 or abs(before) > 1e15 * (1 - 1e-15)
        else:
            assert abs(after - before) <= max(0.5e-10, abs(before) * 1e-14)
            assert str(after) != "-0.0"


@given(st.binary(max_size=2000), st.binary(max_size=2000), st.binary(max_size=2000))
def test_a_gzip_body_may_be_joined_from_parts(head, middle, tail):
    """So that unchanged parts are compressed once."""
    assert head + middle + tail == gzip.decompress(gzip_of(head, deflate(middle), tail))


# --- cases ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, b"0.0"),
        (-0.0, b"0.0"),
        (12.5, b"12.5"),
        (1 / 3, b"0.3333333333"),
        (100 / 3, b"33.3333333333"),
        (1e-10, b"0.0000000001"),
        (4e-11, b"0.0"),
        (0.000123, b"0.000123"),
        (123456789012345.6, b"123456789012346.0"),
        (999999999999999.0, b"999999999999999.0"),
        (0.1 + 0.2, b"0.3"),
    ],
)
def test_the_notation_of_numbers(value, text):
    """Written by hand, as a client reads them."""
    assert [text] == number_texts(to_wire(np.array([value])))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e15, -1e15, 1e300])
def test_values_that_cannot_be_written_are_left_out(value):
    """NaN in the values of one node makes the Go client discard the whole list."""
    assert np.isnan(to_wire(np.array([value]))).all()


@pytest.mark.parametrize(
    ("slots", "window", "expected"),
    [
        (60, M15, {"15m"}),
        (60, M10, {"10m"}),
        (60, M5, {"5m"}),
        (30, M15, {"15m"}),  # half of the samples is enough
        (29, M15, {"10m"}),
        (20, M15, {"10m"}),
        (19, M15, {"5m"}),
        (10, M15, {"5m"}),
        (10, M10, {"5m"}),
        (9, M15, {""}),  # Latest alone
        (1, M5, {""}),
    ],
)
def test_each_node_falls_back_to_shorter_windows_only(slots, window, expected):
    """The rollup names the window that the number covers."""
    assert expected == {rollup for _, _, rollup in node_of({"CPU": steady(50, slots=slots)}, Selection(window))}


def test_the_fallback_is_per_node_and_metric():
    """A new node does not shorten the windows of other nodes, nor a new metric those of its node."""
    document = parse(
        encode(
            snapshot_of({"old": {"CPU": steady(1), "Memory": steady(2, slots=1)}, "new": {"CPU": steady(3, slots=20)}}),
            Selection(M15),
        ).text
    )
    found = {
        (node, metric.type, metric.operator, metric.rollup)
        for node, metrics in document.data.NodeMetricsMap.items()
        for metric in metrics.metrics
    }

    assert found == {
        ("old", "CPU", "AVG", "15m"),
        ("old", "CPU", "STD", "15m"),
        ("old", "Memory", "Latest", ""),
        ("new", "CPU", "AVG", "10m"),
        ("new", "CPU", "STD", "10m"),
    }


@pytest.mark.parametrize(
    ("operators", "expected"),
    [
        (None, ["AVG", "STD"]),
        ((Operator.STD,), ["AVG", "STD"]),
        ((Operator.P95,), ["AVG", "P95"]),
        ((Operator.MAX, Operator.P50), ["AVG", "MAX", "P50"]),
        ((Operator.LATEST,), ["Latest"]),
        ((Operator.P95, Operator.LATEST), ["Latest", "P95"]),
        ((Operator.AVG, Operator.LATEST), ["Latest", "AVG"]),
    ],
)
def test_a_selection_without_avg_and_latest_gets_avg_for_cpu_and_memory(operators, expected):
    """If it has only another operator, the Go plug-ins take the load as a known 0."""
    selection = Selection(M15, None, operators)

    assert expected == [operator for _, operator, _ in node_of({"CPU": steady(50)}, selection)]
    assert expected == [operator for _, operator, _ in node_of({"Memory": steady(50)}, selection)]


def test_other_metrics_have_only_the_requested_operators():
    """The plug-ins do not score by storage or network."""
    selection = Selection(M15, None, (Operator.P95,))

    assert ["P95"] == [operator for _, operator, _ in node_of({"Storage": steady(50)}, selection)]


def test_values_are_those_of_the_window():
    """Computed by hand: ten minutes at 20, then five at 50."""
    samples = {"n": {"CPU": [20.0] * 40 + [50.0] * 20}}
    document = parse(encode(snapshot_of(samples), Selection(M15, None, tuple(Operator))).text)
    found = {metric.operator: metric.value for metric in document.data.NodeMetricsMap["n"].metrics}

    assert found == {
        "Latest": 50.0,
        "AVG": 30.0,
        "STD": pytest.approx(np.std([20.0] * 40 + [50.0] * 20), abs=1e-9),
        "MAX": 50.0,
        "P50": 20.0,
        "P90": 50.0,
        "P95": 50.0,
        "P99": 50.0,
    }


def test_a_silent_node_has_its_age():
    """Only this node has the key, which the Go client skips."""
    nodes = parse(encode(snapshot_of(small_fleet(), ages={"node-2": 120.25}), Selection(M15)).text).data.NodeMetricsMap

    assert 120.25 == nodes["node-2"].age_s
    assert msgspec.UNSET is nodes["node-1"].age_s
    assert END == nodes["node-1"].sampled


def test_nodes_without_a_selected_metric_are_left_out():
    """To the Go client, an empty node and an absent one are the same, but not to people."""
    snapshot = snapshot_of({"a": {"CPU": steady(1)}, "b": {"GPU": steady(1)}})

    assert ["b"] == list(parse(encode(snapshot, Selection(M15, (MetricType.GPU,))).text).data.NodeMetricsMap)
    assert encode(snapshot, Selection(M15, (MetricType.ENERGY,))).empty


def test_parts_have_the_unit_of_their_metric():
    """Percent is not a ratio here: CPU and Memory have values from 0 to 100."""
    described = columns(snapshot_of({"a": {"CPU": steady(50), "NetworkReceive": steady(1e6)}}), Selection(M15))

    assert {("CPU", Unit.PERCENT), ("Bandwidth", Unit.BYTES_PER_SECOND)} == {
        (c.type, c.unit) for c in described.columns
    }


def test_documents_of_many_nodes_are_complete():
    """They are written in chunks of a thousand nodes. No node is lost or damaged at a boundary, whether all nodes of a
    chunk have each metric, some lack one, or none is in the document."""
    fleet = {
        f"n{row:04}": {"CPU": steady(row % 90)} | ({} if 1500 <= row < 3500 else {"Memory": steady(row % 80)})
        for row in range(3700)
    }
    memory = encode(snapshot_of(fleet), Selection(M15, (MetricType.MEMORY,)))
    nodes = parse(memory.body(Shape.WATCHER)).data.NodeMetricsMap
    assert [name for name, metrics in fleet.items() if "Memory" in metrics] == list(nodes)
    for row in (0, 999, 1000, 1499, 3500, 3699):
        (alone,) = parse(memory.subset([row], Shape.WATCHER)).data.NodeMetricsMap.values()
        assert alone == nodes[f"n{row:04}"]
        assert row % 80 == pytest.approx(alone.metrics[0].value, abs=5)
    both = parse(encode(snapshot_of(fleet), Selection(M15)).body(Shape.WATCHER)).data.NodeMetricsMap
    assert {name: 2 * len(metrics) for name, metrics in fleet.items()} == {
        name: len(node.metrics) for name, node in both.items()
    }


def test_windows_of_a_very_large_fleet_are_packed_except_the_longest():
    """Three plain lists of 50,000 nodes are 250 MB, and a fleet has two snapshots at a time."""
    published = publish(snapshot_of(small_fleet()))
    published.encode_default(plain_bytes=0)
    plain = [published.document(Selection(window)).is_ready(Shape.WATCHER, Encoding.IDENTITY) for window in WINDOWS]
    assert plain == [False, False, True]


def test_default_documents_are_prepared_and_others_are_cached():
    """The tick writes the default documents of all windows; other requested documents are written once."""
    published = publish(snapshot_of(small_fleet()))
    other = Selection(M15, (MetricType.CPU,))

    assert all(published.ready_document(Selection(window)) for window in WINDOWS)
    assert published.ready_document(other) is None
    assert published.document(other) is published.ready_document(other)


def test_the_age_grows_with_the_monotonic_clock():
    """A change of the wall clock does not change it."""
    published = publish(snapshot_of(small_fleet()), monotonic=1000.0, age_s=5.0)

    assert 5.0 == published.age(1000.0)
    assert 65.0 == published.age(1060.0)
    assert 0.0 == published.age(0.0)


def test_percentiles_are_computed_only_on_request():
    """They cost more than all other values; the default documents do not need them."""
    snapshot = snapshot_of(small_fleet())
    asked: list[tuple[str, Operator]] = []
    original = snapshot.on_demand
    assert original is not None

    def counted(name: str, operator: Operator):
        asked.append((name, operator))
        return original(name, operator)

    spied = replace(snapshot, on_demand=counted)
    select(spied, Selection(M15))
    assert [] == asked
    select(spied, Selection(M15, (MetricType.CPU,), (Operator.P95,)))
    assert [("instance:node_cpu:ratio", Operator.P95)] == asked
