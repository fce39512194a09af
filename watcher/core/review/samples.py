"""Review of samples: detect wrong samples before schedulers use them, and apply a remedy.

A hanging exporter repeats its last value for hours; a restarted exporter makes a rate negative; a clock that is ahead
produces samples in the future; two scrapers return one node twice. Each of these is distinguished from a true extreme
value and gets a remedy: drop, clamp, combine, quarantine. outage.py handles many nodes that disappear at once.

Two rules come first. No change is silent: every value that is dropped or altered has a finding. The review never lowers
the load that schedulers see: an upward jump is reported and the sample is used, because it may be true.

Pure: no I/O, no clock (`now` is an argument, in unix seconds). Works on arrays, so that 50,000 nodes take milliseconds;
a problem of more than 50 nodes is one finding with their number. docs/reference/review.md explains each kind for
operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from watcher.arrays import F64, I64, Bool
from watcher.core.review.devices import once_per_device, take
from watcher.core.review.findings import _is, _of_cells, _per_cell, _starts
from watcher.core.review.settings import ReviewSettings
from watcher.model import Cells, Combine, Finding, FindingKind, Metric, Remedy, SeriesBatch, Unit

MAX_NAME = 253  # a Kubernetes node name is a DNS subdomain, at most this long (RFC 1123)
TOO_LARGE = 1e15  # from this value on, 15 significant digits without an exponent cannot represent a value
END_OF_TIME = 1e11  # unix seconds; a larger time (after the year 5138) is in another unit, such as milliseconds
SLACK_POINTS = 5.0  # a percentage up to this many points beyond 0..100 is clamped, a larger one is dropped


# --- one sample at a time --------------------------------------------------------------------------------------------


def _unusable(value: F64) -> Bool:
    """Mark values that neither a window nor the wire format can represent; they are dropped in both modes."""
    return ~(np.abs(value) < TOO_LARGE)  # NaN compares false, so it is marked too


def _impossible(metric: Metric, value: F64) -> Bool:
    """Mark values that the quantity cannot have: a percentage far beyond 0..100, or a rate below zero."""
    if metric.unit is Unit.PERCENT:
        return (value < -SLACK_POINTS) | (value > 100.0 + SLACK_POINTS)
    return value < 0.0


def _impossible_kind(metric: Metric) -> FindingKind:
    """Return COUNTER_RESET for rates: a counter that restarts at zero produces a rate below zero."""
    return FindingKind.OUT_OF_RANGE if metric.unit is Unit.PERCENT else FindingKind.COUNTER_RESET


def _impossible_text(metric: Metric) -> str:
    if metric.unit is Unit.PERCENT:
        return "outside 0 to 100 % by more than 5 points"
    return "negative: a rate cannot be below zero, a counter was reset"


# --- several series of one node --------------------------------------------------------------------------------------


def combine(batch: SeriesBatch, *, resolution: int, limits: ReviewSettings) -> tuple[Cells, tuple[Finding, ...]]:
    """Combine a batch to one sample per node and slot, by the metric's rule (Metric.combine), in any sample order.

    Slot = floor(time / resolution), `resolution` in seconds; the last sample of a series in a slot wins. NEWEST_MAX
    takes the sample with the newest time, and among equal times the largest value; MAX takes the largest; SUM and MEAN
    use one sample of each device in that slot, the largest of those of its series. The result has the newest time of
    the combined samples. A finding names the nodes with several series of one device.

    A bad sample (not finite, too large, impossible) next to good samples of the same node and slot is left out of the
    sum, maximum or mean, with a finding: one failed device of three must not hide the other two, and a negative value
    must not disappear in a sum. A sum is then too small by that device. If a node and slot has only bad samples, one of
    them is used unchanged, and `clean` reviews it. Series are dropped if their name cannot be a node name (empty,
    longer than 253 characters, not printable); samples are dropped if their time is out of range (not finite, negative,
    or in milliseconds).
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
        cells, key, series = take(cells, order), key[order], series[order]
    cells, key, series, more = _leave_out(batch.metric, cells, key, series, limits=limits)
    last = np.append((key[1:] != key[:-1]) | (series[1:] != series[:-1]), True)[: len(key)]
    if not last.all():
        cells, key = cells.where(last), key[last]
    if len(names) == len(batch.nodes) or not len(key) or bool((key[1:] != key[:-1]).all()):
        return cells, findings + more
    doubled: tuple[Finding, ...] = ()
    if batch.devices and batch.metric.combine in (Combine.SUM, Combine.MEAN):
        series = series[last] if not last.all() else series
        cells, key, doubled = once_per_device(batch, cells, key, series)
    cells, several = _merged(batch.metric, cells, key)
    return cells, findings + more + doubled + several


