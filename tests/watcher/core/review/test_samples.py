"""The effect of the review on samples: combine, drop, clamp, report; each change has a finding."""

import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watcher.core.review import faults
from watcher.core.review import samples as review_samples
from watcher.core.review.faults import MetricMotion
from watcher.core.review.samples import Reviewed
from watcher.core.review.settings import ReviewSettings
from watcher.model import (
    METRIC_BY_KEY,
    METRICS,
    Cells,
    Combine,
    Finding,
    FindingKind,
    Metric,
    MetricWindows,
    Provenance,
    Remedy,
    SeriesBatch,
    Unit,
)

NOW = 1_700_000_000.0
LIMITS = ReviewSettings()
OBSERVE = ReviewSettings(mode="observe")
CPU, MEMORY, STORAGE, GPU = (METRIC_BY_KEY[key] for key in ("CPU", "Memory", "Storage", "GPU"))
TRANSMIT, RECEIVE, ENERGY = (METRIC_BY_KEY[key] for key in ("NetworkTransmit", "NetworkReceive", "EnergyPackage"))
NAN, INF = math.nan, math.inf

Sample = tuple[str, float, float]  # node, time, value


def batch_of(metric: Metric, *series: tuple[str, list[tuple[float, float]]]) -> SeriesBatch:
    """Series as (node, [(time, value), …])."""
    rows = [(k, time, value) for k, (_, samples) in enumerate(series) for time, value in samples]
    return SeriesBatch(
        metric,
        tuple(node for node, _ in series),
        np.array([row[0] for row in rows], dtype=np.int64),
        np.array([row[1] for row in rows], dtype=np.float64),
        np.array([row[2] for row in rows], dtype=np.float64),
    )


def cells_of(*samples: Sample, resolution: int = 15) -> Cells:
    names = tuple(dict.fromkeys(node for node, _, _ in samples))
    times = np.array([time for _, time, _ in samples], dtype=np.float64)
    return Cells(
        names,
        np.array([names.index(node) for node, _, _ in samples], dtype=np.int64),
        np.floor(times / resolution).astype(np.int64),
        times,
        np.array([value for _, _, value in samples], dtype=np.float64),
    )


def as_samples(cells: Cells) -> list[Sample]:
    """Sorted, so that batches compare equal in any order."""
    return sorted(
        (cells.names[node], float(time), float(value))
        for node, time, value in zip(cells.node, cells.time, cells.value, strict=True)
    )


def combined(batch: SeriesBatch, *, limits: ReviewSettings = LIMITS) -> list[Sample]:
    cells, _ = review_samples.combine(batch, resolution=15, limits=limits)
    assert cells.slot.tolist() == [math.floor(time / 15) for time in cells.time]
    return as_samples(cells)


def kinds(findings) -> list[tuple[FindingKind, str, Remedy]]:
    return [(finding.kind, finding.node, finding.remedy) for finding in findings]


def cleaned(metric: Metric, *samples: Sample, limits: ReviewSettings = LIMITS) -> Reviewed:
    return review_samples.clean(metric, cells_of(*samples), now=NOW, limits=limits)


# --- combine ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (CPU, (NOW + 4, 30.0)),
        (TRANSMIT, (NOW + 4, 100.0)),
        (STORAGE, (NOW + 4, 50.0)),
        (GPU, (NOW + 4, 100.0 / 3)),
    ],
    ids=["newest, then maximum", "sum", "maximum", "mean"],
)
def test_several_series_of_a_node_become_one_by_the_rule_of_the_metric(metric, expected):
    """CPU: the newest sample, and of equal times the largest; others: sum, maximum or mean."""
    start = 15 * math.floor(NOW / 15)
    shift = start - NOW
    batch = batch_of(
        metric,
        ("a", [(NOW + shift + 1, 50.0)]),
        ("a", [(NOW + shift + 4, 30.0)]),
        ("a", [(NOW + shift + 4, 20.0)]),
    )
    time, value = expected
    assert combined(batch) == [("a", time + shift, pytest.approx(value))]


def test_the_last_sample_of_a_slot_wins_within_a_series():
    """Two samples of one series in one slot count as the later one, without a finding."""
    cells, findings = review_samples.combine(
        batch_of(TRANSMIT, ("a", [(30.0, 1.0), (44.0, 2.0), (45.0, 3.0)])), resolution=15, limits=LIMITS
    )
    assert as_samples(cells) == [("a", 44.0, 2.0), ("a", 45.0, 3.0)]
    assert findings == ()


