"""The body of GET /api/v1/forecasts, and the sentence that states a bound.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum

import msgspec
import numpy as np

from watcher.arrays import I64, U8
from watcher.core.forecast.fleet import METRICS, ForecastConfig, ForecastTable
from watcher.core.publishing.wire import UnixSeconds
from watcher.model import METRIC_BY_NAME, MetricType, SnapshotForecasts

CHUNK = 1000
"""Nodes per call of the encoder, which holds the GIL."""
DISABLED = "forecasts are disabled: set forecast.enabled = true"


class ForecastState(StrEnum):
    """State of a forecast. `bound`: there is one. `short_history`: less than a day of samples. `no_samples`: none in
    the history. `pending`: the history is not evaluated yet. `disabled`: forecast.enabled is false."""

    BOUND = "bound"
    SHORT_HISTORY = "short_history"
    NO_SAMPLES = "no_samples"
    PENDING = "pending"
    DISABLED = "disabled"


STATES = tuple(ForecastState)
"""The states by their codes in SnapshotForecasts."""


class NodeForecast(msgspec.Struct, frozen=True):
    """The forecast of one node's metric: over the next `horizon` its load is at most `bound` percent, with probability
    `level`. `coverage` is the share of the `judged` bounds of the last week that held, `severity` the mean excess over
    them as a share of the peak; null if none was judged. `issued` is the unix time of the bound, null without one.
    `history_s`: seconds of history with samples. `text` states all of it in one sentence."""

    node: str
    name: str
    type: str
    horizon: str
    state: ForecastState
    level: float
    text: str
    history_s: int
    judged: int = 0
    bound: float | None = None
    coverage: float | None = None
    severity: float | None = None
    issued: UnixSeconds | None = None


class ForecastsDocument(msgspec.Struct, frozen=True):
    """Body of GET /api/v1/forecasts, by node, type and horizon. `horizons` can be requested; `horizon` is the default.
    `state` is disabled, or bound if some node has one, or the state of the first forecast; `reason` explains it if no
    node has a bound."""

    timestamp: UnixSeconds
    state: ForecastState
    reason: str
    level: float
    horizon: str
    horizons: list[str]
    history_s: int
    forecasts: list[NodeForecast]


def horizon_label(hours: int) -> str:
    """Return a horizon as users write it, for example "6h"."""
    return f"{hours}h"


def bound_text(bound: float, *, level: float, coverage: float, severity: float) -> str:
    """State a bound in percent, its level, and its record (0 to 1; NaN: no bound was judged)."""
    record = "no bound of the last week has been judged"
    if not math.isnan(coverage):
        record = f"coverage in the last week {100 * coverage:.1f} %, severity {100 * severity:.1f} %"
    return f"at most {math.ceil(bound - 1e-9)} % (level {100 * level:g} %; {record})"


def node_forecasts(
    table: ForecastTable, nodes: Sequence[str], *, types: Collection[MetricType] | None, horizons: Sequence[int]
) -> Iterator[NodeForecast]:
    """Yield the forecasts of `nodes` in order; nodes that are not in the table have no samples."""
    row = {name: place for place, name in enumerate(table.nodes)}
    for node in nodes:
        for name in METRICS:
            if types is None or METRIC_BY_NAME[name].type in types:
                for horizon in horizons:
                    yield _forecast(table, node, row.get(node), name, horizon)


def _forecast(table: ForecastTable, node: str, row: int | None, name: str, horizon: int) -> NodeForecast:
    level, metric = table.config.level, METRIC_BY_NAME[name]
    state, known = ForecastState.NO_SAMPLES, 0
    if row is not None:
        column, known = table.columns[name, horizon], int(table.known_s[name][row])
        bound, coverage, severity = (float(each[row]) for each in (column.bound, column.coverage, column.severity))
        if not math.isnan(bound):
            return NodeForecast(
                node=node,
                name=name,
                type=metric.type,
                horizon=horizon_label(horizon),
                state=ForecastState.BOUND,
                level=level,
                text=bound_text(bound, level=level, coverage=coverage, severity=severity),
                history_s=known,
                judged=int(column.judged[row]),
                bound=bound,
                coverage=None if math.isnan(coverage) else round(coverage, 4),
                severity=None if math.isnan(severity) else round(severity, 6),
                issued=int(column.issued[row]),
            )
        state = ForecastState.PENDING if table.pending[row] else state if not known else ForecastState.SHORT_HISTORY
    return NodeForecast(
        node=node,
        name=name,
        type=metric.type,
        horizon=horizon_label(horizon),
        state=state,
        level=level,
        text=f"no bound: {reason_of(state, known, table.config)}",
        history_s=known,
    )


def reason_of(state: ForecastState, known_s: int, config: ForecastConfig) -> str:
    """Explain why there is no bound."""
    if state is ForecastState.PENDING:
        return "the history is not evaluated yet"
    if state is ForecastState.NO_SAMPLES:
        return f"no samples in the last {config.history // 86400} days"
    return f"less than a day of history ({known_s / 3600:.1f} h with samples)"


def snapshot_forecasts(table: ForecastTable, nodes: Sequence[str]) -> SnapshotForecasts:
    """Return the forecasts of the nodes of a snapshot."""
    places = table.places(nodes)
    keys = {(name, horizon_label(hours)): (name, hours) for name in METRICS for hours in table.config.horizons}
    return SnapshotForecasts(
        horizon_label(table.config.horizon),
        table.config.level,
        {key: table.bounds(*of, places) for key, of in keys.items()},
        {key: table.coverage(*of, places) for key, of in keys.items()},
        {key: _states(table, *of, places) for key, of in keys.items()},
    )


def _states(table: ForecastTable, name: str, horizon: int, places: I64) -> U8:
    """Return the codes of the states of the nodes in the rows `places`, -1 for nodes that are not in the table."""
    codes = np.full(len(places), STATES.index(ForecastState.NO_SAMPLES), dtype=np.uint8)
    found = np.flatnonzero(places >= 0)
    rows = places[found]
    known, bound = table.known_s[name][rows] > 0, table.columns[name, horizon].bound[rows]
    chosen = np.where(known, STATES.index(ForecastState.SHORT_HISTORY), codes[found])
    chosen = np.where(table.pending[rows], STATES.index(ForecastState.PENDING), chosen)
    codes[found] = np.where(np.isnan(bound), chosen, STATES.index(ForecastState.BOUND))
    return codes


def forecasts_body(
    table: ForecastTable, nodes: Sequence[str], *, types: Collection[MetricType] | None, horizons: Sequence[int]
) -> bytes:
    """Encode the document of `nodes`, a thousand nodes at a time, so that other threads can run."""
    texts: list[bytes] = []
    first: NodeForecast | None = None
    has_bound = False
    for start in range(0, len(nodes), CHUNK):
        part = list(node_forecasts(table, nodes[start : start + CHUNK], types=types, horizons=horizons))
        if part:
            first = first or part[0]
            has_bound = has_bound or any(each.state is ForecastState.BOUND for each in part)
            texts.append(msgspec.json.encode(part)[1:-1])
    state, reason = ForecastState.NO_SAMPLES, "no node has samples"
    if has_bound:
        state, reason = ForecastState.BOUND, ""
    elif first is not None:
        state, reason = first.state, first.text
    document = _head(table.config, table.timestamp, state, reason)
    return msgspec.json.encode(document)[:-2] + b",".join(texts) + b"]}"


def disabled_document(timestamp: int) -> ForecastsDocument:
    """Return the document of a service without forecasts."""
    return ForecastsDocument(timestamp, ForecastState.DISABLED, DISABLED, 0.0, "", [], 0, [])


def _head(config: ForecastConfig, timestamp: int, state: ForecastState, reason: str) -> ForecastsDocument:
    labels = [horizon_label(hours) for hours in config.horizons]
    return ForecastsDocument(
        timestamp, state, reason, config.level, horizon_label(config.horizon), labels, config.history, []
    )