def _named(batch: SeriesBatch) -> tuple[tuple[str, ...], I64, tuple[Finding, ...]]:
    """Return the distinct usable node names in order of appearance, each series' index in them (-1: unusable), and the
    findings."""
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
            f" ({shown}): check which label is configured as the node label"
        )
        time = _latest_time(batch.time)
        findings = (Finding(FindingKind.UNKNOWN_NODE, "", batch.metric.name, time, text, Remedy.DROPPED),)
    return tuple(rows), row_of_series, findings


def _all_usable(names: Sequence[str]) -> bool:
    """Return whether all names can be node names; `isprintable` rejects control characters and lone surrogates."""
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
        text=lambda _value, time: f"its time {time:g} is not a unix time in seconds",
        summary="their times are not unix times in seconds",
        now=_latest_time(batch.time),
    )


def _in_order(cells: Cells, series: I64) -> tuple[I64, I64 | None]:
    """Return a key per (node, slot), and the order that sorts samples by key, series, time and value; None if they are
    sorted already, as they usually are with one series per node."""
    if not len(cells.slot):
        return np.zeros(0, dtype=np.int64), None
    first = int(cells.slot.min())
    span = int(cells.slot.max()) - first + 1
    key = cells.node * span + (cells.slot - first)
    further = np.diff(series)
    ascending = bool(((further > 0) | ((further == 0) & (np.diff(cells.time) > 0.0))).all())
    if not ascending:
        return key, np.lexsort((cells.value, cells.time, series, key))
    # Sources return series after series in ascending time; then only the series of one node must be grouped.
    return key, None if bool((np.diff(key) >= 0).all()) else np.argsort(key, kind="stable")


def _leave_out(
    metric: Metric, cells: Cells, key: I64, series: I64, *, limits: ReviewSettings
) -> tuple[Cells, I64, I64, tuple[Finding, ...]]:
    """Remove the bad samples that have good samples with the same key; `key` is sorted."""
    unusable = _unusable(cells.value)
    impossible = _impossible(metric, cells.value) & ~unusable
    bad = unusable | impossible if limits.enforced else unusable
    if not bad.any() and not impossible.any():
        return cells, key, series, ()
    starts = _starts(key)
    good = np.add.reduceat((~(unusable | impossible)).astype(np.int64), starts) > 0
    beside_good = _per_cell(good, starts, len(key))
    remedy = Remedy.DROPPED if limits.enforced else Remedy.REPORTED
    findings = _of_cells(
        FindingKind.NON_FINITE,
        Remedy.DROPPED,
        cells,
        unusable & beside_good,
        metric=metric,
        text=lambda value, _time: f"one of its series has the unusable value {value:g}; the other series are used",
        summary="one series of each node has an unusable value; the other series are used",
    ) + _of_cells(
        _impossible_kind(metric),
        remedy,
        cells,
        impossible & beside_good,
        metric=metric,
        text=lambda value, _: f"one of its series has the value {metric.unit.text(value)}, {_impossible_text(metric)}",
        summary=f"one series of each node has a value {_impossible_text(metric)}",
    )
    keep = ~(bad & beside_good)
    return cells.where(keep), key[keep], series[keep], findings


