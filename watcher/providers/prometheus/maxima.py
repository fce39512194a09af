"""The query for the maxima of five minutes of the last days, which forecasts are computed from."""

from __future__ import annotations

from dataclasses import replace

from watcher.core.forecast.maxima import SLOT_S
from watcher.platform.sources.config import RangeQuery
from watcher.providers.prometheus.queries import PrometheusQueryPlan
from watcher.providers.prometheus.responses import MatrixSamples

SMOOTH_S = 240.0
"""An average over this many seconds is evaluated once in five minutes: it hardly changes between."""
EVALUATED_EVERY_S = 60


def maxima_question(plan: PrometheusQueryPlan, since: float, until: float) -> RangeQuery:
    """Query for the maxima of the five minutes from `since` to `until` (unix seconds, multiples of 300); the time of a
    value is the end of its five minutes."""
    start, end = int(since) + SLOT_S, int(until)
    if plan.scrape_interval is None:
        return RangeQuery(f"max_over_time({plan.expression}[{SLOT_S}s])", start, end, SLOT_S)
    query = plan.guarded()
    if plan.candidate.smoothing_s < SMOOTH_S:
        query = f"max_over_time(({query})[{SLOT_S}s:{EVALUATED_EVERY_S}s])"
    return RangeQuery(query, start, end, SLOT_S)


def centred(reading: MatrixSamples) -> MatrixSamples:
    """Return the maxima with the times of the middle of their five minutes."""
    return replace(reading, time=reading.time - SLOT_S / 2)
