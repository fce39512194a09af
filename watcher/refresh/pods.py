"""The part of a tick that is about pods: once a minute, where the source knows them and somebody wants them.

It stands beside the tick of nodes and never in its way: it begins when the nodes' newest samples are published, ends
with the tick's deadline, and whatever fails here costs pods alone. What pods use is not stored: after a start its
windows fill anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from watcher.core.naming import node_index
from watcher.core.naming.node_index import NodeIndex
from watcher.core.pods.table import (
    PODS,
    SLOT_S,
    PodOrigin,
    PodTable,
    PodUsage,
    PublishedPods,
    empty_table,
    review,
    take_in,
)
from watcher.model import Finding, FindingKind, Remedy, Window
from watcher.providers.base import NoPodUsage, PodFetch, Provider, ProviderError, fetch_pods

if TYPE_CHECKING:
    from watcher.clock import Clock

log = logging.getLogger(__name__)

EARLY_S = 10.0
"""By so much a minute may be short: ticks come a little early and a little late."""
WANTED_FOR_S = 900.0
SILENT_PERIODS = 1.5
"""So much later than its node's other pods a pod is gone: one miss is a hiccup, two are not."""


@dataclass(frozen=True, slots=True)
class PodConfig:
    """The settings that the pods' part of a tick needs; times in seconds."""

    mode: str = "auto"  # auto, on or off
    interval: float = 60.0
    windows: tuple[Window, ...] = (Window("5m", 300), Window("10m", 600), Window("15m", 900))
    max_staleness: float = 300.0
    max_ahead_s: float = 30.0

    @property
    def cadence_s(self) -> float:
        """Seconds between two questions."""
        return max(float(SLOT_S), self.interval)

    @property
    def slots(self) -> int:
        """Minutes to remember."""
        return max(1, self.windows[-1].seconds // SLOT_S)


class PodRefresher:
    """Owner of the table of pods and of what is published of it; `published` is replaced whole, by one assignment.

    `index` gives the nodes of the cluster, None where they are not known; `work` runs a function in the worker thread
    of the tick; `report` takes findings, `count` one failure by its kind.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        config: PodConfig,
        clock: Clock,
        tag: str,
        index: Callable[[], NodeIndex | None],
        work: Callable[[Callable[[], PublishedPods]], Awaitable[PublishedPods]],
        report: Callable[[Iterable[Finding]], None],
        count: Callable[[str], None],
        observe: Callable[[str, float], None],
    ) -> None:
        self.published: PublishedPods | None = None
        self._provider = provider
        self._config = config
        self._clock = clock
        self._tag = tag
        self._index = index
        self._work = work
        self._report = report
        self._count = count
        self._observe = observe
        self._sequence = 0
        self._wanted_at = float("-inf")
        self._asked_at = float("-inf")
        self._failure = ""

    # --- what others ask ---------------------------------------------------------------------------------------------

    def want(self) -> str:
        """Somebody wants pods: under `auto` this is what has them asked for. Returns why there are none, "" if there
        are some, or if there may be some after the next refresh."""
        self._wanted_at = self._clock.monotonic()
        if self._config.mode == "off":
            return 'pod usage is switched off (refresh.pods = "off")'
        return self._failure

    @property
    def wanted(self) -> bool:
        """Whether pods are asked for at the moment."""
        if self._config.mode == "auto":
            return self._clock.monotonic() - self._wanted_at <= WANTED_FOR_S
        return self._config.mode == "on"

    def continue_from(self, other: PodRefresher) -> None:
        """Take over from one with other settings: who wanted pods still does, and what is known stays until the next
        answer, which goes on from it where it is asked in the same way."""
        self._wanted_at = other._wanted_at
        self.published = other.published

    def forget(self) -> None:
        """Begin anew (the clock was set back: what is known lies in the future)."""
        self.published = None

    # --- the refresh -------------------------------------------------------------------------------------------------

    async def refresh(self, deadline: float) -> None:
        """Ask, if it is time to, and publish; never raises for what a source can do wrong. `deadline` is in the time of
        the event loop."""
        if not self._due():
            return
        began = self._asked_at = self._clock.monotonic()
        try:
            async with asyncio.timeout_at(deadline):
                fetch = await fetch_pods(self._provider, self._clock.now())
            await self._take_in(fetch)
        except TimeoutError:
            self._failed("unreachable", "the source did not answer for pods within the refresh", hint="")
        except NoPodUsage as error:
            self.published = None
            self._failed(error.kind, str(error), hint=error.hint)
        except ProviderError as error:
            self._failed(error.kind, str(error), hint=error.hint)
        except Exception as error:  # a fault of ours or of a library; the nodes are well
            log.exception("asking for pods failed in a way that was not foreseen")
            self._failed("internal", f"internal error: {type(error).__name__}", hint="the log has more")
        self._observe(PODS, self._clock.monotonic() - began)

    def _due(self) -> bool:
        if not self.wanted:
            self.published, self._failure = None, ""  # nobody looks, and it would only grow old
            return False
        return self._clock.monotonic() - self._asked_at >= SLOT_S - EARLY_S

    async def _take_in(self, fetch: PodFetch) -> None:
        now = self._clock.now()
        findings: list[Finding] = [*fetch.findings]
        known = self.published
        table = self._table_for(fetch.origin, findings, now)
        self.published = await self._work(lambda: self._publish(table, fetch, findings, now))
        self._report(findings)
        if self._failure or known is None:
            count = len(self.published.table.pods)
            log.info("%s tells what %d pods use: %s", self._provider.source, count, fetch.origin.cores)
        self._failure = ""

    def _table_for(self, origin: PodOrigin, findings: list[Finding], now: float) -> PodTable:
        """What is known so far, or nothing where it may not stand beside new readings."""
        known, slots = self.published, self._config.slots
        if known is None or len(known.table.recent_cores) != slots:
            return empty_table(slots)
        if known.origin.goes_with(origin):
            return known.table
        reason = f"pods were asked for by {known.origin.cores}, and now by {origin.cores}; their minutes start anew"
        findings.append(Finding(FindingKind.SOURCE, "", PODS, now, reason, Remedy.HISTORY_EMPTIED))
        return empty_table(slots)

    def _publish(self, table: PodTable, fetch: PodFetch, findings: list[Finding], now: float) -> PublishedPods:
        """In the worker thread."""
        config = self._config
        usage = self._named(fetch.usage, findings, now)
        usage, found = review(usage, now=now, max_ahead_s=config.max_ahead_s)
        findings.extend(found)
        silent_s = SILENT_PERIODS * config.cadence_s
        stale_s = max(config.max_staleness, silent_s)
        table = take_in(table, usage, now=now, silent_s=silent_s, stale_s=stale_s)
        self._sequence += 1
        return PublishedPods(
            table,
            origin=fetch.origin,
            windows=config.windows,
            cadence_s=config.cadence_s,
            timestamp=now,
            tag=f"{self._tag}-pods-{self._sequence:x}",
            monotonic=self._clock.monotonic(),
            age_s=max(0.0, now - table.end),
        )

    def _named(self, usage: PodUsage, findings: list[Finding], now: float) -> PodUsage:
        """Under the names that the cluster has for its nodes, as those of the nodes' own load; those that it does not
        know keep theirs."""
        index = self._index()
        if index is None:
            return usage
        resolution = index.resolve(tuple(sorted({name for name in usage.nodes if name})))
        findings.extend(node_index.findings(resolution, index, now=now))
        if not resolution.translated:
            return usage
        known = dict(zip(resolution.names, resolution.nodes, strict=True))
        return replace(usage, nodes=tuple(known.get(name, name) for name in usage.nodes))

    def _failed(self, kind: str, reason: str, *, hint: str) -> None:
        """What is published stays, with its true age."""
        told = f"{reason}. {hint}" if hint else reason
        found = FindingKind.NO_SERIES if kind == NoPodUsage.kind else FindingKind.QUERY_FAILED
        self._count(kind)
        self._report([Finding(found, "", PODS, self._clock.now(), told, Remedy.LEFT_OUT)])
        if not self._failure:
            log.warning("there is no pod usage: %s", told)
        self._failure = told
