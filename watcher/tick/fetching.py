"""Fetching of samples: the newest samples of each tick, and the missing past, within the deadline of the tick.

Failures are contained: a failed query loses its metric, a failed source returns nothing. Both become findings, counters
and the state of the source, and the missing time is fetched once the query succeeds again. The state shows whether the
source is up, responds completely, has CPU and Memory, and names cluster nodes; each change is logged once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from watcher.core.naming.name_resolver import NodeIndex
from watcher.core.windows.backfill import Backfill
from watcher.model import METRIC_BY_KEY, Finding, FindingKind, ProviderHealth, Remedy
from watcher.platform.clock import Clock
from watcher.platform.memory import BUDGET, REQUESTS
from watcher.platform.net.resolver import HINT as NAMES_HINT
from watcher.platform.net.resolver import noting_hosts, unanswered
from watcher.platform.repeated_errors import RepeatedErrors
from watcher.sources.base import Fetch, QueryPlan
from watcher.sources.errors import ProviderError, ProviderPartial
from watcher.tick.shared import TICK_SHARE, TickContext

log = logging.getLogger(__name__)

# Metric name in a finding -> name for people, for the metrics that the Trimaran plug-ins score by; "" is all metrics.
SCORED_BY = {"": "nodes", METRIC_BY_KEY["CPU"].name: "CPU", METRIC_BY_KEY["Memory"].name: "Memory"}
EMPTY_FETCHES = 3
"""Responses without samples after which a source is incomplete that never had any."""


@dataclass(frozen=True, slots=True)
class NewestSamples:
    """The response to the query for the newest samples, sent at `now` for the time from `since` on (unix seconds)."""

    fetch: Fetch
    since: float
    now: float


class SampleFetcher:
    """Fetches from one source. `health` is the state of the source, `plans` are its queries and `naming` its evidence
    of node names, both by metric, and `backfill` knows which samples are still missing."""

    def __init__(self, context: TickContext) -> None:
        provider, config = context.provider, context.config
        self.health = SourceHealth(provider.source, clock=context.clock)
        self.plans: Mapping[str, QueryPlan] = {}
        self.naming: Mapping[str, str] = {}
        self.backfill = Backfill(reach=config.reach, interval=config.interval, remembers=provider.remembers)
        self._provider = provider
        self._config = config
        self._clock = context.clock
        self._reports = context.reports
        self._errors = RepeatedErrors(log)
        self._had_samples = False
        self._empty = 0  # consecutive responses without samples

    # --- the newest samples ------------------------------------------------------------------------------------------

    async def newest(self, deadline: float, *, overlap: float) -> NewestSamples | None:
        """Fetch the newest samples, None if the source returned nothing. The result sets whether the source is up.
        `deadline` is in seconds of the event loop's clock; `overlap` in seconds."""
        now = self._clock.now()
        since = self.backfill.begin(now, overlap=overlap)
        # a source without history may take its sample during the fetch
        until = now if self._provider.remembers else now + self._config.interval
        began = self._clock.monotonic()
        fetch = await self._fetch(since, until, deadline)
        self._reports.observe("fetch", self._clock.monotonic() - began)
        if fetch is None:
            return None
        self._errors.succeeded()
        self.health.up()
        self.backfill.fetched(now)
        return NewestSamples(fetch, since, now)

    async def _fetch(self, since: float, until: float, deadline: float) -> Fetch | None:
        hosts = set[str]()
        try:
            async with asyncio.timeout_at(deadline):
                with noting_hosts(hosts):
                    return await self._provider.fetch(since, until)
        except TimeoutError:
            silent = unanswered(hosts)
            reason = silent or f"no response within {TICK_SHARE:g} of the refresh interval"
            self._down(reason, hint=silent and NAMES_HINT, kind="unreachable")
        except ProviderError as error:
            self._down(str(error), hint=error.hint, kind=error.kind)
        except Exception as error:  # a bug here or in a library must not look like a healthy source
            self._errors.failed(error, "unexpected error in the provider; the last windows stay published")
            self._down(f"internal error: {type(error).__name__}", hint="see the log for details", kind="internal")
        return None

    def _down(self, reason: str, *, hint: str, kind: str) -> None:
        self._had_samples, self._empty = False, 0  # after a failure, it may have no new samples at first
        self._reports.stats.failed += 1
        self._reports.query_failed(kind, with_hint(reason, hint), now=self._clock.now(), remedy=Remedy.HELD)
        self.health.down(reason, hint=hint)

    def settle(
        self, newest: NewestSamples, *, emptied: Iterable[str], implausible: Mapping[str, str], overlap: float
    ) -> None:
        """Record which metrics failed, are incomplete or `implausible` (metric name -> reason), and plan the backfill
        of metrics that recovered or whose history was `emptied`."""
        fetch, now, since = newest.fetch, newest.now, newest.since
        for metric in emptied:
            self.backfill.mark_behind(metric, since=now - self._config.reach)
        self.plans, self.naming = fetch.plans or self.plans, fetch.naming or self.naming
        self._settle_failures(newest)
        self._settle_partial(newest, implausible)
        self.health.note_findings(fetch.findings)
        answered = [batch.metric.name for batch in fetch.batches if batch.metric.name not in fetch.partial]
        back = self.backfill.catch_up(answered, now=now, since=since, overlap=overlap)
        if back and self._provider.remembers:
            log.info("metrics can be fetched again, backfilling the gap: %s", ", ".join(back))
        elif back:
            log.info("metrics can be fetched again: %s", ", ".join(back))

    def _settle_failures(self, newest: NewestSamples) -> None:
        for failure in newest.fetch.failures:
            name, error = failure.metric, failure.error
            reason = with_hint(str(error), error.hint)
            if self.backfill.mark_behind(name, since=newest.since):
                log.warning("cannot fetch metric %s: %s", name, reason)
            in_part = isinstance(error, ProviderPartial)
            kind = FindingKind.PARTIAL_RESPONSE if in_part else FindingKind.QUERY_FAILED
            self._reports.query_failed(
                error.kind, reason, now=newest.now, metric=name, kind=kind, remedy=Remedy.LEFT_OUT
            )

    def _settle_partial(self, newest: NewestSamples, implausible: Mapping[str, str]) -> None:
        """Report partial responses. Their samples were appended; nodes missing from them keep their last samples, and
        the missing part is fetched once the source responds completely again."""
        partial = newest.fetch.partial
        for name in sorted(partial.keys() - {failure.metric for failure in newest.fetch.failures}):
            self.backfill.mark_behind(name, since=newest.since)
            reason = f"partial response, missing nodes keep their last samples: {partial[name]}"
            self._reports.query_failed(
                ProviderPartial.kind,
                reason,
                now=newest.now,
                metric=name,
                kind=FindingKind.PARTIAL_RESPONSE,
                remedy=Remedy.HELD,
            )
        refused = {what: reason for what, reason in BUDGET.refused.items() if what != REQUESTS}
        lacking, unlogged = {**partial, **implausible}, {**refused, **self._missing_samples(newest.fetch)}
        self.health.answered_in_part(_first(lacking), unlogged=_first(unlogged))

    def _missing_samples(self, fetch: Fetch) -> dict[str, str]:
        """Say that a response has no samples at all, although responses overlap; a source that has just started may
        have none."""
        if any(len(batch.time) for batch in fetch.batches):
            self._empty, self._had_samples = 0, True
            return {}
        self._empty += 1
        if fetch.failures or not (self._had_samples or self._empty >= EMPTY_FETCHES):
            return {}
        return {"": "the source responds without samples of any node"}

    # --- the past ----------------------------------------------------------------------------------------------------

    async def past(self, deadline: float) -> Fetch | None:
        """Fetch the next missing slice of the past; None if none is missing, or if it must wait for the next tick. A
        failure here does not mark the source as down, because it has just responded to the query for the newest
        samples."""
        piece = self.backfill.next_slice(self._clock.now())
        if piece is None or asyncio.get_running_loop().time() >= deadline:
            return None
        try:
            async with asyncio.timeout_at(deadline):
                fetch = await self._provider.fetch(piece.since, piece.until, only=piece.only)
        except TimeoutError:
            return None
        except ProviderError as error:
            reason = f"backfill of {piece.until - piece.since:.0f} s failed: {error}"
            self._reports.query_failed(error.kind, reason, now=self._clock.now())
            return None
        self.backfill.slice_fetched()
        lacking: Collection[str] = {*fetch.partial, *(failure.metric for failure in fetch.failures)}
        self.backfill.mark_still_missing(lacking, since=piece.since)
        return fetch


