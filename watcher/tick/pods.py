"""Refresh of pod usage: once a minute as part of a tick, if the source has pod usage and a client requests it.

It never delays the nodes: it begins after the nodes' newest samples are published and ends with the tick's deadline,
and a failure affects only pods. Pod usage is not stored: after a start its windows fill again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from watcher.core.naming import name_resolver
from watcher.core.naming.name_resolver import NodeIndex
from watcher.core.pods.coverage import PodCoverage, PodGaps
from watcher.core.pods.published import PublishedPods
from watcher.core.pods.table import (
    PODS,
    SLOT_S,
    PodOrigin,
    PodTable,
    PodUsage,
    empty_table,
    merge_readings,
    review_pods,
    within_bound,
)
from watcher.model import Finding, FindingKind, Remedy
from watcher.platform.repeated_errors import RepeatedErrors
from watcher.sources.base import NoPodUsage, PodFetch, Provider, fetch_pods, pod_gaps
from watcher.sources.errors import ProviderError
from watcher.tick.fetching import with_hint
from watcher.tick.shared import TickContext

log = logging.getLogger(__name__)

EARLY_S = 10.0
"""The time between two queries may be this many seconds shorter than a minute, because ticks are slightly irregular."""
WANTED_FOR_S = 900.0
SILENT_PERIODS = 1.5
"""Number of cadences behind its node's newest pod after which a pod is removed: one missing reading is tolerated."""


class PodRefresher:
    """Refreshes and publishes the table of pods; `published` is replaced as a whole, by one assignment. Computations
    run in the worker thread of the tick."""

    def __init__(self, context: TickContext) -> None:
        self.published: PublishedPods | None = None
        self._provider = context.provider
        self._config = context.config
        self._clock = context.clock
        self._tag = context.tag
        self._worker = context.worker
        self._reports = context.reports
        self._sequence = 0
        self._wanted_at = float("-inf")
        self._asked_at = float("-inf")
        self._failure = ""
        self._is_impossible = False  # the failure: the source has no pod usage
        self._errors = RepeatedErrors(log)

    # --- requests for pods -------------------------------------------------------------------------------------------

    def want(self) -> str:
        """Request pod usage; in mode "auto" the source is queried only after such a request. Return why there is none,
        "" if there is some or may be some after the next refresh."""
        self._wanted_at = self._clock.monotonic()
        return self.impossible_reason or self._failure

    @property
    def impossible_reason(self) -> str:
        """Why pod usage cannot be collected with these settings and this source; "" if it can, or if the source is not
        queried: then a request for pods finds out whether it can now."""
        if self._config.pods == "off":
            return 'pod usage is switched off (refresh.pods = "off")'
        return self._failure if self._is_impossible and self.wanted else ""

    @property
    def wanted(self) -> bool:
        """Whether the source is currently queried for pods."""
        if self._config.pods == "auto":
            return self._clock.monotonic() - self._wanted_at <= WANTED_FOR_S
        return self._config.pods == "on"

    def continue_from(self, other: PodRefresher) -> None:
        """Take over from a refresher with other settings: its last request counts, and its table stays published until
        the next response, which extends it if the queries are the same."""
        self._wanted_at = other._wanted_at
        self.published = other.published

    def forget(self) -> None:
        """Discard the table: the clock was set back, and the readings lie in the future."""
        self.published = None

    # --- the refresh -------------------------------------------------------------------------------------------------

    async def refresh(self, deadline: float, index: NodeIndex | None, nodes: Collection[str] = ()) -> None:
        """Query the source if due, and publish. Does not raise for errors of the source. `deadline` is in seconds of
        the event loop's clock; `index` has the nodes of the cluster, None if they are unknown; `nodes` are those with
        load."""
        if not self._due():
            return
        began = self._asked_at = self._clock.monotonic()
        try:
            async with asyncio.timeout_at(deadline):
                fetch = await fetch_pods(self._provider, self._clock.now())
            await self._take_in(fetch, index, nodes, deadline)
            self._errors.succeeded()
        except TimeoutError:
            self._failed("unreachable", "no response to the pod queries before the deadline of the tick", hint="")
        except NoPodUsage as error:
            self.published = None
            self._failed(error.kind, str(error), hint=error.hint)
            self._is_impossible = True
        except ProviderError as error:
            self._failed(error.kind, str(error), hint=error.hint)
        except Exception as error:  # a bug here or in a library; the nodes are not affected
            self._errors.failed(error, "unexpected error while refreshing pods; the last pod usage stays published")
            self._failed("internal", f"internal error: {type(error).__name__}", hint="see the log for details")
        self._reports.observe(PODS, self._clock.monotonic() - began)

    def _due(self) -> bool:
        if not self.wanted:
            # not requested: stored data would only become outdated
            self.published, self._failure, self._is_impossible = None, "", False
            return False
        return self._clock.monotonic() - self._asked_at >= SLOT_S - EARLY_S

    async def _take_in(self, fetch: PodFetch, index: NodeIndex | None, nodes: Collection[str], deadline: float) -> None:
        now = self._clock.now()
        findings: list[Finding] = [*fetch.findings]
        known = self.published
        table = self._table_for(fetch.origin, findings, now)
        table, coverage = await self._worker.run(self._merge, table, fetch, index, findings, now)
        coverage = await with_gaps(coverage, self._provider, nodes=nodes, index=index, now=now, deadline=deadline)
        if message := coverage.message():
            findings.append(Finding(FindingKind.NO_SERIES, "", PODS, now, message, Remedy.LEFT_OUT))
        self.published = await self._worker.run(self._publish, table, fetch.origin, coverage, now)
        self._reports.findings.add(findings)
        if self._failure or known is None:
            count = len(self.published.table.pods)
            log.info("%s reports usage of %d pods: %s", self._provider.source, count, fetch.origin.cores)
        self._failure, self._is_impossible = "", False

    def _table_for(self, origin: PodOrigin, findings: list[Finding], now: float) -> PodTable:
        """Return the current table, or an empty table if its readings must not share a window with the new ones."""
        known, slots = self.published, self._config.pod_slots
        if known is None or len(known.table.recent_cores) != slots:
            return empty_table(slots)
        if known.origin.compatible_with(origin):
            return known.table
        reason = f"the pod query changed from {known.origin.cores} to {origin.cores}; the minutes of pods were emptied"
        findings.append(Finding(FindingKind.SOURCE, "", PODS, now, reason, Remedy.HISTORY_EMPTIED))
        return empty_table(slots)

    @property
    def _silent_s(self) -> float:
        return SILENT_PERIODS * self._config.pod_cadence_s

    @property
    def _valid_s(self) -> float:
        """Seconds for which a reading is valid if its node reports no other."""
        return max(self._config.max_staleness, self._silent_s)

    def _merge(
        self, table: PodTable, fetch: PodFetch, index: NodeIndex | None, findings: list[Finding], now: float
    ) -> tuple[PodTable, PodCoverage]:
        """Review the readings and add them to the table; runs in the worker thread. The coverage has the nodes of the
        readings, and in `unknown` those whose readings are too old."""
        config = self._config
        usage = fetch.usage if index is None else _named(fetch.usage, index, findings, now)
        usage, found = review_pods(usage, now=now, max_ahead_s=config.limits.max_ahead_s)
        findings.extend(found)
        usage, left_out = within_bound(table, usage, most=config.most_pods, now=now)
        findings.extend(left_out)
        table = merge_readings(table, usage, now=now, silent_s=self._silent_s, stale_s=self._valid_s)
        measured = {**dict.fromkeys(translated(fetch.nodes, index).values(), now), **table.measured()}
        cause = f"the readings of its pods are older than {self._valid_s:g} s; see the scrape target of the node"
        old = dict.fromkeys(sorted(set(usage.nodes) - measured.keys()), cause)
        return table, PodCoverage(measured, old, self._valid_s)

    def _publish(self, table: PodTable, origin: PodOrigin, coverage: PodCoverage, now: float) -> PublishedPods:
        """Build the published table; runs in the worker thread."""
        config = self._config
        self._sequence += 1
        return PublishedPods(
            table,
            origin=origin,
            windows=config.windows,
            cadence_s=config.pod_cadence_s,
            timestamp=now,
            tag=f"{self._tag}-pods-{self._sequence:x}",
            monotonic=self._clock.monotonic(),
            age_s=max(0.0, now - table.end),
            coverage=coverage,
        )

    def _failed(self, kind: str, reason: str, *, hint: str) -> None:
        """Record a failure, and log it if it is the first; the published table stays, with its true age."""
        message = with_hint(reason, hint)
        is_missing = kind == NoPodUsage.kind
        if not self._failure:
            log.warning("no pod usage available: %s", message)
        if not is_missing or self._config.pods == "on":  # "auto": the response to the request states the reason
            found = FindingKind.NO_SERIES if is_missing else FindingKind.QUERY_FAILED
            self._reports.query_failed(
                kind, message, now=self._clock.now(), metric=PODS, kind=found, remedy=Remedy.LEFT_OUT
            )
        self._failure = message