def test_a_duplicate_series_of_a_node_is_a_finding_if_the_metric_has_one_series():
    """Two scrapers of one node: the newest sample counts, with a finding. Two network cards are normal."""
    twice = [("a", [(30.0, 1.0)]), ("a", [(31.0, 2.0)]), ("b", [(30.0, 7.0)])]
    _, findings = review_samples.combine(batch_of(CPU, *twice), resolution=15, limits=LIMITS)
    assert kinds(findings) == [(FindingKind.DUPLICATE_SERIES, "a", Remedy.COMBINED)]
    _, findings = review_samples.combine(batch_of(TRANSMIT, *twice), resolution=15, limits=LIMITS)
    assert findings == ()


@pytest.mark.parametrize(
    ("metric", "devices", "sharers", "expected", "found"),
    [
        (TRANSMIT, ("eth0", "eth1", "eth0"), (), 30.0 + 20.0, True),
        (TRANSMIT, ("", "", ""), (), 30.0, True),
        (TRANSMIT, ("eth0", "eth1", "eth2"), (), 60.0, False),
        (TRANSMIT, (), (), 60.0, False),
        (GPU, ("g0", "g1", "g0"), ("", "", ""), 25.0, True),
        (GPU, ("g0", "g1", "g0"), ("a", "", "b"), 25.0, False),
        (GPU, ("g0", "g1", "g0"), ("a", "", "a"), 25.0, True),
        (GPU, ("g0", "g1", "g2"), ("a", "a", "a"), 20.0, False),
        (GPU, ("g0", "g1", "g0"), ("one\1a", "one\1", "two\1b"), 25.0, True),
        (GPU, ("g0", "g1", "g0"), ("one\1a", "one\1", "one\1b"), 25.0, False),
        (TRANSMIT, ("eth0", "eth1", ""), (), 10.0 + 20.0, True),
        (TRANSMIT, ("eth0", "", "eth2"), (), 10.0 + 30.0, True),
        (TRANSMIT, ("", "eth1", ""), (), 30.0, True),
        (GPU, ("g0", "", "g2"), ("", "", ""), 20.0, True),
        (GPU, ("g0\0\0", "g0\0\0m1", "g0\0\0m2"), ("", "", ""), 25.0, True),
        (GPU, ("g0\0\0", "g1\0\0m1", "g1\0\0m2"), ("", "", ""), 20.0, False),
        (GPU, ("g0\0000\0", "g1\0001\0", "\0000\0"), ("", "", ""), 25.0, True),
        (GPU, ("g0\0000\0", "g0\0001\0", "\0001\0"), ("", "", ""), 30.0, True),
        (GPU, ("g0\0000\0", "\0001\0", "\0002\0"), ("", "", ""), 20.0, False),
        (GPU, ("g0\0\0", "g1\0\0", "\0001\0"), ("", "", ""), 15.0, True),
        (ENERGY, ("0\0\0\0\0", "\0\0package\0/a\0\0", "\0\0package\0/b\0\0"), (), 50.0, True),
        (ENERGY, ("0\0idle\0\0\0\0", "0\0dynamic\0\0\0\0", "1\0idle\0\0\0\0"), (), 60.0, False),
        (ENERGY, ("0\0idle\0\0\0\0", "\0\0package\0/a\0\0", "0\0dynamic\0\0\0\0"), (), 40.0, True),
    ],
)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_the_series_of_one_device_count_once(metric, devices, sharers, expected, found, order):
    """The largest, then the sum or mean over devices; a finding, unless several pods share the device. A series without
    a label of its device is not added to the others."""
    values = (10.0, 20.0, 30.0)
    plain = batch_of(metric, *(("a", [(30.0 + k, values[k])]) for k in order))
    batch = replace(
        plain,
        devices=tuple(devices[k] for k in order if devices),
        sharers=tuple(sharers[k] for k in order if sharers),
    )
    cells, findings = review_samples.combine(batch, resolution=15, limits=LIMITS)
    assert [(node, value) for node, _, value in as_samples(cells)] == [("a", expected)]
    assert set(kinds(findings)) == ({(FindingKind.DUPLICATE_SERIES, "a", Remedy.COMBINED)} if found else set())


