"""What one part of a state hands to the whole: series by metric, and why others are missing; and who may hand it.

Whoever keeps values of his own (the watcher's windows, a Prometheus' answers) does so in a task of his own and answers
from memory: a cycle never waits for him.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from agent.model import ContainerState, PodState, Series


@dataclass(slots=True)
class Readings:
    """Grows as it is read. A metric is in one of the two."""

    series: dict[str, list[Series]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, metric: str, value: float, time: float, labels: Mapping[str, str] | None = None) -> None:
        """One series of a metric."""
        self.series.setdefault(metric, []).append(Series(value, time, labels or {}))

    def take(self, others: Readings) -> None:
        """What others have, but for metrics that are told of here already: a name means one thing."""
        known = self.series.keys() | self.missing.keys()
        self.series |= {name: series for name, series in others.series.items() if name not in known}
        self.missing |= {name: why for name, why in others.missing.items() if name not in known}

    def miss(self, why: str, *metrics: str) -> None:
        """Say why there is nothing of these."""
        for metric in metrics:
            self.missing.setdefault(metric, why)


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What is known of a pod before anything is measured: `pod` without usage, with its running containers. `group_uid`
    is in the name of its control group; of a static pod it is the hash of its manifest. `extended` are the names of the
    containers that have gocrane.io/* limits, `extended_cpu_request` the sum of what they ask for in cores."""

    pod: PodState
    group_uid: str
    extended: frozenset[str] = frozenset()
    extended_cpu_request: float = 0.0

    @property
    def containers(self) -> tuple[ContainerState, ...]:
        """Without usage."""
        return self.pod.containers

    @property
    def runs(self) -> bool:
        """Whether it can have a control group."""
        return self.pod.phase not in ("Succeeded", "Failed")


class NoPods(Exception):
    """Nobody can say which pods there are. `hint` says what to do."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class PodSource(Protocol):
    """Who knows the pods of this node, from memory."""

    async def start(self) -> None:
        """Begin to keep up to date."""
        ...

    async def close(self) -> None:
        """Stop."""
        ...

    def listing(self, *, monotonic: float, max_age: float) -> tuple[PodFacts, ...]:
        """All pods of this node, as they were at most `max_age` seconds ago. Raises NoPods. In the event loop."""
        ...


class MetricSource(Protocol):
    """Who has metrics that others measured, from memory."""

    async def start(self) -> None:
        """Begin to keep up to date."""
        ...

    async def close(self) -> None:
        """Stop."""
        ...

    def read(self, *, now: float, monotonic: float) -> Readings:
        """What is young enough, and why the rest is not. In the event loop."""
        ...
