"""Names of the nodes by instance, which node_uname_info has, for series that do not name their node."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from watcher.core.queries.matchers import Matcher
from watcher.platform.sources.config import InstantQuery
from watcher.providers.prometheus.metric_client import MetricClient
from watcher.providers.prometheus.queries import NodeNames, PrometheusQueryPlan, names_query, read_names
from watcher.providers.prometheus.responses import MatrixSamples, read_labels
from watcher.providers.prometheus.state import SEARCH_EVERY_FETCHES, PrometheusFetchContext, PrometheusMetricState


class NodeNamesReader:
    """Reads the names, and again for unknown instances."""

    def __init__(self, client: MetricClient, matchers: Sequence[Matcher]) -> None:
        self._client, self._matchers = client, matchers
        self._names: NodeNames | None = None
        self._read_at = 0
        self._missing = ""
        self._nameless: frozenset[str] = frozenset()
        self._lock = asyncio.Lock()

    async def nodes_of(
        self,
        reading: MatrixSamples,
        plan: PrometheusQueryPlan,
        watch: PrometheusMetricState,
        fetching: PrometheusFetchContext,
    ) -> Sequence[str | None]:
        """Node of each series, None if unknown."""
        if not plan.label.joined:
            return reading.keys
        names = await self.read(watch, fetching, at_most_old=SEARCH_EVERY_FETCHES)
        unknown = {key for key in reading.keys if key and key not in names.by_instance}
        if unknown - self._nameless:
            names = await self.read(watch, fetching, at_most_old=0)
            self._nameless |= unknown - names.by_instance.keys()
        return [names.by_instance.get(key) if key else None for key in reading.keys]

    async def read(
        self, watch: PrometheusMetricState, fetching: PrometheusFetchContext, *, at_most_old: int
    ) -> NodeNames:
        """Node names by instance from node_uname_info, read at most `at_most_old` fetches ago. After a partial
        response they are read again at every fetch."""
        async with self._lock:
            if self._missing:
                at_most_old = 0
            if self._names is None or fetching.number - self._read_at > at_most_old:
                question = InstantQuery(names_query(matchers=self._matchers), max(fetching.until, fetching.latest))
                reply = await self._client.ask(question, metric=watch.metric, fetching=fetching, read=read_labels)
                names = read_names(reply.content)
                if reply.missing and self._names is not None:
                    names = self._names.with_newer(names)
                self._names, self._read_at, self._missing = names, fetching.number, reply.missing
                self._nameless = frozenset()
            if self._missing:
                fetching.partial.setdefault(watch.metric.name, self._missing)
            return self._names
