"""Builds a snapshot from the history: the served nodes, their metrics, and their age.

A node with samples may not be served: the samples are too old, its exporter repeats its last values, or so many nodes
departed at once that a list of the rest would be misleading (outage.OutageGuard).

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from watcher.arrays import F64, I64, Bool
from watcher.core.review import faults
from watcher.core.review.outage import OutageDecision, OutageGuard
from watcher.core.windows.history import History, name_order
from watcher.core.windows.records import WindowRecord
from watcher.core.windows.silent_nodes import last_samples
from watcher.model import DEFAULT_OPERATORS, Finding, MetricWindows, Operator, Provenance, Snapshot


def take_snapshot(
    history: History,
    *,
    now: float,
    source: str,
    provenance: Mapping[str, Provenance],
    guard: OutageGuard,
    max_staleness: float,
) -> tuple[Snapshot, list[Finding]]:
    """Compute all windows of all nodes at `now` (unix seconds) without stale, frozen or vanished nodes, and the
    findings about these. `provenance` is by metric name, `max_staleness` in seconds. Changes the guard's state: call it
    once per tick."""
    order = name_order(history.names)
    nodes = tuple(history.names[column] for column in order.tolist())
    metrics: list[MetricWindows] = []
    motions: list[faults.MetricMotion] = []
    for metric in history.metrics:
        recent = history.recent(metric)
        windows = history.windows_of(metric, recent=recent, provenance=provenance[metric.name], order=order)
        metrics.append(windows)
        if metric.moves:
            stands = faults.unchanged(np.where(recent.sampled, recent.values, np.nan))[order]
            motions.append(faults.MetricMotion(metric, stands, ~np.isnan(windows.latest), windows.latest))
    fleet = _Fleet(nodes, metrics, now=now)
    verdict = guard.step(
        now=now,
        nodes=nodes,
        newest=fleet.sampled,
        cadence=fleet.cadence,
        would_vanish=~(fleet.sampled >= now - max_staleness),
        would_quarantine=faults.frozen_nodes(motions, nodes=len(nodes)),
    )
    snapshot = _assemble(history, fleet, verdict, source=source, oldest=now - max_staleness)
    labels = [window.label for window in history.windows]
    short = [
        finding
        for windows in snapshot.metrics
        for finding in faults.short_coverage(windows, now=now, nodes=snapshot.nodes, labels=labels)
    ]
    return snapshot, [*verdict.findings, *fleet.silent_findings(), *short]


def _assemble(history: History, fleet: _Fleet, verdict: OutageDecision, *, source: str, oldest: float) -> Snapshot:
    stays = (fleet.sampled >= oldest) & ~verdict.quarantined
    rows = np.flatnonzero(stays)
    gone = np.flatnonzero(~stays & ~np.isnan(fleet.sampled)).tolist()
    nodes = tuple(fleet.nodes[row] for row in rows.tolist())
    metrics = tuple(served(windows, rows=rows, oldest=oldest) for windows in fleet.metrics)
    return Snapshot(
        timestamp=fleet.now,
        end=history.end,
        source=source,
        resolution=history.resolution,
        windows=history.windows,
        nodes=nodes,
        metrics=metrics,
        sampled=fleet.sampled[rows],
        age_s=np.fmax(fleet.silent_age, verdict.age_s)[rows],
        quarantined=frozenset(fleet.nodes[row] for row in np.flatnonzero(verdict.quarantined).tolist()),
        lost=dict(verdict.lost),
        left_out=last_samples(fleet.nodes, gone, fleet.sampled, fleet.metrics),
        on_demand=OnDemand(history, end=history.end, nodes=nodes, metrics=metrics),
        samples=partial(history.samples, end=history.end, nodes=nodes),
    )


class _Fleet:
    """Per node over all metrics: time of the newest sample (unix seconds), cadence and age if silent (seconds); [n]."""

    def __init__(self, nodes: tuple[str, ...], metrics: Sequence[MetricWindows], *, now: float) -> None:
        self.nodes = nodes
        self.metrics = metrics
        self.now = now
        self.sampled: F64 = np.full(len(nodes), np.nan)
        self.cadence: F64 = np.full(len(nodes), np.nan)
        self.silent_age: F64 = np.full(len(nodes), np.nan)
        self._silent: list[Bool] = []
        for windows in metrics:
            silent = faults.silent_nodes(now=now, sampled=windows.sampled, cadence=windows.cadence)
            self._silent.append(silent)
            self.sampled = np.fmax(self.sampled, windows.sampled)
            self.cadence = np.fmax(self.cadence, np.where(np.isnan(windows.sampled), np.nan, windows.cadence))
            self.silent_age = np.fmax(self.silent_age, np.where(silent, now - windows.sampled, np.nan))

    def silent_findings(self) -> Iterator[Finding]:
        """Yield a finding for each metric without a sample for more than max(3 cadences, 90 s)."""
        for windows, silent in zip(self.metrics, self._silent, strict=True):
            yield from faults.gone_silent(
                windows.metric, now=self.now, nodes=self.nodes, sampled=windows.sampled, which=silent
            )


class OnDemand:
    """MAX and percentiles of one snapshot, computed on the first call from the samples known at that time."""

    def __init__(
        self, history: History, *, end: float, nodes: tuple[str, ...], metrics: Sequence[MetricWindows]
    ) -> None:
        self._history = history
        self._end = end
        self._nodes = nodes
        self._averages = {windows.metric.name: windows.average for windows in metrics}
        self._known: dict[tuple[str, Operator], F64] = {}

    def __call__(self, name: str, operator: Operator) -> F64:
        if (name, operator) not in self._known:
            values = self._history.statistic(name, operator, end=self._end, nodes=self._nodes)
            self._known[name, operator] = np.where(np.isnan(self._averages[name]), np.nan, values)
        return self._known[name, operator]


def served(windows: MetricWindows, *, rows: I64, oldest: float) -> MetricWindows:
    """Return the served rows of a metric's windows; a metric whose newest sample is older than `oldest` (unix seconds)
    becomes NaN for its node."""
    sampled = windows.sampled[rows]
    stale = ~(sampled >= oldest)
    return replace(
        windows,
        latest=np.where(stale, np.nan, windows.latest[rows]),
        sampled=np.where(stale, np.nan, sampled),
        cadence=windows.cadence[rows],
        count=windows.count[:, rows],
        coverage=np.where(stale, 0.0, windows.coverage[:, rows]),
        average=np.where(stale, np.nan, windows.average[:, rows]),
        deviation=np.where(stale, np.nan, windows.deviation[:, rows]),
    )


def window_records(snapshot: Snapshot, *, minute: int, types: Collection[str]) -> tuple[WindowRecord, ...]:
    """Return AVG and STD of the recorded metric types for a minute (unix seconds), one record per window."""
    kept = [windows for windows in snapshot.metrics if windows.metric.type in types]
    columns = tuple((windows.metric.name, operator) for windows in kept for operator in DEFAULT_OPERATORS)
    if not columns:
        return ()
    records = []
    for index, window in enumerate(snapshot.windows):
        rows = [row for windows in kept for row in (windows.average[index], windows.deviation[index])]
        values = np.array(rows, dtype=np.float32)
        records.append(WindowRecord(window=window, time=minute, nodes=snapshot.nodes, columns=columns, values=values))
    return tuple(records)
