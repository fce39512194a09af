"""Samples lie, and what schedulers do with a lie is worse than what they do without the sample.

An exporter that hangs repeats its last value for hours; a restarted one makes a rate negative; a clock that is ahead
puts samples where the window has not come yet; two scrapers give one node twice; and when the monitoring of every fifth
node dies at once, a list without those nodes sends all pods to them, for the Go plug-ins score an absent node 0.

Here each such lie is told apart from an honest extreme and gets its remedy: drop, clamp, combine, quarantine. (What is
held, when many nodes go at once, is in outage.py.) Two
rules stand above all others. Nothing changes silently: every value that is dropped or altered has a finding. And the
review never lowers the load that schedulers see: an upward jump is reported and kept, for it may well be true.

Pure: no I/O, no clock (`now` is an argument). All over arrays, so that 50,000 nodes cost milliseconds; what is wrong
with more than 50 nodes at once is one finding that counts them. What each kind means for the operator: docs/review.md.
The rules are those of contract section 5.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from watcher.findings import report
from watcher.model import (
    F64,
    I64,
    Bool,
    Cells,
    Combine,
    Finding,
    FindingKind,
    Metric,
    MetricWindows,
    Remedy,
    SeriesBatch,
    Unit,
)

MAX_NAME = 253  # a Kubernetes node name is a DNS subdomain, at most this long (RFC 1123)
TOO_LARGE = 1e15  # from here on 15 significant digits without an exponent cannot carry a value (contract section 5)
END_OF_TIME = 1e11  # seconds; a "time" beyond the year 5138 is another unit (milliseconds), not a time
SLACK_POINTS = 5.0  # a percentage may be this far beyond 0..100 before it is impossible (contract section 5.1)

MAD_TO_DEVIATION = 1.4826  # of a normal distribution: standard deviation / median absolute deviation
JUMP_MIN_SAMPLES = 8
JUMP_FACTOR = 4.0  # absolute units: less than this ratio between two values is no candidate
JUMP_FLOOR: Mapping[Unit, float] = {
    Unit.BYTES_PER_SECOND: 1e6,
    Unit.PACKETS_PER_SECOND: 100.0,
    Unit.WATTS: 50.0,
}

SILENT_CADENCES = 3.0
SILENT_AT_LEAST_S = 90.0
NEWEST_AHEAD_S = 5.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What the review tolerates. The defaults are the product's; settings may change them.

    `mode` is "enforce" or "observe": to observe is to report what would be done, and to do only what must be done lest
    the service breaks (what is not a finite number, does not fit on the wire, or lies in the future is still refused).
    `max_ahead_s` is how far ahead of our clock a sample may be. `carry_slots` is how many slots a dropped sample may be
    replaced by the one before it. `max_skew_s` is how far the source's clock may be from ours before we say so.

    `outage_fraction` of the known nodes (and at least `outage_nodes` of them, or all) leaving at once is an outage of
    the monitoring and not of the nodes; they are held until `max_staleness_s` and waited for until `forget_after_s`.
    `interval_s` is the distance of two ticks. A jump is at least `jump_points` (of percent) and `jump_spreads` robust
    deviations away from the node's own median.
    """

    mode: str = "enforce"
    max_ahead_s: float = 30.0
    carry_slots: int = 2
    max_skew_s: float = 10.0
    outage_fraction: float = 0.2
    outage_nodes: int = 1
    forget_after_s: float = 1800.0
    max_staleness_s: float = 300.0
    interval_s: float = 60.0
    jump_points: float = 20.0
    jump_spreads: float = 6.0

    @property
    def enforced(self) -> bool:
        """Whether remedies are applied, or only named."""
        return self.mode == "enforce"


def _of_cells(
    kind: FindingKind,
    remedy: Remedy,
    cells: Cells,
    affected: Bool,
    *,
    metric: Metric,
    text: Callable[[float, float], str],
    summary: str,
    now: float | None = None,
) -> tuple[Finding, ...]:
    """Findings about samples, one per node: its newest affected sample speaks for the others, which are counted.

    A finding has its sample's true time, so that a sample fetched twice is not counted twice; `now` stands in for it
    where that time is the very thing that is wrong.
    """
    rows = np.flatnonzero(affected)
    if not len(rows):
        return ()
    rows = rows[np.lexsort((cells.value[rows], cells.time[rows], cells.node[rows]))]
    starts = _starts(cells.node[rows])
    ends = np.append(starts[1:], len(rows))
    newest, counts = rows[ends - 1], ends - starts
    times = [now] * len(newest) if now is not None else cells.time[newest].tolist()

    def reason(i: int) -> str:
        others = f" ({counts[i]} samples, this the newest)" if counts[i] > 1 else ""
        return text(float(cells.value[newest[i]]), float(cells.time[newest[i]])) + others

    names = [cells.names[node] for node in cells.node[newest]]
    return report(kind, remedy, metric=metric.name, nodes=names, times=times, reason=reason, summary=summary)


