"""Health and metrics pages of the extender as a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import msgspec
from aiohttp import hdrs, web
from prometheus_client.metrics_core import Metric as Family

from scorers.extender.remote import RemoteHost
from scorers.extender.service import SchedulingService
from watcher.core.publishing.wire import ErrorDetail
from watcher.platform.http.openapi import Operation, ResponseSpec
from watcher.platform.http.responses import json_response
from watcher.platform.http.routing import Access, ApiError, Route
from watcher.platform.telemetry.instruments import CONTENT_TYPE, Instruments, counter, gauge
from watcher.store.store import Store

ALIVE_S = 60.0  # the loop that updates the load waits for the watcher for at most 15 s


class ExtenderAlive(msgspec.Struct):
    """Body of /healthz. `status` is alive."""

    status: str


class WatcherState(msgspec.Struct):
    """The watcher: whether its load could be renewed, and if not, why. `version` is "" before the first answer. `age_s`
    is the age in seconds of the newest sample in use, null if no load is used."""

    ok: bool
    reason: str
    version: str
    windows: list[str]
    age_s: float | None


class ExtenderReady(msgspec.Struct):
    """Body of /readyz. `nodes` is the number of nodes in the cluster; `lacks` has the problems of profiles with data
    that the watcher does not offer."""

    status: str
    watcher: WatcherState
    nodes: int
    lacks: dict[str, list[str]]


class ExtenderNotReady(ExtenderReady, kw_only=True):
    """Body of /readyz if the process is not ready: ExtenderReady and the error."""

    error: ErrorDetail


class ExtenderPages:
    """The health and metrics pages."""

    def __init__(
        self,
        scheduling: SchedulingService,
        host: RemoteHost,
        telemetry: Instruments,
        *,
        readable: Callable[[web.Request], bool],
    ) -> None:
        """`readable` returns whether a client may read protected documents."""
        self._scheduling = scheduling
        self._host = host
        self._telemetry = telemetry
        self._readable = readable

    def routes(self) -> list[Route]:
        """The routes of the pages; health checks need no token."""
        alive = {200: ResponseSpec("the load is updated", ExtenderAlive)}
        ready = {
            200: ResponseSpec("the extender knows the nodes and pods of the cluster", ExtenderReady),
            503: ResponseSpec("not_synced: the nodes and pods have not been listed yet", ExtenderNotReady),
        }
        text = "A watcher that does not answer does not make the extender unready: its answers are neutral then."
        metrics = {200: ResponseSpec("Prometheus' text format", media_type="text/plain")}
        return [
            Route("/healthz", "healthz", self.healthz, Operation("Liveness", alive), access=Access.OPEN),
            Route(
                "/readyz", "readyz", self.readyz, Operation("Readiness", ready, description=text), access=Access.OPEN
            ),
            Route("/metrics", "metrics", self.metrics, Operation("Metrics of the extender", metrics)),
        ]

    async def healthz(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """Liveness: the loop that updates the load runs, whatever the watcher does."""
        silent = self._host.monotonic() - self._scheduling.looked
        if silent > ALIVE_S:
            message = f"the load has not been updated for {silent:.0f} s"
            raise ApiError(503, "not_alive", message, "the log shows the reason; restart the extender")
        return json_response(ExtenderAlive("alive"))

    async def readyz(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """Readiness: the nodes and pods of the cluster are known. Clients that may not read the other documents get no
        reasons, which contain the address of the watcher."""
        state = self._state()
        if not self._readable(request):
            state.watcher.reason, state.lacks = "", {}
        if not self._scheduling.is_synced():
            hint = "check the connection to the Kubernetes API in the log; until then all scores are 0"
            error = ErrorDetail("not_synced", "the nodes and pods of the cluster have not been listed yet", hint)
            extra = msgspec.to_builtins(state)
            raise ApiError(503, error.code, error.message, error.hint, extra=extra)
        state.status = "ready"
        return json_response(state)

    def _state(self) -> ExtenderReady:
        scheduling, host = self._scheduling, self._host
        columns, described = scheduling.table.load.columns, host.description
        watcher = WatcherState(
            ok=not scheduling.load_error,
            reason=scheduling.load_error,
            version="" if described is None else described.version,
            windows=[window.label for window in host.windows],
            age_s=None if columns is None else round(columns.age(host.monotonic()), 3),
        )
        lacks = {name: list(problems) for name, problems in scheduling.unmet.items()}
        return ExtenderReady("not ready", watcher, int(scheduling.table.known.sum()), lacks)

    async def metrics(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """Metrics in the Prometheus text format."""
        body = await asyncio.to_thread(self._telemetry.exposition)
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: CONTENT_TYPE, hdrs.CACHE_CONTROL: "no-store"})


class ExtenderTelemetry:
    """Metrics of the process: the watcher as its source, and the store of decisions."""

    def __init__(self, scheduling: SchedulingService, host: RemoteHost, store: Store) -> None:
        self._scheduling = scheduling
        self._host = host
        self._store = store

    def collect(self) -> Iterator[Family]:
        """Yield the metric families; called by the registry in another thread."""
        scheduling, status = self._scheduling, self._store.status
        up = not scheduling.load_error
        yield gauge("extender_watcher_up", "Whether the load could be renewed from the watcher.", [({}, int(up))])
        columns = scheduling.table.load.columns
        if columns is not None:
            age = columns.age(self._host.monotonic())
            yield gauge("extender_load_age_seconds", "Age of the newest sample in use in seconds.", [({}, age)])
        rows = [({"profile": name}, len(problems)) for name, problems in sorted(scheduling.unmet.items())]
        yield gauge("extender_unmet_needs", "Data of a profile that the watcher does not offer.", rows)
        yield gauge("store_ok", "Whether the database accepts writes.", [({}, int(status.ok))])
        text = "Decisions of the scheduling plug-ins that were not stored."
        yield counter("store_lost_decisions", text, [({}, status.lost_decisions)])
