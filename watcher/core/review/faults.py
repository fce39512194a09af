"""Detection of faulty series: jumps, clock skew, frozen exporters, silent nodes, and too few samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from watcher.arrays import F64, I64, Bool
from watcher.core.review.findings import (
    JUMP_FACTOR,
    JUMP_FLOOR,
    JUMP_MIN_SAMPLES,
    NEWEST_AHEAD_S,
    SILENT_AT_LEAST_S,
    SILENT_CADENCES,
    _of_cells,
    report,
)
from watcher.core.review.settings import ReviewSettings
from watcher.model import Cells, Finding, FindingKind, Metric, MetricWindows, Remedy, Unit

MAD_TO_DEVIATION = 1.4826  # standard deviation / median absolute deviation of a normal distribution


def carry_findings(metric: Metric, filled: Cells) -> tuple[Finding, ...]:
    """Return findings about slots of dropped samples that were filled with the previous sample (these never count as
    coverage)."""
    return _of_cells(
        FindingKind.MISSING,
        Remedy.CARRIED,
        filled,
        np.ones(len(filled.slot), dtype=bool),
        metric=metric,
        text=lambda value, _time: f"the sample was dropped; the previous value {metric.unit.text(value)} replaces it",
        summary="their samples were dropped; the previous values replace them",
    )


def jumps(
    metric: Metric,
    cells: Cells,
    *,
    previous: F64,
    spread: Callable[[Sequence[str]], tuple[F64, F64, I64]],
    limits: ReviewSettings,
) -> tuple[Finding, ...]:
    """Report samples far from their node's usual values. They are always used, because a jump may be true.

    `previous` [len(cells.names)] is each node's latest value before these samples, NaN if there is none. Candidates
    differ from it by more than a floor (`jump_points` for percentages; for absolute values a floor per unit and a
    factor of 4). Only for the candidates' nodes, `spread(names)` returns median, median absolute deviation (MAD) and
    number of the earlier samples; a jump is |x - median| > max(floor, jump_spreads x 1.4826 x MAD) with at least 8
    samples.
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
        text=lambda value, _time: f"jumped to {metric.unit.text(value)}, far from its usual values; the sample is used",
        summary="jumped far from their usual values; the samples are used",
    )


def skew(clock_offset_s: float | None, *, newest: float, now: float, limits: ReviewSettings) -> Finding | None:
    """Return a finding if the source's clock and the local clock disagree: by the source's own report
    (`clock_offset_s`, source minus local, in seconds), or because the newest accepted sample (unix seconds) is more
    than 5 s ahead of `now`."""
    if clock_offset_s is not None and abs(clock_offset_s) > limits.max_skew_s:
        where = "ahead of" if clock_offset_s > 0 else "behind"
        text = (
            f"the source's clock is {abs(clock_offset_s):.1f} s {where} the clock of load-watcher: "
            "check time synchronization on both"
        )
    elif newest - now > NEWEST_AHEAD_S:
        text = (
            f"the newest sample is {newest - now:.1f} s ahead of the clock of load-watcher: "
            "check time synchronization on both"
        )
    else:
        return None
    return Finding(FindingKind.CLOCK_SKEW, "", "", now, text, Remedy.REPORTED)


def ahead(clock_offset_s: float | None, *, limits: ReviewSettings) -> float:
    """Return by how many seconds the source's clock is ahead of the local clock, 0 if it is not, or within
    `max_skew_s`. Of two clocks that differ, the source's clock decides how old its samples are: it stamps them."""
    return clock_offset_s if clock_offset_s is not None and clock_offset_s > limits.max_skew_s else 0.0


def unchanged(values: F64, *, samples: int = 5) -> Bool:
    """Mark nodes whose newest `samples` samples are exactly equal; [n]. `values` [slots, n], newest slot first, NaN
    without a true sample (a carried value does not count). A node with fewer samples is not marked."""
    nodes = values.shape[1]
    undecided = np.arange(nodes)  # almost all nodes differ within two samples and are then decided
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


class MetricMotion(NamedTuple):
    """Movement of one metric, per node [n]: whether it is constant, whether it is known, and its latest value."""

    metric: Metric
    still: Bool
    known: Bool
    latest: F64


def frozen_nodes(motions: Sequence[MetricMotion], *, nodes: int) -> Bool:
    """Mark nodes whose exporter repeats its last values: all known metrics that should change (Metric.moves) are
    constant, and there is at least one such metric.

    A constant absolute value of exactly 0 (an idle network card, a missing power meter) is not evidence and is ignored.
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


def silent_nodes(*, now: float, sampled: F64, cadence: F64) -> Bool:
    """Mark nodes without a sample for more than max(3 cadences, 90 s). `sampled` [n] is the time of the newest sample
    (unix seconds), `cadence` [n] is in seconds; a node without any sample (NaN) is absent, not silent. An unknown
    cadence (NaN) means 90 s."""
    patience = np.fmax(SILENT_CADENCES * cadence, SILENT_AT_LEAST_S)
    return now - sampled > patience


def gone_silent(metric: Metric, *, now: float, nodes: Sequence[str], sampled: F64, which: Bool) -> tuple[Finding, ...]:
    """Return findings about one metric of the nodes that `silent_nodes` marked."""
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
    """Return findings about nodes that have samples of a metric, but too few for the longest window (see
    history.covers); `labels` name the windows in the order of `windows.average` [W, n], ascending. Returns no findings
    while at least half of the nodes are affected: then load-watcher has not run long enough."""
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
            f"{windows.count[-1, rows[i]]} samples are too few for {labels[-1]}; served instead: {served_instead(i)}"
        ),
        summary=f"too few samples for {labels[-1]}; shorter windows or the latest sample are served instead",
    )