def _first(reasons: Mapping[str, str]) -> str:
    return min(reasons.items())[1] if reasons else ""


# --- health of the source --------------------------------------------------------------------------------------------


class SourceHealth:
    """Tracks the state of the source; `state` is replaced as a whole, by one assignment. `source` is the source's name
    on the wire."""

    def __init__(self, source: str, *, clock: Clock) -> None:
        self.state = ProviderHealth(None, "the source has not been queried yet", 0.0)
        self._source = source
        self._clock = clock
        self._absent: frozenset[str] = frozenset()  # keys of SCORED_BY whose absence was logged
        self._missing = ""
        self._clocks_differ = False
        self._strange = False  # the log states that no served name is the name of a cluster node

    def down(self, reason: str, *, hint: str) -> None:
        """Record that the source returned nothing, and log the change."""
        now, before = self._clock.now(), self.state
        self._missing = ""
        if before.ok is not False:
            log.warning("cannot read from %s: %s", self._source, with_hint(reason, hint))
        self.state = ProviderHealth(False, reason, now if before.ok is not False else before.since)

    def up(self) -> None:
        """Record that the source responded, and log the change."""
        now, before = self._clock.now(), self.state
        if before.ok:
            return
        if before.ok is False:
            log.info("%s is back after %.0f s", self._source, now - before.since)
        self.state = ProviderHealth(True, "", now)

    def answered_in_part(self, missing: str, *, unlogged: str = "") -> None:
        """Record that the source responded; `missing` describes the missing part, "" if the response is complete, and
        `unlogged` what is not kept or absent, which is logged elsewhere."""
        now, before = self._clock.now(), self.state
        if missing and not self._missing:
            log.warning("%s returns partial data: %s", self._source, missing)
        elif self._missing and not missing:
            log.info("%s returns complete data again after %.0f s", self._source, now - before.since)
        self._missing, lacking = missing, missing or unlogged
        since = before.since if before.partial == bool(lacking) else now
        self.state = ProviderHealth(True, lacking, since)

    def note_findings(self, findings: Iterable[Finding]) -> None:
        """Log from the source's findings when it has no data for CPU, Memory or all metrics, and when that ends."""
        reasons = {finding.metric: finding.reason for finding in findings if finding.kind is FindingKind.NO_SERIES}
        absent = {name: reasons[name] for name in SCORED_BY if name in reasons}
        if absent and absent.keys() != self._absent:
            what = " and ".join(SCORED_BY[name] for name in absent)
            reason = next(iter(absent.values()))
            log.warning("%s has no data for %s: %s; run load-watcher doctor for details", self._source, what, reason)
        elif self._absent and not absent:
            log.info("%s has CPU and Memory now", self._source)
        self._absent = frozenset(absent)

    def note_clock(self, findings: Iterable[Finding]) -> None:
        """Log from the findings of a tick when the clocks begin to differ, and when that ends."""
        reason = next((finding.reason for finding in findings if finding.kind is FindingKind.CLOCK_SKEW), "")
        if reason and not self._clocks_differ:
            log.warning("%s", reason)
        elif self._clocks_differ and not reason:
            log.info("the clocks of load-watcher and of %s agree again", self._source)
        self._clocks_differ = bool(reason)

    def names_compared(self, served: Sequence[str], index: NodeIndex | None) -> None:
        """Log when none of the served names is a cluster node, so that schedulers find no load, and when that ends."""
        if index is None or not (index.nodes and served):
            return
        strange = set(served).isdisjoint(index.nodes)
        if strange and not self._strange:
            log.warning(
                "no name of the source is a node of the cluster, so schedulers find no load: the source has %s, "
                "the cluster %s; run load-watcher doctor for details",
                served[0],
                next(iter(index.nodes)),
            )
        elif self._strange and not strange:
            log.info("names of the source match nodes of the cluster now")
        self._strange = strange


def with_hint(reason: str, hint: str) -> str:
    """Join a reason and its hint, which may be "", to one text."""
    return f"{reason}. {hint}" if hint else reason
