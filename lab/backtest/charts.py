"""A chart of a backtest: savings against violations. PNG, identical bytes for identical results and the same matplotlib
version."""

from __future__ import annotations

import io
from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lab.backtest.summary import BacktestResult, BacktestRow, label, span_text

_INCHES, _DPI = (9.0, 5.4), 110
_BLUE, _ORANGE, _GREY = "#0072B2", "#D55E00", "#555555"
_NEAR = 1.0  # percentage points of savings
_LINEAR_UP_TO = 1.0  # percent of violations; the axis is logarithmic above


def draw(result: BacktestResult) -> bytes:
    """Draw the quantiles as a line, and the other predictors as points with their names."""
    # Ignores the user's matplotlibrc, except for the backend, which is not used.
    plain = {key: value for key, value in mpl.rcParamsDefault.items() if not key.startswith("backend")}
    with mpl.rc_context(plain):
        figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
        canvas = FigureCanvasAgg(figure)
        axes = figure.subplots()
        axes.set_xscale("symlog", linthresh=_LINEAR_UP_TO)
        family = [row for row in result.rows if row.predictor == "quantile"]
        x, y = zip(*(_place(row) for row in family), strict=True)
        axes.plot(x, y, color=_BLUE, marker="o", linewidth=1.4, label="quantile without correction")
        others = [row for row in result.rows if row.predictor not in ("quantile", "limits")]
        axes.scatter(*zip(*map(_place, others), strict=True), color=_GREY, zorder=3, label="other predictors")
        axes.scatter(*_place(result.chosen), color=_ORANGE, marker="D", s=60, zorder=4, label="shipped predictor")
        for place, names in _merged(others):
            _annotate(axes, ", ".join(names), place, above=True)
        for row in family:
            _annotate(axes, f"{100.0 * (row.level or 0.0):g} %", _place(row), above=False)
        _axes(axes, result)
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
        found = io.BytesIO()
        # By default, Software contains the matplotlib version.
        canvas.print_figure(found, format="png", metadata={"Software": None})
    return found.getvalue()


def _place(row: BacktestRow) -> tuple[float, float]:
    return 100.0 * row.violations, 100.0 * row.savings


def _merged(rows: Sequence[BacktestRow]) -> list[tuple[tuple[float, float], list[str]]]:
    """The names at each place; points whose names would overlap share the place of the first one."""
    found: list[tuple[tuple[float, float], list[str]]] = []
    for row in rows:
        (x, y), name = _place(row), " ".join(part for part in (label(row), span_text(row.history_s)) if part)
        near = [names for (a, b), names in found if abs(y - b) < _NEAR and abs(x - a) < 0.2 * max(x, a, _NEAR)]
        if near:
            near[0].append(name)
        else:
            found.append(((x, y), [name]))
    return found


def _annotate(axes: Axes, text: str, place: tuple[float, float], *, above: bool) -> None:
    offset, alignment = ((7, -11), "left")
    if above:
        offset, alignment = ((-7, 4), "right") if place[0] > _LINEAR_UP_TO else ((0, 7), "center")
    colour = _GREY if above else _BLUE
    axes.annotate(text, place, offset, textcoords="offset points", ha=alignment, fontsize=9, color=colour)


def _axes(axes: Axes, result: BacktestResult) -> None:
    ticks = (0, 0.5, 1, 2, 5, 10, 20, 50, 100)
    axes.set_xticks(ticks, labels=[f"{tick:g} %" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlim(-0.15, 130.0)
    axes.yaxis.set_major_formatter("{x:.0f} %")
    axes.margins(y=0.12)
    axes.grid(color="#e5e5e5", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("predictions below the peak (violations)")
    axes.set_ylabel("savings")
    horizon = span_text(result.chosen.horizon_s)
    axes.set_title(f"Peak of the next {horizon}, {result.machines:,} machines", loc="left", fontsize=12)
