"""Construction and life cycle of the service: start order, ticks, reload and shutdown.

Long-lived components are cleanup contexts of the aiohttp application, entered in the order store, source, ticks, and
exited in reverse order, each with a time limit. The stored windows are published before the socket opens, so the first
response after a crash does not wait for the source. Ticks are APScheduler jobs, one at a time; a tick that is due while
the previous tick still runs is skipped and counted.

SIGTERM and SIGINT stop the service: no new connections, running requests finish, computed data is written, exit within
10 s. SIGHUP reloads the settings, and token and certificate files; invalid ones are rejected, the old ones stay active.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web
from apscheduler.events import EVENT_JOB_MAX_INSTANCES
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.base import BaseTrigger

from watcher import __version__
from watcher.agent_clients import pages
from watcher.agent_clients.settings import AgentsSettings
from watcher.api.agents import AgentRoutes
from watcher.api.routes import make_app
from watcher.api.service import ServiceView
from watcher.api.settings import MetricsSettings
from watcher.api.telemetry import Telemetry
from watcher.core.config.settings import Settings
from watcher.core.publishing.exposition import View
from watcher.core.windows.records import WindowRecord
from watcher.core.windows.settings import RefreshSettings
from watcher.koordinator.settings import KoordinatorSettings
from watcher.model import MetricType, Operator
from watcher.platform.clock import Clock, SystemClock
from watcher.platform.http.settings import ServerSettings
from watcher.platform.http.sites import local_hosts
from watcher.platform.interpreter import freeze_objects
from watcher.platform.kube.settings import KubernetesSettings
from watcher.platform.logs import ClusterSettings
from watcher.platform.modules import ServiceModule
from watcher.platform.repeated_errors import RepeatedErrors
from watcher.service.build import (
    FROM_SETTINGS,
    ServerProtection,
    Sources,
    collect_policies,
    publisher_of,
    refresh_config,
    server_files,
    store_of,
    threshold_publisher_of,
    tls_of,
)
from watcher.service.hot_history import HotHistory
from watcher.service.last_seen import LastSeenLookup
from watcher.service.reload import SettingsReloader
from watcher.store.errors import StoreError
from watcher.tick.tick import Refresher

log = logging.getLogger(__name__)

TICK_STOP_S = 2.0  # seconds to wait for a cancelled tick
TICK_JOB = "tick"
NEED_RESTART = ("cluster", "server", "store", "qrms", "metrics", "marks")
NEED_RESTART_TO_PUBLISH = (
    "publish",
    "lease_namespace",
    "writes_per_second",
    "thresholds",
    "lowest_cpu_threshold",
    "highest_cpu_threshold",
    "lowest_memory_threshold",
    "highest_memory_threshold",
)


class Watcher:
    """The running service: its life cycle, ticks and reloads. `view` is its state for the HTTP API and the modules."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        parts: Sequence[ServiceModule] = (),
        sources: Sources = FROM_SETTINGS,
    ) -> None:
        self._sources = sources
        self._clock = clock or SystemClock()
        metrics = settings[MetricsSettings]
        exposed = View(
            types=tuple(MetricType(name) for name in metrics.types),
            operators=tuple(Operator(name) for name in metrics.operators),
            windows=metrics.windows,
        )
        self.telemetry = Telemetry(version=__version__, view=exposed, cluster=settings[ClusterSettings].name or "")
        self._store = store_of(settings, program="load-watcher")
        self.view = ServiceView(
            settings,
            self._clock,
            self._store,
            self._make_refresher(settings),
            collect_policies(settings),
        )
        if settings[KoordinatorSettings].publish:
            self.view.publisher = publisher_of(settings, self.view)
        if settings[KoordinatorSettings].thresholds:
            self.view.threshold_publisher = threshold_publisher_of(settings, self.view)
        self.telemetry.watch(self.view)
        self._scheduler = AsyncIOScheduler(
            timezone=UTC,
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )
        self._recall = LastSeenLookup()
        self._hot_history = HotHistory()
        self._tick: asyncio.Task[None] | None = None
        self._tick_errors = RepeatedErrors(log)
        self._period = 0.0
        self._past: asyncio.Task[None] | None = None
        self._lacks_past = False  # True until the first tick if the store is empty and the sources know the past
        self._is_settled = False  # True after the first tick of the ready service
        self.tls = tls_of(settings)
        self._build_app(settings, parts)

    def _build_app(self, settings: Settings, parts: Sequence[ServiceModule]) -> None:
        """Build the web application with the routes and the life cycles of the service and its modules."""
        protection = ServerProtection(settings)
        files = server_files(protection, self.tls)
        self._reloader = SettingsReloader(files, self._reload)
        of_parts = [
            (part.section, part.build(table or {}, self.view))
            for part in parts
            if (table := settings.parts.get(part.section)) or not part.section
        ]
        made = tuple(each for _, each in of_parts)
        self._renew = {section: each.renew for section, each in of_parts if each.renew is not None}
        self._on_listening = [message for each in made for message in each.on_listening]
        self.view.class_sources = tuple(each.pod_classes for each in made if each.pod_classes is not None)
        self.view.problem_sources = tuple(each.problems for each in made if each.problems is not None)
        for collector in (collector for each in made for collector in each.collectors):
            self.telemetry.add(collector)
        routes = [route for each in made for route in each.routes]
        lives = [life for each in made for life in each.lives]
        pages_of_agents = pages.from_settings(settings)
        if pages_of_agents is not None:
            routes += AgentRoutes(pages_of_agents).routes()
            lives.append(pages_of_agents.life)
        hosts = local_hosts(settings[ServerSettings].host, settings[ServerSettings].hosts or ())
        self.app = make_app(
            self.view, settings=protection, telemetry=self.telemetry, version=__version__, routes=routes, hosts=hosts
        )
        self.app.cleanup_ctx.extend([self._with_store, self._with_source, self._with_ticks])
        self.app.cleanup_ctx.extend([*lives, self._with_publishers, files.life])

    def listening(self, address: str) -> None:
        """Inform the modules that the service accepts requests at `address`, such as "http://127.0.0.1:2020"."""
        for message in self._on_listening:
            message(address)

    # --- life cycle --------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _with_store(self, _app: web.Application) -> AsyncIterator[None]:
        restored = await self._store.open()
        self.view.refresher.findings.add(self._store.findings)
        self._lacks_past = restored is None and self._sources.past is not None
        try:
            if restored is not None:
                await self.view.refresher.restore(restored)
            yield
        finally:
            if self._past is not None:
                self._past.cancel()
                await asyncio.gather(self._past, return_exceptions=True)
            await self._store.close()

    async def _write_past(self, batches: Iterator[Sequence[WindowRecord]]) -> None:
        try:
            while records := await asyncio.to_thread(next, batches, ()):
                await self._store.add_history(records)
        except StoreError as error:
            log.warning("the windows from before the start are incomplete: %s", error)

    @asynccontextmanager
    async def _with_source(self, _app: web.Application) -> AsyncIterator[None]:
        await self._begin(self.view.refresher)
        try:
            yield
        finally:
            # read the attribute again: a reload may have replaced the refresher
            await self._end(self.view.refresher)

    async def _begin(self, refresher: Refresher) -> None:
        if refresher.directory is not None:
            await refresher.directory.start()
        await refresher.provider.start()

    async def _end(self, refresher: Refresher) -> None:
        await refresher.forecasts.close()  # before the provider, which it queries
        await refresher.provider.close()
        if refresher.directory is not None:
            await refresher.directory.close()
        await refresher.close()

    @asynccontextmanager
    async def _with_publishers(self, _app: web.Application) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for publisher in (self.view.publisher, self.view.threshold_publisher):
                if publisher is not None:
                    stack.push_async_callback(publisher.close)
                    await publisher.start()
            yield

    @asynccontextmanager
    async def _with_ticks(self, _app: web.Application) -> AsyncIterator[None]:
        self._scheduler.add_listener(lambda _event: self.view.refresher.note_skipped(), EVENT_JOB_MAX_INSTANCES)
        self._period = self._wanted_period()
        self._scheduler.add_job(
            self._run_tick, IntervalTrigger(self._period), id=TICK_JOB, name=TICK_JOB, next_run_time=datetime.now(UTC)
        )
        self._scheduler.start()
        following = asyncio.create_task(self._follow_clock(), name="follow-clock")
        try:
            yield
        finally:
            self._scheduler.pause()
            following.cancel()
            await asyncio.gather(following, self._reloader.close(), return_exceptions=True)
            await self._stop_tick()
            self._scheduler.shutdown(wait=False)
            await asyncio.sleep(0)  # the scheduler shuts down in a separate callback

    async def _run_tick(self) -> None:
        """Run one tick as a separate task, so that its cancellation does not look like a failure to the scheduler."""
        refresher = self.view.refresher
        was_ready = not refresher.not_ready_reason()
        self._tick = asyncio.create_task(self._tick_of(refresher), name="tick")
        await asyncio.wait({self._tick})
        if not self._tick.cancelled():
            if (error := self._tick.exception()) is None:
                self._tick_errors.succeeded()
            else:
                self._tick_errors.failed(error, "unexpected error in a tick; the next tick runs as scheduled")
        if was_ready and not self._is_settled:
            self._is_settled = True
            freeze_objects()  # nodes, pods and complete windows exist now
        if self._lacks_past and self._sources.past is not None:
            self._lacks_past = False
            past = self._sources.past(self.view.settings)
            self._past = asyncio.create_task(self._write_past(past), name="write-past")
        refresher.findings.add(self._store.findings)  # some appear later, for example a reached size limit
        self._keep_pace()

    async def _tick_of(self, refresher: Refresher) -> None:
        await refresher.tick()
        settings, now = self.view.settings, self._clock.now()
        await self._recall.update(refresher, self._store, settings=settings, now=now)
        if not self._lacks_past and (self._past is None or self._past.done()):
            await self._hot_history.update(refresher, self._store, settings=settings, now=now)

    async def _follow_clock(self) -> None:
        """Run the next tick promptly after the wall clock was set back. The scheduler waits for a wall clock time, so
        it would wait for as long as the clock was set back; the sleep here uses the monotonic clock."""
        while True:
            # Often enough that a tick begins within 1.5 periods; liveness fails after that.
            await asyncio.sleep(0.25 * self._period)
            now = datetime.now(UTC)
            if self._scheduler.get_job(TICK_JOB).next_run_time > now + timedelta(seconds=1.25 * self._period):
                self._scheduler.modify_job(TICK_JOB, next_run_time=now)

    async def _stop_tick(self) -> None:
        if self._tick is not None and not self._tick.done():
            self._tick.cancel()
            await asyncio.wait({self._tick}, timeout=TICK_STOP_S)

    def _wanted_period(self) -> float:
        """Return the seconds between ticks: the resolution until some node has its shortest window, then the
        interval."""
        refresher = self.view.refresher
        return (
            float(refresher.resolution) if refresher.needs_quick_ticks else self.view.settings[RefreshSettings].interval
        )

    def _keep_pace(self) -> None:
        period = self._wanted_period()
        if period != self._period and self._scheduler.running:
            self._period = period
            self._scheduler.reschedule_job(TICK_JOB, trigger=IntervalTrigger(period))

    # --- reload ------------------------------------------------------------------------------------------------------

    def request_reload(self, read: Callable[[], Settings]) -> None:
        self._reloader.request(read)

    async def _reload(self, settings: Settings) -> None:
        parts, put_in_place = await self._renewed_parts(settings)
        for table in NEED_RESTART:
            if settings.named(table) != self.view.settings.named(table):
                log.warning("changes in [%s] take effect only after a restart", table)
        if settings[AgentsSettings] != self.view.settings[AgentsSettings]:
            log.warning(
                "pod usage is read from the changed [agents] now; the dashboard shows them only after a restart"
            )
        if settings[KubernetesSettings].access != self.view.settings[KubernetesSettings].access:
            log.warning(
                "the source and the node names use the changed kubeconfig and context from now on; the scheduling "
                "plug-ins and all other Kubernetes clients use it only after a restart"
            )
        kept = [self.view.settings.named(table) for table in NEED_RESTART]
        settings = self._as_published(replace(settings, parts=parts).having(*kept))
        changed = any(
            settings.named(table) != self.view.settings.named(table)
            for table in ("provider", "kubernetes", "refresh", "review", "forecast", "agents")
        )
        if changed:
            await self._replace_refresher(settings)
        self.view.settings = settings
        self.view.policies = collect_policies(settings)
        for put in put_in_place:
            put()
        log.info("settings reloaded%s", "" if changed else "; the source is unchanged")

    async def _renewed_parts(self, settings: Settings) -> tuple[Mapping[str, Any], list[Callable[[], None]]]:
        """Return the effective tables of the modules, and functions that apply the changed tables to modules that
        support it while they run."""
        taken, put_in_place = dict(self.view.settings.parts), []
        for section in sorted({*taken, *settings.parts}):
            table, renew = settings.parts.get(section), self._renew.get(section)
            if table and renew is not None:
                put_in_place.append(await asyncio.to_thread(renew, table))
                taken[section] = table
            elif table != taken.get(section):
                log.warning("changes in [%s] take effect only after a restart", section)
        return taken, put_in_place

    def _as_published(self, settings: Settings) -> Settings:
        """Return the settings with the old values of the publisher's settings, which need a restart."""
        old, new = self.view.settings[KoordinatorSettings], settings[KoordinatorSettings]
        kept = replace(new, **{name: getattr(old, name) for name in NEED_RESTART_TO_PUBLISH})
        if kept != new:
            names = ", ".join(name for name in NEED_RESTART_TO_PUBLISH if getattr(kept, name) != getattr(new, name))
            log.warning("changes of %s in [koordinator] take effect only after a restart", names)
        return settings.having(kept)

    async def _replace_refresher(self, settings: Settings) -> None:
        """Replace the source and the history; the published snapshot stays until the first tick of the new source."""
        old, new = self.view.refresher, self._make_refresher(settings)
        await self._stop_tick()
        await self._begin(new)
        await new.continue_from(old)
        self.view.refresher, self.view.settings = new, settings
        await self._stop_tick()  # a tick of the old source may have begun meanwhile
        await self._end(old)
        self._scheduler.modify_job(TICK_JOB, next_run_time=datetime.now(UTC))
        self._keep_pace()

    def _make_refresher(self, settings: Settings) -> Refresher:
        return Refresher(
            provider=self._sources.provider(settings),
            config=refresh_config(settings),
            store=self._store,
            directory=self._sources.directory(settings),
            clock=self._clock,
            observe=self.telemetry.observe_refresh,
        )


class IntervalTrigger(BaseTrigger):  # type: ignore[misc]  # the library has no types
    """Trigger that fires every `seconds` and skips missed runs. APScheduler's IntervalTrigger iterates over missed
    runs, which takes minutes on the event loop after a clock jump from 1970 to today."""

    def __init__(self, seconds: float) -> None:
        self._period = timedelta(seconds=seconds)

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        """Return the first time after `now` that is a whole number of periods after the previous fire time."""
        if previous_fire_time is None:
            return now + self._period
        missed = max(0, (now - previous_fire_time) // self._period)
        return previous_fire_time + (missed + 1) * self._period
