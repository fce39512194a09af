"""Selection of a part of a document by a request, and the shape of the response."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from watcher.model import MetricType, Operator, Window


class Shape(StrEnum):
    """Position of the nodes in the document."""

    WATCHER = "watcher"  # under data.NodeMetricsMap, as the Go client reads it
    KEP = "kep"  # directly under data, as in KEP-61


@dataclass(frozen=True, slots=True)
class Selection:
    """The part of a snapshot that a request selects. None means all types; for `operators`, AVG and STD. `horizon` is
    that of the operator FORECAST, "" for the default one."""

    window: Window
    types: tuple[MetricType, ...] | None = None
    operators: tuple[Operator, ...] | None = None
    horizon: str = ""