def _starts(key: I64) -> I64:
    """Where each run of equal keys begins."""
    return np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1]))) if len(key) else np.zeros(0, dtype=np.int64)


# --- one sample at a time --------------------------------------------------------------------------------------------


def _unusable(value: F64) -> Bool:
    """What no window can hold and no wire can carry: dropped in either mode."""
    return ~(np.abs(value) < TOO_LARGE)  # NaN compares false, so it is caught too


def _impossible(metric: Metric, value: F64) -> Bool:
    """What the quantity cannot be: a percentage far beyond 0..100, or a rate below zero."""
    if metric.unit is Unit.PERCENT:
        return (value < -SLACK_POINTS) | (value > 100.0 + SLACK_POINTS)
    return value < 0.0


def _impossible_kind(metric: Metric) -> FindingKind:
    """A rate below zero is what a counter leaves behind that began again at zero."""
    return FindingKind.OUT_OF_RANGE if metric.unit is Unit.PERCENT else FindingKind.COUNTER_RESET


def _impossible_text(metric: Metric) -> str:
    if metric.unit is Unit.PERCENT:
        return "outside of 0 to 100 percent by more than 5 points"
    return "negative: a counter was reset, a rate cannot be below zero"


# --- several series of one node --------------------------------------------------------------------------------------


def combine(batch: SeriesBatch, *, resolution: int, limits: Limits) -> tuple[Cells, tuple[Finding, ...]]:
    """One sample per node and slot, by the metric's rule (contract 5.1, "Types"), whatever the order of the samples.

    Slot = floor(time / resolution), `resolution` in seconds; the last sample of a series in a slot wins. Over the
    series of a node: NEWEST_MAX takes the newest time and among equal times the largest value; SUM, MAX and MEAN run
    over the series' samples of that slot. The time is the newest of those that entered.

    A bad sample (not finite, too large, impossible) beside good ones of the same node and slot is left out of the sum,
    maximum or mean, with a finding: one dead device of three must not take the other two along, and a negative one must
    not hide in a sum. A sum is then too small by that device. Where a node and slot has only bad samples, one of them
    stands for all, unchanged, and `clean` judges it. Names that cannot be a node's (empty, longer than 253 characters,
    not printable) lose their series; times that are none (not finite, negative, milliseconds) their sample.
    """
    names, row_of_series, findings = _named(batch)
    node = row_of_series[batch.series]
    timely = (batch.time >= 0.0) & (batch.time < END_OF_TIME)
    findings += _untimely(batch, names, node, ~timely & (node >= 0))
    keep = timely & (node >= 0)
    everything = bool(keep.all())
    time, value = (batch.time, batch.value) if everything else (batch.time[keep], batch.value[keep])
    node, series = (node, batch.series) if everything else (node[keep], batch.series[keep])
    cells = Cells(names, node, np.floor_divide(time, resolution).astype(np.int64), time, value)

    key, order = _in_order(cells, series)
    if order is not None:
        cells, key, series = _take(cells, order), key[order], series[order]
    cells, key, series, more = _leave_out(batch.metric, cells, key, series, limits=limits)
    last = np.append((key[1:] != key[:-1]) | (series[1:] != series[:-1]), True)[: len(key)]
    if not last.all():
        cells, key = cells.where(last), key[last]
    if len(names) == len(batch.nodes) or not len(key) or bool((key[1:] != key[:-1]).all()):
        return cells, findings + more
    cells, doubled = _merged(batch.metric, cells, key)
    return cells, findings + more + doubled


def _named(batch: SeriesBatch) -> tuple[tuple[str, ...], I64, tuple[Finding, ...]]:
    """Distinct usable node names as they appear, each series' row in them (-1: unusable), and what was wrong."""
    names = batch.nodes
    if _all_usable(names) and len(set(names)) == len(names):
        return names, np.arange(len(names), dtype=np.int64), ()
    rows: dict[str, int] = {}
    row_of_series = np.array(
        [rows.setdefault(name, len(rows)) if _all_usable((name,)) else -1 for name in names], dtype=np.int64
    )
    unusable = [name for name in names if not _all_usable((name,))]
    findings: tuple[Finding, ...] = ()
    if unusable:
        shown = ", ".join(sorted({ascii(name[:60]) for name in unusable})[:3])
        text = (
            f"{len(unusable)} series have a node name that is empty, longer than {MAX_NAME} characters or not printable"
            f" ({shown}): is the right label configured?"
        )
        time = _latest_time(batch.time)
        findings = (Finding(FindingKind.UNKNOWN_NODE, "", batch.metric.name, time, text, Remedy.DROPPED),)
    return tuple(rows), row_of_series, findings


