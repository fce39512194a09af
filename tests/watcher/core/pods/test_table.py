"""The usage of pods: valid readings, what is stored, when a pod ends, and what is served."""

from __future__ import annotations

import gc
import json
import sys
import tracemalloc
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watcher.client.arrays import decode_pods
from watcher.core.pods.published import PublishedPods
from watcher.core.pods.table import (
    NO_USAGE,
    SLOT_S,
    Pod,
    PodOrigin,
    PodTable,
    PodUsage,
    averages,
    by_node,
    empty_table,
    merge_readings,
    review_pods,
    sorted_in_pieces,
)
from watcher.core.publishing.wire import PodPressure, PodsDocument
from watcher.model import FindingKind, Window

T0 = 1_700_000_040.0  # the beginning of a minute
SLOTS = 15
SILENT, STALE = 90.0, 300.0
NAN = float("nan")
FIVE, FIFTEEN = Window("5m", 300), Window("15m", 900)
ORIGIN = PodOrigin("Memory", "cores", 120.0, "bytes", "rss")

Reading = tuple[str, str, float, float, float]  # namespace/name, node, time, cores, bytes


def usage(*readings: Reading) -> PodUsage:
    names, nodes, time, cores, memory = zip(*readings, strict=True) if readings else ((), (), (), (), ())
    pods = tuple((name.partition("/")[0], name.partition("/")[2]) for name in names)
    return PodUsage(pods, tuple(nodes), *(np.array(column, dtype=np.float64) for column in (time, cores, memory)))


def after(*fetches: tuple[float, Iterable[Reading]], slots: int = SLOTS) -> PodTable:
    """The table after fetches at (seconds after T0, readings with times after T0)."""
    table = empty_table(slots)
    for now, readings in fetches:
        shifted = [(name, node, T0 + time, cores, memory) for name, node, time, cores, memory in readings]
        table = merge_readings(table, usage(*shifted), now=T0 + now, silent_s=SILENT, stale_s=STALE)
    return table


def cores_of(table: PodTable, name: str) -> list[float]:
    """The minutes of a pod, oldest first, without unknown ones."""
    namespace, _, pod = name.partition("/")
    column = table.recent_cores[:, table.pods.index((namespace, pod))]
    return column[~np.isnan(column)].tolist()


def published(table: PodTable, windows: tuple[Window, ...] = (FIVE, FIFTEEN)) -> PublishedPods:
    return PublishedPods(
        table,
        origin=ORIGIN,
        windows=windows,
        cadence_s=60.0,
        timestamp=T0 + 1,
        tag="t1",
        monotonic=1000.0,
        age_s=5.0,
    )


# --- review ----------------------------------------------------------------------------------------------------------


def reviewed(*readings: Reading) -> tuple[dict[str, Reading], dict[FindingKind, str]]:
    kept, findings = review_pods(usage(*readings), now=T0, max_ahead_s=30.0)
    rows = zip(kept.pods, kept.nodes, kept.time.tolist(), kept.cores.tolist(), kept.memory.tolist(), strict=True)
    assert {"pods"} >= {finding.metric for finding in findings}
    by_name = {f"{pod[0]}/{pod[1]}": (f"{pod[0]}/{pod[1]}", *rest) for pod, *rest in rows}
    return by_name, {finding.kind: finding.reason for finding in findings}


def test_valid_readings_are_not_changed():
    """Also of idle pods, and readings with a time slightly in the future."""
    readings = [("a/x", "n1", T0, 0.0, 0.0), ("a/y", "n1", T0 + 29, 1.5, 2.0**40)]
    assert ({reading[0]: reading for reading in readings}, {}) == reviewed(*readings)


