"""Construction and life cycle of the extender as a process of its own: start, reload, shutdown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from load_watcher.extender.pages import ExtenderPages, ExtenderTelemetry
from scorers.cluster.informer import ClusterSource
from scorers.extender.hosting import unmet_profiles
from scorers.extender.remote import RemoteHost, read_access
from scorers.extender.service import SchedulingService
from watcher import __version__
from watcher.api.description import description_route
from watcher.client import WatcherError
from watcher.core.config.problems import Problem, SettingsError
from watcher.core.config.settings import Settings
from watcher.core.decisions import DecisionStore
from watcher.platform.http.routing import Router, may_read
from watcher.platform.http.runner import application
from watcher.platform.http.settings import ServerSettings
from watcher.platform.http.sites import local_hosts
from watcher.platform.logs import ClusterSettings
from watcher.platform.net.settings import ExtenderSettings
from watcher.platform.net.tls import file_reason
from watcher.platform.telemetry.instruments import Instruments
from watcher.service.build import ServerProtection, server_files, store_of, tls_of
from watcher.service.reload import SettingsReloader
from watcher.store.decisions.store import StoreDecisions
from watcher.store.settings import StoreSettings
from watcher.store.store import Store

log = logging.getLogger(__name__)

PROGRAM = "load-watcher extender"
DEFAULT_PORT = 2025
DEFAULT_STORE = "sqlite:///load-watcher-extender.db"
NEED_RESTART = ("cluster", "server", "store", "kubernetes")


def adapted(settings: Settings) -> Settings:
    """Return the settings with the defaults of this process: it may run next to the watcher on one machine. Raises
    SettingsError if the address of the watcher or the profiles are missing."""
    server, store, origins = settings[ServerSettings], settings[StoreSettings], settings.origins
    if origins.get("server.port") == "default":
        server = replace(server, port=DEFAULT_PORT)
    if origins.get("store.url") == "default":
        store = replace(store, url=DEFAULT_STORE)
    problems = []
    if settings[ExtenderSettings].watcher is None:
        cure = "use --watcher, the environment variable LOAD_WATCHER_URL or extender.watcher"
        problems.append(Problem("extender.watcher", "the address of the watcher is not set", cure))
    if not settings.parts.get("scheduler"):
        cure = '[scheduler.default], and below it plugins = [ { name = "TargetLoadPacking" } ]'
        problems.append(Problem("scheduler", "no profiles are configured", cure))
    if problems:
        raise SettingsError(problems)
    return settings.having(server, store)


async def start_process(settings: Settings, *, cluster: ClusterSource | None = None) -> ExtenderProcess:
    """Build the process. Raises SettingsError if files of [extender] cannot be used, or if the watcher answers and does
    not offer the data of a profile."""
    store = store_of(settings, program=PROGRAM)
    host = await _checked_host(settings, StoreDecisions(store))
    return ExtenderProcess(settings, host, store, cluster=cluster)


async def _checked_host(
    settings: Settings, decisions: DecisionStore, *, before: RemoteHost | None = None
) -> RemoteHost:
    """Create the host. `before` is the host that it replaces: its description is used if the same watcher does not
    answer now. Raises SettingsError as `start_process`."""
    await asyncio.to_thread(_check_files, settings)
    host = RemoteHost(settings, decisions)
    try:
        await host.renew()
    except WatcherError as error:
        log.debug("the watcher does not describe itself yet: %s", error)  # the service logs it
        if before is not None and before.url == host.url:
            host.description = before.description
    _check_data(settings.parts["scheduler"], host)
    return host


def _check_files(settings: Settings) -> None:
    try:
        read_access(settings).tls()
    except (OSError, ValueError) as error:
        reason = file_reason(error)
        cure = "check extender.watcher_token_file and extender.watcher_ca_file (PEM)"
        raise SettingsError([Problem("extender", f"cannot use the files of this table: {reason}", cure)]) from error


def _check_data(scheduler: Mapping[str, Any], host: RemoteHost) -> None:
    unmet = unmet_profiles(scheduler, host, windows=host.windows, cwd=Path.cwd())
    if unmet:
        raise SettingsError(problem for problems in unmet.values() for problem in problems)


class ExtenderProcess:
    """The running process. Implements watcher.service.main.ServerProcess."""

    def __init__(
        self, settings: Settings, host: RemoteHost, store: Store, *, cluster: ClusterSource | None = None
    ) -> None:
        self._settings = settings
        self._host = host
        self._store = store
        self.scheduling = SchedulingService(settings.parts["scheduler"], host, host, cluster=cluster)
        built = self.scheduling.build()
        telemetry = Instruments(version=__version__, cluster=settings[ClusterSettings].name or "")
        for collector in (*built.collectors, ExtenderTelemetry(self.scheduling, host, store)):
            telemetry.add(collector)
        protection = ServerProtection(settings)
        self.tls = tls_of(settings)
        files = server_files(protection, self.tls)
        self._reloader = SettingsReloader(files, self._reload)
        hosts = local_hosts(settings[ServerSettings].host, settings[ServerSettings].hosts or ())
        pages = ExtenderPages(self.scheduling, host, telemetry, readable=partial(may_read, protection))
        routes = [*built.routes, *pages.routes()]
        routes.append(description_route(routes, version=__version__, protected=protection.protect_reads))
        self.app = application(Router(routes, protection=protection, meter=telemetry, hosts=hosts))
        self.app.cleanup_ctx.extend([self._with_store, *built.lives, files.life, self._with_reload])

    def listening(self, address: str) -> None:
        """Log the address of the watcher."""
        log.info("the load comes from the watcher at %s", self._host.url)

    @asynccontextmanager
    async def _with_store(self, _app: web.Application) -> AsyncIterator[None]:
        await self._store.open()
        try:
            yield
        finally:
            await self._store.close()

    @asynccontextmanager
    async def _with_reload(self, _app: web.Application) -> AsyncIterator[None]:
        yield
        await self._reloader.close()

    # --- reload ------------------------------------------------------------------------------------------------------

    def request_reload(self, read: Callable[[], Settings]) -> None:
        self._reloader.request(read)

    async def _reload(self, settings: Settings) -> None:
        host = await _checked_host(settings, self._host.decisions, before=self._host)
        apply = await asyncio.to_thread(self.scheduling.prepare_reload, settings.parts["scheduler"])
        for table in NEED_RESTART:
            if settings.named(table) != self._settings.named(table):
                log.warning("changes in [%s] take effect only after a restart", table)
        self._settings = settings
        self._host.adopt(host)
        apply()
        log.info("settings reloaded")