def _all_usable(names: Sequence[str]) -> bool:
    """Whether each of these can be a node's name; `isprintable` refuses control characters and lone surrogates."""
    if not names:
        return True
    lengths = [len(name) for name in names]
    return min(lengths) > 0 and max(lengths) <= MAX_NAME and "".join(names).isprintable()


def _latest_time(time: F64) -> float:
    usable = time[(time >= 0.0) & (time < END_OF_TIME)]
    return float(usable.max()) if len(usable) else 0.0


def _untimely(batch: SeriesBatch, names: tuple[str, ...], node: I64, affected: Bool) -> tuple[Finding, ...]:
    if not affected.any():
        return ()
    return _of_cells(
        FindingKind.NON_FINITE,
        Remedy.DROPPED,
        Cells(names, node, node, batch.time, batch.value),
        affected,
        metric=batch.metric,
        text=lambda _value, time: f"its time is {time:g}, which is no unix time in seconds",
        summary="their times are no unix times in seconds",
        now=_latest_time(batch.time),
    )


def _in_order(cells: Cells, series: I64) -> tuple[I64, I64 | None]:
    """A key per (node, slot), and the order that sorts samples by it, then by series, time and value; None if they
    stand so already, as with one series per node they usually do."""
    if not len(cells.slot):
        return np.zeros(0, dtype=np.int64), None
    first = int(cells.slot.min())
    span = int(cells.slot.max()) - first + 1
    key = cells.node * span + (cells.slot - first)
    further = np.diff(series)
    ascending = bool(((further > 0) | ((further == 0) & (np.diff(cells.time) > 0.0))).all())
    if not ascending:
        return key, np.lexsort((cells.value, cells.time, series, key))
    # Series by series in ascending time, as sources answer: only the series of one node have to find together.
    return key, None if bool((np.diff(key) >= 0).all()) else np.argsort(key, kind="stable")


def _take(cells: Cells, order: I64) -> Cells:
    return Cells(cells.names, cells.node[order], cells.slot[order], cells.time[order], cells.value[order])


def _leave_out(
    metric: Metric, cells: Cells, key: I64, series: I64, *, limits: Limits
) -> tuple[Cells, I64, I64, tuple[Finding, ...]]:
    """Without the bad samples that stand beside good ones of the same key; `key` is sorted."""
    unusable = _unusable(cells.value)
    impossible = _impossible(metric, cells.value) & ~unusable
    bad = unusable | impossible if limits.enforced else unusable
    if not bad.any() and not impossible.any():
        return cells, key, series, ()
    starts = _starts(key)
    group = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(key))))
    beside_good = (np.add.reduceat((~(unusable | impossible)).astype(np.int64), starts) > 0)[group]
    remedy = Remedy.DROPPED if limits.enforced else Remedy.REPORTED
    findings = _of_cells(
        FindingKind.NON_FINITE,
        Remedy.DROPPED,
        cells,
        unusable & beside_good,
        metric=metric,
        text=lambda value, _time: f"one of its series gave {value:g}, which is no usable number; the others count",
        summary="one of the series of each gave no usable number; the others count",
    ) + _of_cells(
        _impossible_kind(metric),
        remedy,
        cells,
        impossible & beside_good,
        metric=metric,
        text=lambda value, _time: f"one of its series gave {value:g}, {_impossible_text(metric)}",
        summary=f"one of the series of each gave a value {_impossible_text(metric)}",
    )
    keep = ~(bad & beside_good)
    return cells.where(keep), key[keep], series[keep], findings


def _merged(metric: Metric, cells: Cells, key: I64) -> tuple[Cells, tuple[Finding, ...]]:
    """One sample per key out of one per key and series; sorted by both, so that a sum rounds the same way whatever the
    order in which the source answered."""
    starts = _starts(key)
    counts = np.diff(np.append(starts, len(key)))
    time = np.maximum.reduceat(cells.time, starts)
    with np.errstate(over="ignore", invalid="ignore"):  # a sum beyond every bound is inf, and `clean` finds it
        if metric.combine is Combine.NEWEST_MAX:
            value = np.maximum.reduceat(np.where(cells.time == np.repeat(time, counts), cells.value, -np.inf), starts)
        elif metric.combine is Combine.MAX:
            value = np.maximum.reduceat(cells.value, starts)
        else:
            value = np.add.reduceat(cells.value, starts) / (counts if metric.combine is Combine.MEAN else 1)
    # Bad samples left here have no good one beside them. No sum of theirs may come out as if it were a good one.
    bad = _unusable(cells.value) | _impossible(metric, cells.value)
    value = np.where(np.logical_and.reduceat(bad, starts), cells.value[starts], value)
    merged = Cells(cells.names, cells.node[starts], cells.slot[starts], time, value)
    if metric.combine is not Combine.NEWEST_MAX:
        return merged, ()
    return merged, _of_cells(
        FindingKind.DUPLICATE_SERIES,
        Remedy.COMBINED,
        merged,
        counts > 1,
        metric=metric,
        text=lambda _value, _time: "has several series of a metric that it should have once; the newest counts",
        summary="have several series of a metric that each should have once; the newest counts",
    )