@pytest.mark.parametrize(
    ("reading", "kind"),
    [
        (("a/bad", "n1", NAN, 1.0, 1.0), FindingKind.NON_FINITE),
        (("a/bad", "n1", -1e300, 1.0, 1.0), FindingKind.NON_FINITE),
        (("a/bad", "n1", float("inf"), 1.0, 1.0), FindingKind.NON_FINITE),
        (("a/bad", "n1", T0 + 31, 1.0, 1.0), FindingKind.FUTURE_SAMPLE),
        (("a/bad", "", T0, 1.0, 1.0), FindingKind.UNKNOWN_NODE),
        (("a/", "n1", T0, 1.0, 1.0), FindingKind.UNKNOWN_NODE),
        (("/bad", "n1", T0, 1.0, 1.0), FindingKind.UNKNOWN_NODE),
    ],
)
def test_a_reading_without_name_node_or_time_is_dropped(reading, kind):
    """With one finding; the other readings stay."""
    kept, findings = reviewed(reading, ("a/good", "n1", T0, 1.0, 1.0))
    assert ["a/good"] == list(kept)
    assert [kind] == list(findings)
    assert findings[kind].startswith("1 pod (")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (float("inf"), FindingKind.NON_FINITE),
        (-float("inf"), FindingKind.NON_FINITE),
        (-0.001, FindingKind.OUT_OF_RANGE),
        (1e15, FindingKind.OUT_OF_RANGE),
    ],
)
def test_an_impossible_number_is_dropped_alone(value, kind):
    """The pod's other number stays. Nothing is clamped, because that would lower or invent a value."""
    kept, findings = reviewed(("a/x", "n1", T0, value, 5.0), ("a/y", "n1", T0, 1.0, value))
    assert [kind] == list(findings)
    assert np.isnan(kept["a/x"][3])
    assert np.isnan(kept["a/y"][4])
    assert (5.0, 1.0) == (kept["a/x"][4], kept["a/y"][3])


def test_a_missing_number_has_no_finding():
    """Windows nodes have no rss, and a pod has no rate after one scrape. Without both numbers, nothing is stored."""
    kept, findings = reviewed(("a/x", "n1", T0, NAN, 5.0), ("a/y", "n1", T0, NAN, NAN))
    assert ["a/x"] == list(kept)
    assert {} == findings


def test_many_invalid_pods_have_one_finding():
    """It has the number of pods and names the first ones."""
    _, findings = reviewed(*((f"a/p{number:03d}", "n1", T0, -1.0, 1.0) for number in range(400)))
    assert findings[FindingKind.OUT_OF_RANGE].startswith("400 pods (a/p000, a/p001, a/p002, …): cores: ")


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_a_pod_that_moved_is_on_the_node_of_its_newest_reading(order):
    """Prometheus has its old series for a while. At equal times, the first node by name counts."""
    readings = [("a/x", "n1", T0 - 50, 9.0, 9.0), ("a/x", "n3", T0 - 5, 2.0, 2.0), ("a/x", "n2", T0 - 5, 1.0, 1.0)]
    kept, findings = reviewed(*(readings[each] for each in order))
    assert {"a/x": readings[2]} == kept
    assert {} == findings


def test_a_review_without_usage_has_no_findings():
    assert review_pods(NO_USAGE, now=T0, max_ahead_s=30.0)[1] == []


# --- the table -------------------------------------------------------------------------------------------------------


def test_pods_are_sorted_and_have_one_reading_per_minute():
    """By namespace, then name (not by the joined text: "a-b" is after "a"); the last reading of a minute counts."""
    table = after(
        (10, [("a-b/x", "n1", 5, 1.0, 10.0), ("a/z", "n1", 5, 2.0, 20.0)]),
        (70, [("a-b/x", "n1", 61, 3.0, 30.0), ("a/z", "n1", 65, 4.0, 40.0), ("a/a", "n2", 65, 8.0, 80.0)]),
        (80, [("a-b/x", "n1", 79, 5.0, 50.0), ("a/z", "n1", 65, 7.0, 70.0)]),
    )
    assert (("a", "a"), ("a", "z"), ("a-b", "x")) == table.pods
    assert ("n2", "n1", "n1") == table.nodes
    assert [8.0, 4.0, 5.0] == table.cores.tolist()  # z has the same time again, so it is the same reading
    assert [80.0, 40.0, 50.0] == table.memory.tolist()
    assert [T0 + 65, T0 + 65, T0 + 79] == table.sampled.tolist()
    assert T0 + 79 == table.end
    assert [2.0, 4.0] == cores_of(table, "a/z")
    assert [1.0, 5.0] == cores_of(table, "a-b/x")


