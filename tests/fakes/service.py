"""A service whose state a test sets, behind the real API on a real socket."""

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import SimpleNamespace, TracebackType
from typing import Any, cast

import numpy as np
from aiohttp import web

from tests.fakes.snapshots import WINDOWS, publish, small_fleet, snapshot_of
from tests.waiting import PATIENCE_SECONDS
from watcher.api.routes import make_app
from watcher.api.service import ServiceView
from watcher.api.telemetry import Telemetry
from watcher.core.config.settings import Settings
from watcher.core.forecast.settings import ForecastSettings
from watcher.core.koordinator.collect_policy import CollectPolicies
from watcher.core.koordinator.report import Capacity, NodeUsages, PodClass, measure
from watcher.core.pods.published import PublishedPods
from watcher.core.pods.table import Pod
from watcher.core.problems.document import FleetProblem
from watcher.core.publishing.documents import Published
from watcher.core.publishing.wire import FindingsDocument
from watcher.core.windows.fleet_trend import CapacityWeights, FleetTrend, WindowGrid
from watcher.core.windows.settings import RefreshSettings
from watcher.core.windows.stored_series import StoredSeries
from watcher.model import Operator, ProviderHealth, Snapshot, Window
from watcher.platform.http.connections import ConnectionLimits
from watcher.platform.http.routing import Route
from watcher.platform.http.runner import Runner
from watcher.platform.http.sites import LocalHosts
from watcher.sources.base import QueryPlan
from watcher.store.status import StoreStatus
from watcher.tick.forecasts import PublishedForecasts
from watcher.tick.shared import TickStats

HEALTHY = StoreStatus(True, "", None, None, queued=0, dropped=0, lost_decisions=0, size_bytes=4096)


def stored(
    values: Mapping[int, float], *, metric: str = "instance:node_cpu:ratio", operator: str = "AVG"
) -> StoredSeries:
    """A stored series of the 15-minute window from time -> value."""
    times = np.array(list(values), dtype=np.int64)
    return StoredSeries(metric, Operator(operator), "15m", times, np.array(list(values.values()), dtype=np.float32))


@dataclass
class FakeService:
    """All that the API and the telemetry read from a service. Its clocks only change when a test moves them."""

    published: Published | None = field(default_factory=lambda: publish(snapshot_of(small_fleet())))
    pods: PublishedPods | None = None
    no_pods: str = ""
    wanted: int = 0
    measured: int = 0
    provider_health: ProviderHealth = field(default_factory=lambda: ProviderHealth(True, "", 1_699_999_000.0))
    windows: tuple[Window, ...] = WINDOWS
    max_staleness: float = 300.0
    interval: float = 60.0
    clock: float = 1000.0
    time: float = 1_700_000_001.0
    wrong: str = ""
    missing: str = ""
    sizes: Mapping[str, Capacity] = field(default_factory=dict)
    collect_policies: CollectPolicies = field(default_factory=lambda: CollectPolicies(windows=WINDOWS))
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    classes: Mapping[Pod, PodClass] = field(default_factory=dict)
    found: FindingsDocument = field(default_factory=lambda: FindingsDocument(1_700_000_001, "enforce", [], []))
    series: Sequence[StoredSeries] = ()
    grids: Sequence[WindowGrid] = ()
    of_modules: Sequence[FleetProblem] = ()
    history_error: Exception | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)
    stats: TickStats = field(default_factory=TickStats)
    plans: dict[str, QueryPlan] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    status: StoreStatus = HEALTHY
    forecast: ForecastSettings | None = None
    forecasts: PublishedForecasts | None = None

    @property
    def settings(self) -> Settings:
        refresh = RefreshSettings(interval=self.interval, max_staleness=self.max_staleness, windows=self.windows)
        return Settings().having(refresh, ForecastSettings(enabled=self.forecast is not None))

    @property
    def refresher(self) -> "FakeRefresher":
        return FakeRefresher(self)

    @property
    def store(self) -> "FakeStore":
        return FakeStore(self)

    @property
    def publisher(self) -> None:
        """NodeMetrics are not published."""

    @property
    def threshold_publisher(self) -> None:
        """Usage thresholds are not published."""

    @property
    def view(self) -> ServiceView:
        return cast(ServiceView, self)

    def request_pods(self) -> str:
        self.wanted += 1
        return self.no_pods

    def node_labels(self, node: str) -> Mapping[str, str]:
        return self.labels.get(node, {})

    def problems_of_modules(self) -> Sequence[FleetProblem]:
        return self.of_modules

    def pod_classes(self) -> Mapping[Pod, PodClass]:
        return self.classes

    def measure(self, snapshot: Snapshot) -> NodeUsages:
        self.measured += 1
        return measure(snapshot, policies=self.collect_policies.of_all(snapshot.nodes, self.node_labels))

    async def capacities(self) -> Mapping[str, Capacity]:
        return self.sizes

    def monotonic(self) -> float:
        return self.clock

    def now(self) -> float:
        return self.time


