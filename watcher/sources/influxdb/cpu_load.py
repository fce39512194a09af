"""Computes the load of nodes from the points that Telegraf stored.

InfluxDB could compute the growth of a counter, but each query language does so differently and hides counter resets.
Here, both languages give the same values: the growth from one point to the next per second, at the time of the later
point. After a decrease of the counter (a reboot or a device reset) there is no value, and a finding reports it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from watcher.arrays import F64
from watcher.core.messages import shorten_names
from watcher.core.naming.candidates import NamingEvidence
from watcher.core.naming.identity import identify
from watcher.model import SOURCE_UNITS, Combine, Finding, FindingKind, Remedy, SeriesBatch
from watcher.sources.errors import ProviderRefused
from watcher.sources.fetching import in_unit, out_of_range_findings
from watcher.sources.influxdb.queries import LOOK_BACK_S, FieldQuery, InfluxQueryPlan

ROUNDING = 0.01
"""Percent. The sum of rounded shares may slightly exceed 100, so values down to -ROUNDING become 0. The review
reports lower values."""
SHOWN_TAGS = 5
OF_ONE_CLUSTER = 'select the series with "{label}" = "{value}" with provider.queries'


@dataclass(frozen=True, slots=True)
class Points:
    """Points of one series: its tags, ascending times (unix seconds), and the values of each field, NaN for a
    missing value."""

    tags: Mapping[str, str]
    time: F64
    fields: Mapping[str, F64]


@dataclass(frozen=True, slots=True)
class MetricLoad:
    """Load of one metric: a batch (None: no samples in the range) and the findings."""

    batch: SeriesBatch | None
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _NodeSeries:
    """Load of one series of a node, and the intervals (unix seconds) with a decreased counter."""

    node: str
    device: str
    time: F64
    value: F64
    resets: Sequence[tuple[float, float]] = ()


def load_of(plan: InfluxQueryPlan, series: Sequence[Points], *, since: float, until: float) -> MetricLoad:
    """Load between the two times (unix seconds, inclusive), in the metric's unit. Raises ProviderRefused if no
    series names its node, or if a configured query returns more than one value."""
    named = [points for points in series if points.tags.get(plan.node_tag)]
    if series and not named:
        raise _nameless(plan, series)
    findings = [_unnamed(plan, len(series) - len(named), len(series), until)] if len(named) < len(series) else []
    named, problems = _of_one_cluster(plan, named, until)
    findings += problems
    if named:
        times = np.concatenate([points.time for points in named])
        findings += out_of_range_findings(plan.metric, times, since=since, until=until)
    loads = [_of_series(plan, points) for points in named]
    within = [_between(load, since, until) for load in loads]
    findings += _went_back(plan, within)
    if plan.metric.combine is Combine.SUM:
        within = _without_half_sums(within)
    kept = [load for load in within if len(load.time)]
    return MetricLoad(_batch(plan, kept), tuple(findings))


def _of_one_cluster(plan: InfluxQueryPlan, named: Sequence[Points], now: float) -> tuple[list[Points], list[Finding]]:
    """The series without those of machines in different clusters that have one name, and findings about these."""
    found = identify([points.tags for points in named], NamingEvidence(), configured=plan.node_tag, cure=OF_ONE_CLUSTER)
    kept = [points for points, node in zip(named, found.nodes, strict=True) if node is not None]
    findings = [
        Finding(each.kind, each.node, plan.metric.name, now, each.reason, Remedy.LEFT_OUT) for each in found.problems
    ]
    return kept, findings


def _batch(plan: InfluxQueryPlan, loads: Sequence[_NodeSeries]) -> SeriesBatch | None:
    if not loads:
        return None
    factor = SOURCE_UNITS[plan.unit][1]
    return SeriesBatch(
        plan.metric,
        tuple(load.node for load in loads),
        np.repeat(np.arange(len(loads), dtype=np.int64), [len(load.time) for load in loads]),
        np.concatenate([load.time for load in loads]),
        in_unit(np.concatenate([load.value for load in loads]), factor),
        tuple(load.device for load in loads),
    )


# --- one series ------------------------------------------------------------------------------------------------------


def _of_series(plan: InfluxQueryPlan, points: Points) -> _NodeSeries:
    node, device = points.tags[plan.node_tag], plan.metric.device_of(points.tags)
    if plan.counter is not None:
        return _growth(plan, points, node=node, device=device)
    value = _value(plan, points.fields, len(points.time))
    there = ~np.isnan(value)
    return _NodeSeries(node, device, points.time[there], value[there])


def _value(plan: InfluxQueryPlan, fields: Mapping[str, F64], length: int) -> F64:
    """Values of points that are not counters; NaN if a required field is missing."""
    if not isinstance(plan.source, FieldQuery):
        if len(fields) != 1:
            raise ProviderRefused(
                f"the query of {plan.metric.key} returns {len(fields)} values per time: {', '.join(fields) or 'none'}",
                hint=f"provider.queries.{plan.metric.key}.expression must return one value in addition to the time.",
            )
        (value,) = fields.values()
        return value
    none = np.full(length, np.nan)
    if plan.metric.key == "Memory":
        available = fields.get("available_percent", none)
        return np.where(np.isnan(available), fields.get("used_percent", none), 100.0 - available)
    used = 100.0 - fields.get("usage_idle", none)
    for unused in ("usage_iowait", "usage_steal"):  # some systems have neither; a missing share counts as use
        used = used - np.nan_to_num(fields.get(unused, none), nan=0.0)
    return np.where((used < 0.0) & (used > -ROUNDING), 0.0, used)


def _growth(plan: InfluxQueryPlan, points: Points, *, node: str, device: str) -> _NodeSeries:
    """Growth per second from one point to the next. Intervals above LOOK_BACK_S are ignored, so that values do not
    depend on the start of the query."""
    count = points.fields.get(plan.counter or "", np.empty(0))
    there = ~np.isnan(count)
    time, count = points.time[: len(count)][there], count[there]
    with np.errstate(invalid="ignore"):  # the difference of two infinities is NaN, which the review reports
        took, grown = np.diff(time), np.diff(count)
    near = (took > 0.0) & (took <= LOOK_BACK_S)
    back = near & (grown < 0.0)
    keep = near & ~back
    rate = plan.scale * grown[keep] / took[keep]
    if plan.unit == "percent":
        rate = np.minimum(rate, 100.0)  # some kernels account a long request only at its end
    resets = zip(time[:-1][back].tolist(), time[1:][back].tolist(), strict=True)
    return _NodeSeries(node, device, time[1:][keep], rate, tuple(resets))


def _between(load: _NodeSeries, since: float, until: float) -> _NodeSeries:
    keep = (load.time >= since) & (load.time <= until)
    resets = tuple(span for span in load.resets if since <= span[1] <= until)
    return replace(load, time=load.time[keep], value=load.value[keep], resets=resets)


# --- several series of a node ----------------------------------------------------------------------------------------


def _without_half_sums(loads: Sequence[_NodeSeries]) -> list[_NodeSeries]:
    """Drop the values of all interfaces of a node during a counter reset of one of them, because the sum over the
    other interfaces would be too low."""
    spans: dict[str, list[tuple[float, float]]] = {}
    for load in loads:
        if load.resets:
            spans.setdefault(load.node, []).extend(load.resets)
    return [_outside(load, spans[load.node]) if load.node in spans else load for load in loads]


def _outside(load: _NodeSeries, spans: Sequence[tuple[float, float]]) -> _NodeSeries:
    keep = np.ones(len(load.time), dtype=np.bool_)
    for began, ended in spans:
        keep &= (load.time <= began) | (load.time > ended)
    return replace(load, time=load.time[keep], value=load.value[keep])


# --- findings --------------------------------------------------------------------------------------------------------


def _went_back(plan: InfluxQueryPlan, loads: Sequence[_NodeSeries]) -> list[Finding]:
    """One finding for each node with a decreased counter, at the time of the latest decrease."""
    latest: dict[str, float] = {}
    for load in loads:
        for _, ended in load.resets:
            latest[load.node] = max(ended, latest.get(load.node, ended))
    text = f"{plan.counter} decreased (reboot or device reset): no sample this time"
    return [
        Finding(FindingKind.COUNTER_RESET, node, plan.metric.name, ended, text, Remedy.DROPPED)
        for node, ended in sorted(latest.items())
    ]


def _unnamed(plan: InfluxQueryPlan, unnamed: int, of: int, now: float) -> Finding:
    text = f"{unnamed} of {of} series do not have the node tag {plan.node_tag}"
    return Finding(FindingKind.UNKNOWN_NODE, "", plan.metric.name, now, text, Remedy.DROPPED)


def _nameless(plan: InfluxQueryPlan, series: Sequence[Points]) -> ProviderRefused:
    tags = sorted({tag for points in series for tag in points.tags})
    shown = shorten_names(tags, SHOWN_TAGS) or "none"
    return ProviderRefused(
        f"no series of {plan.shown} has the tag {plan.node_tag}; their tags are {shown}",
        hint="Set provider.node_label to the tag that names the Kubernetes node, and group configured queries by it.",
    )