def test_the_ring_is_as_long_as_the_longest_window():
    """Minutes without a reading are unknown, not zero."""
    table = after(
        *((60 * minute, [("a/x", "n1", 60 * minute, float(minute), 1.0)]) for minute in (0, 1, 3, 5)), slots=4
    )
    assert (4, 1) == table.recent_cores.shape
    np.testing.assert_array_equal([NAN, 3.0, NAN, 5.0], table.recent_cores[:, 0])
    later = merge_readings(
        table, usage(("a/x", "n1", T0 + 1200, 9.0, 1.0)), now=T0 + 1200, silent_s=SILENT, stale_s=STALE
    )
    np.testing.assert_array_equal([NAN, NAN, NAN, 9.0], later.recent_cores[:, 0])


def test_an_older_reading_changes_nothing():
    """A clock that is behind, or an old series of a pod that moved."""
    known = [(10.0, [("a/x", "n1", 5, 1.0, 10.0), ("a/y", "n1", 5, 1.0, 10.0)])]
    table = after(*known, (20, [("a/x", "n1", 4, 9.0, 90.0), ("a/x", "n2", 3, 9.0, 90.0)][:1]))
    same = after(*known)
    assert same.nodes == table.nodes
    np.testing.assert_array_equal(same.cores, table.cores)


def test_a_pod_on_another_node_is_another_pod():
    """The pod of a StatefulSet keeps its name on another node; its earlier usage does not count there."""
    table = after(
        (10, [("a/web-0", "n1", 5, 4.0, 10.0), ("a/y", "n1", 5, 1.0, 1.0)]),
        (70, [("a/web-0", "n2", 65, 0.5, 20.0), ("a/y", "n1", 65, 1.0, 1.0)]),
    )
    assert ("n2", "n1") == table.nodes
    assert [0.5] == cores_of(table, "a/web-0")
    assert [1.0, 1.0] == cores_of(table, "a/y")


def test_a_pod_that_ended_is_removed_and_its_name_begins_again():
    """It is removed once it is older than the other pods of its node. A later pod with its name on this node has no
    past."""
    both = [("a/x", "n1", 5, 4.0, 1.0), ("a/y", "n1", 5, 1.0, 1.0)]
    once = (70.0, [("a/y", "n1", 65, 1.0, 1.0)])
    twice = (130.0, [("a/y", "n1", 125, 1.0, 1.0)])
    assert 2 == len(after((10, both), once).pods)  # one missing reading is ignored
    assert (("a", "y"),) == after((10, both), once, twice).pods
    back = after((10, both), once, twice, (190, [("a/x", "n1", 185, 2.0, 1.0)]))
    assert [2.0] == cores_of(back, "a/x")


def test_pods_of_a_silent_node_stay_until_they_are_stale():
    """It is unknown whether they still run. Their times show their age."""
    on_n1 = [("a/x", "n1", 5, 4.0, 1.0), ("a/y", "n1", 6, 4.0, 1.0)]
    for now, pods in ((250.0, 3), (304.0, 3), (305.5, 2), (307.0, 1)):
        table = after((10, on_n1), (now, [("a/z", "n2", now, 1.0, 1.0)]))
        assert pods == len(table.pods), now


def test_a_published_table_does_not_change():
    """Readers keep the old table while the next one is made."""
    old = after((10, [("a/x", "n1", 5, 1.0, 1.0)]))
    before = old.recent_cores.copy(), old.cores.copy()
    merge_readings(old, usage(("a/x", "n1", T0 + 8, 2.0, 2.0)), now=T0 + 10, silent_s=SILENT, stale_s=STALE)
    np.testing.assert_array_equal(before[0], old.recent_cores)
    np.testing.assert_array_equal(before[1], old.cores)