@pytest.mark.parametrize(
    ("key", "labels", "device"),
    [
        ("NetworkReceive", {"device": "eth0", "job": "a", "instance": "x"}, "eth0"),
        ("NetworkReceive", {"interface": "eth0", "agent": "a"}, "eth0"),
        ("NetworkReceive", {"job": "a"}, ""),
        ("GPU", {"UUID": "GPU-1", "gpu": "0", "pod": "x"}, "GPU-1\0000\0"),
        ("GPU", {"gpu": "0", "GPU_I_ID": "7"}, "\0000\0007"),
        ("EnergyPackage", {"package": "0", "mode": "idle", "source": "rapl"}, "0\0idle\0\0\0\0"),
        ("EnergyPackage", {"zone": "package", "path": "/a", "node_name": "x"}, "\0\0package\0/a\0\0"),
        ("EnergyHost", {"job": "a"}, ""),
    ],
)
def test_a_device_is_identified_by_the_labels_of_its_metric(key, labels, device):
    """Labels of the scrape, the replica and the pod do not count."""
    assert METRIC_BY_KEY[key].device_of(labels) == device


@pytest.mark.parametrize("bad", [NAN, INF, 1e15, -1.0])
def test_one_invalid_device_does_not_affect_the_others(bad):
    """If one of three devices is invalid, the sum is that of the other two, with a finding."""
    batch = batch_of(TRANSMIT, ("a", [(30.0, 5.0)]), ("a", [(30.0, bad)]), ("a", [(30.0, 7.0)]))
    cells, findings = review_samples.combine(batch, resolution=15, limits=LIMITS)
    assert as_samples(cells) == [("a", 30.0, 12.0)]
    assert [(f.node, f.metric, f.remedy) for f in findings] == [("a", TRANSMIT.name, Remedy.DROPPED)]


@pytest.mark.parametrize("values", [(NAN, NAN), (INF, -INF), (-1.0, NAN), (-5.0, -7.0), (1e300, -1e300), (1e15, -1e15)])
@pytest.mark.parametrize("metric", [CPU, TRANSMIT, STORAGE, GPU])
def test_invalid_samples_never_combine_into_a_valid_one(metric, values):
    """For any invalid series, the result is invalid, and clean drops it with a finding."""
    batch = batch_of(metric, *(("a", [(30.0, value * 100)]) for value in values))
    cells, _ = review_samples.combine(batch, resolution=15, limits=LIMITS)
    assert len(cells.value) == 1
    outcome = review_samples.clean(metric, cells, now=NOW, limits=LIMITS)
    assert len(outcome.cells.value) == 0
    assert len(outcome.findings) == 1


def test_observe_reports_an_impossible_device_and_keeps_it():
    """In observe mode, the negative device stays in the sum, and the finding states that nothing was changed."""
    batch = batch_of(TRANSMIT, ("a", [(30.0, 5.0)]), ("a", [(30.0, -1.0)]))
    cells, findings = review_samples.combine(batch, resolution=15, limits=OBSERVE)
    assert as_samples(cells) == [("a", 30.0, 4.0)]
    assert kinds(findings) == [(FindingKind.COUNTER_RESET, "a", Remedy.REPORTED)]


@pytest.mark.parametrize("name", ["", "x" * 254, "a\x00b", "tab\t", "line\nbreak", "\ud800", "\x85", "\u2028"])
def test_series_with_an_invalid_node_name_are_dropped(name):
    """Empty, too long and unprintable names, with one finding that has them escaped; other series stay."""
    batch = batch_of(CPU, ("good", [(30.0, 1.0)]), (name, [(30.0, 2.0)]), ("other", [(30.0, 3.0)]))
    cells, findings = review_samples.combine(batch, resolution=15, limits=LIMITS)
    assert as_samples(cells) == [("good", 30.0, 1.0), ("other", 30.0, 3.0)]
    assert kinds(findings) == [(FindingKind.UNKNOWN_NODE, "", Remedy.DROPPED)]
    assert findings[0].reason.isascii()
    assert findings[0].reason.isprintable()
    assert cells.names == ("good", "other")


def test_names_of_253_characters_and_of_other_scripts_stay():
    """Printable names that are not too long are valid."""
    names = ("x" * 253, "узел-1", "node.with.dots")
    cells, findings = review_samples.combine(
        batch_of(CPU, *((name, [(30.0, 1.0)]) for name in names)), resolution=15, limits=LIMITS
    )
    assert (cells.names, findings) == (names, ())


