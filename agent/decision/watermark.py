"""Watermarks by action and metric, and the gaps between them and the usage.

Several rules may name the same metric for the same action; all values are stored, and the smallest one counts. Each
action has its own set of watermarks.

A gap is in the unit of the release (millicores, bytes). `used` is this cycle's usage adjusted for the pending
effects of earlier steps, `x` the excess factor, and `scale` the units of release per unit of the metric:

    throttle, evict:  (1 + x) * (used - watermark) * scale
    restore:          (1 - x) * (watermark - used) * scale

so a gap above 0 requires (for restore: allows) a step.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.metrics.options import DecisionOptions

Watermarks = Mapping[str, tuple[float, ...]]
"""Watermarks by metric, in the metric's unit, in ascending order."""


def gathered(values: Iterable[tuple[str, float]]) -> dict[str, tuple[float, ...]]:
    """Group (metric, value) pairs of one action by metric, with the values in ascending order."""
    found: dict[str, list[float]] = {}
    for metric, value in values:
        found.setdefault(metric, []).append(value)
    return {metric: tuple(sorted(found[metric])) for metric in sorted(found)}


def gap_above(used: float, watermark: float, scale: float, options: DecisionOptions) -> float:
    """Amount that throttling or evicting has to release, in millicores or bytes; 0 or less for none."""
    return (1.0 + options.excess) * (max(0.0, used) - watermark) * scale


def gap_below(used: float, watermark: float, scale: float, options: DecisionOptions) -> float:
    """Amount that restoring may give back, in millicores or bytes; 0 or less for none."""
    return (1.0 - options.excess) * (watermark - max(0.0, used)) * scale
