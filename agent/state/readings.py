"""Data that sources hand to the collector: series by metric and reasons for missing metrics, and the source interfaces.

A source that holds values of a remote system (the watcher's windows, Prometheus results) refreshes them in a background
task and returns them from memory: a cycle never waits for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from agent.model import MetricSample, PodState

LACKING_S = 30.0
"""Seconds after which a pod that a source does not list any more has ended: a kubelet that has restarted lists its pods
before it knows all of them."""


@dataclass(slots=True)
class MetricReadings:
    """Series and missing metrics collected so far. A metric is in one of the two."""

    series: dict[str, list[MetricSample]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    """Missing metrics that this node or this configuration does not have, which is not an error."""

    def add(self, metric: str, value: float, time: float, labels: Mapping[str, str] | None = None) -> None:
        """Add one series of a metric; `time` in unix seconds."""
        self.series.setdefault(metric, []).append(MetricSample(value, time, labels or {}))

    def merge(self, others: MetricReadings) -> None:
        """Merge other readings, except for metrics that are already present or missing here: a name has one meaning."""
        known = self.series.keys() | self.missing.keys()
        self.series |= {name: series for name, series in others.series.items() if name not in known}
        self.missing |= {name: why for name, why in others.missing.items() if name not in known}
        self.absent |= others.absent - known

    def mark_absent(self, why: str, *metrics: str) -> None:
        """Record why this node or this configuration does not have these metrics."""
        self.absent.update(metric for metric in metrics if metric not in self.missing)
        self.mark_missing(why, *metrics)

    def mark_missing(self, why: str, *metrics: str) -> None:
        """Record why these metrics are missing; an earlier reason is not replaced."""
        for metric in metrics:
            self.missing.setdefault(metric, why)


@dataclass(frozen=True, slots=True)
class PodFacts:
    """Information on a pod before measuring: `pod` without usage, with its running containers. `group_uid` is the uid
    in the name of its control group; for a mirror pod it is that of the static pod. `extended` are the names of the
    containers with gocrane.io/* limits, `extended_cpu_request` is the sum of their CPU requests in cores. `created` is
    the creation time in the API in unix seconds, infinity if unknown."""

    pod: PodState
    group_uid: str
    extended: frozenset[str] = frozenset()
    extended_cpu_request: float = 0.0
    created: float = math.inf


class PodsUnknown(Exception):
    """The pods of the node are unknown. `hint` is advice for the operator."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class PodSource(Protocol):
    """Returns the pods of this node from memory."""

    async def start(self) -> None:
        """Start keeping the pods up to date. Does not wait."""
        ...

    async def close(self) -> None:
        """Stop keeping the pods up to date."""
        ...

    def listing(self, *, monotonic: float, max_age: float) -> tuple[PodFacts, ...]:
        """All pods of this node, at most `max_age` seconds old. Raises PodsUnknown. Called in the event loop."""
        ...


class MetricSource(Protocol):
    """Returns metrics measured elsewhere, from memory."""

    async def start(self) -> None:
        """Start keeping the metrics up to date. Does not wait."""
        ...

    async def close(self) -> None:
        """Stop keeping the metrics up to date."""
        ...

    def read(self, *, now: float, monotonic: float) -> MetricReadings:
        """The recent metrics, and why others are missing. Called in the event loop."""
        ...
