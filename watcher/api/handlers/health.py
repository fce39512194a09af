"""Liveness, readiness and provider health, the overview document for the dashboard, and /metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from aiohttp import hdrs, web

from watcher.api import dashboard, operations
from watcher.api.body_builder import BodyBuilder
from watcher.api.data_errors import check_complete
from watcher.api.handlers.base import CurrentSnapshot
from watcher.api.operations import AliveDocument, HealthDocument, ProviderState, ReadyDocument, SnapshotState
from watcher.api.service import ServiceView
from watcher.api.telemetry import Telemetry, coverage
from watcher.core.publishing.compression import Encoding
from watcher.core.windows.settings import RefreshSettings
from watcher.platform.http.negotiation import choose
from watcher.platform.http.parameters import query_values, unknown_value
from watcher.platform.http.responses import (
    accepted,
    body_response,
    json_response,
    raise_not_acceptable,
    with_content_coding,
)
from watcher.platform.http.routing import ApiError
from watcher.platform.telemetry.instruments import CONTENT_TYPE as EXPOSITION
from watcher.sources.settings import ProviderSettings

SCHEDULER = "/scheduler/plugins"
AGENTS = "/api/v1/agents"
PODS = "pods"
"""The value of ?want= of the overview."""


class HealthHandlers:
    """Handlers for the state of the service itself."""

    def __init__(
        self,
        service: ServiceView,
        *,
        telemetry: Telemetry,
        current: CurrentSnapshot,
        body_builder: BodyBuilder,
        readable: Callable[[web.Request], bool],
    ) -> None:
        """`readable` returns whether a client may read protected documents."""
        self._service = service
        self._telemetry = telemetry
        self._current = current
        self._body_builder = body_builder
        self._readable = readable
        self.paths: frozenset[str] = frozenset()
        """All paths that are served, including paths added by other packages."""

    async def healthz(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """Liveness: ticks begin on schedule. The provider's state does not matter."""
        wrong = self._service.refresher.stall_reason()
        if wrong:
            raise ApiError(503, "not_alive", wrong, "the log shows what the tick waits for; restart the service")
        return json_response(AliveDocument("alive"))

    async def readyz(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """Readiness: a window is available and not older than max_staleness. Clients that may not read the other
        documents get neither messages of the source and the database, which contain addresses, nor the detail."""
        state, readable = _ready_state(self._service), self._readable(request)
        if not readable:
            state.provider.reason, state.detail = "", {}
        try:
            self._current.ready()
        except ApiError as error:
            hint = error.hint if readable else "with the token of server.token_file, the response has the reason"
            raise ApiError(503, error.code, error.message, hint, extra=msgspec.to_builtins(state)) from None
        state.status = "ready"
        return json_response(state)

    async def provider_health(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """The result of the last request to the provider; makes no request."""
        health = self._service.refresher.provider_health
        if health.partial:
            return json_response(HealthDocument("partial", health.since, health.reason))
        if health.ok:
            return json_response(HealthDocument("ok", health.since))
        if health.ok is None:
            raise ApiError(503, "provider_not_asked", health.reason or "the provider has not been queried yet")
        raise ApiError(
            503,
            "provider_down",
            health.reason,
            "the last windows are served until they are stale; run load-watcher doctor for details",
            extra={"since": health.since},
        )

    async def overview(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """The state of the service, available in every state."""
        values = query_values(request.rel_url.raw_query_string, known=operations.OVERVIEW.query_names)
        for wanted in values.get("want", ()):
            if wanted != PODS:
                raise unknown_value("want", wanted, [PODS])
            self._service.request_pods()
        state, problem = _ready_state(self._service), None
        try:
            check_complete(self._current.ready().published)
            state.status = "ready"
        except ApiError as error:
            problem = error.detail
        there = {"scheduler": SCHEDULER in self.paths, "agents": AGENTS in self.paths}
        return json_response(dashboard.overview(self._service, state, problem, **there))

    async def metrics(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """Node windows and the service's own metrics in Prometheus' text format."""
        encoding = choose(accepted(request), (Encoding.IDENTITY, Encoding.GZIP)) or raise_not_acceptable()
        body = await self._body_builder.in_thread(partial(self._telemetry.exposition, encoding=encoding))
        headers = {hdrs.CONTENT_TYPE: EXPOSITION, hdrs.VARY: hdrs.ACCEPT_ENCODING, hdrs.CACHE_CONTROL: "no-store"}
        return body_response(body, with_content_coding(headers, encoding))


def _ready_state(service: ServiceView) -> ReadyDocument:
    health = service.refresher.provider_health
    return ReadyDocument(
        status="not ready",
        provider=ProviderState(health.ok, health.reason, health.since),
        windows=[window.label for window in service.windows],
        interval_s=service.settings[RefreshSettings].interval,
        max_staleness_s=service.max_staleness,
        snapshot=_snapshot_state(service),
        detail=_ready_detail(service),
    )


def _snapshot_state(service: ServiceView) -> SnapshotState | None:
    published = service.published
    if published is None or not published.snapshot.nodes:
        return None
    snapshot = published.snapshot
    return SnapshotState(
        source=snapshot.source,
        timestamp=int(snapshot.timestamp),
        window_end=int(snapshot.end),
        age_s=round(published.age(service.monotonic()), 3),
        nodes=len(snapshot.nodes),
        lost=len(snapshot.lost),
        quarantined=len(snapshot.quarantined),
    )


def _ready_detail(service: ServiceView) -> dict[str, object]:
    """Return the diagnostic data of /readyz: state of the store, and coverage of the windows."""
    status, published = service.store.status, service.published
    return {
        "provider": service.settings[ProviderSettings].name,
        "store": {
            "ok": status.ok,
            "error": status.error,
            "size_bytes": status.size_bytes,
            "dropped": status.dropped,
        },
        "coverage": coverage(published.snapshot) if published else {},
    }
