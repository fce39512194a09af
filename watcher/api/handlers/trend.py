"""Handler for the load of the whole fleet over time, encoded once per tick."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import blake2s

import msgspec
from aiohttp import web

from watcher.api import operations
from watcher.api.body_builder import BodyBuilder
from watcher.api.handlers.base import BODY_CACHE_BYTES, CurrentSnapshot, Handlers
from watcher.api.service import ServiceView
from watcher.core.windows.fleet_trend import TREND_S, CapacityWeights, FleetTrend
from watcher.platform.http.parameters import query_values
from watcher.platform.http.responses import BodyCache
from watcher.platform.http.routing import ApiError
from watcher.store.errors import StoreError
from watcher.store.settings import StoreSettings

RENEWED_EVERY_S = 15
"""The store is read at most this often between two ticks: windows are written shortly after a tick."""
NOT_KEPT = 'windows of CPU and Memory are not stored: set store.keep = ["CPU", "Memory"]'
NOTHING_YET = "no windows are stored yet: the first ones are stored with the first complete refresh"


class TrendHandler(Handlers):
    """The trend, extended by the windows that were stored since the last request."""

    def __init__(self, service: ServiceView, *, current: CurrentSnapshot, body_builder: BodyBuilder) -> None:
        super().__init__(service, current=current, body_builder=body_builder)
        self._trend = FleetTrend("", seconds=0)
        self._read_at = float("-inf")
        self._about: tuple[object, ...] = ()  # what the body depends on
        self._tag, self._body = "", b""
        self._kept = BodyCache(BODY_CACHE_BYTES)

    async def trend(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """The means over all nodes. Served in every state of the service."""
        query_values(request.rel_url.raw_query_string, known=operations.TREND.query_names)
        if not self._body or self._service.monotonic() - self._read_at >= RENEWED_EVERY_S:
            await self._body_builder.shared("trend", self._extend)
        body = self._body
        return await self._body_builder.tagged_response(
            request, lambda: body, tag=self._tag, kept=self._kept, scope=self._current.scope
        )

    async def _extend(self) -> None:
        """Read new windows, and encode the document if it or the tick changed."""
        service, shortest = self._service, self._service.windows[0]
        if self._trend.window != shortest.label:  # at the first request, and after a reload
            self._trend = FleetTrend(shortest.label, seconds=shortest.seconds)
        end = int(service.now())
        start = end - TREND_S
        weights = CapacityWeights(await service.capacities())
        try:
            trend = await service.store.extended_trend(self._trend, weights, start=start, end=end)
        except StoreError as error:
            raise ApiError(503, "history_unavailable", str(error), error.hint) from error
        trend.forget(before=start)
        self._trend, self._read_at = trend, service.monotonic()
        tick = None if service.published is None else service.published.tag
        reason = NOTHING_YET if {"CPU", "Memory"} & set(service.settings[StoreSettings].keep) else NOT_KEPT
        about = (trend.window, trend.version, tick, weights.known, reason)
        if about == self._about:
            return
        document = trend.document(start=start, end=end, weighted=weights.known, reason=reason)
        self._body = await self._body_builder.in_thread(partial(msgspec.json.encode, document))
        self._about, self._tag = about, blake2s(self._body, digest_size=8).hexdigest()
        self._kept = BodyCache(BODY_CACHE_BYTES)