def _merged(metric: Metric, cells: Cells, key: I64) -> tuple[Cells, tuple[Finding, ...]]:
    """Combine one sample per key and series to one sample per key. The input is sorted by both, so that a sum is
    rounded the same way in any order of the source's response."""
    starts = _starts(key)
    counts = np.diff(np.append(starts, len(key)))
    time = np.maximum.reduceat(cells.time, starts)
    with np.errstate(over="ignore", invalid="ignore"):  # an overflowing sum is inf, and `clean` finds it
        if metric.combine is Combine.NEWEST_MAX:
            value = np.maximum.reduceat(np.where(cells.time == np.repeat(time, counts), cells.value, -np.inf), starts)
        elif metric.combine is Combine.MAX:
            value = np.maximum.reduceat(cells.value, starts)
        else:
            value = np.add.reduceat(cells.value, starts) / (counts if metric.combine is Combine.MEAN else 1)
    # Keys with bad samples have only bad samples here. Their sum must not look like a good sample.
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
        text=lambda _value, _time: "has several series of a metric that should have one; the newest is used",
        summary="have several series of a metric that should have one per node; the newest is used",
    )


# --- drop and clamp --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reviewed:
    """Reviewed samples: `cells` enter the history, some of them clamped; `bad` were dropped, and their slots may be
    filled with carried values. Samples from the future are in neither."""

    cells: Cells
    bad: Cells
    findings: tuple[Finding, ...]


def clean(metric: Metric, cells: Cells, *, now: float, limits: ReviewSettings) -> Reviewed:
    """Drop impossible samples, clamp slightly wrong samples, and report both.

    Dropped: not finite or >= 1e15 (NON_FINITE, OUT_OF_RANGE); more than `max_ahead_s` ahead of `now` (FUTURE_SAMPLE);
    percentages more than 5 points beyond 0..100 (OUT_OF_RANGE); absolute values below zero (COUNTER_RESET). Clamped:
    percentages up to 5 points beyond 0..100. Idempotent. In observe mode the first two kinds are still dropped (one
    sample from the year 2100 would empty every window), and the others are only reported.
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
    limits: ReviewSettings,
) -> tuple[Finding, ...]:
    finite = np.isfinite(cells.value)
    dropped = Remedy.DROPPED if limits.enforced else Remedy.REPORTED
    clamped = Remedy.CLAMPED if limits.enforced else Remedy.REPORTED
    table: tuple[tuple[FindingKind, Remedy, Bool, str], ...] = (
        (FindingKind.NON_FINITE, Remedy.DROPPED, unusable & ~finite, "not a finite number"),
        (FindingKind.OUT_OF_RANGE, Remedy.DROPPED, unusable & finite, "too large (1e15 or more)"),
        (_impossible_kind(metric), dropped, impossible, _impossible_text(metric)),
        (FindingKind.OUT_OF_RANGE, clamped, beyond, "slightly outside 0 to 100 percent"),
    )
    findings = _of_cells(
        FindingKind.FUTURE_SAMPLE,
        Remedy.DROPPED,
        cells,
        ahead,
        metric=metric,
        text=lambda _value, time: (
            f"its sample is {time - now:.0f} s ahead of the clock of load-watcher: check time synchronization"
        ),
        summary=(
            f"their samples are more than {limits.max_ahead_s:g} s ahead of the clock of load-watcher: "
            "check time synchronization"
        ),
        now=now,
    )
    for kind, remedy, affected, words in table:
        findings += _of_cells(
            kind,
            remedy,
            cells,
            affected,
            metric=metric,
            text=_is(metric, words),
            summary=f"their values are {words}",
        )
    return findings


# --- findings without a remedy ---------------------------------------------------------------------------------------


# --- frozen and silent -----------------------------------------------------------------------------------------------