def test_pods_are_sorted_in_chunks_like_by_sorted():
    """So that no single call takes long; also for an odd number of chunks."""
    rng = np.random.default_rng(1)
    for size in (0, 1, 4_999, 5_000, 5_001, 17_500, 25_000):
        pods = [(f"ns-{one}", f"pod-{two}") for one, two in rng.integers(0, 10**9, (size, 2)).tolist()]
        assert sorted(pods) == sorted_in_pieces(pods)


@pytest.mark.slow
def test_memory_of_a_thousand_pods():
    """docs/reference/pods.md states 0.42 MB with names of 55 characters; another column would increase it."""
    names = [
        (f"team-{number % 20:03d}-production", f"deployment-{number:05d}-7d9f8b6c5-x{number:05d}")
        for number in range(2000)
    ]
    use = np.ones(len(names))
    gc.collect()
    tracemalloc.start()
    try:
        pods = tuple(
            (sys.intern(namespace), "".join(list(name))) for namespace, name in names
        )  # separate string objects
        read = PodUsage(pods, ("n1",) * len(names), T0 * use, use, use)
        table = merge_readings(empty_table(SLOTS), read, now=T0, silent_s=SILENT, stale_s=STALE)
        del pods, read
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 2000 == len(table.pods)
    assert 200 < size / len(names) < 500


# --- equality with a rebuilt table -----------------------------------------------------------------------------------


@dataclass
class Plain:
    """One pod, in the simplest form: a dictionary of minutes."""

    node: str
    time: float
    cores: float
    memory: float
    minutes: dict[int, tuple[float, float]] = field(default_factory=dict)


