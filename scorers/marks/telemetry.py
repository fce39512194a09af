"""Metrics of the marks: the pressure of each node, and what is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from scorers.marks.degrees import KEYS
from scorers.marks.planner import MarkPlan
from scorers.marks.writer import MarkWriter
from watcher.platform.kube.settings import MarksSettings
from watcher.platform.telemetry.instruments import counter, gauge


class MarksTelemetry(Collector):
    """`plan` returns the newest plan, None without one; `writer` is None in preview. A scrape runs in another thread: a
    plan does not change."""

    def __init__(
        self, settings: MarksSettings, *, plan: Callable[[], MarkPlan | None], writer: MarkWriter | None
    ) -> None:
        self._settings = settings
        self._plan = plan
        self._writer = writer

    def collect(self) -> Iterable[Family]:
        """Yield the metrics. Nodes with unknown pressure have no sample."""
        plan = self._plan()
        if plan is not None:
            yield from self._of_plan(plan)
        if self._writer is not None:
            rows = [
                ({"outcome": outcome}, count) for outcome, count in sorted(self._writer.stats.outcomes.copy().items())
            ]
            yield counter("marks", "Changes of the marks of nodes that were due, by outcome.", rows)
            text = "Whether this replica writes the marks of nodes."
            yield gauge("marks_lease_held", text, [({}, int(self._writer.holds_lease))])

    def _of_plan(self, plan: MarkPlan) -> Iterator[Family]:
        names, found = list(plan.wanted), plan.pressures
        known = np.flatnonzero(~np.isnan(found.values))
        if self._settings.pressure:
            text = "Pressure of a node from 0 to 1 for balancers: hot above 0.65, cold below 0.35; absent if unknown."
            yield gauge("node_pressure", text, [({"node": names[i]}, round(float(found.values[i]), 4)) for i in known])
            text = "Nodes whose pressure is held in the middle because of recent moves of pods."
            yield gauge("node_pressure_cooling", text, [({}, int(np.count_nonzero(found.cooling)))])
        if self._settings.taints:
            degrees = Counter(each.degree for each in plan.wanted.values())
            rows = [({"degree": str(degree)}, degrees[degree]) for degree in range(1, len(KEYS) + 1)]
            yield gauge("marks_nodes", "Nodes that should have soft taints, by degree.", rows)
