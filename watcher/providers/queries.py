"""What an operator may say of each metric, the same for every source that is asked by queries.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from watcher.model import METRIC_BY_KEY, Metric

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class QueryConfig:
    """A query given by the operator for one metric; `unit` is a key of model.SOURCE_UNITS."""

    expression: str
    unit: str
    node_label: str | None = None
    smoothing_s: float = 0.0


def check_keys(keys: Iterable[str]) -> None:
    """Raises ValueError for a key that no metric has."""
    for key in keys:
        if key not in METRIC_BY_KEY:
            raise ValueError(f"provider.metrics: there is no metric {key!r}; known are {', '.join(METRIC_BY_KEY)}")


def wanted(metrics: Collection[str], queries: Mapping[str, QueryConfig]) -> tuple[Metric, ...]:
    """The metrics to bring, in the order of model.METRICS: those whose keys are given, and those that have a query."""
    return tuple(metric for key, metric in METRIC_BY_KEY.items() if key in metrics or key in queries)
