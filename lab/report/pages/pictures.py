"""Pictures of a report as inline SVG. Colours are classes of the page's style, so that they follow light and dark mode.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import numpy as np

from lab.escaping import escape
from lab.report.analyse import HotHours
from lab.report.comparison import ReplayResult
from lab.report.peaks import NodePeaks
from watcher.arrays import F64

LONGEST_NAME = 20
LEVELS = 6
"""Colour steps of heat maps, besides the step for 0 and for unknown values."""


def _svg(width: float, height: float, label: str, parts: Iterator[str]) -> str:
    content = "".join(parts)
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label, quote=True)}">{content}</svg>'
    )


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind or "label"}">{escape(text)}</text>'


def _cell(x: float, y: float, width: float, height: float, kind: str, title: str) -> str:
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    return f'<rect {place} class="{kind}"><title>{escape(title)}</title></rect>'


def short_names(names: Sequence[str]) -> list[str]:
    """The names without the domain that all of them have, and of those that are still too long, both ends."""
    parts = [name.split(".")[1:] for name in names]
    common = 0
    if len(names) > 1:
        while all(len(part) > common and part[-1 - common] == parts[0][-1 - common] for part in parts):
            common += 1
    own = [".".join(name.split(".")[: -common or None]) for name in names]
    return [name if len(name) <= LONGEST_NAME else f"{name[:9]}…{name[-10:]}" for name in own]


def day_map(heat: HotHours) -> str:
    """Hot node-hours by hour of the day and day."""
    width, height, left, top = 13.0, 14.0, 60.0, 16.0
    most = float(np.nanmax(heat.by_day, initial=0.0))

    def parts() -> Iterator[str]:
        for hour in range(0, 24, 3):
            yield _text(left + hour * width, 11, f"{hour:02d}")
        for row, (day, values) in enumerate(zip(heat.days, heat.by_day.tolist(), strict=True)):
            name = datetime.fromtimestamp(day, UTC).strftime("%a %d.%m")
            yield _text(0, top + row * height + 10, name)
            for hour, value in enumerate(values):
                title = (
                    f"{name} {hour:02d}:00: no data"
                    if math.isnan(value)
                    else (f"{name} {hour:02d}:00: {value:.1f} node-hours above {heat.threshold:g} %")
                )
                kind = _level(value, most)
                yield _cell(left + hour * width, top + row * height, width - 1, height - 1, kind, title)

    label = f"Node-hours above {heat.threshold:g} % CPU by day and hour of the day, UTC"
    return _svg(left + 24 * width, top + len(heat.days) * height, label, parts())


def _level(value: float, most: float) -> str:
    if math.isnan(value):
        return "none"
    if value <= 0.0 or most <= 0.0:
        return "h0"
    return f"h{min(LEVELS, 1 + int((LEVELS - 1) * value / most))}"


def node_map(names: Sequence[str], peaks: F64, begins: int) -> str:
    """CPU peaks by node and hour: `peaks` [hours, nodes] in percent."""
    height, left, top, total = 13.0, 120.0, 16.0, 720.0
    hours = max(1, len(peaks))
    width = (total - left) / hours

    def parts() -> Iterator[str]:
        for hour in range(hours):
            time = begins + hour * 3600
            if time % 86400 == 0 and hour + 8 < hours:
                yield _text(left + hour * width, 11, datetime.fromtimestamp(time, UTC).strftime("%a %d.%m"))
        for row, (name, short) in enumerate(zip(names, short_names(names), strict=True)):
            yield f"<g>{_text(0, top + row * height + 10, short)}<title>{escape(name)}</title></g>"
            yield from _runs(peaks[:, row], left, top + row * height, width, height - 1)

    return _svg(total, top + len(names) * height, "Highest CPU utilization by node and hour, UTC", parts())


def _runs(values: F64, left: float, y: float, width: float, height: float) -> Iterator[str]:
    """One cell for each run of hours with the same colour."""
    kinds = [_percent_level(value) for value in values.tolist()]
    start = 0
    for end in range(1, len(kinds) + 1):
        if end == len(kinds) or kinds[end] != kinds[start]:
            x, length = left + start * width, (end - start) * width
            yield f'<rect x="{x:.2f}" y="{y:g}" width="{length:.2f}" height="{height:g}" class="{kinds[start]}"/>'
            start = end


def _percent_level(value: float) -> str:
    """Below 20 %, then steps of 20 % to 80 %, to 90 %, and above."""
    if math.isnan(value):
        return "none"
    return f"h{sum(value > step for step in (20.0, 40.0, 60.0, 70.0, 80.0, 90.0))}"


def peak_bars(nodes: Sequence[NodePeaks]) -> str:
    """Mean, peak, bound and requests of nodes, relative to capacity."""
    height, left, total = 16.0, 120.0, 480.0
    full = total - left - 10.0

    def parts() -> Iterator[str]:
        for percent in (0, 50, 100):
            x = left + full * percent / 100.0
            yield f'<line x1="{x:g}" x2="{x:g}" y1="14" y2="{16 + height * len(nodes):g}" class="grid"/>'
            yield _text(x, 10, f"{percent} %", "label end" if percent == 100 else "label")
        shown = short_names([each.node for each in nodes])
        for row, (each, short) in enumerate(zip(nodes, shown, strict=True)):
            y = 16.0 + row * height
            yield f"<g>{_text(0, y + 11, short)}<title>{escape(each.node)}</title></g>"
            yield from _bar(left, y, full, each)

    return _svg(total, 20 + height * len(nodes), "Mean, peak, bound and requests by node", parts())


def _bar(left: float, y: float, full: float, each: NodePeaks) -> Iterator[str]:
    def length(percent: float) -> float:
        return full * min(percent, 100.0) / 100.0 if math.isfinite(percent) else 0.0

    yield _cell(left, y + 3, length(each.peak_percent), 9, "peak", f"peak {each.peak_percent:.0f} %")
    yield _cell(left, y + 3, length(each.mean_percent), 9, "mean", f"mean {each.mean_percent:.0f} %")
    requested = 100.0 * each.requested / each.capacity if each.capacity else math.nan
    for percent, kind, title in ((each.bound_percent, "bound", "bound"), (requested, "requested", "requested")):
        if math.isfinite(percent):
            yield _cell(left + length(percent) - 1.5, y + 1, 3, 13, kind, f"{title} {percent:.0f} %")


def policy_dots(result: ReplayResult) -> str:
    """Differences of overload to the default scheduler, with their intervals."""
    others = [each for each in result.policies if each.overload_difference is not None]
    height, left, total = 26.0, 178.0, 520.0
    ends = [0.0]
    for each in others:
        if each.overload_difference is not None:
            difference = each.overload_difference
            ends += [v for v in (difference.low, difference.high, difference.mean) if math.isfinite(v)]
    low, high = min(ends), max(ends)
    span = (high - low) or 1.0

    def x(value: float) -> float:
        return left + 12 + (total - left - 24) * (value - low) / span

    def parts() -> Iterator[str]:
        bottom = height * len(others) + 4
        yield f'<line x1="{x(0.0):.1f}" x2="{x(0.0):.1f}" y1="0" y2="{bottom:g}" class="grid"/>'
        for row, each in enumerate(others):
            difference, y = each.overload_difference, row * height + 14.0
            assert difference is not None
            yield _text(0, y + 4, each.policy)
            if math.isfinite(difference.low):
                a, b = x(difference.low), x(difference.high)
                yield f'<line x1="{a:.1f}" x2="{b:.1f}" y1="{y:g}" y2="{y:g}" class="interval"/>'
            yield f'<circle cx="{x(difference.mean):.1f}" cy="{y:g}" r="5" class="dot"/>'
        yield _text(left, bottom + 12, f"{low:+.1f}")
        yield _text(total, bottom + 12, f"{high:+.1f} node-hours per day", "label end")

    label = "Difference of overload node-hours per day to the default scheduler, with 95 % intervals"
    return _svg(total, height * len(others) + 20, label, parts())
