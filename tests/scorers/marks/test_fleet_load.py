"""The load of the nodes of the cluster, from a snapshot."""

from __future__ import annotations

import numpy as np
import pytest

from scorers.marks.fleet_load import mark_loads
from tests.fakes.snapshots import snapshot_of, steady

FLEET = {"a": {"CPU": steady(20), "Memory": steady(40)}, "b": {"CPU": steady(60), "Memory": steady(70)}}


def test_loads_are_those_of_the_longest_window():
    loads = mark_loads(snapshot_of(FLEET), ["a", "b"], forecast=False)
    assert loads.mean.windows.tolist() == [pytest.approx([20, 60]), pytest.approx([40, 70])]
    assert np.isnan(loads.mean.bounds).all()
    assert loads.mean.lowest.tolist() == [40.0, 60.0]


def test_the_median_ignores_a_burst():
    burst = {**FLEET, "a": {"CPU": [20.0] * 40 + [100.0] * 20, "Memory": steady(40)}}
    loads = mark_loads(snapshot_of(burst), ["a", "b"], forecast=False)
    assert loads.median.windows[0, 0] == pytest.approx(20.0)
    assert loads.mean.windows[0, 0] > 40.0


def test_a_node_without_samples_and_a_silent_one_are_unknown():
    snapshot = snapshot_of(FLEET | {"c": {"CPU": steady(1), "Memory": steady(1)}}, ages={"c": 100.0})
    assert mark_loads(snapshot, ["a", "b", "c", "new"], forecast=False).mean.known.tolist() == [
        True,
        True,
        False,
        False,
    ]


def test_a_node_without_one_of_the_resources_is_unknown():
    snapshot = snapshot_of(FLEET | {"c": {"CPU": steady(1)}})
    assert mark_loads(snapshot, ["a", "b", "c"], forecast=False).mean.known.tolist() == [True, True, False]


def test_a_resource_that_no_node_has_is_left_out():
    snapshot = snapshot_of({name: {"CPU": metrics["CPU"]} for name, metrics in FLEET.items()})
    loads = mark_loads(snapshot, ["a", "b"], forecast=False).mean
    assert len(loads.windows) == 1
    assert loads.known.tolist() == [True, True]


def test_nothing_is_known_without_a_snapshot_and_in_a_partial_outage():
    partial = snapshot_of(FLEET, lost={"c": 1.0})
    for snapshot in (None, partial, snapshot_of({})):
        loads = mark_loads(snapshot, ["a", "b"], forecast=False)
        assert loads.mean.known.tolist() == loads.median.known.tolist() == [False, False]
