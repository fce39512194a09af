"""Single predictions of `load-watcher forecast backtest`, against an implementation with plain loops."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from load_watcher.main import main
from tests.lab.backtest.traces import CAPACITY, DAY, SLOT, Usage, vms, write_bitbrains
from watcher.core.forecast.bound import LOWEST, RATE

HOUR = 12
WEEK = 7 * DAY
Rows = Sequence[Mapping[str, str]]


def predictions(folder: Path, usage: Usage, *arguments: str, name: str = "usage.csv") -> str:
    """The content of --predictions."""
    path, sizes = write_bitbrains(folder, usage, name=name)
    made = folder / f"{name}-predictions.csv"
    command = ["forecast", "backtest", str(path), "--layout", "bitbrains", "--vms", str(sizes)]
    result = CliRunner().invoke(main, [*command, "--predictions", str(made), *arguments], prog_name="load-watcher")
    assert result.exit_code == 0, result.output
    return made.read_text()


def rounded_up(load: float, capacity: float) -> float:
    """The load in 254 steps of the capacity."""
    return math.ceil(load / capacity * 254 - 1e-9) * capacity / 254


def smallest_covering(values: Sequence[float], level: float) -> float:
    return sorted(values)[max(math.ceil(level * len(values) - 1e-9), 1) - 1]


def peaks_within(load: Sequence[float], low: int, high: int, horizon: int) -> list[float]:
    return [max(load[i : i + horizon]) for i in range(low, high - horizon + 1)]


def plain_bounds(load: Sequence[float], at: int, horizon: int) -> dict[tuple[str, str, str], float]:
    """The bound of each predictor at slot `at`: by name, history and level."""
    past = load[max(0, at - WEEK) : at]
    recent, day, week = past[-3:], past[-DAY:], f"{WEEK * SLOT}"
    spans = peaks_within(load, max(0, at - WEEK), at, horizon)
    return {
        ("mean", "900", ""): statistics.fmean(recent),
        ("mean_plus_sigma", "900", ""): statistics.fmean(recent) + statistics.pstdev(recent),
        ("maximum", "900", ""): max(recent),
        ("maximum", "7200", ""): max(past[-2 * HOUR :]),
        ("maximum", "86400", ""): max(day),
        ("maximum", week, ""): max(past),
        ("three_sigma", "86400", ""): statistics.fmean(day) + 3 * statistics.pstdev(day),
        **{("quantile", week, f"{q}"): smallest_covering(spans, q) for q in (0.5, 0.8, 0.9, 0.95)},
        ("oracle", "", ""): max(load[at : at + horizon]),
    }


def plain_calibrated(load: Sequence[float], capacity: float, at: int, horizon: int, level: float) -> float:
    """The shipped bound at slot `at`: the correction goes hour by hour through the history since the first bound, and
    judges bounds from three days on."""
    stored = [rounded_up(value, capacity) for value in load[:at]]
    peaks = peaks_within(stored, 0, at, horizon)
    alpha = 1.0 - level
    issued: dict[int, float] = {}
    for now in range(max(DAY, 3 * horizon), at + 1, HOUR):
        begun = now - horizon
        if begun in issued and begun >= 3 * DAY:
            exceeded = peaks[begun] > issued[begun] + 1e-6
            alpha = min(max(alpha + RATE * ((1.0 - level) - exceeded), LOWEST), 1.0)
        bound = smallest_covering(peaks[max(0, now - WEEK) : now - horizon + 1], min(1.0 - alpha, 1.0))
        bound += math.ceil(max(0.0, -100.0 * alpha) - 1e-9) * capacity / 254
        issued[now] = min(bound, capacity)
    return issued[at]


@pytest.mark.slow
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10_000), st.sampled_from([1, 6, 24]), st.sampled_from([0.8, 0.95]), st.integers(0, 5))
def test_each_bound_equals_that_of_plain_loops(tmp_path: Path, seed: int, horizon: int, level: float, which: int):
    usage = vms(3, days=9, seed=seed)
    load = [sum(values[i] or 0.0 for values in usage.values()) for i in range(9 * DAY)]
    text = predictions(
        tmp_path, usage, "--per-machine", "3", "--deals", "1", "--horizon", f"{horizon}h", "--level", f"{level}"
    )
    rows = list(csv.DictReader(text.splitlines()))
    at = WEEK + 2 * HOUR * which
    bounds = {
        (row["predictor"], row["history_s"], row["level"]): float(row["bound"])
        for row in rows
        if int(row["at_s"]) == at * SLOT
    }
    shipped = bounds.pop(("calibrated_quantile", f"{WEEK * SLOT}", f"{level}"))
    assert bounds.pop(("limits", "", "")) == 3 * CAPACITY
    assert bounds == pytest.approx(plain_bounds(load, at, horizon * HOUR), abs=1e-5)
    assert shipped == pytest.approx(plain_calibrated(load, 3 * CAPACITY, at, horizon * HOUR, level), abs=1e-5)


@pytest.mark.slow
def test_bounds_depend_only_on_the_past(tmp_path: Path):
    """A trace that ends earlier has the same rows up to its end, and one with another future the same bounds."""
    usage = vms(4, days=10, seed=3)
    dealt = ("--per-machine", "2", "--deals", "2")
    whole = predictions(tmp_path, usage, *dealt).splitlines()
    cut = 9 * DAY
    shorter = predictions(tmp_path, {vm: each[:cut] for vm, each in usage.items()}, *dealt).splitlines()
    assert 1 < len(shorter) < len(whole)
    assert whole[: len(shorter)] == shorter
    other = {vm: [*each[:cut], *(0.5 * (value or 0.0) for value in each[cut:])] for vm, each in usage.items()}
    changed = predictions(tmp_path, other, *dealt).splitlines()
    assert whole != changed

    def issued(lines: Sequence[str]) -> list[Sequence[str]]:
        rows = [line.split(",") for line in lines[1:]]
        return [row[:-1] for row in rows if int(row[1]) <= cut * SLOT and row[2] != "oracle"]

    assert issued(whole) == issued(changed)


def test_gaps_count_as_no_load_and_a_value_fills_only_its_own_slot(tmp_path: Path):
    usage = {"1": [None if i % 6 == 5 else 5000.0 for i in range(8 * DAY)]}
    text = predictions(tmp_path, usage, "--per-machine", "1", "--deals", "1")
    rows = {row["predictor"]: row for row in csv.DictReader(text.splitlines()) if int(row["at_s"]) == WEEK * SLOT}
    assert float(rows["mean"]["bound"]) == pytest.approx(5000.0 * 2 / 3)  # slots 2013 and 2014, and the gap 2015
    assert float(rows["three_sigma"]["bound"]) == pytest.approx(5000.0 * (5 / 6 + 3 * math.sqrt(5 / 36)))


@pytest.mark.slow
def test_a_machine_has_the_sum_of_its_vms(tmp_path: Path):
    usage = {"1": [1000.0] * 8 * DAY, "2": [2500.0] * 8 * DAY, "3": [4000.0] * 8 * DAY}
    text = predictions(tmp_path, usage, "--per-machine", "2", "--deals", "30")
    peaks = {float(row["peak"]) for row in csv.DictReader(text.splitlines())}
    machines = {row["machine"] for row in csv.DictReader(text.splitlines())}
    assert peaks == {3500.0, 5000.0, 6500.0}
    assert machines == {f"{deal}/1" for deal in range(1, 31)}  # the third VM does not fill a machine