@pytest.mark.parametrize("time", [NAN, INF, -1.0, 1.7e12])
def test_a_sample_with_an_invalid_time_is_dropped(time):
    """Milliseconds, negative times and NaN have no slot."""
    cells, findings = review_samples.combine(
        batch_of(CPU, ("a", [(30.0, 1.0), (time, 2.0)])), resolution=15, limits=LIMITS
    )
    assert as_samples(cells) == [("a", 30.0, 1.0)]
    assert kinds(findings) == [(FindingKind.NON_FINITE, "a", Remedy.DROPPED)]
    assert findings[0].time == 30.0


def test_an_empty_batch_is_valid():
    """Without series, or with series without samples."""
    for batch in (batch_of(CPU), batch_of(CPU, ("a", [])), batch_of(CPU, ("a", []), ("a", []))):
        cells, findings = review_samples.combine(batch, resolution=15, limits=LIMITS)
        assert len(cells.value) == 0
        assert findings == ()


VALUES = st.one_of(
    st.floats(0, 100, width=16),
    st.sampled_from([NAN, INF, -INF, -1.0, -7.0, 103.0, 110.0, 1e15, 1e16, -1e16, 1e308]),
)
SERIES = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.dictionaries(st.integers(0, 60).map(lambda k: 600.0 + k), VALUES, max_size=5),
    ),
    max_size=6,
).map(lambda series: [(node, sorted(samples.items())) for node, samples in series])


def slow_combine(batch: SeriesBatch) -> list[Sample]:
    """The same rules with dictionaries, one sample after another."""
    metric = batch.metric

    def bad(value: float) -> bool:
        if not abs(value) < 1e15:
            return True
        return not -5 <= value <= 105 if metric.unit is Unit.PERCENT else value < 0

    groups: dict[tuple[str, int], dict[int, list[tuple[float, float]]]] = {}
    for k, time, value in zip(batch.series, batch.time, batch.value, strict=True):
        slot = math.floor(time / 15)
        groups.setdefault((batch.nodes[k], slot), {}).setdefault(int(k), []).append((float(time), float(value)))
    out = []
    for (node, _), by_series in groups.items():
        good = {k: [s for s in samples if not bad(s[1])] for k, samples in by_series.items()}
        last = sorted(samples[-1] for samples in good.values() if samples)
        if not last:
            out.append((node, max(s[0] for samples in by_series.values() for s in samples), NAN))
            continue
        values = [value for _, value in last]
        value = {
            Combine.NEWEST_MAX: last[-1][1],
            Combine.SUM: sum(values),
            Combine.MAX: max(values),
            Combine.MEAN: sum(values) / len(values),
        }[metric.combine]
        out.append((node, last[-1][0], value))
    return sorted(out)


@pytest.mark.parametrize("metric", [CPU, TRANSMIT, STORAGE, GPU], ids=lambda metric: metric.key)
@settings(max_examples=60, deadline=None)
@given(series=SERIES, order=st.randoms(use_true_random=False))
def test_combine_equals_a_slow_reference_in_any_order_of_samples(metric, series, order):
    """Per node and slot the same as with dictionaries."""
    batch = batch_of(metric, *series)
    rows = list(range(len(batch.series)))
    order.shuffle(rows)
    shuffled = SeriesBatch(metric, batch.nodes, batch.series[rows], batch.time[rows], batch.value[rows])
    expected = [sample for sample in slow_combine(batch) if not math.isnan(sample[2])]
    for candidate in (batch, shuffled):
        cells, _ = review_samples.combine(candidate, resolution=15, limits=LIMITS)
        kept = review_samples.clean(metric, cells, now=NOW, limits=LIMITS)
        top = 100.0 if metric.unit is Unit.PERCENT else INF
        clamped = [(node, time, pytest.approx(min(top, max(0.0, value)))) for node, time, value in expected]
        assert as_samples(kept.cells) == clamped
        assert len(kept.cells.value) + len(kept.bad.value) == len(slow_combine(batch))


