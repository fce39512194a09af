"""Which part of a document a request selects, and in which shape."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from watcher.model import MetricType, Operator, Window


class Shape(StrEnum):
    """Where the nodes stand in the document."""

    WATCHER = "watcher"  # under data.NodeMetricsMap, as the Go client reads it
    KEP = "kep"  # directly under data, as KEP-61 and the seed print it


@dataclass(frozen=True, slots=True)
class Selection:
    """What a request wants of a snapshot; None means all types, or AVG and STD."""

    window: Window
    types: tuple[MetricType, ...] | None = None
    operators: tuple[Operator, ...] | None = None