def rebuilt(fetches: list[tuple[float, PodUsage]], slots: int) -> PodTable:
    """The table, computed from all fetches with dictionaries and loops, as the docstrings describe it."""
    pods: dict[Pod, Plain] = {}
    head = 0
    for now, batch in fetches:
        rows = zip(
            batch.pods, batch.nodes, batch.time.tolist(), batch.cores.tolist(), batch.memory.tolist(), strict=True
        )
        for pod, node, time, cores, memory in rows:
            known = pods.get(pod)
            if known is not None and time <= known.time:
                continue
            minutes = known.minutes if known is not None and known.node == node else {}
            minutes[int(time // SLOT_S)] = (cores, memory)
            pods[pod] = Plain(node, time, cores, memory, minutes)
            head = max(head, int(time // SLOT_S))
        newest: dict[str, float] = {}
        for one in pods.values():
            newest[one.node] = max(newest.get(one.node, 0.0), one.time)
        pods = {
            pod: one for pod, one in pods.items() if one.time >= now - STALE and one.time >= newest[one.node] - SILENT
        }
    names = tuple(sorted(pods))
    ring = np.full((2, slots, len(names)), np.nan)
    for column, name in enumerate(names):
        for minute, values in pods[name].minutes.items():
            if minute > head - slots:
                ring[:, minute - head + slots - 1, column] = values
    time, cores, memory = (
        np.array([getattr(pods[name], what) for name in names]) for what in ("time", "cores", "memory")
    )
    nodes = tuple(pods[name].node for name in names)
    unknown = np.full((3, len(names)), NAN)
    return PodTable(names, nodes, time, cores, memory, head, ring[0], ring[1], unknown)


READINGS = st.lists(
    st.tuples(
        st.sampled_from([f"{namespace}/p{number}" for namespace in ("a", "b") for number in range(4)]),
        st.sampled_from(["n1", "n2"]),
        st.floats(-200.0, 5.0),
        st.sampled_from([0.0, 0.25, 3.0, NAN]),
        st.sampled_from([0.0, 1e9]),
    ),
    max_size=8,
    unique_by=lambda reading: reading[0],
)


@given(st.lists(st.tuples(st.floats(0.0, 400.0), READINGS), max_size=12), st.integers(1, 6))
def test_the_table_equals_one_that_is_computed_from_all_fetches(steps, slots):
    """Pods that appear, move, fall silent, repeat readings and end, at any times."""
    now, fetches, table = T0, [], empty_table(slots)
    for passed, readings in steps:
        now += passed
        batch = usage(*((name, node, now + ago, cores, memory) for name, node, ago, cores, memory in readings))
        fetches.append((now, batch))
        table = merge_readings(table, batch, now=now, silent_s=SILENT, stale_s=STALE)
    expected = rebuilt(fetches, slots)
    assert (expected.pods, expected.nodes) == (table.pods, table.nodes)
    for name in ("sampled", "cores", "memory", "recent_cores", "recent_memory"):
        np.testing.assert_array_equal(getattr(expected, name), getattr(table, name), err_msg=name)


# --- averages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("minutes", "cadence", "five", "fifteen"),
    [
        ([0, 1, 2, 3, 4], 60.0, 2.0, NAN),
        ([2, 3, 4], 60.0, 3.0, NAN),
        ([3, 4], 60.0, NAN, NAN),  # two of five
        ([0, 1, 2, 3, 4, 5, 6, 7], 60.0, 5.0, 3.5),
        ([0, 2, 4], 120.0, 2.0, NAN),  # one every two minutes gives 2.5 in five
        ([2, 4], 120.0, 3.0, NAN),
        ([0, 1, 2, 3, 4], 121.0, NAN, NAN),  # so rare that no window counts
    ],
)
def test_a_window_counts_with_half_of_its_minutes(minutes, cadence, five, fifteen):
    """And with at least two."""
    table = after(*((60 * minute, [("a/x", "n1", 60 * minute, float(minute), 8.0)]) for minute in minutes))
    for window, expected in ((FIVE, five), (FIFTEEN, fifteen)):
        cores, memory = averages(table, window, cadence_s=cadence)
        np.testing.assert_array_equal([expected], cores)
        np.testing.assert_array_equal([NAN if np.isnan(expected) else 8.0], memory)


def test_one_reading_has_no_average():
    """Although it is half of two minutes."""
    cores, _ = averages(after((10, [("a/x", "n1", 5, 1.0, 1.0)])), Window("2m", 120), cadence_s=60.0)
    assert np.isnan(cores).all()


def test_a_pod_with_one_number_has_one_average():
    """For example with memory, and no rate yet."""
    table = after(*((60 * minute, [("a/x", "n1", 60 * minute, NAN, 2.0**33)]) for minute in range(5)))
    cores, memory = averages(table, FIVE, cadence_s=60.0)
    assert np.isnan(cores).all()
    assert [2.0**33] == memory.tolist()


def test_no_pods_have_no_averages():
    assert [0, 0] == [len(column) for column in averages(empty_table(15), FIFTEEN, cadence_s=60.0)]


# --- documents -------------------------------------------------------------------------------------------------------


def three_pods() -> PodTable:
    return after(
        *(
            (
                60 * minute + 10,
                [
                    ("a/x", "n1", 60 * minute + 5, 0.1 + minute, 2.0**33),
                    ("a/y", "n2", 60 * minute + 5.0625, NAN, 1000.4),
                    ("b/z", "n2", 60 * minute + 5, 1e-9, NAN),
                ],
            )
            for minute in range(3)
        )
    )


def test_the_body_decodes_to_the_document():
    """It is written column by column, and contains only valid JSON."""
    pods = published(three_pods())
    for rows in (None, pods.rows({"n2"}), pods.rows(namespaces={"nobody"})):
        body = pods.body(rows)
        assert msgspec.json.decode(body, type=PodsDocument) == pods.document(rows)
        json.loads(body, parse_constant=pytest.fail)


def test_absence_is_null_and_bytes_are_whole():
    document = published(three_pods()).document()
    assert ["a", "a", "b"] == document.namespace
    assert ["x", "y", "z"] == document.pod
    assert ["n1", "n2", "n2"] == document.node
    assert [T0 + 125, T0 + 125.062, T0 + 125] == pytest.approx(document.time, abs=1e-3)
    assert [2.1, None, 1e-9] == document.cores
    assert [2**33, 1000, None] == document.bytes
    five, fifteen = document.averages
    assert [1.1, None, 1e-9] == five.cores
    assert [2**33, 1000, None] == five.bytes
    assert [None] * 3 == fifteen.cores == fifteen.bytes


@pytest.mark.parametrize(
    ("nodes", "namespaces", "expected"),
    [
        (None, None, [0, 1, 2]),
        ({"n2"}, None, [1, 2]),
        ({"n1", "n2"}, {"b"}, [2]),
        ({"n1"}, {"b"}, []),
        (None, {"a"}, [0, 1]),
    ],
)
def test_conditions_of_a_selection_are_combined_by_and(nodes, namespaces, expected):
    pods = published(three_pods())
    assert expected == pods.rows(nodes, namespaces).tolist()
    assert ({"n1", "n2"}, {"a", "b"}) == (pods.nodes, pods.namespaces)


def test_the_age_grows_from_its_first_value():
    pods = published(three_pods())
    assert 5.0 == pods.age(1000.0)
    assert 35.0 == pods.age(1030.0)


def test_rows_by_node():
    rows = by_node(("n2", "n1", "n2"))
    assert {"n1": [1], "n2": [0, 2]} == {node: found.tolist() for node, found in rows.items()}


def test_origins_with_another_source_or_expression_are_incompatible():
    """The measured span may differ."""
    assert ORIGIN.compatible_with(PodOrigin("Memory", "cores", 15.0, "bytes", "rss"))
    assert not ORIGIN.compatible_with(PodOrigin("Memory", "other", 120.0, "bytes", "rss"))
    assert not ORIGIN.compatible_with(PodOrigin("Other", "cores", 120.0, "bytes", "rss"))


def test_the_pressure_of_a_pod_is_served_if_known():
    """The newest reading in percent. A rate slightly above 100 % becomes 100 %, larger ones are unknown."""
    readings = usage(("a/x", "n1", 0.0, 1.0, 1.0), ("a/y", "n1", 0.0, 1.0, 1.0))
    pressure = np.array([[12.5, 101.0], [-1.0, 200.0], [0.0, NAN]])
    reviewed, _ = review_pods(replace(readings, time=T0 + readings.time, pressure=pressure), now=T0, max_ahead_s=30.0)
    table = merge_readings(empty_table(SLOTS), reviewed, now=T0, silent_s=SILENT, stale_s=STALE)
    body = published(table).body()
    assert {"cpu": [12.5, 100.0], "memory": [None, None], "io": [0.0, None]} == json.loads(body)["pressure"]
    assert PodPressure([12.5, 100.0], [None, None], [0.0, None]) == decode_pods(body).pressure
    later = replace(readings, time=T0 + 60.0 + readings.time)
    unknown = merge_readings(table, later, now=T0 + 60.0, silent_s=SILENT, stale_s=STALE)
    assert "pressure" not in json.loads(published(unknown).body())


def test_pressure_has_means_over_the_windows():
    """As for cores and memory: from at least two readings, and half of the expected ones; none if no source has it."""
    table = empty_table(SLOTS)
    for minute, value in enumerate((0.0, 10.0, 30.0, 20.0)):
        readings = usage(("a/x", "n1", 60.0 * minute, 1.0, 1.0), ("a/y", "n1", 60.0 * minute, 1.0, 1.0))
        pressure = np.array([[value, NAN], [0.0, NAN], [NAN, NAN]])
        given = replace(readings, time=T0 + readings.time, pressure=pressure if minute else None)
        table = merge_readings(table, given, now=T0 + 60.0 * minute, silent_s=SILENT, stale_s=STALE)
    body = json.loads(published(table).body())
    five, *_ = body["averages"]
    assert {"cpu": [20.0, None], "memory": [0.0, None], "io": [None, None]} == five["pressure"]
    means = PodPressure([20.0, None], [0.0, None], [None, None])
    assert means == decode_pods(published(table).body()).averages[0].pressure
    plain = merge_readings(empty_table(SLOTS), readings, now=T0, silent_s=SILENT, stale_s=STALE)
    assert all("pressure" not in each for each in json.loads(published(plain).body())["averages"])