# --- clean -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "value", "kept", "kind", "remedy"),
    [
        (CPU, 0.0, 0.0, None, None),
        (CPU, 100.0, 100.0, None, None),
        (CPU, 105.0, 100.0, FindingKind.OUT_OF_RANGE, Remedy.CLAMPED),
        (CPU, 100.0000001, 100.0, FindingKind.OUT_OF_RANGE, Remedy.CLAMPED),
        (CPU, -5.0, 0.0, FindingKind.OUT_OF_RANGE, Remedy.CLAMPED),
        (CPU, 105.1, None, FindingKind.OUT_OF_RANGE, Remedy.DROPPED),
        (CPU, -5.1, None, FindingKind.OUT_OF_RANGE, Remedy.DROPPED),
        (CPU, NAN, None, FindingKind.NON_FINITE, Remedy.DROPPED),
        (CPU, -INF, None, FindingKind.NON_FINITE, Remedy.DROPPED),
        (TRANSMIT, 0.0, 0.0, None, None),
        (TRANSMIT, 999_999_999_999_999.0, 999_999_999_999_999.0, None, None),
        (TRANSMIT, 1e15, None, FindingKind.OUT_OF_RANGE, Remedy.DROPPED),
        (TRANSMIT, -1e15, None, FindingKind.OUT_OF_RANGE, Remedy.DROPPED),
        (TRANSMIT, -0.001, None, FindingKind.COUNTER_RESET, Remedy.DROPPED),
        (ENERGY, -3.0, None, FindingKind.COUNTER_RESET, Remedy.DROPPED),
    ],
)
def test_impossible_values_are_dropped_and_slightly_wrong_ones_clamped(metric, value, kept, kind, remedy):
    """Each changed or dropped value has a finding."""
    outcome = cleaned(metric, ("a", NOW, value))
    assert outcome.cells.value.tolist() == ([] if kept is None else [kept])
    assert len(outcome.bad.value) == (1 if kept is None else 0)
    assert kinds(outcome.findings) == ([] if kind is None else [(kind, "a", remedy)])


def test_a_sample_from_the_future_is_dropped_and_not_carried():
    """30 s ahead are tolerated; later ones are dropped in both modes, because their slot would move the window."""
    for limits in (LIMITS, OBSERVE):
        outcome = cleaned(CPU, ("a", NOW + 30.0, 1.0), ("a", NOW + 31.0, 2.0), ("a", NOW + 46.0, NAN), limits=limits)
        assert outcome.cells.value.tolist() == [1.0]
        assert len(outcome.bad.value) == 0
        assert kinds(outcome.findings) == [(FindingKind.FUTURE_SAMPLE, "a", Remedy.DROPPED)]
        assert outcome.findings[0].time == NOW


def test_observe_changes_only_values_that_would_break_the_service():
    """Values that are not finite or too large for the wire are dropped; others are reported and kept."""
    outcome = cleaned(CPU, *((f"n{i}", NOW, v) for i, v in enumerate([-50.0, 103.0, 300.0, NAN, 1e15])), limits=OBSERVE)
    assert outcome.cells.value.tolist() == [-50.0, 103.0, 300.0]
    assert {(f.node, f.remedy) for f in outcome.findings} == {
        ("n0", Remedy.REPORTED),
        ("n1", Remedy.REPORTED),
        ("n2", Remedy.REPORTED),
        ("n3", Remedy.DROPPED),
        ("n4", Remedy.DROPPED),
    }


def test_a_finding_has_node_metric_time_and_a_reason_with_the_value():
    """The newest invalid sample of a node stands for all of them, with their number."""
    outcome = cleaned(CPU, ("a", NOW - 30, 400.0), ("a", NOW - 15, 300.0), ("b", NOW, 7.0))
    (finding,) = outcome.findings
    assert (finding.node, finding.metric, finding.time) == ("a", CPU.name, NOW - 15)
    assert "300" in finding.reason
    assert "2 samples" in finding.reason


def test_a_problem_of_more_than_fifty_nodes_is_one_finding_with_their_number():
    """51 nodes: one finding with the first three names; 50 nodes: fifty findings."""
    for count, expected in ((50, 50), (51, 1)):
        outcome = cleaned(CPU, *((f"n{i:03}", NOW, 300.0) for i in reversed(range(count))))
        assert len(outcome.findings) == expected
    assert outcome.findings[0].node == ""
    assert "51 nodes (n000, n001, n002, …)" in outcome.findings[0].reason


ANY_VALUE = st.one_of(st.floats(-20, 120), st.floats(allow_nan=True, allow_infinity=True))
ANY_CELLS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.floats(NOW - 600, NOW + 60, width=64), ANY_VALUE), max_size=12
).map(lambda samples: cells_of(*samples))