# --- what is dropped and clamped -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reviewed:
    """`cells` enter the history (clamped where a finding says so); `bad` were dropped, and their slots may be carried;
    samples from the future are in neither."""

    cells: Cells
    bad: Cells
    findings: tuple[Finding, ...]


def clean(metric: Metric, cells: Cells, *, now: float, limits: Limits) -> Reviewed:
    """Drop what cannot be, clamp what is nearly right, report both (contract 5.1, "Review never lowers").

    Dropped: not finite or >= 1e15 (NON_FINITE, OUT_OF_RANGE); more than `max_ahead_s` ahead of `now` (FUTURE_SAMPLE);
    percentages more than 5 points beyond 0..100 (OUT_OF_RANGE); absolute values below zero (COUNTER_RESET). Clamped:
    percentages beyond 0..100 by less. To clean twice is to clean once. In observe mode the first and the second are
    still dropped (one sample from the year 2100 would empty every window), the others only reported.
    """
    value = cells.value
    ahead = ~(cells.time <= now + limits.max_ahead_s)
    unusable = _unusable(value) & ~ahead
    impossible = _impossible(metric, value) & ~ahead & ~unusable
    beyond = np.zeros(len(value), dtype=bool)
    if metric.unit is Unit.PERCENT:
        beyond = ((value < 0.0) | (value > 100.0)) & ~ahead & ~unusable & ~impossible
    if not (ahead.any() or unusable.any() or impossible.any() or beyond.any()):
        return Reviewed(cells, cells.where(ahead), ())
    findings = _clean_findings(metric, cells, ahead, unusable, impossible, beyond, now=now, limits=limits)
    dropped = unusable | impossible if limits.enforced else unusable
    if limits.enforced and beyond.any():
        value = np.where(beyond, np.clip(value, 0.0, 100.0), value)
    kept = Cells(cells.names, cells.node, cells.slot, cells.time, value).where(~(dropped | ahead))
    return Reviewed(kept, cells.where(dropped), findings)


def _clean_findings(
    metric: Metric,
    cells: Cells,
    ahead: Bool,
    unusable: Bool,
    impossible: Bool,
    beyond: Bool,
    *,
    now: float,
    limits: Limits,
) -> tuple[Finding, ...]:
    finite = np.isfinite(cells.value)
    dropped = Remedy.DROPPED if limits.enforced else Remedy.REPORTED
    clamped = Remedy.CLAMPED if limits.enforced else Remedy.REPORTED
    table: tuple[tuple[FindingKind, Remedy, Bool, str], ...] = (
        (FindingKind.NON_FINITE, Remedy.DROPPED, unusable & ~finite, "not a finite number"),
        (FindingKind.OUT_OF_RANGE, Remedy.DROPPED, unusable & finite, "too large to be true (1e15 or more)"),
        (_impossible_kind(metric), dropped, impossible, _impossible_text(metric)),
        (FindingKind.OUT_OF_RANGE, clamped, beyond, "a little outside of 0 to 100 percent"),
    )
    findings = _of_cells(
        FindingKind.FUTURE_SAMPLE,
        Remedy.DROPPED,
        cells,
        ahead,
        metric=metric,
        text=lambda _value, time: f"its sample is {time - now:.0f} s ahead of our clock: is a clock wrong?",
        summary=f"their samples are more than {limits.max_ahead_s:g} s ahead of our clock: is a clock wrong?",
        now=now,
    )
    for kind, remedy, affected, words in table:
        findings += _of_cells(
            kind,
            remedy,
            cells,
            affected,
            metric=metric,
            text=_is(words),
            summary=f"their values are {words}",
        )
    return findings


def _is(words: str) -> Callable[[float, float], str]:
    return lambda value, _time: f"{value:g} is {words}"


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


# --- what is only said -----------------------------------------------------------------------------------------------


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


# --- frozen and silent -----------------------------------------------------------------------------------------------


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
