"""The raw series behind an expression: guards, and duplicates.

A computed value looks current for minutes after its exporter stopped. A guard states whether the raw series still had
samples at the times of the values. A guard in the expression reads the raw series of each metric again, and at each
time of the range. While the nodes with current samples stay the same, a fetch of the newest samples therefore asks once
for the times of the newest raw samples, and only for values that are new or were not final in the previous fetch: a
node with late samples extends the range, at most to that of the fetch.

An exporter has several collectors. The guard of the first metric of the exporter is read in each fetch, one guard of
each of its other collectors in every third.

Duplicates are nodes with several series of one device, as from two scrape jobs or replicas. The built-in expressions
use the higher of two such series, so their results do not show duplicates. A query, rarely repeated, finds them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from dataclasses import dataclass

import msgspec
import numpy as np

from watcher.arrays import F64, Bool
from watcher.core.messages import shorten_names
from watcher.model import Finding, FindingKind, Remedy
from watcher.sources.config import InstantQuery
from watcher.sources.errors import ProviderError
from watcher.sources.fetching import FetchContext
from watcher.sources.prometheus.plans import PrometheusQueryPlan
from watcher.sources.prometheus.responses import MatrixSamples, read_numbers
from watcher.sources.prometheus_api import PrometheusClient, PrometheusResponse

OTHER_COLLECTORS_EVERY = 3
"""Number of fetches after which the guards of an exporter's other collectors are asked for again."""

DUPLICATES_EVERY = 20
"""Number of fetches between two queries for the same duplicates."""
SHOWN_ONE_BY_ONE = 50

log = logging.getLogger(__name__)

Times = Mapping[str, float]
AskTimes = Callable[[InstantQuery, Callable[[Iterable[msgspec.Raw]], Times]], Awaitable[PrometheusResponse[Times]]]


@dataclass(frozen=True, slots=True)
class GuardTimes:
    """Times (unix seconds) of the newest raw samples by node key, as read in fetch `number` for the range from `since`
    to `until`. `missing` is the server's message about an incomplete response."""

    number: int
    since: float
    until: float
    newest: Times
    missing: str

    def final_until(self, interval: float) -> float:
        """The time until which the values of all nodes are final: the next raw sample, one scrape interval in seconds
        after the newest, is later. Nodes without samples in the range do not count."""
        newest = min((time for time in self.newest.values() if time >= self.since), default=self.until)
        return min(self.until, max(self.since, newest + interval))

    def living(self, within: float) -> Set[str]:
        """Nodes with a sample in the last `within` seconds of the range."""
        return {key for key, time in self.newest.items() if time >= self.until - within}


@dataclass(frozen=True, slots=True)
class Guard:
    """What a fetch needs for one metric: values are missing from `since` on, and those of a node are valid until its
    time in `ends` (unix seconds)."""

    since: float
    ends: Times
    missing: str

    def accepts(self, reading: MatrixSamples) -> Bool:
        """Which samples of the values are valid; shape as `reading.time`."""
        ends: F64 = np.array([-np.inf if key is None else self.ends.get(key, -np.inf) for key in reading.keys])
        return np.asarray(reading.time <= ends[reading.series], dtype=np.bool_)


class GuardReader:
    """The guards of one server, each read at most once in a fetch."""

    def __init__(self) -> None:
        self._read: dict[str, GuardTimes] = {}
        self._before: dict[str, GuardTimes] = {}
        self._lock = asyncio.Lock()

    async def read(
        self, plan: PrometheusQueryPlan, leading: PrometheusQueryPlan, fetch: GuardedFetch, ask: AskTimes
    ) -> Guard | None:
        """The guard of a plan, the first of its collector; None if the expressions must contain the guard: the previous
        fetch was not used, or the nodes with current samples changed. `leading` is the first plan of the exporter.
        Raises ProviderError."""
        assert plan.scrape_interval is not None
        within = 2 * plan.scrape_interval
        async with self._lock:
            first = await self._times(leading, fetch, ask)
            before = self._before.get(_guard(leading))
            changed = before is None or first.living(within) != before.living(within)
            own = self._read.get(_guard(plan))
            if own is None or changed or fetch.number - own.number >= OTHER_COLLECTORS_EVERY:
                own = await self._times(plan, fetch, ask)
            own_before = self._before.get(_guard(plan), own)
        living = own.living(within)
        if before is None or changed or not fetch.follows(before) or living != own_before.living(within):
            return None
        newest = own.newest if own.number == fetch.number else first.newest
        ends = {key: time + within for key, time in newest.items() if key in living}
        return Guard(before.final_until(plan.scrape_interval), ends, first.missing or own.missing)

    async def _times(self, plan: PrometheusQueryPlan, fetch: GuardedFetch, ask: AskTimes) -> GuardTimes:
        guard, label = _guard(plan), plan.label
        known = self._read.get(guard)
        if known is not None and known.number == fetch.number:
            return known
        question = InstantQuery(f"max by ({label.text}) (timestamp({plan.candidate.raw}))", fetch.until)
        reply = await ask(question, lambda rows: read_numbers(rows, label))
        if known is not None:
            self._before[guard] = known
        self._read[guard] = GuardTimes(fetch.number, fetch.since, fetch.until, reply.content, reply.missing)
        return self._read[guard]