@pytest.mark.parametrize("metric", [CPU, TRANSMIT], ids=lambda metric: metric.key)
@settings(max_examples=100, deadline=None)
@given(cells=ANY_CELLS)
def test_cleaning_never_lowers_a_load_and_keeps_no_impossible_value(metric, cells):
    """Each kept value is finite, small enough for the wire and not below the original, except for a clamp to 100."""
    outcome = review_samples.clean(metric, cells, now=NOW, limits=LIMITS)
    original: dict[tuple, list[float]] = defaultdict(list)
    for node, slot, time, value in zip(cells.node, cells.slot, cells.time, cells.value, strict=True):
        original[node, slot, time].append(value)
    kept = outcome.cells
    for node, slot, time, value in zip(kept.node, kept.slot, kept.time, kept.value, strict=True):
        assert math.isfinite(value)
        assert 0.0 <= value < 1e15
        candidates = original[node, slot, time]
        assert any(value == v or (value > v) or (value == 100.0 and 100.0 < v <= 105.0) for v in candidates)
        assert time <= NOW + LIMITS.max_ahead_s


@pytest.mark.parametrize("metric", [CPU, TRANSMIT], ids=lambda metric: metric.key)
@pytest.mark.parametrize("limits", [LIMITS, OBSERVE], ids=lambda limits: limits.mode)
@settings(max_examples=60, deadline=None)
@given(cells=ANY_CELLS)
def test_cleaning_is_idempotent(metric, limits, cells):
    """Nothing more is dropped, and in enforce mode there are no more findings."""
    once = review_samples.clean(metric, cells, now=NOW, limits=limits)
    twice = review_samples.clean(metric, once.cells, now=NOW, limits=limits)
    assert as_samples(twice.cells) == as_samples(once.cells)
    assert len(twice.bad.value) == 0
    if limits.enforced:
        assert twice.findings == ()


@settings(max_examples=60, deadline=None)
@given(cells=ANY_CELLS)
def test_each_dropped_or_changed_value_has_a_finding_of_its_node(cells):
    """The nodes with changed samples are exactly those with findings."""
    outcome = review_samples.clean(CPU, cells, now=NOW, limits=LIMITS)
    before = {name: [s[1:] for s in as_samples(cells) if s[0] == name] for name in cells.names}
    after = {name: [s[1:] for s in as_samples(outcome.cells) if s[0] == name] for name in cells.names}
    changed = {name for name in cells.names if before[name] != after[name]}
    assert {finding.node for finding in outcome.findings} == changed


def test_a_carried_slot_has_a_finding():
    """It has the value that is used instead."""
    (finding,) = faults.carry_findings(CPU, cells_of(("a", NOW, 42.0)))
    assert (finding.kind, finding.node, finding.remedy) == (FindingKind.MISSING, "a", Remedy.CARRIED)
    assert "42" in finding.reason


# --- jumps -----------------------------------------------------------------------------------------------------------


def spread_of(median: float, mad: float, count: int, asked: list[str] | None = None):
    def spread(names):
        if asked is not None:
            asked.extend(names)
        n = len(names)
        return np.full(n, median), np.full(n, mad), np.full(n, count)

    return spread


@pytest.mark.parametrize(
    ("metric", "value", "said"),
    [(CPU, 95.26, "95.3 %"), (TRANSMIT, 5.25e8, "525 MB/s"), (TRANSMIT, 1.5e10, "15 GB/s"), (ENERGY, 800.0, "800 W")],
)
def test_a_jump_is_reported_with_its_unit(metric, value, said):
    cells = cells_of(("a", NOW, value))
    (found,) = faults.jumps(metric, cells, previous=np.array([1e-3]), spread=spread_of(0.0, 0.0, 20), limits=LIMITS)
    assert f"jumped to {said}, far from its usual values; the sample is used" == found.reason


@pytest.mark.parametrize(
    ("metric", "value", "previous", "spread", "jumped"),
    [
        (CPU, 95.0, 20.0, (20.0, 1.0, 20), True),
        (CPU, 2.0, 80.0, (80.0, 1.0, 20), True),
        (CPU, 39.0, 20.0, (20.0, 0.0, 20), False),  # under the floor of 20 points
        (CPU, 60.0, 20.0, (20.0, 10.0, 20), False),  # a node with large changes: 6 x 1.4826 x 10 > 40
        (CPU, 60.0, 20.0, (55.0, 1.0, 20), False),  # back to the usual value
        (CPU, 60.0, 20.0, (55.0, 0.0, 20), False),  # and within the minimum of a jump
        (CPU, 95.0, 20.0, (20.0, 1.0, 7), False),  # too few samples for its spread
        (CPU, 95.0, NAN, (NAN, NAN, 0), False),  # a new node
        (TRANSMIT, 5e8, 1e6, (1e6, 1e5, 20), True),
        (TRANSMIT, 5e5, 1e2, (1e2, 1e1, 20), False),  # a thousand times almost nothing is almost nothing
        (TRANSMIT, 3e8, 1e8, (1e8, 1e6, 20), False),  # three times the value is normal traffic
        (ENERGY, 800.0, 100.0, (100.0, 5.0, 20), True),
    ],
)
def test_a_jump_exceeds_the_usual_spread_of_the_node(metric, value, previous, spread, jumped):
    """The median and MAD of the node decide, above a minimum; the finding only reports."""
    cells = cells_of(("a", NOW, value))
    findings = faults.jumps(metric, cells, previous=np.array([previous]), spread=spread_of(*spread), limits=LIMITS)
    assert kinds(findings) == ([(FindingKind.JUMP, "a", Remedy.REPORTED)] if jumped else [])


