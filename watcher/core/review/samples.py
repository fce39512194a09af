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

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from watcher.arrays import F64, I64, Bool
from watcher.core.review.findings import _of_cells, _starts
from watcher.core.review.limits import Limits, _is
from watcher.model import Cells, Combine, Finding, FindingKind, Metric, Remedy, SeriesBatch, Unit

MAX_NAME = 253  # a Kubernetes node name is a DNS subdomain, at most this long (RFC 1123)
TOO_LARGE = 1e15  # from here on 15 significant digits without an exponent cannot carry a value (contract section 5)
END_OF_TIME = 1e11  # seconds; a "time" beyond the year 5138 is another unit (milliseconds), not a time
SLACK_POINTS = 5.0  # a percentage may be this far beyond 0..100 before it is impossible (contract section 5.1)


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


# --- what is only said -----------------------------------------------------------------------------------------------


# --- frozen and silent -----------------------------------------------------------------------------------------------