@dataclass(frozen=True, slots=True)
class GuardedFetch:
    """Number and range (unix seconds) of a fetch. `complete`: whether the previous fetch had values of the metric."""

    number: int
    since: float
    until: float
    complete: bool

    def follows(self, before: GuardTimes) -> bool:
        """Whether the values of the previous fetch were used. If they were not, the range begins at the same time."""
        return self.complete and before.number == self.number - 1 and before.since < self.since


def _guard(plan: PrometheusQueryPlan) -> str:
    return f"{plan.candidate.raw} by {plan.label.origin}"


def exporter_of(plan: PrometheusQueryPlan) -> str:
    """The exporter of the raw series, such as "node", and their node label. A configured guard is on its own."""
    return _words(plan, 1)


def collector_of(plan: PrometheusQueryPlan) -> str:
    """The collector of the raw series, such as "node_network", and their node label. A configured guard is on its
    own."""
    return _words(plan, 2)


def _words(plan: PrometheusQueryPlan, number: int) -> str:
    raw = plan.candidate.raw
    name = raw if plan.candidate.origin == "configured" else "_".join(raw.split("_")[:number])
    return f"{name} by {plan.label.origin}"


# --- duplicates ------------------------------------------------------------------------------------------------------


class DuplicateReader:
    """The duplicates of one server, by query."""

    def __init__(self, api: PrometheusClient) -> None:
        self._api = api
        self._found: dict[str, tuple[int, tuple[str, ...]]] = {}

    async def find(self, plan: PrometheusQueryPlan, fetching: FetchContext) -> None:
        """Add the findings for the raw series of a plan to the fetch. A query that fails is repeated in the next
        fetch."""
        label = plan.label.text
        labels = ", ".join((label, *plan.candidate.devices))
        query = f"count by ({label}) (count by ({labels}) ({plan.candidate.raw}) > 1)"
        read_at, keys = self._found.get(query, (fetching.number - DUPLICATES_EVERY, ()))
        if fetching.number - read_at >= DUPLICATES_EVERY:
            try:
                reply = await self._api.ask(
                    InstantQuery(query, fetching.until),
                    expects="vector",
                    read=lambda rows: read_numbers(rows, plan.label),
                    deadline=fetching.deadline,
                )
            except ProviderError as error:
                log.debug("duplicates of %s are unknown: %s", plan.candidate.raw, error)
                return
            keys = tuple(sorted(reply.content))
            self._found[query] = (fetching.number, keys)
        if keys:
            fetching.findings += _findings(plan, keys, fetching.until)


def _findings(plan: PrometheusQueryPlan, keys: tuple[str, ...], now: float) -> list[Finding]:
    """One finding for each node, or one for all if there are many or the keys are not node names."""
    what = f"several series of {plan.candidate.raw} for one device, as from two scrape jobs or replicas; used once"
    if plan.label.by or plan.label.more or len(keys) > SHOWN_ONE_BY_ONE:
        found = {"": f"{len(keys)} nodes ({shorten_names(keys)}) have {what}"}
    else:
        found = dict.fromkeys(keys, f"has {what}")
    name = plan.metric.name
    return [
        Finding(FindingKind.DUPLICATE_SERIES, node, name, now, text, Remedy.COMBINED) for node, text in found.items()
    ]
