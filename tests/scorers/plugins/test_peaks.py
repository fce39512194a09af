"""Peaks: golden cases, and known faults of the original."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scorers.cluster.table import ClusterTable
from scorers.plugin_api.framework import create_plugin
from scorers.plugins import peaks
from scorers.plugins.peaks import Peaks
from tests.scorers import reference
from tests.scorers.extender.test_never_worse import Cluster, clusters
from tests.scorers.simulated_cluster import NOW, cpu_container, info, load, node, rows, table
from tests.scorers.vectors import cases, tolerance

MODEL = {"k0": 471.7412504314313, "k1": -91.50493019588365, "k2": -0.07186049052516228}


@cases("Peaks", "raw_score")
def test_golden_rise(case):
    """The original has units of 1e-15 watts."""
    of = case["inputs"]
    rise = peaks.rises(
        np.array([[of["k1"], of["k2"]]]), *(np.array([float(of[f"{key}_percent"])]) for key in ("current", "predicted"))
    )
    assert rise[0] * 1e15 == tolerance(case, float(case["expected"]["raw"]))


@cases("Peaks", "normalize")
def test_golden_normalisation(case):
    """Except if all are zero: the original cannot distinguish "no rise" from "not possible" then."""
    raw = np.array(case["inputs"]["raw"], dtype=np.float64)
    if raw.any():
        assert peaks.normalised(raw).tolist() == case["expected"]["scores"]
    else:
        assert peaks.normalised(np.full(len(raw), np.nan)).tolist() == pytest.approx([np.nan] * len(raw), nan_ok=True)


@given(st.lists(st.floats(-1e9, 1e9, allow_subnormal=False), min_size=1, max_size=8))
@example([3.8, 9.4])
def test_the_highest_rise_scores_zero_and_the_lowest_a_hundred(rises):
    """The original multiplies before it divides, so that its highest rise sometimes scores 1."""
    rise = np.array(rises)
    scores = peaks.normalised(rise)
    if rise.min() < rise.max():
        assert set(scores[rise == rise.max()]) == {0.0}
    assert set(scores[rise == rise.min()]) == {100.0}
    assert (np.diff(scores[np.argsort(rise)]) <= 0).all()


def test_a_node_without_a_known_rise_scores_zero():
    """Without metrics, model, room or capacity. The original prefers these four."""
    nodes = [node(name, {"cpu": "4"}) for name in ("low", "high", "silent", "no-model", "full")] + [node("empty", {})]
    loads = load(
        {
            name: {("CPU", "AVG"): cpu}
            for name, cpu in {"low": 10.0, "high": 60.0, "no-model": 10.0, "full": 90.0, "empty": 10.0}.items()
        }
    )
    models = dict.fromkeys(("low", "high", "silent", "full", "empty"), MODEL)
    cluster = table(nodes, loads=loads)
    plugin, _ = create_plugin(Peaks, {"NodePowerModel": models, "WatcherAddress": "http://x"}, cluster)
    names = ("low", "high", "silent", "no-model", "full", "empty")
    scores = plugin.score(info(containers=[{"requests": {"cpu": "1"}}]), cluster, rows(cluster, *names), now=NOW)
    assert scores.values.tolist() == [
        0.0,
        100.0,
        0.0,
        0.0,
        0.0,
        0.0,
    ]  # this model is concave: the loaded node rises less
    assert scores.reason(1).startswith("cpu from 60.0 to 85.0 % adds")
    assert [scores.reason(i).split(":")[0] for i in (2, 3, 4)] == [
        "no metrics of this node",
        "this node has no power model or no CPU capacity",
        "cpu would be at 115.0 %, above capacity",
    ]
    cluster.set_load(None, now=NOW)
    assert plugin.score(info(), cluster, rows(cluster), now=NOW).values.tolist() == [0.0] * 6


def test_models_are_read_from_a_file(tmp_path, monkeypatch):
    """The environment names it, as in the original."""
    with pytest.raises(ValueError, match="file named by NODE_POWER_MODEL"):
        create_plugin(Peaks, {}, ClusterTable())
    file = tmp_path / "models.json"
    monkeypatch.setenv("NODE_POWER_MODEL", str(file))
    with pytest.raises(ValueError, match="No such file"):
        create_plugin(Peaks, {}, ClusterTable())
    file.write_text(json.dumps({"a": {**MODEL, "k3": 1}}))
    with pytest.raises(ValueError, match="k3"):
        create_plugin(Peaks, {}, ClusterTable())
    file.write_text(json.dumps({"a": MODEL}))
    create_plugin(Peaks, {}, ClusterTable())
    with pytest.raises(ValueError, match="k2 90 is too large"):
        create_plugin(Peaks, {"NodePowerModel": {"a": {**MODEL, "k2": 90}}}, ClusterTable())


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"k1": math.nan}, "NodePowerModel.a.k1: must be a number (given: nan)"),
        ({"k0": math.inf}, "NodePowerModel.a.k0: must be a number (given: inf)"),
        ({"k2": math.nan}, "NodePowerModel.a.k2: must be a number (given: nan)"),
        ({"k1": 1e300, "k2": 6.9}, "NodePowerModel.a: k1 1e+300 is too large"),
        ({"k2": -90.0}, "NodePowerModel.a: k2 -90 is too large"),
    ],
)
def test_a_model_that_is_not_finite_is_named(model, said):
    """TOML and YAML have NaN and infinity; a node with such a model would have no place in the order."""
    with pytest.raises(ValueError, match="arguments of Peaks") as caught:
        create_plugin(Peaks, {"NodePowerModel": {"a": {**MODEL, **model}}}, ClusterTable())
    assert said in str(caught.value)


def test_a_load_above_100_percent_has_no_rise_and_no_warning():
    """Measured load may be above 100 percent, where a steep model is not finite."""
    cluster = table([node("a", {"cpu": "1"})], loads=load({"a": {("CPU", "AVG"): 150.0}}))
    plugin, _ = create_plugin(Peaks, {"NodePowerModel": {"a": {**MODEL, "k2": 6.9}}}, cluster)
    scores = plugin.score(info(), cluster, rows(cluster), now=NOW)
    assert scores.values.tolist() == [0.0]
    assert "above capacity" in scores.reason(0)


# --- against the reference, node by node ------------------------------------------------------------------------------

MODELS = st.sampled_from([None, (-91.5, -0.07), (-91.5, -0.02), (12.25, 0.03), (12.25, 0.0), (0.0, 0.03)])


@pytest.mark.slow
@given(
    clusters(least=3),
    st.sampled_from([0, 1, 200, 1500]),
    st.sampled_from([0, 250]),
    st.lists(MODELS, min_size=7, max_size=7),
)
def test_scores_equal_the_reference(
    of: Cluster, request: int, overhead: int, models: list[tuple[float, float] | None]
) -> None:
    """The lowest rise scores 100, the highest 0, nodes without room or model 0. Limits do not count; overhead counts
    only in addition to a request."""
    asking = info(containers=[cpu_container(request, 9000)], overhead={"cpu": f"{overhead}m"})
    by_name = dict(zip(of.names, models, strict=False))
    given_ = {name: {"k0": 1.0, "k1": each[0], "k2": each[1]} for name, each in by_name.items() if each is not None}
    states, cluster = of.states(), of.table(of.loads)
    plugin, _ = create_plugin(
        Peaks, {"NodePowerModel": {"somewhere": {"k0": 1.0, "k1": 1.0, "k2": 0.0}, **given_}}, cluster
    )
    found = plugin.score(asking, cluster, rows(cluster, *of.names), now=NOW).values
    watts = [reference.rise_in_watts(each, request + overhead if request else 0, by_name[each.name]) for each in states]
    known = [each for each in watts if each is not None]
    for value, rise in zip(found.tolist(), watts, strict=True):
        if rise is None:
            assert 0.0 == value
        elif max(known) == min(known):
            assert 100.0 == value
        else:
            exact = 100.0 - 100.0 * (rise - min(known)) / (max(known) - min(known))
            assert -1e-6 <= value - exact < 1.0 + 1e-6  # what is taken from 100 is rounded down
