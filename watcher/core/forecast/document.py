"""The body of GET /api/v1/forecasts, and the sentence that states a bound.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import msgspec
import numpy as np

from watcher.arrays import I64, U8
from watcher.core.forecast.bound import MATURE_SLOTS, WEEK_HOURS, least_history
from watcher.core.forecast.fleet import METRICS, ForecastTable
from watcher.core.forecast.maxima import SLOT_S
from watcher.core.forecast.settings import ForecastSettings
from watcher.core.forecast.states import STATES, ForecastState, reason_of, span_text
from watcher.core.publishing.wire import UnixSeconds
from watcher.model import METRIC_BY_NAME, MetricType, SnapshotForecasts

CHUNK = 1000
"""Nodes per call of the encoder, which holds the GIL."""
DISABLED = "forecasts are disabled: set forecast.enabled = true"


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


def bound_text(bound: float, *, level: float, coverage: float, severity: float, judged: int, history_s: int) -> str:
    """State a bound in percent, its level, the history that it is from, if that is short, and its record (0 to 1; NaN:
    no bound was judged)."""
    parts = [f"level {100 * level:g} %"]
    if history_s < MATURE_SLOTS * SLOT_S:
        parts.append(f"from {history_s / 86400:.1f} days of history")
    if math.isnan(coverage):
        parts.append("no bound has been judged")
    else:
        parts.append(f"coverage {judged_period(judged)} {100 * coverage:.1f} %, severity {100 * severity:.1f} %")
    return f"at most {math.ceil(bound - 1e-9)} % ({'; '.join(parts)})"


def judged_period(judged: int) -> str:
    """Return the time that a node's judged hourly bounds are from: "in the last week" if most of it was judged."""
    if judged > WEEK_HOURS // 2:
        return "in the last week"
    return f"of the last {judged} bounds" if judged > 1 else "of one bound"


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
        state = STATES[column.states[row]]
        if state is ForecastState.BOUND:
            bound, coverage, severity = (float(each[row]) for each in (column.bound, column.coverage, column.severity))
            judged = int(column.judged[row])
            return NodeForecast(
                node=node,
                name=name,
                type=metric.type,
                horizon=horizon_label(horizon),
                state=state,
                level=level,
                text=bound_text(
                    bound, level=level, coverage=coverage, severity=severity, judged=judged, history_s=known
                ),
                history_s=known,
                judged=judged,
                bound=bound,
                coverage=None if math.isnan(coverage) else round(coverage, 4),
                severity=None if math.isnan(severity) else round(severity, 6),
                issued=int(column.issued[row]),
            )
    return NodeForecast(
        node=node,
        name=name,
        type=metric.type,
        horizon=horizon_label(horizon),
        state=state,
        level=level,
        text=f"no bound: {_reason(state, known, horizon, table.config)}",
        history_s=known,
    )


def _reason(state: ForecastState, known_s: int, horizon: int, config: ForecastSettings) -> str:
    """Explain why there is no bound, with the history that there is."""
    kept = span_text(config.history)
    if state is ForecastState.NO_SAMPLES:
        return f"no samples in the last {kept.removeprefix('a ')}"
    reason = reason_of(state, horizon)
    if state not in (ForecastState.SHORT_HISTORY, ForecastState.GAPS):
        return reason
    known = f"{known_s / 3600:.1f} h with samples" if known_s else "the first hour is not complete"
    if state is ForecastState.SHORT_HISTORY and config.slots < least_history(horizon):
        known += f"; forecast.history keeps {kept}"
    return f"{reason} ({known})"


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
    codes[found] = table.columns[name, horizon].states[places[found]]
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
            texts += (b"," if texts else b"", msgspec.json.encode(part)[1:-1])
    state, reason = ForecastState.NO_SAMPLES, "no node has samples"
    if has_bound:
        state, reason = ForecastState.BOUND, ""
    elif first is not None:
        state, reason = first.state, first.text
    document = _head(table.config, table.timestamp, state, reason)
    return b"".join((msgspec.json.encode(document)[:-2], *texts, b"]}"))


def disabled_document(timestamp: int) -> ForecastsDocument:
    """Return the document of a service without forecasts."""
    return ForecastsDocument(timestamp, ForecastState.DISABLED, DISABLED, 0.0, "", [], 0, [])


def _head(config: ForecastSettings, timestamp: int, state: ForecastState, reason: str) -> ForecastsDocument:
    labels = [horizon_label(hours) for hours in config.horizons]
    return ForecastsDocument(
        timestamp, state, reason, config.level, horizon_label(config.horizon), labels, config.history, []
    )
