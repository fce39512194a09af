"""The queries of the Prometheus provider as they are sent: with the labels that name the nodes, and the guard.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from watcher.core.forecast.maxima import SLOT_S
from watcher.core.naming.identity import Identities
from watcher.core.naming.labels import Labels
from watcher.core.queries.matchers import Matcher, label_text
from watcher.core.queries.promql import is_plain
from watcher.model import Metric, MetricType
from watcher.sources.config import InstantQuery, RangeQuery
from watcher.sources.prometheus.evidence_queries import PROFILE_LABELS
from watcher.sources.prometheus.queries import QueryCandidate

DEFAULT_SCRAPE_INTERVAL_S = 60.0
"""Scrape interval in seconds if there are too few samples to measure it: Prometheus' default."""

CPU_VALUES_OF_AVERAGE, VALUES_OF_AVERAGE = 10, 5
"""Number of values in the averaging time of a built-in query, if samples are frequent enough: for CPU, by which most
plug-ins score, and for other metrics."""

LONGEST_STEP_S = 120.0
"""Longest step in seconds. Windows with a longer sample interval have insufficient coverage."""

SMOOTH_S = 240.0
"""An average over this many seconds is evaluated once in five minutes for maxima: it hardly changes between."""
EVALUATED_EVERY_S = 60

# --- node label ------------------------------------------------------------------------------------------------------

MOST_LABELS = 3
"""Number of labels that an expression is grouped by, unless more are necessary."""


@dataclass(frozen=True, slots=True)
class NodeLabel:
    """Labels that distinguish the nodes of a query: `label`, and `more` of them. `by` describes where the names
    of the nodes come from (core.naming.identity)."""

    label: str
    more: tuple[str, ...] = ()
    by: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.label, *self.more)

    @property
    def text(self) -> str:
        """The labels in PromQL, in quotes where necessary."""
        return ", ".join(map(label_text, self.labels))

    @property
    def origin(self) -> str:
        """The candidate that names most nodes (core.naming.identity), and the display name."""
        return self.by or self.label

    def key(self, row: Labels) -> str | None:
        """The value of the label in a series, or of all labels; None if the series has none of them."""
        if not self.more:
            return row.get(self.label) or None
        return ", ".join(f"{label}={row[label]}" for label in self.labels if row.get(label)) or None


def labels_of(rows: Sequence[Labels], found: Identities, *, most: int = MOST_LABELS) -> NodeLabel | None:
    """The fewest labels that distinguish the nodes of the series, at most `most` where possible; None without nodes."""
    if not any(found.nodes):
        return None
    by = found.by.split(" ")[0]
    wanted = [by, *PROFILE_LABELS, *sorted({label for row in rows for label in row} - {"__name__"})]
    there = [label for label in dict.fromkeys(wanted) if any(row.get(label) for row in rows)]
    by = "" if found.by in there else found.by
    for number in range(1, most + 1):
        for labels in combinations(there, number):
            label = NodeLabel(labels[0], labels[1:], by)
            if distinguishes(label, rows, found):
                return label
    if most == 1:
        return NodeLabel(there[0], (), by)
    return NodeLabel(there[0], tuple(there[1:]), by)


def distinguishes(label: NodeLabel, rows: Sequence[Labels], found: Identities) -> bool:
    """Whether all series with a node have these labels, and the labels distinguish different nodes, and these from
    series without a node."""
    nodes: dict[str, str | None] = {}
    for row, node in zip(rows, found.nodes, strict=True):
        key = label.key(row)
        if key is None:
            if node is not None:
                return False
        elif nodes.setdefault(key, node) != node:
            return False
    return True


# --- queries ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrometheusQueryPlan:
    """The query in use for one metric: `expression` contains the node label, `scrape_interval` is in seconds (None
    for a plain selector)."""

    metric: Metric
    candidate: QueryCandidate
    label: NodeLabel
    expression: str
    scrape_interval: float | None
    reason: str

    def question(
        self, since: float, until: float, *, resolution: int, beyond: float = 0.0, guarded: bool = True
    ) -> InstantQuery | RangeQuery | None:
        """Query for the samples between `since` and `until` (unix seconds), None if no step of the expression is in
        this range. Steps are multiples of the resolution (seconds), so that a later fetch evaluates the same times.
        `beyond` extends the range of an expression, in seconds; `guarded` puts the guard into the expression."""
        if self.scrape_interval is None:
            span = max(1, math.ceil(until - since))
            return InstantQuery(f"{self.expression}[{span}s]", until)
        step = self._step(resolution)
        start, end = math.ceil(since / step) * step, math.floor(until / step) * step
        later = step * math.ceil(beyond / step)
        query = self.guarded() if guarded else self.expression
        return RangeQuery(query, start, end + later, step) if start <= end else None

    def maxima_question(self, since: float, until: float) -> RangeQuery:
        """Query for the maxima of the five minutes from `since` to `until` (unix seconds, multiples of 300); the time
        of a value is the end of its five minutes."""
        start, end = int(since) + SLOT_S, int(until)
        if self.scrape_interval is None:
            return RangeQuery(f"max_over_time({self.expression}[{SLOT_S}s])", start, end, SLOT_S)
        query = self.guarded()
        if self.candidate.smoothing_s < SMOOTH_S:
            query = f"max_over_time(({query})[{SLOT_S}s:{EVALUATED_EVERY_S}s])"
        return RangeQuery(query, start, end, SLOT_S)

    def _step(self, resolution: int) -> int:
        """Distance of the values in seconds. An average over minutes changes slowly, so that more values would cost the
        server much and show little."""
        values = CPU_VALUES_OF_AVERAGE if self.metric.type is MetricType.CPU else VALUES_OF_AVERAGE
        smallest = 0.0 if self.candidate.origin == "configured" else self.candidate.smoothing_s / values
        wanted = max(min(self.scrape_interval or 0.0, LONGEST_STEP_S), smallest)
        return resolution * math.ceil(wanted / resolution)

    def guarded(self) -> str:
        """The expression, restricted to nodes whose raw series had a sample within two scrape intervals."""
        if not self.candidate.raw or self.scrape_interval is None:
            return self.expression
        alive = f"count_over_time({self.candidate.raw}[{2 * self.scrape_interval:.0f}s]) > 0"
        return f"({self.expression}) and on ({self.label.text}) ({alive})"


def make_plan(
    metric: Metric,
    candidate: QueryCandidate,
    *,
    label: NodeLabel,
    scrape_interval: float | None,
    rejected: Sequence[str],
) -> PrometheusQueryPlan:
    """Plan for a candidate with series. `scrape_interval` is in seconds, None if it could not be measured.
    `rejected` are the better candidates, which have no series."""
    plain = is_plain(candidate.expression)
    interval = None if plain else scrape_interval or DEFAULT_SCRAPE_INTERVAL_S
    reasons = [candidate.origin + (f" (no series of {', '.join(rejected)})" if rejected else "")]
    if interval is not None:
        how = "measured" if scrape_interval else "assumed, too few samples to measure"
        reasons.append(f"scrape interval {interval:.0f} s {how}")
        guard = (
            f"guarded by {candidate.raw}"
            if candidate.raw
            else "no guard, so a stopped exporter looks alive for a while"
        )
        reasons.append(guard)
    expression = candidate.expression.replace("<label>", label.text) if candidate.raw else candidate.expression
    return PrometheusQueryPlan(metric, candidate, label, expression, interval, "; ".join(reasons))


def among(label: str, values: Iterable[str]) -> Matcher:
    """Matcher for a label with any of these values."""
    return Matcher(label, "=~", "|".join(re.escape(value) for value in values))
