"""Reads the series of responses of Prometheus: labels, samples and scrape intervals.

A response for thousands of nodes has megabytes. Its series are decoded one at a time, because one call would hold
Python's global lock and block the event loop.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import msgspec
import numpy as np

from watcher.arrays import F64, I64, Bool
from watcher.core.messages import printable
from watcher.core.naming.labels import Labels
from watcher.decoding.json_text import JsonDecoder
from watcher.model import SOURCE_UNITS, Metric, SeriesBatch
from watcher.sources.errors import ProviderMalformed
from watcher.sources.fetching import in_unit
from watcher.sources.prometheus.plans import NodeLabel, PrometheusQueryPlan


class _LabelsRow(msgspec.Struct, frozen=True):
    metric: dict[str, str] = {}


class _ValueRow(msgspec.Struct, frozen=True):
    metric: dict[str, str] = {}
    value: tuple[float, float] = (0.0, 0.0)


class MatrixSeries(msgspec.Struct, frozen=True):
    """A series of a matrix: its labels, and its samples as (unix seconds, value)."""

    metric: dict[str, str] = {}
    values: list[tuple[float, float]] = []


class _OddSeries(msgspec.Struct, frozen=True):
    """Series with values that the fast decoder rejects, such as "+Inf"."""

    metric: dict[str, str] = {}
    values: list[tuple[float, str]] = []


_ROW = JsonDecoder(_LabelsRow)
# Not strict: values are numbers in strings, which this decoder then converts at no extra cost.
_SERIES = JsonDecoder(MatrixSeries, strict=False)
_VALUE_ROW = JsonDecoder(_ValueRow, strict=False)
_ODD_SERIES = JsonDecoder(_OddSeries)


# --- series ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MatrixSamples:
    """Samples of a response. `keys[k]` is the value of the node label of series k, None if missing; `series`, `time`
    and `value` are as in model.SeriesBatch. `labels` are the label names of series without a key. `devices[k]` is the
    device of series k and `sharers[k]` the pod that shares it, if they were read for a metric. `rows[k]` are the labels
    of series k."""

    keys: tuple[str | None, ...]
    labels: frozenset[str]
    series: I64
    time: F64
    value: F64
    devices: tuple[str, ...] = ()
    sharers: tuple[str, ...] = ()
    rows: tuple[Labels, ...] = ()

    def where(self, keep: Bool) -> MatrixSamples:
        """The samples in `keep`, with all series."""
        return replace(self, series=self.series[keep], time=self.time[keep], value=self.value[keep])


def read_labels(rows: Iterable[msgspec.Raw]) -> list[dict[str, str]]:
    """Labels of each series of a vector or matrix. Raises ProviderMalformed."""
    try:
        return [_ROW.decode(row).metric for row in rows]
    except msgspec.DecodeError as error:
        raise ProviderMalformed(f"the labels of the series cannot be read: {printable(str(error))}") from error


def read_numbers(vector: Iterable[msgspec.Raw], label: NodeLabel) -> dict[str, float]:
    """The value of each series by its node key; the largest, if several have the same key. Raises
    ProviderMalformed."""
    values: dict[str, float] = {}
    try:
        for row in map(_VALUE_ROW.decode, vector):
            if key := label.key(row.metric):
                values[key] = max(values.get(key, -math.inf), row.value[1])
    except msgspec.DecodeError as error:
        raise ProviderMalformed(f"the times of the series cannot be read: {printable(str(error))}") from error
    return values


def read_facts(vector: Iterable[msgspec.Raw]) -> list[tuple[dict[str, str], float]]:
    """Labels and value of each series of a vector. Raises ProviderMalformed."""
    try:
        return [(row.metric, row.value[1]) for row in map(_VALUE_ROW.decode, vector)]
    except msgspec.DecodeError as error:
        raise ProviderMalformed(f"the values of the series cannot be read: {printable(str(error))}") from error


def read_samples(
    matrix: Iterable[msgspec.Raw], *, label: NodeLabel, metric: Metric | None = None, stale_markers: bool = False
) -> MatrixSamples:
    """All samples of a matrix, in ascending times within each series. NaN and infinities are returned; the review
    judges them. With `stale_markers`, a NaN marks the end of a series and is dropped. Raises ProviderMalformed if a
    value is not a number."""
    keys: list[str | None] = []
    rows: list[Labels] = []
    devices: list[str] = []
    sharers: list[str] = []
    labels: set[str] = set()
    counts: list[int] = []
    pairs: list[F64] = []
    for raw in matrix:
        series = read_series(raw)
        key = label.key(series.metric)
        rows.append(series.metric)
        if key is None:
            labels.update(series.metric)
        keys.append(key)
        if metric is not None:
            devices.append(metric.device_of(series.metric))
            sharers.append(metric.sharer_of(series.metric))
        counts.append(len(series.values))
        # One NumPy call per series: a single call would hold the global lock as long as the decoding.
        pairs.append(np.fromiter(chain.from_iterable(series.values), np.float64, 2 * len(series.values)))
    flat = np.concatenate(pairs) if pairs else np.empty(0)
    index = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    time, value = flat[0::2].copy(), flat[1::2].copy()
    if stale_markers and (ends := np.isnan(value)).any():
        index, time, value = index[~ends], time[~ends], value[~ends]
    return MatrixSamples(
        tuple(keys), frozenset(labels), *_ascending(index, time, value), tuple(devices), tuple(sharers), tuple(rows)
    )


def read_series(raw: msgspec.Raw) -> MatrixSeries:
    """Decode one series of a matrix. Raises ProviderMalformed if a value is not a number."""
    try:
        return _SERIES.decode(raw)
    except msgspec.DecodeError:
        pass
    try:
        odd = _ODD_SERIES.decode(raw)
        return MatrixSeries(odd.metric, [(time, float(value)) for time, value in odd.values])
    except ValueError as error:
        raise ProviderMalformed(f"a value of the series is not a number: {printable(str(error))}") from error


def _ascending(series: I64, time: F64, value: F64) -> tuple[I64, F64, F64]:
    """Sort samples by time if necessary. Prometheus sorts them, other servers may not."""
    if np.any((np.diff(time) < 0) & (np.diff(series) == 0)):
        order = np.lexsort((time, series))
        return series, time[order], value[order]
    return series, time, value


def scrape_interval(matrix: Iterable[msgspec.Raw]) -> float | None:
    """Median interval of consecutive samples of raw series, in whole seconds, at least 1; None with fewer than two
    intervals. Whole seconds, because scrape times jitter by milliseconds and must not change the plan."""
    reading = read_samples(matrix, label=NodeLabel("instance"))
    within = np.diff(reading.series) == 0
    distances = np.diff(reading.time)[within]
    return max(1.0, float(np.rint(np.median(distances)))) if len(distances) >= 2 else None


def batch_of(
    plan: PrometheusQueryPlan, reading: MatrixSamples, nodes: Sequence[str | None], *, since: float, until: float
) -> SeriesBatch | None:
    """Samples of the series with a known node in the requested range (unix seconds), converted to the metric's unit;
    None if there are none. A range selector has whole seconds, so a response may start slightly before `since`."""
    factor = SOURCE_UNITS[plan.candidate.unit][1]
    keep = (reading.time >= since) & (reading.time <= until)
    index = reading.series
    if None in nodes:
        known = np.array([node is not None for node in nodes])
        keep &= known[index]
        index = (np.cumsum(known) - 1)[index]
    if not keep.any():
        return None
    named = tuple(node for node in nodes if node is not None)
    devices, sharers = (
        tuple(each for each, node in zip(column, nodes, strict=False) if node is not None)
        for column in (reading.devices, reading.sharers)
    )
    value = in_unit(reading.value[keep], factor)
    return SeriesBatch(plan.metric, named, index[keep], reading.time[keep], value, devices, sharers)


def joined(*batches: SeriesBatch | None) -> SeriesBatch | None:
    """The samples of several queries of one metric as one batch; None without samples."""
    found = [batch for batch in batches if batch is not None]
    if len(found) <= 1:
        return found[0] if found else None
    offsets = np.cumsum([0, *(len(each.nodes) for each in found)])
    return SeriesBatch(
        found[0].metric,
        tuple(node for each in found for node in each.nodes),
        np.concatenate([each.series + offset for each, offset in zip(found, offsets, strict=False)]),
        np.concatenate([each.time for each in found]),
        np.concatenate([each.value for each in found]),
        tuple(device for each in found for device in each.devices),
        tuple(sharer for each in found for sharer in each.sharers),
    )
