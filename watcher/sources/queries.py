"""Configured connections, queries and metrics, common to all providers that send queries.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from watcher.model import METRIC_BY_KEY, Metric
from watcher.sources.config import ConnectionConfig


@dataclass(frozen=True, kw_only=True)
class ProviderConfig(ConnectionConfig):
    """Connection of a provider, and limits of its fetches."""

    fetch_deadline: float = 40.0
    """Timeout in seconds for one fetch with all its queries and retries. A query that exceeds it fails its metric
    only. The caller's own timeout (0.8 of the interval) should be slightly longer, because it fails the whole tick."""
    max_seconds: float = 900.0
    """Length of the longest window in seconds. Older samples are not requested."""


@dataclass(frozen=True, slots=True)
class QueryConfig:
    """A query configured for one metric. `unit` is a key of model.SOURCE_UNITS, `smoothing_s` the source's averaging
    time in seconds."""

    expression: str
    unit: str
    node_label: str | None = None
    smoothing_s: float = 0.0


def check_keys(keys: Iterable[str]) -> None:
    """Raise ValueError for an unknown metric key."""
    for key in keys:
        if key not in METRIC_BY_KEY:
            raise ValueError(f"provider.metrics: unknown metric {key!r}; known metrics: {', '.join(METRIC_BY_KEY)}")


def wanted(metrics: Collection[str], queries: Mapping[str, QueryConfig]) -> tuple[Metric, ...]:
    """Metrics to fetch, in the order of model.METRICS: the metrics in `metrics` and the metrics with a configured
    query."""
    return tuple(metric for key, metric in METRIC_BY_KEY.items() if key in metrics or key in queries)
