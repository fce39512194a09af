"""What the refresh reports to operators: findings, counters of ticks and failed queries, and durations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from watcher.core.review.findings import FindingLog
from watcher.model import Finding, FindingKind, Remedy


@dataclass(slots=True)
class TickStats:
    """Counters of ticks and failed queries for /metrics; none of them decreases."""

    ticks: int = 0
    failed: int = 0
    skipped: int = 0
    query_failures: dict[tuple[str, str], int] = field(default_factory=dict)  # (kind, metric) -> count


class TickReports:
    """Findings and counters of the refresh; `observe` receives a stage of the tick and its duration in seconds."""

    def __init__(self, observe: Callable[[str, float], None] = lambda stage, seconds: None) -> None:
        self.findings = FindingLog()
        self.stats = TickStats()
        self.observe = observe

    def continue_from(self, other: TickReports) -> None:
        """Continue the findings and counters of a refresher with other settings."""
        self.findings, self.stats = other.findings, other.stats

    def query_failed(
        self,
        error_kind: str,
        reason: str,
        *,
        now: float,
        metric: str = "",
        kind: FindingKind = FindingKind.QUERY_FAILED,
        remedy: Remedy = Remedy.REPORTED,
    ) -> None:
        """Count a failed query by the kind of its error, and add its finding. `now` is in unix seconds."""
        key = (error_kind, metric)
        self.stats.query_failures[key] = self.stats.query_failures.get(key, 0) + 1
        self.findings.add([Finding(kind, "", metric, now, reason, remedy)])
