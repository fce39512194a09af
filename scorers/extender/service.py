"""The extender inside the watcher's service: keeps its table up to date.

Nodes and pods come from the cluster (`informer.ClusterSource`), load from the same process without HTTP requests.
Without access to a Kubernetes API there are no nodes, so all scores are 0; this is not an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from scorers.cluster.informer import ClusterSource, KubernetesCluster
from scorers.cluster.koordinator_classes import priority_class, qos_of
from scorers.cluster.node_metrics import NodeMetricObject, PodKey, read_node_metric
from scorers.cluster.pages import ClusterHandler
from scorers.cluster.table import ClusterTable
from scorers.decisions.log import DecisionLog
from scorers.decisions.pages import DecisionsHandler
from scorers.extender.handlers import Extender
from scorers.extender.telemetry import ShadowTelemetry
from scorers.plugin_api.wire import ExtenderBindingArgs
from scorers.profiles.profiles import ProfileSettings, read_profiles, shadow_of
from scorers.profiles.ranking import ProfileRunner
from scorers.shadow.mode import ShadowMode
from scorers.shadow.pages import ShadowHandler
from watcher.client import InProcessClient, NodeSilence, WatcherError
from watcher.core.koordinator.report import PodClass
from watcher.core.kubernetes.objects import Node, Pod
from watcher.model import MetricType, Operator
from watcher.platform.modules import BuiltModule, ModuleHost
from watcher.platform.settings.problems import Problem, SettingsError

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0  # poll interval for a new copy of the load
TYPES = (MetricType.CPU, MetricType.MEMORY, MetricType.GPU)
PARTIAL_OUTAGE = "partial_outage"  # error code: the columns are refused, the silent nodes are known
OPERATORS = (Operator.LATEST, Operator.AVG, Operator.STD)


class SchedulingService:
    """The table with its data sources, and the profiles over it. `cluster` defaults to the cluster of the settings."""

    def __init__(
        self, scheduler: Mapping[str, Any], serving: ModuleHost, *, cluster: ClusterSource | None = None
    ) -> None:
        profiles, problems, notices = read_profiles(scheduler, cwd=Path.cwd(), served=serving.windows)
        if problems:
            raise ValueError("; ".join(f"{each.key}: {each.message}" for each in problems))
        for notice in notices:
            log.warning("settings: %s", notice)
        self.table = ClusterTable(windows=serving.windows)
        self._serving = serving
        self._cluster = cluster or KubernetesCluster(serving.settings)
        self._profiles = {each.name: ProfileRunner(each, self.table) for each in profiles}
        self._client = self._build_client()
        self._follows_node_metrics = self.table.needs.node_metrics
        self.decisions = DecisionLog(
            serving.decisions, self.table, now=serving.now, window=lambda: serving.windows[-1].label
        )
        self.shadow = ShadowMode(self.table, self._profiles, shadow_of(scheduler), serving.decisions, now=serving.now)
        self.extender = Extender(
            self.table,
            self._profiles,
            now=serving.now,
            bind=self._bind,
            decisions=self.decisions,
            shadow=self.shadow,
        )
        if self.shadow.names and not self.shadow.is_on:
            log.warning('shadow mode is off: store.decisions = "0s" disables the storage of its records')
        self._prepared = True
        self._load_error = ""
        self._pod_usage_error = ""

    def build(self) -> BuiltModule:
        """Return the routes, lifecycle, and telemetry for the service."""
        serving = self._serving
        answers = DecisionsHandler(self.decisions, serving.decisions, now=serving.now, pod=self._cluster.pod)
        shadows = ShadowHandler(
            self.shadow, serving.decisions, now=serving.now, window=lambda: serving.windows[-1].label
        )
        cluster = ClusterHandler(self.table, now=serving.now, is_whole=self._cluster.is_synced)
        routes = (*self.extender.routes(), *answers.routes(), *shadows.routes(), *cluster.routes())
        telemetry = (self.extender.telemetry, ShadowTelemetry(self.shadow))
        return BuiltModule(routes, (self.life,), telemetry, renew=self.prepare_reload, pod_classes=self.pod_classes)

    def _build_client(self) -> InProcessClient:
        serving, needs = self._serving, self.table.needs
        return InProcessClient(
            lambda: serving.published,
            window=serving.windows[-1],
            types=TYPES,
            operators=OPERATORS,
            pods=serving if needs.pods else None,
            measure=serving.measure if needs.usages else None,
            max_staleness=serving.max_staleness,
            interval=LOOK_EVERY_S,
            monotonic=serving.monotonic,
        )

    # --- reloading settings ------------------------------------------------------------------------------------------

    def prepare_reload(self, scheduler: Mapping[str, Any]) -> Callable[[], None]:
        """Validate new profiles; the returned function puts them into effect. Raises SettingsError with all problems
        and changes nothing then."""
        profiles, problems, notices = read_profiles(scheduler, cwd=Path.cwd())
        if problems:
            raise SettingsError(problems)
        trial = ClusterTable()
        for each in profiles:
            try:
                ProfileRunner(each, trial)
            except ValueError as error:
                cure = "see docs/scheduling.md for the arguments of plug-ins"
                raise SettingsError([Problem(f"scheduler.{each.name}", str(error), cure)]) from error
        if trial.needs.node_metrics and not self._follows_node_metrics:
            message = 'nodeMetricSource "cluster" was not set at the start, so NodeMetrics are not watched'
            raise SettingsError([Problem("scheduler", message, "restart load-watcher with these settings")])
        return partial(self._apply_profiles, profiles, notices, shadow_of(scheduler))

    def _apply_profiles(
        self, profiles: Sequence[ProfileSettings], notices: Sequence[str], shadow: Sequence[str]
    ) -> None:
        """Replace the profiles in one step, so that no request sees a mix. New sums over all pods are computed here."""
        for notice in notices:
            log.warning("settings: %s", notice)
        served = self._serving.windows
        old = dict(self._profiles) if served == self.table.windows else {}
        gone = list(self._profiles.values())
        self.table.windows = tuple(served)
        new = {each.name: ProfileRunner(each, self.table, before=old.get(each.name)) for each in profiles}
        for profile in gone:
            profile.close(but=new.get(profile.settings.name))
        self._profiles.clear()
        self._profiles.update(new)
        self.shadow.names = tuple(shadow)
        self._client = self._build_client()
        self._prepared = False

    def pod_classes(self) -> Mapping[PodKey, PodClass]:
        """Return Koordinator's classes of the pods on nodes, by namespace and name. Thread-safe."""
        pods = (each.pod for each in self.table.all_assigned())
        return {(pod.metadata.namespace, pod.metadata.name): PodClass(priority_class(pod), qos_of(pod)) for pod in pods}

    @asynccontextmanager
    async def life(self, _app: web.Application) -> AsyncIterator[None]:
        """Run the data sources and background tasks while the service runs."""
        await self._cluster.start(
            on_node=self._node_changed,
            on_pod=self._pod_changed,
            on_node_metric=self._node_metric_changed if self.table.needs.node_metrics else None,
        )
        following = [
            asyncio.create_task(self._update_loop(), name="scheduling-load"),
            asyncio.create_task(self.decisions.run_flush_loop(), name="scheduling-decisions"),
            asyncio.create_task(self.shadow.run(), name="scheduling-shadow"),
        ]
        try:
            yield
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
            await self._client.close()
            await self._cluster.close()
            await self.decisions.flush()
            self.shadow.flush()

    # --- updating the table ------------------------------------------------------------------------------------------

    def _node_changed(self, name: str, _old: Node | None, new: Node | None) -> None:
        self.shadow.node_changed(name, new)
        self.table.set_node(name, new)

    def _pod_changed(self, _name: str, old: Pod | None, new: Pod | None) -> None:
        self.decisions.pod_changed(old, new)
        self.shadow.pod_changed(old, new)
        self.table.set_pod(old, new, now=self._serving.now())

    def _node_metric_changed(self, name: str, _old: NodeMetricObject | None, new: NodeMetricObject | None) -> None:
        try:
            self.table.set_node_metric(name, None if new is None else read_node_metric(new))
        except ValueError as error:
            log.warning("node %s: invalid NodeMetric ignored: %s", name, error)
            self.table.set_node_metric(name, None)

    async def _update_loop(self) -> None:
        """Copy each new version of the load, and of pod usage if a plug-in needs it, to the table. Continues after any
        error, because scores would otherwise use outdated load."""
        while True:
            try:
                await self._take_load()
                if self.table.needs.pods:
                    await self._take_pods()
                self.extender.telemetry.update(now=self._serving.now())
            except Exception:
                log.exception("updating the load of the scheduling plug-ins failed; retrying in the next second")
            await asyncio.sleep(LOOK_EVERY_S)

    async def _take_load(self) -> None:
        try:
            columns = await self._client.refresh()
        except WatcherError as error:
            silence = await self._silence() if error.code == PARTIAL_OUTAGE else None
            if self.table.load.columns is not None or silence != self.table.silence:
                self.table.set_load(None, now=self._serving.now(), silence=silence)
            self._log_load_state(str(error))
            return
        self._log_load_state("")
        if columns is not self.table.load.columns:
            self.table.set_load(columns, now=self._serving.now())
            self._prepared = False
        if not self._prepared:
            self._prepared = True
            for profile in tuple(self._profiles.values()):
                for _ in profile.prepare():
                    await asyncio.sleep(0)
        now = self._serving.now()
        self.table.expire_load(before=now - self._serving.max_staleness)
        self.table.expire(now)

    async def _silence(self) -> NodeSilence | None:
        """Return the silent nodes, None if the watcher does not return them."""
        try:
            return await self._client.refresh_silence()
        except WatcherError:
            return None

    async def _take_pods(self) -> None:
        try:
            pods = await self._client.refresh_pods()
        except WatcherError as error:
            if self.table.pod_usage is not None:
                self.table.set_pod_usage(None)
            if not self._pod_usage_error:
                log.warning("pod usage is unavailable to the scheduling plug-ins: %s; %s", error, error.hint)
            self._pod_usage_error = str(error)
            return
        if self._pod_usage_error:
            log.info("pod usage is available to the scheduling plug-ins again")
            self._pod_usage_error = ""
        if pods is not self.table.pod_usage:
            self.table.set_pod_usage(pods)

    def _log_load_state(self, why: str) -> None:
        """Log once when load becomes unavailable, and once when it is available again."""
        if why and not self._load_error:
            log.warning("load is unavailable to the scheduling plug-ins: %s", why)
        elif self._load_error and not why:
            log.info("load is available to the scheduling plug-ins again")
        self._load_error = why

    # --- bind --------------------------------------------------------------------------------------------------------

    async def _bind(self, args: ExtenderBindingArgs) -> Pod | None:
        """Bind a pod through the cluster; return it if it is known."""
        key = f"{args.namespace}/{args.name}"
        await self._cluster.bind(key, node=args.node, uid=args.uid)
        pod = self._cluster.pod(key)
        return pod if pod is not None and pod.metadata.uid == args.uid else None


class SchedulerModule:
    """The module of the settings section [scheduler]."""

    section = "scheduler"

    def build(self, table: Mapping[str, Any], serving: ModuleHost) -> BuiltModule:
        """Build the routes and lifecycle of the extender."""
        return SchedulingService(table, serving).build()
