"""Detection of faulty series: jumps, clock skew, frozen exporters, silent nodes, and too few samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from watcher.arrays import F64, I64, Bool
from watcher.core.review.findings import _of_cells, report
from watcher.core.review.limits import (
    JUMP_FACTOR,
    JUMP_FLOOR,
    JUMP_MIN_SAMPLES,
    NEWEST_AHEAD_S,
    SILENT_AT_LEAST_S,
    SILENT_CADENCES,
    Limits,
)
from watcher.model import Cells, Finding, FindingKind, Metric, MetricWindows, Remedy, Unit

MAD_TO_DEVIATION = 1.4826  # of a normal distribution: standard deviation / median absolute deviation


def carried(metric: Metric, filled: Cells) -> tuple[Finding, ...]:
    """Findings about slots of dropped samples that were filled with the sample before (never counted as coverage)."""
    return _of_cells(
        FindingKind.MISSING,
        Remedy.CARRIED,
        filled,
        np.ones(len(filled.slot), dtype=bool),
        metric=metric,
        text=lambda value, _time: f"the sample was dropped; the one before it, {value:g}, stands in for it",
        summary="their samples were dropped; the ones before stand in for them",
    )


def jumps(
    metric: Metric,
    cells: Cells,
    *,
    previous: F64,
    spread: Callable[[Sequence[str]], tuple[F64, F64, I64]],
    limits: Limits,
) -> tuple[Finding, ...]:
    """Samples far from what their node usually does; reported and always kept, for a jump may be true.

    `previous` [len(cells.names)] is each node's latest value before these samples, NaN where there is none.
    Candidates differ from it by more than a floor (`jump_points` for percentages; for absolute values a floor per unit
    and a factor of 4). For their nodes only, `spread(names)` gives median, median absolute deviation and number of the
    samples so far; a jump is |x - median| > max(floor, jump_spreads x 1.4826 x MAD) with at least 8 samples.
    """
    before = previous[cells.node]
    floor = limits.jump_points if metric.unit is Unit.PERCENT else JUMP_FLOOR[metric.unit]
    candidate = np.abs(cells.value - before) > floor  # false where either is NaN
    if metric.unit is not Unit.PERCENT:
        candidate &= np.maximum(cells.value, before) > JUMP_FACTOR * np.minimum(cells.value, before)
    rows = np.flatnonzero(candidate)
    if not len(rows):
        return ()
    nodes, position = np.unique(cells.node[rows], return_inverse=True)
    median, mad, count = spread([cells.names[node] for node in nodes])
    bound = np.maximum(floor, limits.jump_spreads * MAD_TO_DEVIATION * mad)
    far = np.abs(cells.value[rows] - median[position]) > bound[position]
    candidate[rows] = far & (count[position] >= JUMP_MIN_SAMPLES)
    return _of_cells(
        FindingKind.JUMP,
        Remedy.REPORTED,
        cells,
        candidate,
        metric=metric,
        text=lambda value, _time: f"jumped to {value:g}, far from its own usual spread; kept",
        summary="jumped far from their own usual spread; kept",
    )


def skew(clock_offset_s: float | None, *, newest: float, now: float, limits: Limits) -> Finding | None:
    """Whether the source's clock and ours disagree: by what it says of itself (`clock_offset_s`, source minus ours), or
    because the newest accepted sample of all (unix seconds) is more than 5 s ahead of `now`."""
    if clock_offset_s is not None and abs(clock_offset_s) > limits.max_skew_s:
        where = "ahead of" if clock_offset_s > 0 else "behind"
        text = f"the source's clock is {abs(clock_offset_s):.1f} s {where} ours: check time synchronisation on both"
    elif newest - now > NEWEST_AHEAD_S:
        text = f"the newest sample is {newest - now:.1f} s ahead of our clock: check time synchronisation on both"
    else:
        return None
    return Finding(FindingKind.CLOCK_SKEW, "", "", now, text, Remedy.REPORTED)


def still(values: F64, *, samples: int = 5) -> Bool:
    """Which nodes' newest `samples` samples are exactly equal; `values` [slots newest-first, n], NaN where there is no
    true sample (a carried value is none). A node with fewer samples does not stand still."""
    nodes = values.shape[1]
    undecided = np.arange(nodes)  # almost all nodes differ within two samples and are then left alone
    first = np.full(nodes, np.nan)
    count = np.zeros(nodes, dtype=np.int64)
    for row in values:
        value = row[undecided]
        known = ~np.isnan(value)
        fresh = known & (count[undecided] == 0)
        first[undecided[fresh]] = value[fresh]
        count[undecided[known]] += 1
        differs = known & (value != first[undecided])
        count[undecided[differs]] = 0
        undecided = undecided[~differs & (count[undecided] < samples)]
        if not len(undecided):
            break
    return count >= samples


class Motion(NamedTuple):
    """How one metric moved, per node [n]: does it stand still, is it known at all, and its latest value."""

    metric: Metric
    still: Bool
    known: Bool
    latest: F64


def frozen(motions: Sequence[Motion], *, nodes: int) -> Bool:
    """Nodes whose exporter repeats itself: all their known metrics that ought to move stand still, and there is one.

    An absolute value that rests at exactly 0 (an idle network card, a power meter that is not there) proves nothing
    and does not count among those that ought to move.
    """
    moves = np.zeros(nodes, dtype=bool)
    stands = np.zeros(nodes, dtype=bool)
    for motion in motions:
        if not motion.metric.moves:
            continue
        resting = motion.still & (motion.latest == 0.0) & (motion.metric.unit is not Unit.PERCENT)
        moves |= motion.known & ~motion.still
        stands |= motion.known & motion.still & ~resting
    return stands & ~moves


def silent(*, now: float, sampled: F64, cadence: F64) -> Bool:
    """Who gave no sample for more than max(3 cadences, 90 s) (contract 5.1, "Age"). `sampled` [n] is the newest
    sample's time; a node that never had one (NaN) is absent, not silent. An unknown cadence (NaN) means 90 s."""
    patience = np.fmax(SILENT_CADENCES * cadence, SILENT_AT_LEAST_S)
    return now - sampled > patience


