"""Duplicates behind an expression: nodes with several series of one device, as from two scrape jobs or replicas.

The built-in expressions use the higher of two such series, so their results do not show duplicates. A query, rarely
repeated, finds them.
"""

from __future__ import annotations

import logging

from watcher.core.messages import shorten_names
from watcher.model import Finding, FindingKind, Remedy
from watcher.platform.sources.config import InstantQuery
from watcher.platform.sources.errors import ProviderError
from watcher.platform.sources.prometheus import PrometheusClient
from watcher.providers.prometheus.queries import PrometheusQueryPlan
from watcher.providers.prometheus.responses import read_numbers
from watcher.providers.prometheus.state import PrometheusFetchContext

READ_EVERY = 20
"""Number of fetches between two queries for the same duplicates."""
SHOWN_ONE_BY_ONE = 50

log = logging.getLogger(__name__)


class DuplicateReader:
    """The duplicates of one server, by query."""

    def __init__(self, api: PrometheusClient) -> None:
        self._api = api
        self._found: dict[str, tuple[int, tuple[str, ...]]] = {}

    async def find(self, plan: PrometheusQueryPlan, fetching: PrometheusFetchContext) -> None:
        """Add the findings for the raw series of a plan to the fetch. A query that fails is repeated in the next
        fetch."""
        query = plan.candidate.duplicates(plan.label)
        read_at, keys = self._found.get(query, (fetching.number - READ_EVERY, ()))
        if fetching.number - read_at >= READ_EVERY:
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