class FakeStore:
    """The database of a FakeService."""

    def __init__(self, service: FakeService) -> None:
        self._service = service
        self.status = service.status

    async def history(self, **question: Any) -> Sequence[StoredSeries]:
        self._service.asked.append(question)
        if self._service.history_error is not None:
            raise self._service.history_error
        return self._service.series

    async def extended_trend(self, trend: FleetTrend, weights: CapacityWeights, *, start: int, end: int) -> FleetTrend:
        self._service.asked.append({"window": trend.window, "start": start, "end": end})
        if self._service.history_error is not None:
            raise self._service.history_error
        grown = trend.copy()
        grown.add(self._service.grids, weights)
        return grown


class FakeRefresher:
    """The state of the ticks and of the source of a FakeService."""

    def __init__(self, service: FakeService) -> None:
        self._service = service
        self.stats, self.plans, self.provider_health = service.stats, service.plans, service.provider_health
        self.findings = SimpleNamespace(counts=lambda: service.counts)
        self.pods = SimpleNamespace(impossible_reason=service.no_pods)
        is_on = service.forecast is not None
        self.forecasts = SimpleNamespace(config=service.forecast, enabled=is_on, published=service.forecasts)

    def stall_reason(self) -> str:
        return self._service.wrong

    def not_ready_reason(self) -> str:
        return self._service.missing

    def findings_document(self) -> FindingsDocument:
        return self._service.found


@dataclass
class Protection:
    """The rights of clients."""

    token: str | None = None
    protect_reads: bool = False
    scheduler_clients: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """A response as received: not decoded, without following redirects."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        """The body as JSON; NaN and Infinity, which Python accepts, are errors."""
        return json.loads(self.body, parse_constant=_refuse)

    @property
    def error(self) -> dict[str, str]:
        """The value of "error", with its format checked."""
        error = self.json()["error"]
        assert {"code", "message", "hint"} == set(error)
        assert all(isinstance(text, str) for text in error.values())
        return error


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class Live:
    """The real application with a fake service, served by its own thread on a free port of this machine."""

    def __init__(
        self,
        service: FakeService | None = None,
        *,
        protection: Protection | None = None,
        telemetry: Telemetry | None = None,
        routes: Iterable[Route] = (),
        lives: Iterable[Callable[[web.Application], AbstractAsyncContextManager[None]]] = (),
        limits: ConnectionLimits | None = None,
        hosts: LocalHosts | None = None,
    ) -> None:
        self.service = service or FakeService()
        self.telemetry = telemetry or Telemetry(version="1.2.3")
        self.telemetry.watch(self.service.view)
        self._protection = protection or Protection()
        self._routes = tuple(routes)
        self._lives = tuple(lives)
        self._limits = limits
        self._hosts = hosts
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="live", daemon=True)
        self._started = threading.Event()
        self.port = 0

    def _run(self) -> None:
        # A runner also ends the tasks and transports of connections that arrived during the shutdown.
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        app = make_app(
            self.service.view,
            settings=self._protection,
            telemetry=self.telemetry,
            version="1.2.3",
            routes=self._routes,
            hosts=self._hosts,
        )
        app.cleanup_ctx.extend(self._lives)
        runner = Runner(app, limits=self._limits)
        await runner.setup()
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        await web.SockSite(runner, listener).start()
        self._started.set()
        await self._stop.wait()
        await runner.cleanup()

    def __enter__(self) -> "Live":
        self._thread.start()
        assert self._started.wait(PATIENCE_SECONDS), "the application did not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_SECONDS)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a function in the event loop of the server; return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_SECONDS)

    def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str | bytes] | None = None,
        body: bytes | None = None,
    ) -> Answer:
        """Request an unchanged path. A body without a Content-Type is JSON."""
        if body is not None:
            headers = {"Content-Type": "application/json", **(headers or {})}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        try:
            connection.putrequest(method, path, skip_accept_encoding=True, skip_host="Host" in (headers or {}))
            for name, value in (headers or {}).items():
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def raw(self, sent: bytes) -> bytes:
        """Send bytes that no HTTP library sends, and read until the server closes; the request should ask for that."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_SECONDS) as connection:
            connection.sendall(sent)
            return b"".join(iter(lambda: connection.recv(65536), b""))
