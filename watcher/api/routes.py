"""The routes of the HTTP API.

Schedulers decide from these documents where pods go, so a response is either correct or an error: 404 instead of an
empty list if no data is available, 503 instead of outdated data, and 503 instead of a partial list if many nodes went
missing at once. The Go plug-ins keep their last copy on an error; an empty 200 would make every node look idle to them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import Distribution

from aiohttp import web

from watcher.api import dashboard, operations
from watcher.api.body_builder import BodyBuilder
from watcher.api.description import description_route
from watcher.api.handlers.base import CurrentSnapshot
from watcher.api.handlers.forecasts import ForecastHandlers
from watcher.api.handlers.health import HealthHandlers
from watcher.api.handlers.history import HistoryHandlers
from watcher.api.handlers.labels import LabelHandlers
from watcher.api.handlers.node_metrics import NodeMetricHandlers
from watcher.api.handlers.nodes import NodeHandlers
from watcher.api.handlers.pods import PodHandlers
from watcher.api.handlers.problems import ProblemHandlers
from watcher.api.handlers.trend import TrendHandler
from watcher.api.service import ServiceView
from watcher.api.telemetry import Telemetry
from watcher.platform.http.routing import Access, AccessSettings, Route, Router, may_read
from watcher.platform.http.runner import application
from watcher.platform.http.sites import LocalHosts


def make_app(
    service: ServiceView,
    *,
    settings: AccessSettings,
    telemetry: Telemetry,
    version: str,
    routes: Iterable[Route] = (),
    hosts: LocalHosts | None = None,
) -> web.Application:
    """The aiohttp application that serves `service` and the additional `routes` of other packages. `hosts` are the
    accepted Host headers, None for all."""
    making = BodyBuilder()
    current = CurrentSnapshot(service, private=settings.protect_reads)
    health = HealthHandlers(
        service, telemetry=telemetry, current=current, body_builder=making, readable=partial(may_read, settings)
    )
    documentation = dashboard.documentation_url(Distribution.discover(name="load-watcher"))
    table = [
        dashboard.page_route(documentation),
        *_routes(service, health, current=current, body_builder=making),
        *routes,
    ]
    health.paths = frozenset(route.path for route in table)
    protected = settings.protect_reads
    closed = {operations.WINDOW.name: [window.label for window in service.windows]}
    table.append(description_route(table, version=version, protected=protected, closed=closed))
    router = Router([*table, *dashboard.file_routes()], protection=settings, meter=telemetry, hosts=hosts)
    app = application(router)

    @asynccontextmanager
    async def end_making(app: web.Application) -> AsyncIterator[None]:
        yield
        making.close()

    app.cleanup_ctx.append(end_making)
    return app


def _routes(
    service: ServiceView, health: HealthHandlers, *, current: CurrentSnapshot, body_builder: BodyBuilder
) -> list[Route]:
    """All routes of the watcher except /openapi.json, which describes them."""
    nodes = NodeHandlers(service, current=current, body_builder=body_builder)
    pods = PodHandlers(service, current=current, body_builder=body_builder)
    node_metrics = NodeMetricHandlers(service, current=current, body_builder=body_builder)
    past = HistoryHandlers(service, current=current, body_builder=body_builder)
    problems = ProblemHandlers(service, current=current, body_builder=body_builder)
    forecasts = ForecastHandlers(service, current=current, body_builder=body_builder)
    trend = TrendHandler(service, current=current, body_builder=body_builder)
    labels = LabelHandlers(service, current=current, body_builder=body_builder)
    return [
        Route("/watcher", "watcher", nodes.watcher, operations.WATCHER),
        Route("/watcher/health", "provider_health", health.provider_health, operations.PROVIDER_HEALTH),
        Route("/watcher/{host}", "watcher_host", nodes.watcher_host, operations.WATCHER_HOST),
        Route("/api/v1/columns", "columns", nodes.columns, operations.COLUMNS),
        Route("/api/v1/pods", "pods", pods.pods, operations.PODS),
        Route("/api/v1/nodemetrics", "node_metrics", node_metrics.node_metrics, operations.NODE_METRICS),
        Route("/api/v1/nodemetrics/{host}", "node_metric", node_metrics.node_metric, operations.NODE_METRIC),
        Route("/api/v1/history", "history", past.history, operations.HISTORY),
        Route("/api/v1/trend", "trend", trend.trend, operations.TREND),
        Route("/api/v1/forecasts", "forecasts", forecasts.forecasts, operations.FORECASTS),
        Route("/api/v1/findings", "findings", past.findings, operations.FINDINGS),
        Route("/api/v1/overview", "overview", health.overview, operations.OVERVIEW),
        Route("/api/v1/silent", "silent", past.silent, operations.SILENT),
        Route("/api/v1/problems", "problems", problems.problems, operations.PROBLEMS),
        Route("/api/v1/labels", "labels", labels.labels, operations.LABELS),
        Route("/healthz", "healthz", health.healthz, operations.HEALTHZ, access=Access.OPEN),
        Route("/readyz", "readyz", health.readyz, operations.READYZ, access=Access.OPEN),
        Route("/metrics", "metrics", health.metrics, operations.METRICS),
    ]
