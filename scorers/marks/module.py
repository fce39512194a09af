"""The module of the service for the settings section [marks]: plans at each tick and after each move, pages, metrics.

Every replica plans; the one that holds the Lease writes (`writer`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from aiohttp import web

from scorers.marks.moves import MoveTracker
from scorers.marks.pages import MarksPages
from scorers.marks.planner import NO_MARKS, MarkPlan, MarkPlanner, NodeMarks, marks_of
from scorers.marks.pressure import PressureRules
from scorers.marks.telemetry import MarksTelemetry
from scorers.marks.writer import STEP_S, MarkWriter, marks_election
from watcher.core.kubernetes.objects import NODES, PODS, Node, Pod
from watcher.model import Snapshot
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import AccessFinder
from watcher.platform.kube.events import EventSource
from watcher.platform.kube.leases import RENEW_EVERY_S
from watcher.platform.kube.settings import KubernetesSettings, MarksSettings
from watcher.platform.kube.shared_informer import SharedInformer
from watcher.platform.modules import BuiltModule, ModuleHost
from watcher.platform.repeated_errors import RepeatedErrors

log = logging.getLogger(__name__)


class MarksService:
    """Plans the marks of the cluster of the settings while the service runs, and writes them. `step` and `renew_every`
    are in seconds."""

    def __init__(self, serving: ModuleHost, *, step: float = STEP_S, renew_every: float = RENEW_EVERY_S) -> None:
        self.plan: MarkPlan | None = None
        self._serving = serving
        self._settings = serving.settings[MarksSettings]
        self._rules = PressureRules()
        self._planner = MarkPlanner(self._settings, self._rules)
        self._tracker = MoveTracker(self._rules)
        self._step_s = step
        access = AccessFinder.of(*serving.settings[KubernetesSettings].access)
        self._nodes: SharedInformer[Node] = SharedInformer(access, NODES)
        self._pods: SharedInformer[Pod] = SharedInformer(access, PODS, on_change=self._pod_changed)
        self.writer = self._make_writer(KubeClient(access), renew_every) if self._settings.writes else None
        self._made_from: tuple[str, int, bool] | None = None
        self._started = serving.monotonic()
        self._pods_since: float | None = None

    def _make_writer(self, client: KubeClient, renew_every: float) -> MarkWriter:
        election = marks_election(client, now=self._serving.now, monotonic=self._serving.monotonic)
        return MarkWriter(
            client,
            self._serving,
            election=election,
            nodes=lambda: self._nodes.objects,
            planner=self._planner,
            now=self._serving.now,
            writer=EventSource(component="load-watcher", host=socket.gethostname()),
            step=self._step_s,
            renew_every=renew_every,
        )

    def build(self) -> BuiltModule:
        """Return the routes, lifecycle, and telemetry for the service."""
        pages = MarksPages(
            self._settings,
            plan=lambda: self.plan,
            reason=self.reason,
            written=self.written,
            is_writer=lambda: self.writer is not None and self.writer.holds_lease,
        )
        telemetry = MarksTelemetry(self._settings, plan=lambda: self.plan, writer=self.writer)
        return BuiltModule(tuple(pages.routes()), (self.life,), (telemetry,))

    def written(self) -> dict[str, NodeMarks]:
        """Return the marks of the nodes that have some, by name."""
        return {name: marks for name, node in self._nodes.objects.items() if (marks := marks_of(node)) != NO_MARKS}

    def reason(self) -> str:
        """Return why no node has marks and pressure, "" if nodes may have them."""
        if not self._nodes.synced.is_set():
            error = self._nodes.error
            return f"the nodes of the cluster are not known{f': {error}' if error else ''}"
        if self._snapshot() is None:
            return "the load of the nodes is not known or stale"
        if self._settings.pressure and not self._pods.synced.is_set():
            error = self._pods.error
            return f"no pressure: the pods of the cluster are not known{f': {error}' if error else ''}"
        return ""

    @asynccontextmanager
    async def life(self, _app: web.Application) -> AsyncIterator[None]:
        """Watch the cluster, plan and write while the service runs."""
        self._started = self._serving.monotonic()
        async with AsyncExitStack() as stack:
            for informer in (self._nodes, self._pods) if self._settings.pressure else (self._nodes,):
                stack.push_async_callback(informer.close)
                await informer.start()
            if self.writer is not None:
                stack.push_async_callback(self.writer.close)
                await self.writer.start()
            planning = asyncio.create_task(self._plan_loop(), name="marks-plan")
            try:
                yield
            finally:
                planning.cancel()
                await asyncio.gather(planning, return_exceptions=True)

    # --- planning ----------------------------------------------------------------------------------------------------

    async def _plan_loop(self) -> None:
        errors = RepeatedErrors(log)
        while True:
            try:
                await self._make_plan()
                errors.succeeded()
            except Exception as error:  # a bug must not leave old marks without a log message
                errors.failed(error, "planning the marks of nodes failed; retrying in the next second")
            await asyncio.sleep(self._step_s)

    async def _make_plan(self) -> None:
        """Make a plan if the load, the moves, or whether they are known changed. After a start, marks of an earlier
        process stay until there is load, at most for refresh.max_staleness."""
        now, snapshot, published = self._serving.monotonic(), self._snapshot(), self._serving.published
        if not self._nodes.synced.is_set():
            return
        if snapshot is None and self.plan is None and now - self._started < self._serving.max_staleness:
            return
        if self._pods_since is None and self._settings.pressure and self._pods.synced.is_set():
            self._pods_since = now
        tag = "" if snapshot is None or published is None else published.tag
        made_from = (tag, self._tracker.version, self._pods_since is not None)
        if made_from == self._made_from:
            return
        nodes = dict(self._nodes.objects)
        moves = None if self._pods_since is None else self._tracker.moves(sorted(nodes), now, since=self._pods_since)
        self.plan = await asyncio.to_thread(self._planner.plan, snapshot, nodes, moves, now)
        self._made_from = made_from
        if self.writer is not None:
            self.writer.plan = self.plan

    def _snapshot(self) -> Snapshot | None:
        """Return the published snapshot, None if it is stale."""
        published = self._serving.published
        fresh = published is not None and published.age(self._serving.monotonic()) <= self._serving.max_staleness
        return published.snapshot if published is not None and fresh else None

    def _pod_changed(self, _name: str, old: Pod | None, new: Pod | None) -> None:
        self._tracker.pod_changed(old, new, self._serving.monotonic())


class MarksModule:
    """The module of the settings section [marks], which is among the service's own: `section` is therefore empty."""

    section = ""

    def build(self, table: Mapping[str, Any], serving: ModuleHost) -> BuiltModule:
        """Build the pages, the metrics and the lifecycle of the marks."""
        return MarksService(serving).build()
