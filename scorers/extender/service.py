"""The extender inside a process: keeps its table up to date.

Nodes and pods come from the cluster (`informer.ClusterSource`), load from the process that hosts the extender
(`hosting.LoadAccess`): from its own windows, or from a watcher over HTTP.
Without access to a Kubernetes API there are no nodes, so all scores are 0; this is not an error.

If the watcher does not answer, its last load is used until it is older than max_staleness. If it answers that its load
is stale or incomplete, or if its clock differs too much from the clock of this process, no load is used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web

from scorers.cluster.informer import ClusterSource, KubernetesCluster
from scorers.cluster.koordinator_classes import priority_class, qos_of
from scorers.cluster.node_metrics import NodeMetricObject, PodKey, read_node_metric
from scorers.cluster.pages import ClusterHandler
from scorers.cluster.pods import identity
from scorers.cluster.request_ratio import requests_to_usage
from scorers.cluster.table import ClusterTable
from scorers.decisions.log import DecisionLog
from scorers.decisions.pages import DecisionPages
from scorers.decisions.recorder import DecisionRecorder
from scorers.decisions.records import PlacementDecision
from scorers.decisions.shadow import ShadowMode
from scorers.extender.clocks import ClockComparison
from scorers.extender.handlers import Extender
from scorers.extender.hosting import LOOK_EVERY_S, InProcessLoad, LoadAccess, unmet_profiles, window_label
from scorers.extender.telemetry import ShadowTelemetry
from scorers.plugin_api.arguments import ArgumentsError
from scorers.plugin_api.wire import ExtenderBindingArgs
from scorers.profiles.overload_risk import overload_problems
from scorers.profiles.profiles import ProfileSettings, read_profiles, shadow_of
from scorers.profiles.ranking import ProfileRunner
from watcher.client import Client, Columns, NodeSilence, PodColumns, WatcherError, is_same_document
from watcher.core.config.problems import Problem, SettingsError
from watcher.core.koordinator.report import PodClass
from watcher.core.kubernetes.objects import Node, Pod
from watcher.core.problems.document import FleetProblem
from watcher.platform.http.settings import ServerSettings
from watcher.platform.modules import BuiltModule, HostProcess, ModuleHost
from watcher.platform.repeated_errors import RepeatedErrors

log = logging.getLogger(__name__)

PARTIAL_OUTAGE = "partial_outage"
"""Code of the error with which a watcher refuses the columns but knows the silent nodes."""
CLOCKS_DIFFER = "clocks_differ"
"""Code of the error for a document whose times do not fit the clock of this process."""
NO_LOAD = frozenset({"stale", "no_metrics", PARTIAL_OUTAGE, "no_pods", CLOCKS_DIFFER})
"""Codes of errors after which the last copy is not used either: there is no usable data."""


class SchedulingService:
    """The table with its data sources, and the profiles over it. `cluster` defaults to the cluster of the settings."""

    def __init__(
        self,
        scheduler: Mapping[str, Any],
        serving: HostProcess,
        load: LoadAccess,
        *,
        cluster: ClusterSource | None = None,
    ) -> None:
        profiles, problems, notices = read_profiles(scheduler, cwd=Path.cwd(), served=serving.windows)
        if problems:
            raise ValueError("; ".join(f"{each.key}: {each.message}" for each in problems))
        for notice in notices:
            log.warning("settings: %s", notice)
        self.table = ClusterTable(windows=serving.windows)
        self._serving = serving
        self._load = load
        self._cluster = cluster or KubernetesCluster(serving.settings)
        self._scheduler = scheduler
        self._profiles = {each.name: ProfileRunner(each, self.table) for each in profiles}
        self._client = load.client(self.table.needs)
        self._retired: list[Client] = []
        self._follows_node_metrics = self.table.needs.node_metrics
        self.recorder = DecisionRecorder(serving.decisions)
        self.decisions = DecisionLog(
            self.recorder,
            self.table,
            now=serving.now,
            window=partial(window_label, serving),
            is_known=self._is_known,
        )
        self.shadow = ShadowMode(self.table, self._profiles, shadow_of(scheduler), self.recorder, now=serving.now)
        self.extender = Extender(
            self.table,
            self._profiles,
            now=serving.now,
            bind=self._bind,
            decisions=self.decisions,
            shadow=self.shadow,
            unmet=lambda profile: self.unmet.get(profile, ()),
            find_pod=self._find_pod,
        )
        self.unmet: Mapping[str, tuple[str, ...]] = {}
        """Problems of each profile with data that the watcher does not offer."""
        self.load_error = ""
        """Why the load cannot be renewed, "" if it can."""
        self.looked = serving.monotonic()
        """Monotonic time at which the loop that updates the table ran last, in seconds."""
        if self.shadow.names and not self.shadow.is_on:
            log.warning('shadow mode is off: store.decisions = "0s" disables the storage of its records')
        self._prepared = True
        self._clocks = ClockComparison()
        self._pod_usage_error = ""
        self._invalid_metrics: dict[str, str] = {}

    def build(self) -> BuiltModule:
        """Return the routes, lifecycle, and telemetry for the service."""
        serving = self._serving
        window = partial(window_label, serving)
        pages = DecisionPages(self.recorder, self.shadow, now=serving.now, pod=self._cluster.pod, window=window)
        cluster = ClusterHandler(self.table, now=serving.now, is_whole=self._cluster.is_synced)
        routes = (*self.extender.routes(), *pages.routes(), *cluster.routes())
        telemetry = (self.extender.telemetry, ShadowTelemetry(self.shadow))
        return BuiltModule(
            routes,
            (self.life,),
            telemetry,
            renew=self.prepare_reload,
            pod_classes=self.pod_classes,
            problems=self.problems,
        )

    def is_synced(self) -> bool:
        """Whether all nodes and pods of the cluster were listed since the start."""
        return self._cluster.is_synced()

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
                cure = "see docs/concepts/scheduling.md for the arguments of plug-ins"
                raise SettingsError([Problem(f"scheduler.{each.name}", str(error), cure)]) from error
        if trial.needs.node_metrics and not self._follows_node_metrics:
            message = 'nodeMetricSource "cluster" was not set at the start, so NodeMetrics are not watched'
            raise SettingsError([Problem("scheduler", message, "restart load-watcher with these settings")])
        return partial(self._apply_settings, scheduler, profiles, notices)

    def _apply_settings(
        self, scheduler: Mapping[str, Any], profiles: Sequence[ProfileSettings], notices: Sequence[str]
    ) -> None:
        for notice in notices:
            log.warning("settings: %s", notice)
        self._scheduler = scheduler
        self.shadow.names = tuple(shadow_of(scheduler))
        self._replace_profiles(profiles)
        self._check_data()

    def _replace_profiles(self, profiles: Sequence[ProfileSettings]) -> None:
        """Replace the profiles in one step, so that no request sees a mix. New sums over all pods are computed here."""
        served = self._serving.windows
        old = dict(self._profiles) if served == self.table.windows else {}
        gone = dict(self._profiles)
        self.table.windows = tuple(served)
        new = {each.name: self._runner(each, old.get(each.name)) for each in profiles}
        for name, profile in gone.items():
            profile.close(but=new.get(name))
        self._profiles.clear()
        self._profiles.update(new)
        self._replace_client()

    def _runner(self, profile: ProfileSettings, before: ProfileRunner | None) -> ProfileRunner:
        """Create a profile; as with unknown windows if an argument names a window that the watcher does not serve."""
        try:
            return ProfileRunner(profile, self.table, before=before)
        except ArgumentsError:
            served, self.table.windows = self.table.windows, ()
            try:
                return ProfileRunner(profile, self.table)
            finally:
                self.table.windows = served

    def _replace_client(self) -> None:
        self._retired.append(self._client)
        self._client = self._load.client(self.table.needs)
        self._prepared = False

    # --- changes of the watcher --------------------------------------------------------------------------------------

    def _follow_watcher(self) -> None:
        """Adopt what the watcher offers now: its windows, and data that it did not offer before."""
        if self._serving.windows != self.table.windows:
            self._replace_profiles([each.settings for each in self._profiles.values()])
        else:
            self._replace_client()
        self._check_data()

    def _check_data(self) -> None:
        """Find the profiles whose data the watcher does not offer, and log new problems and profiles without problems
        again."""
        found = unmet_profiles(self._scheduler, self._load, windows=self._serving.windows, cwd=Path.cwd())
        before = self.unmet
        self.unmet = {
            name: tuple(f"{each.key}: {each.message}; {each.cure}" for each in problems)
            for name, problems in found.items()
        }
        for name, problems in self.unmet.items():
            if problems != before.get(name):
                log.warning("profile %s lacks data: %s", name, "; ".join(problems))
        for name in before.keys() - self.unmet.keys():
            log.info("profile %s has all data again", name)

    def problems(self) -> list[FleetProblem]:
        """Return the profiles that overload more nodes than the default scheduler, by the current requests."""
        return overload_problems([each.settings for each in self._profiles.values()], requests_to_usage(self.table))

    def pod_classes(self) -> Mapping[PodKey, PodClass]:
        """Return Koordinator's classes of the pods on nodes, by namespace and name. Thread-safe."""
        pods = (each.pod for each in self.table.all_assigned())
        return {(pod.metadata.namespace, pod.metadata.name): PodClass(priority_class(pod), qos_of(pod)) for pod in pods}

    @asynccontextmanager
    async def life(self, _app: web.Application) -> AsyncIterator[None]:
        """Run the data sources and background tasks while the service runs."""
        self._check_data()
        await self._cluster.start(
            on_node=self._node_changed,
            on_pod=self._pod_changed,
            on_node_metric=self._node_metric_changed if self.table.needs.node_metrics else None,
        )
        following = [
            asyncio.create_task(self._update_loop(), name="scheduling-load"),
            asyncio.create_task(self._expire_loop(), name="scheduling-expiry"),
            asyncio.create_task(self.decisions.run_flush_loop(), name="scheduling-decisions"),
            asyncio.create_task(self.shadow.run(), name="scheduling-shadow"),
        ]
        try:
            yield
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
            await self._close_retired()
            await self._client.close()
            await self._cluster.close()
            await self.recorder.flush()

    # --- updating the table ------------------------------------------------------------------------------------------

    def _node_changed(self, name: str, _old: Node | None, new: Node | None) -> None:
        self.shadow.node_changed(name, new)
        self.table.set_node(name, new)

    def _pod_changed(self, _name: str, old: Pod | None, new: Pod | None) -> None:
        self.decisions.pod_changed(old, new)
        self.shadow.pod_changed(old, new)
        self.table.set_pod(old, new, now=self._serving.now())
        if new is not None:
            self.extender.reservations.reported(new)

    def _node_metric_changed(self, name: str, _old: NodeMetricObject | None, new: NodeMetricObject | None) -> None:
        try:
            self.table.set_node_metric(name, None if new is None else read_node_metric(new))
            self._invalid_metrics.pop(name, None)
        except ValueError as error:
            if str(error) != self._invalid_metrics.get(name):  # koordlet writes a NodeMetric every minute
                log.warning("node %s: invalid NodeMetric ignored: %s", name, error)
            self._invalid_metrics[name] = str(error)
            self.table.set_node_metric(name, None)

    async def _update_loop(self) -> None:
        """Copy each new version of the load, and of pod usage if a plug-in needs it, to the table. Continues after any
        error, because scores would otherwise use outdated load."""
        errors = RepeatedErrors(log)
        while True:
            try:
                await self._close_retired()
                await self._take_load()
                if self.table.needs.pods:
                    await self._take_pods()
                self.extender.telemetry.update(now=self._serving.now())
                errors.succeeded()
            except Exception as error:
                errors.failed(error, "updating the load of the scheduling plug-ins failed; retrying in the next second")
            self.looked = self._serving.monotonic()
            await asyncio.sleep(LOOK_EVERY_S)

    async def _expire_loop(self) -> None:
        """Remove expired reservations and load, also while the watcher does not answer."""
        errors = RepeatedErrors(log)
        while True:
            try:
                now = self._serving.now()
                self.table.expire_load(before=now - self._clocks.offset_s - self._serving.max_staleness)
                self.table.expire(now)
                errors.succeeded()
            except Exception as error:
                errors.failed(error, "expiring load and reservations failed; retrying in the next second")
            await asyncio.sleep(LOOK_EVERY_S)

    async def _close_retired(self) -> None:
        while self._retired:
            await self._retired.pop().close()

    async def _take_load(self) -> None:
        try:
            if await self._load.renew():
                self._follow_watcher()
            columns = await self._client.refresh()
            self._compare_clocks(columns)
        except WatcherError as error:
            kept = self._may_keep(self.table.load.columns, error)
            self.table.unanswered_since = min(self.table.unanswered_since, self._serving.now()) if kept else np.inf
            silence = await self._silence() if error.code == PARTIAL_OUTAGE else None
            if not kept and (self.table.load.columns is not None or silence != self.table.silence):
                self.table.set_load(None, now=self._serving.now(), silence=silence)
            self._log_load_state(error, kept=kept)
            return
        self._log_load_state(None)
        self.table.unanswered_since = np.inf
        if not is_same_document(columns, self.table.load.columns):
            self.table.set_load(columns, now=self._serving.now())
            self._prepared = False
        if not self._prepared:
            self._prepared = True
            for profile in tuple(self._profiles.values()):
                for _ in profile.prepare():
                    await asyncio.sleep(0)

    def _compare_clocks(self, columns: Columns) -> None:
        """Compare the clocks, and log once when they begin and when they cease to differ. Raises WatcherError if they
        differ so much that the document cannot be used."""
        before, serving = self._clocks.difference, self._serving
        self._clocks.compare(
            columns, now=serving.now(), monotonic=serving.monotonic(), max_staleness=serving.max_staleness
        )
        if self._clocks.difference and not before:
            log.warning("%s", self._clocks.difference)
        elif before and not self._clocks.difference:
            log.info("the clocks of this process and of the watcher agree again")
        if self._clocks.problem:
            hint = "check time synchronization (NTP, chrony) of both"
            raise WatcherError(CLOCKS_DIFFER, self._clocks.problem, hint=hint)

    def _may_keep(self, copy: Columns | PodColumns | None, error: WatcherError) -> bool:
        """Whether a copy is used although it cannot be renewed."""
        if copy is None or error.code in NO_LOAD:
            return False
        return copy.age(self._serving.monotonic()) <= self._serving.max_staleness

    async def _silence(self) -> NodeSilence | None:
        """Return the silent nodes, None if the watcher does not return them."""
        try:
            return await self._client.refresh_silence()
        except WatcherError:
            return None

    async def _take_pods(self) -> None:
        try:
            pods = await self._client.refresh_pods()
            if self._clocks.problem:
                raise WatcherError(CLOCKS_DIFFER, self._clocks.problem)
        except WatcherError as error:
            if self.table.pod_usage is not None and not self._may_keep(self.table.pod_usage, error):
                self.table.set_pod_usage(None)
            if not self._pod_usage_error and not self.load_error:  # otherwise the cause is logged already
                log.warning("pod usage is unavailable to the scheduling plug-ins: %s; %s", error, error.hint)
                self._pod_usage_error = str(error)
            return
        if self._pod_usage_error:
            log.info("pod usage is available to the scheduling plug-ins again")
            self._pod_usage_error = ""
        if not is_same_document(pods, self.table.pod_usage):
            self.table.set_pod_usage(pods)

    def _log_load_state(self, error: WatcherError | None, *, kept: bool = False) -> None:
        """Log once when load becomes unavailable, and once when it is available again."""
        why = "" if error is None else f"{error}; {error.hint}" if error.hint else str(error)
        if why and not self.load_error:
            until = f"; the last load is used until it is {self._serving.max_staleness:g} s old" if kept else ""
            log.warning("load is unavailable to the scheduling plug-ins: %s%s", why, until)
        elif self.load_error and not why:
            log.info("load is available to the scheduling plug-ins again")
        self.load_error = why

    # --- pods of requests --------------------------------------------------------------------------------------------

    def _as_known(self, namespace: str, name: str, uid: str) -> Pod | None:
        """Return the pod with this uid (see `pods.identity`) as the API has it."""
        found = self._cluster.pod(f"{namespace}/{name}")
        return found if found is not None and uid in (found.metadata.uid, identity(found)) else None

    def _trusts_requests(self) -> bool:
        """Whether a pod exists because kube-scheduler asks about it: only kube-scheduler can send requests, or the copy
        of the pods is not up to date."""
        return bool(self._serving.settings[ServerSettings].scheduler_clients) or not self._cluster.is_current()

    def _is_known(self, pod: PlacementDecision) -> bool:
        """Whether the API has the pod of a decision."""
        return self._trusts_requests() or self._as_known(pod.namespace, pod.name, pod.uid) is not None

    def _find_pod(self, pod: Pod) -> Pod | None:
        """Return the pod of a request as the API has it, `pod` itself if only the request shows that it exists, and
        None for a pod that the API has not reported."""
        found = self._as_known(pod.metadata.namespace, pod.metadata.name, identity(pod))
        return pod if found is None and self._trusts_requests() else found

    # --- bind --------------------------------------------------------------------------------------------------------

    async def _bind(self, args: ExtenderBindingArgs) -> Pod | None:
        """Bind a pod through the cluster; return it if it is known."""
        key = f"{args.namespace}/{args.name}"
        await self._cluster.bind(key, node=args.node, uid=args.uid)
        return self._as_known(args.namespace, args.name, args.uid)


class SchedulerModule:
    """The module of the settings section [scheduler]."""

    section = "scheduler"

    def build(self, table: Mapping[str, Any], serving: ModuleHost) -> BuiltModule:
        """Build the routes and lifecycle of the extender."""
        return SchedulingService(table, serving, InProcessLoad(serving)).build()
