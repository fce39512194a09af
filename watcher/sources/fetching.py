"""Shared code of the providers that query a server: fetch state, metric gaps and out-of-range samples.

A provider sends one query per metric or per group of related metrics. A fetch fails only if all of its queries failed.
A metric that stops having samples is reported. The providers define the queries and parse the responses.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from watcher.arrays import F64
from watcher.core.review.clocks import AHEAD_S
from watcher.core.windows.settings import RefreshSettings
from watcher.model import METRIC_BY_NAME, Finding, FindingKind, Metric, Remedy, SeriesBatch
from watcher.sources.base import Fetch, QueryFailure, QueryPlan
from watcher.sources.errors import (
    ProviderError,
    ProviderMalformed,
    ProviderPartial,
    ProviderRefused,
    ProviderUnreachable,
)

log = logging.getLogger(__name__)

SILENT_FETCHES = 3
"""A metric that had samples is reported after this many consecutive fetches without one."""
BEHIND_S = 3600.0
"""Tolerance for timestamps before the requested range, in seconds: larger than usual clock errors and than
backfilled ranges."""


def in_unit(values: F64, factor: float) -> F64:
    """The values times a factor. A product beyond the range of floats is infinite, which the review reports."""
    with np.errstate(over="ignore", invalid="ignore"):
        return values * factor


def most_relevant_error(failures: Sequence[QueryFailure]) -> ProviderError:
    """The error to raise when all queries failed: unreachable before refused before partial before malformed."""
    for kind in (ProviderUnreachable, ProviderRefused, ProviderPartial, ProviderMalformed):
        for failure in failures:
            if isinstance(failure.error, kind):
                return failure.error
    return failures[0].error


# --- a fetch ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class FetchContext:
    """State of one running fetch. `since`, `until` and the end `latest` of the newest fetch are unix seconds,
    `deadline` is in event loop time. `present` is false for backfill, in which an empty result is not a gap. `number`
    counts the fetches of newest samples. `partial` maps a metric name to the source's message that its response is
    incomplete."""

    since: float
    until: float
    deadline: float
    present: bool
    number: int = 1
    latest: float = -math.inf
    findings: list[Finding] = field(default_factory=list)
    partial: dict[str, str] = field(default_factory=dict)
    _clock: tuple[float, float] | None = None

    def find(self, kind: FindingKind, metric: Metric, reason: str, remedy: Remedy, *, node: str = "") -> None:
        """Add a finding about a metric, at the end of the fetched range."""
        self.findings.append(Finding(kind, node, metric.name, self.until, reason, remedy))

    def note_clock(self, offset_s: float | None, *, round_trip_s: float | None = None) -> None:
        """Record the source's clock minus the local clock in seconds, as seen in one response. The offset of the
        shortest round trip counts, or the smallest one if the duration of round trips is unknown."""
        if offset_s is None:
            return
        seen = (abs(offset_s) if round_trip_s is None else round_trip_s, offset_s)
        self._clock = seen if self._clock is None else min(self._clock, seen)

    @property
    def clock_offset_s(self) -> float | None:
        """The source's clock minus the local clock in seconds, None if unknown."""
        return None if self._clock is None else self._clock[1]


def out_of_range_findings(
    metric: Metric, time: F64, *, since: float, until: float, beyond: float = 0.0
) -> list[Finding]:
    """Findings about timestamps (unix seconds) that are far outside the requested range. `beyond` extends the range
    after `until`, in seconds."""
    found = []
    ahead, behind = time > until + beyond + AHEAD_S, time < since - BEHIND_S
    for kind, far, side in ((FindingKind.FUTURE_SAMPLE, ahead, "after"), (FindingKind.SOURCE, behind, "before")):
        if far.any():
            reason = (
                f"{np.count_nonzero(far)} of {len(time)} samples are far {side} the requested range:"
                " check the clocks and the unit of the timestamps"
            )
            found.append(Finding(kind, "", metric.name, until, reason, Remedy.DROPPED))
    return found


@dataclass(slots=True)
class MetricGap:
    """Metric gap: `had_samples` is true once the metric had samples, `empty_fetches` counts consecutive fetches without
    samples."""

    had_samples: bool = False
    empty_fetches: int = 0

    def note(self, heard: bool, *, present: bool) -> None:
        """Record whether a fetch returned samples; backfill (`present` false) does not count as a gap."""
        self.had_samples |= heard
        if present:
            self.empty_fetches = 0 if heard else self.empty_fetches + 1

    @property
    def is_reportable(self) -> bool:
        """Whether to report the gap. A metric that had samples may be late for SILENT_FETCHES fetches."""
        return self.empty_fetches >= (SILENT_FETCHES if self.had_samples else 1)


class FetchTracker:
    """Starts the fetches of one provider and logs changed queries."""

    def __init__(self, refresh: RefreshSettings) -> None:
        self._refresh = refresh
        self._latest = -math.inf
        self._number = 0
        self._announced: Mapping[str, QueryPlan] = {}

    def begin(self, since: float, until: float) -> FetchContext:
        """Start a fetch (unix seconds), limited to the longest window."""
        present = until >= self._latest
        self._latest = max(self._latest, until)
        self._number += present
        return self._context(max(since, until - self._refresh.longest_s), until, present=present)

    def begin_past(self, since: float, until: float) -> FetchContext:
        """Start a request for the past (unix seconds), of any length."""
        return self._context(since, until, present=False)

    def _context(self, since: float, until: float, *, present: bool) -> FetchContext:
        deadline = asyncio.get_running_loop().time() + self._refresh.fetch_deadline
        return FetchContext(since, until, deadline, present, self._number, self._latest)

    def announce(self, plans: Mapping[str, QueryPlan], *, address: str) -> None:
        """Log the queries that changed since the last call, in one line."""
        changed = [plan for name, plan in plans.items() if self._announced.get(name) != plan]
        self._announced = plans
        if changed:
            uses = "; ".join(
                f"{METRIC_BY_NAME[plan.metric].key}: {plan.expression} by {plan.node_label} ({plan.reason})"
                for plan in changed
            )
            log.info("queries to %s: %s", address, uses)


Outcome = SeriesBatch | QueryFailure | None
"""Result for one metric: samples, failure, or None if there are no samples in the range."""


async def gather_outcomes(questions: Iterable[Coroutine[Any, Any, Sequence[Outcome]]]) -> list[Outcome]:
    """Run the queries concurrently and return their outcomes; a metric that is not queried has none. Raises
    ProviderError if all outcomes are failures: unreachable before refused before partial before malformed."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(question) for question in questions]
    outcomes = [outcome for task in tasks for outcome in task.result()]
    failures = [outcome for outcome in outcomes if isinstance(outcome, QueryFailure)]
    if failures and len(failures) == len(outcomes):
        raise most_relevant_error(failures)
    return outcomes


def fetch_of(outcomes: Sequence[Outcome], fetching: FetchContext, *, plans: Mapping[str, QueryPlan]) -> Fetch:
    """Build the result of a fetch."""
    return Fetch(
        batches=tuple(outcome for outcome in outcomes if isinstance(outcome, SeriesBatch)),
        failures=tuple(outcome for outcome in outcomes if isinstance(outcome, QueryFailure)),
        plans=plans,
        findings=tuple(fetching.findings),
        clock_offset_s=fetching.clock_offset_s,
        partial=fetching.partial,
    )