def test_the_median_is_computed_only_for_candidates():
    """Once for each node that changed by more than the minimum, and not at all without such a node."""
    asked: list[str] = []
    cells = cells_of(("a", NOW - 15, 90.0), ("a", NOW, 91.0), ("b", NOW, 50.0))
    faults.jumps(CPU, cells, previous=np.array([10.0, 49.0]), spread=spread_of(10.0, 1.0, 9, asked), limits=LIMITS)
    assert asked == ["a"]


def test_an_upward_jump_is_kept():
    """clean keeps the reported value: it may be true, and dropping it would lower the load."""
    outcome = cleaned(CPU, ("a", NOW - 15, 5.0), ("a", NOW, 99.0))
    assert outcome.cells.value.tolist() == [5.0, 99.0]


# --- clocks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "newest", "words"),
    [
        (None, NOW - 10, None),
        (10.0, NOW, None),
        (10.1, NOW, "10.1 s ahead of the clock of load-watcher"),
        (-3600.0, NOW, "3600.0 s behind the clock of load-watcher"),
        (None, NOW + 5, None),
        (0.0, NOW + 5.5, "5.5 s ahead"),
        (None, -INF, None),
        (None, NAN, None),
    ],
)
def test_a_difference_of_the_clocks_is_reported(offset, newest, words):
    """From the clock of the source, or because samples have times in the future."""
    finding = faults.skew(offset, newest=newest, now=NOW, limits=LIMITS)
    if words is None:
        assert finding is None
    else:
        assert finding is not None
        assert finding.kind is FindingKind.CLOCK_SKEW
        assert words in finding.reason


# --- frozen and silent nodes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([7, 7, 7, 7, 7], True),
        ([7, 7, 7, 7], False),
        ([7, 7, 7, 7, 8], False),
        ([7, 7, 7, 7, 7, 8], True),
        ([NAN, 7, NAN, NAN, 7, 7, 7, NAN, 7], True),
        ([8, 7, 7, 7, 7, 7], False),
        ([0, 0, 0, 0, 0], True),
        ([NAN] * 6, False),
        ([], False),
    ],
)
def test_five_equal_newest_samples_are_frozen(column, expected):
    """Gaps are skipped, a sixth sample does not matter, four are too few."""
    values = np.array(column, dtype=np.float64).reshape(len(column), 1)
    assert faults.unchanged(values).tolist() == [expected]


@settings(max_examples=60, deadline=None)
@given(
    values=hnp.arrays(
        np.float64,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=9),
        elements=st.sampled_from([1.0, 1.0, 1.0, 2.0, NAN]),
    )
)
def test_the_frozen_nodes_equal_those_of_a_plain_loop(values):
    """Per node: the newest five samples, all equal."""
    newest = [[v for v in column if not math.isnan(v)][:5] for column in values.T]
    expected = [len(samples) == 5 and len(set(samples)) == 1 for samples in newest]
    assert faults.unchanged(values).tolist() == expected


def motion(metric: Metric, *, still: bool, known: bool = True, latest: float = 1.0) -> MetricMotion:
    return MetricMotion(metric, np.array([still]), np.array([known]), np.array([latest]))