def translated(names: Iterable[str], index: NodeIndex | None) -> Mapping[str, str]:
    """Return the node of the cluster by name; unresolved names are unchanged."""
    given = tuple(sorted(names))
    if index is None or not given:
        return {name: name for name in given}
    resolution = index.resolve(given)
    return dict(zip(resolution.names, resolution.nodes, strict=True))


async def with_gaps(
    coverage: PodCoverage,
    provider: Provider,
    *,
    nodes: Collection[str],
    index: NodeIndex | None,
    now: float,
    deadline: float,
) -> PodCoverage:
    """Return the coverage with the causes for the nodes with load, `nodes`, that it lacks; nodes outside of the cluster
    run no pods. `now` is in unix seconds, `deadline` in event loop time."""
    missing = [node for node in nodes if node not in coverage.measured and (index is None or node in index.nodes)]
    if not missing or not coverage.measured:
        return coverage
    gaps = await pod_gaps(provider, now, deadline=deadline)
    names, hosting = translated(gaps.causes, index), gaps.hosting
    causes = {names[name]: cause for name, cause in gaps.causes.items()}
    on = None if hosting is None else frozenset(translated(hosting, index).values())
    return coverage.completed(missing, PodGaps(gaps.otherwise, causes, on), now=now)


def _named(usage: PodUsage, index: NodeIndex, findings: list[Finding], now: float) -> PodUsage:
    """Return the usage with cluster node names, as used for the nodes' load; unresolved names are unchanged."""
    resolution = index.resolve(tuple(sorted({name for name in usage.nodes if name})))
    findings.extend(name_resolver.findings(resolution, index, now=now))
    if not resolution.translated:
        return usage
    known = dict(zip(resolution.names, resolution.nodes, strict=True))
    return replace(usage, nodes=tuple(known.get(name, name) for name in usage.nodes))
