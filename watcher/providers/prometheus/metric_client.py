"""Queries of one fetch: the remarks of the server become findings of the metric."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from watcher.model import FindingKind, Metric, Remedy
from watcher.platform.sources.config import InstantQuery, RangeQuery
from watcher.platform.sources.prometheus import PrometheusClient, PrometheusResponse
from watcher.providers.prometheus.state import PrometheusFetchContext

T = TypeVar("T")


class MetricClient:
    """Sends the queries of a fetch with `api`."""

    def __init__(self, api: PrometheusClient) -> None:
        self.api = api

    async def ask(
        self,
        question: InstantQuery | RangeQuery,
        *,
        metric: Metric,
        fetching: PrometheusFetchContext,
        read: Callable[[Iterable[msgspec.Raw]], T],
    ) -> PrometheusResponse[T]:
        """Send one query and add the source's remarks as findings. An instant query without a range returns a
        vector."""
        expects = "vector" if isinstance(question, InstantQuery) and not question.query.endswith("]") else "matrix"
        reply = await self.api.ask(question, expects=expects, read=read, deadline=fetching.deadline)
        for remark in reply.remarks:
            fetching.find(FindingKind.QUERY_FAILED, metric, f"warning of the source: {remark}", Remedy.REPORTED)
        if reply.missing:
            fetching.partial[metric.name] = reply.missing
        if reply.clock_offset_s is not None:
            fetching.clock.append((reply.round_trip_s, reply.clock_offset_s))
        return reply