def gone_silent(metric: Metric, *, now: float, nodes: Sequence[str], sampled: F64, which: Bool) -> tuple[Finding, ...]:
    """Findings about one metric of the nodes that `silent` marked."""
    rows = np.flatnonzero(which).tolist()
    return report(
        FindingKind.STALE,
        Remedy.REPORTED,
        metric=metric.name,
        nodes=[nodes[row] for row in rows],
        times=[now] * len(rows),
        reason=lambda i: f"no new sample for {now - sampled[rows[i]]:.0f} s",
        summary="no new sample for longer than usual",
    )


def short_coverage(
    windows: MetricWindows, *, now: float, nodes: Sequence[str], labels: Sequence[str]
) -> tuple[Finding, ...]:
    """Findings about nodes that have samples of a metric, but not enough for the longest window (contract 5.1,
    "Coverage"); `labels` name the windows in the order of `windows.average` [W, n], ascending. None while that is true
    of most nodes: then it is we who have not been running for long enough."""
    known = ~np.isnan(windows.latest)
    short = known & np.isnan(windows.average[-1])
    if 2 * np.count_nonzero(short) >= np.count_nonzero(known):
        return ()
    rows = np.flatnonzero(short).tolist()

    def served_instead(i: int) -> str:
        enough = np.flatnonzero(~np.isnan(windows.average[:, rows[i]]))
        return labels[enough[-1]] if len(enough) else "the latest sample"

    return report(
        FindingKind.SHORT_COVERAGE,
        Remedy.SHORTER_WINDOW,
        metric=windows.metric.name,
        nodes=[nodes[row] for row in rows],
        times=[now] * len(rows),
        reason=lambda i: (
            f"{windows.count[-1, rows[i]]} samples are too few for {labels[-1]}; {served_instead(i)} serves"
        ),
        summary=f"too few samples for {labels[-1]}; shorter windows, or the latest sample, serve instead",
    )
