"""Watermarks: what each action and metric must not go over, and how far off the node is.

Several rules may name the same metric for the same action; each one's value is kept, and the smallest counts. There are
three sets: for throttling down, for restoring (throttling up), and for evicting.

Gaps, in the unit of what a step releases (millicores, bytes), used being this cycle's usage without what earlier steps
are about to release, x the excess factor and scale the units of release in one unit of the metric:

    throttle, evict:  (1 + x) * (used - watermark) * scale
    restore:          (1 - x) * (watermark - used) * scale

so a gap is above 0 where there is something to do. The seed's English text gives watermark - usage for all three, which
its own figure and code contradict.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.metrics.options import Options, Quirk

Watermarks = Mapping[str, tuple[float, ...]]
"""By metric, ascending: the smallest is the first."""


def gathered(values: Iterable[tuple[str, float]]) -> dict[str, tuple[float, ...]]:
    """The watermarks of one action, of (metric, value) pairs in any order."""
    found: dict[str, list[float]] = {}
    for metric, value in values:
        found.setdefault(metric, []).append(value)
    return {metric: tuple(sorted(found[metric])) for metric in sorted(found)}


def gap_above(used: float, watermark: float, scale: float, options: Options) -> float:
    """What throttling or evicting has to release; not above 0 where nothing."""
    return (1.0 + options.excess) * (max(0.0, used) - watermark) * scale


def gap_below(used: float, watermark: float, scale: float, options: Options) -> float:
    """What may come back; not above 0 where nothing."""
    sign = 1.0 if Quirk.RESTORE_MORE in options.quirks else -1.0
    return (1.0 + sign * options.excess) * (watermark - max(0.0, used)) * scale
