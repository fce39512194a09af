"""A chart of simulations in comparison, as PNG or SVG: identical bytes for identical runs and the same matplotlib
version."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lab.simulate.report import SimulationSetup
from lab.simulate.results import RunSummary, SimulationRun
from watcher.arrays import F64

INCHES, DPI = (10.0, 7.2), 100
MOST_IN_LINE, MARK = 150, 8  # characters of the legend that fit in one line, and the width of a line's mark
SMOOTHED = 5  # minutes of the moving average
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The palette of Okabe and Ito, distinguishable with any colour vision."""


def draw(setting: SimulationSetup, runs: Sequence[SimulationRun]) -> bytes:
    """Draw overloaded nodes and nodes in use over time, the distribution of CPU over node-minutes, and the overload per
    policy, as PNG."""
    with _plain():
        found = io.BytesIO()
        # By default, Software contains the matplotlib version.
        _canvas(setting, runs).print_figure(found, format="png", metadata={"Software": None})
    return found.getvalue()


def draw_inline(setting: SimulationSetup, runs: Sequence[SimulationRun]) -> str:
    """Draw the same as an SVG element for an HTML page: text in the font of the page, text and axes in its text colour,
    so that the chart is readable on a dark page too."""
    with _plain({"svg.fonttype": "none", "svg.hashsalt": "simulation", "axes.facecolor": "none"}):
        found = io.StringIO()
        canvas = _canvas(setting, runs)
        canvas.print_figure(found, format="svg", facecolor="none", metadata=dict.fromkeys(SVG_METADATA))
    drawn = found.getvalue()
    drawn = drawn[drawn.index("<svg") :].replace("#000000", "currentColor")
    return SIZE.sub("", FONT.sub("system-ui, sans-serif", drawn), count=1)


SVG_METADATA = ("Creator", "Date", "Format", "Type")
FONT = re.compile(r"'DejaVu Sans'[^;\"]*sans-serif")
SIZE = re.compile(r' (?:width|height)="[^"]*" height="[^"]*"| width="[^"]*"')


def _plain(more: Mapping[str, Any] | None = None) -> AbstractContextManager[None]:
    """Ignores the user's matplotlibrc, except for the backend, which is not used."""
    plain: dict[Any, Any] = {key: value for key, value in mpl.rcParamsDefault.items() if not key.startswith("backend")}
    return mpl.rc_context(plain | dict(more or {}))


def _canvas(setting: SimulationSetup, runs: Sequence[SimulationRun]) -> FigureCanvasAgg:
    figure = Figure(figsize=INCHES, dpi=DPI, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    ((overloaded, bars), (used, shares)) = figure.subplots(2, 2)
    for i, run in enumerate(runs):
        _lines(run, overloaded, used, shares, colour=COLOURS[i % len(COLOURS)])
    _bars(bars, [run.summary() for run in runs])
    threshold = f"{100.0 * setting.overload:g} %"
    _label(overloaded, f"Nodes above {threshold} of CPU or memory", "hours", "nodes")
    _label(used, "Nodes in use", "hours", "nodes")
    _label(shares, "CPU over all node-minutes", "fraction of the node-minutes", "% or less")
    shares.axhline(100.0 * setting.overload, color="#888888", linewidth=0.8, linestyle="--")
    in_one_line = sum(len(run.policy) + MARK for run in runs) <= MOST_IN_LINE
    columns = len(runs) if in_one_line else math.ceil(len(runs) / 2)
    figure.legend(
        *overloaded.get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )
    figure.suptitle(f"{setting.nodes:,} nodes, {setting.pods:,} pods, {setting.minutes / 60:g} hours")
    return canvas


def _lines(run: SimulationRun, overloaded: Axes, used: Axes, shares: Axes, *, colour: str) -> None:
    minutes = run.minutes()
    hours = np.arange(len(minutes.used)) / 60.0
    for axes in (overloaded, used):
        axes.set_xlim(0.0, max(1, len(hours)) / 60.0)
    for axes, values in ((overloaded, minutes.overloaded), (used, minutes.used)):
        axes.plot(hours, _smooth(values.astype(np.float64)), color=colour, linewidth=1.2, label=run.policy)
    known = run.series.cpu[~np.isnan(run.series.cpu)]
    if len(known):
        part = np.linspace(0.0, 100.0, 401)
        shares.set_xlim(0.0, 1.0)
        shares.plot(part / 100.0, 100.0 * np.minimum(np.percentile(known, part), 1.0), color=colour, linewidth=1.2)


def _smooth(values: F64) -> F64:
    """Moving average over the last SMOOTHED minutes, over fewer at the beginning."""
    sums = np.cumsum(values)
    before = np.concatenate([np.zeros(min(SMOOTHED, len(sums))), sums[:-SMOOTHED]])
    smooth: F64 = (sums - before) / np.minimum(np.arange(1, len(sums) + 1), SMOOTHED)
    return smooth


def _bars(axes: Axes, found: Sequence[RunSummary]) -> None:
    place = np.arange(len(found))[::-1]
    values = [each.overload_node_minutes for each in found]
    colours = [COLOURS[i % len(COLOURS)] for i in range(len(found))]
    drawn = axes.barh(place, values, color=colours)
    axes.bar_label(drawn, labels=[f" {value:,}" for value in values])
    axes.set_yticks(place, labels=[each.policy for each in found])
    axes.set_xlim(right=1.25 * max(1, *values, 1))
    _label(axes, "Overload", "node-minutes", "")


def _label(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    if y:
        axes.set_ylim(bottom=0.0)
