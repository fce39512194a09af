"""Compares predictions with the peaks that followed, and writes the results as table, JSON and CSV.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from rich.table import Table

from lab.backtest.deals import Machines
from lab.backtest.predictions import BacktestOptions, Predictions
from watcher.arrays import F64, Bool
from watcher.core.forecast.maxima import SLOT_S

_SAME = 1e-9
"""Share of the capacity by which a peak may be above the bound without a violation: the error of the floats."""
_DIGITS = 6
PREDICTION_COLUMNS = ("machine", "at_s", "predictor", "history_s", "level", "bound", "peak")


@dataclass(frozen=True, slots=True)
class BacktestRow:
    """The results of one predictor, as shares from 0 to 1: `violations` of the predictions, mean and 99th percentile of
    the severity max(0, peak - bound) / peak, and the mean `savings` 1 - min(bound, capacity) / capacity."""

    predictor: str
    history_s: int | None
    horizon_s: int
    level: float | None
    violations: float
    mean_severity: float
    p99_severity: float
    savings: float


@dataclass(frozen=True, slots=True)
class ChosenRow(BacktestRow):
    """The results of the shipped predictor: `stated_coverage` is the mean of the coverages that it states with its
    bounds, None if it states none; `lowest_machine_coverage` that of the machine with the most violations."""

    stated_coverage: float | None
    lowest_machine_coverage: float


@dataclass(frozen=True, slots=True)
class BacktestResult:
    """`rows` are the compared predictors, `chosen` is the shipped one."""

    trace: str
    layout: str
    series: int
    usable: int
    machines: int
    predictions: int
    rows: tuple[BacktestRow, ...]
    chosen: ChosenRow


def summarize(
    machines: Machines, found: Predictions, options: BacktestOptions, *, trace: str, layout: str
) -> BacktestResult:
    """Compute the results of all predictors; `predictions` counts those of one predictor."""
    every = [_row(machines, found, options, i) for i in range(len(found.predictors))]
    held = ~_exceeded(machines, found, len(found.predictors) - 1)
    known = found.stated[~np.isnan(found.stated)]
    stated = round(float(known.mean()), _DIGITS) if known.size else None
    lowest = round(float(held.mean(axis=0).min()), _DIGITS)
    chosen = ChosenRow(**asdict(every[-1]), stated_coverage=stated, lowest_machine_coverage=lowest)
    size = found.peaks.size
    counts = (machines.series, machines.usable, len(machines.names), size)
    return BacktestResult(trace, layout, *counts, tuple(every[:-1]), chosen)


def _row(machines: Machines, found: Predictions, options: BacktestOptions, which: int) -> BacktestRow:
    predictor, bounds = found.predictors[which], found.bounds[which]
    exceeded = _exceeded(machines, found, which)
    peaks = np.where(exceeded, found.peaks, 1.0)
    severity: F64 = np.where(exceeded, (peaks - bounds) / peaks, 0.0)
    saved = 1.0 - np.minimum(bounds, machines.capacity) / machines.capacity
    shares = (exceeded.mean(), severity.mean(), np.quantile(severity, 0.99), saved.mean())
    return BacktestRow(
        predictor.name,
        predictor.history_s,
        options.horizon * SLOT_S,
        predictor.level,
        *(round(float(each), _DIGITS) for each in shares),
    )


def _exceeded(machines: Machines, found: Predictions, which: int) -> Bool:
    exceeded: Bool = found.peaks > found.bounds[which] + _SAME * machines.capacity
    return exceeded


# --- output -----------------------------------------------------------------------------------------------------------


def as_table(result: BacktestResult) -> Table:
    """A table for a terminal of 80 columns, in percent; the shipped predictor is the last row."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("predictor", no_wrap=True, vertical="bottom")
    for heading in ("history", "level", "viola-\ntions", "mean\nseverity", "p99\nseverity", "savings"):
        table.add_column(heading, justify="right", no_wrap=True, vertical="bottom")
    for row in (*result.rows, result.chosen):
        shares = (row.violations, row.mean_severity, row.p99_severity, row.savings)
        level = "" if row.level is None else f"{100.0 * row.level:g} %"
        table.add_row(label(row), span_text(row.history_s), level, *(f"{100.0 * each:.2f} %" for each in shares))
    return table


def sentences(result: BacktestResult) -> list[str]:
    """What was predicted, and how the shipped predictor did, for the lines below the table."""
    chosen = result.chosen
    kind = "nodes" if result.layout == "record" else "VMs"
    stated = "" if chosen.stated_coverage is None else f" (stated: {100.0 * chosen.stated_coverage:.1f} %)"
    return [
        f"{result.predictions:,} predictions of {span_text(chosen.horizon_s)} for {result.machines:,} machines; "
        f"{result.usable:,} of {result.series:,} {kind} usable",
        f"shipped predictor: coverage {100.0 * (1.0 - chosen.violations):.1f} %{stated}, "
        f"lowest of a machine {100.0 * chosen.lowest_machine_coverage:.1f} %",
    ]


def label(row: BacktestRow) -> str:
    """The name of a predictor in words."""
    return row.predictor.replace("_plus_", " + ").replace("_", " ")


def span_text(seconds: float | None) -> str:
    """A time span such as 15 min, 6 h or 7 d; "" for None."""
    if seconds is None:
        return ""
    for unit, size in (("d", 86400), ("h", 3600)):
        if seconds % size == 0 and (unit == "h" or seconds > size):
            return f"{seconds / size:g} {unit}"
    return f"{seconds / 60:g} min"


def as_document(result: BacktestResult) -> dict[str, Any]:
    """The results as JSON; all shares are from 0 to 1."""
    return asdict(result)


def as_csv(result: BacktestResult) -> str:
    """A row for each predictor, the shipped one last; a value that does not exist is empty."""
    text = io.StringIO()
    names = [field.name for field in fields(ChosenRow)]
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for row in (*result.rows, result.chosen):
        writer.writerow(asdict(row))
    return text.getvalue()


def prediction_rows(machines: Machines, found: Predictions) -> Iterator[tuple[object, ...]]:
    """Yield a row (PREDICTION_COLUMNS) for each prediction, by time, machine and predictor. `at_s` are seconds since
    the first slot of the trace; `bound` and `peak` are in its unit."""
    for k, slot in enumerate(found.at):
        for m, name in enumerate(machines.names):
            peak = round(float(found.peaks[k, m]), _DIGITS)
            for p, predictor in enumerate(found.predictors):
                bound = round(float(found.bounds[p, k, m]), _DIGITS)
                level = "" if predictor.level is None else predictor.level
                history = "" if predictor.history_s is None else predictor.history_s
                yield name, slot * SLOT_S, predictor.name, history, level, bound, peak