@pytest.mark.parametrize(
    ("motions", "expected"),
    [
        ([motion(CPU, still=True), motion(MEMORY, still=True)], True),
        ([motion(CPU, still=True), motion(MEMORY, still=False)], False),
        ([motion(CPU, still=True), motion(MEMORY, still=False, known=False)], True),
        ([motion(CPU, still=False, known=False)], False),
        ([motion(STORAGE, still=True)], False),
        ([motion(CPU, still=False), motion(STORAGE, still=True)], False),
        ([motion(CPU, still=True), motion(STORAGE, still=False)], True),
        ([motion(TRANSMIT, still=True, latest=0.0)], False),
        ([motion(TRANSMIT, still=True, latest=5.0)], True),
        ([motion(CPU, still=True), motion(TRANSMIT, still=True, latest=0.0)], True),
        ([motion(CPU, still=False), motion(TRANSMIT, still=True, latest=0.0)], False),
        ([motion(CPU, still=True, latest=0.0)], True),
        ([], False),
    ],
)
def test_a_node_is_frozen_only_if_all_its_varying_metrics_are_constant(motions, expected):
    """One varying metric is enough; an idle network card at exactly 0 does not count."""
    assert faults.frozen_nodes(motions, nodes=1).tolist() == [expected]


@pytest.mark.parametrize(
    ("age", "cadence", "expected"),
    [
        (90.0, 15.0, False),
        (91.0, 15.0, True),
        (179.0, 60.0, False),
        (181.0, 60.0, True),
        (91.0, NAN, True),
        (NAN, 15.0, False),
    ],
)
def test_a_node_is_silent_after_three_cadences_and_at_least_90_seconds(age, cadence, expected):
    """max(3 cadences, 90 s); a node without any sample is absent, not silent."""
    assert faults.silent_nodes(now=NOW, sampled=np.array([NOW - age]), cadence=np.array([cadence])).tolist() == [
        expected
    ]


def test_a_silent_node_has_a_finding_with_the_duration():
    """One per node and metric; nothing is changed."""
    (finding,) = faults.gone_silent(
        CPU, now=NOW, nodes=("a", "b"), sampled=np.array([NOW, NOW - 200.0]), which=np.array([False, True])
    )
    assert (finding.kind, finding.node, finding.metric, finding.remedy) == (
        FindingKind.STALE,
        "b",
        CPU.name,
        Remedy.REPORTED,
    )
    assert "200 s" in finding.reason


def short_of(*full: int) -> tuple[Finding, ...]:
    """short_coverage of nodes by their number of samples of 60: 60 have both windows, 12 the shorter one, 1 and 0
    none."""
    count = np.array([[min(n, 20) for n in full], list(full)])
    average = np.where(count >= np.array([[10], [30]]), 1.0, NAN)
    windows = MetricWindows(
        metric=CPU,
        provenance=Provenance("Host", "x", "percent", 0.0),
        latest=np.where(count[1] > 0, 1.0, NAN),
        sampled=np.full(len(full), NOW),
        cadence=np.full(len(full), 15.0),
        count=count,
        coverage=np.ones(count.shape),
        average=average,
        deviation=average,
    )
    return faults.short_coverage(windows, now=NOW, nodes="abcdefgh"[: len(full)], labels=("5m", "15m"))


def test_too_few_samples_for_the_longest_window_are_a_finding_with_the_window_used():
    """A shorter window, or the latest sample only. A node that never had the metric has no finding."""
    findings = short_of(60, 12, 1, 0, 60, 60)
    assert kinds(findings) == [(FindingKind.SHORT_COVERAGE, name, Remedy.SHORTER_WINDOW) for name in ("b", "c")]
    assert [finding.reason for finding in findings] == [
        "12 samples are too few for 15m; served instead: 5m",
        "1 samples are too few for 15m; served instead: the latest sample",
    ]


def test_if_most_nodes_have_few_samples_the_service_has_just_started():
    """Then there is no finding."""
    assert short_of(12, 12, 12) == ()
    assert short_of(60, 12) == ()
    assert len(short_of(60, 60, 12)) == 1


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.key)
def test_each_metric_of_the_table_can_be_reviewed(metric):
    """No metric lacks a minimum or a kind that a function needs."""
    cells, _ = review_samples.combine(
        batch_of(metric, ("a", [(NOW, 90.0)]), ("a", [(NOW, -90.0)])), resolution=15, limits=LIMITS
    )
    outcome = review_samples.clean(metric, cells, now=NOW, limits=LIMITS)
    assert as_samples(outcome.cells) == [("a", NOW, 90.0)]
    faults.jumps(metric, cells, previous=np.array([1.0]), spread=spread_of(1.0, 0.1, 9), limits=LIMITS)


@pytest.mark.parametrize("word", [*FindingKind, *Remedy])
def test_every_kind_and_remedy_is_explained(word):
    """docs/reference/review.md has their meanings and remedies."""
    page = Path(__file__).resolve().parents[4] / "docs" / "reference" / "review.md"
    assert f"`{word.value}`" in page.read_text(encoding="utf-8")
