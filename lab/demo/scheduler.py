"""Scheduling plug-ins over a simulated cluster, for `load-watcher demo`.

A simulated Kubernetes API reports nodes and pods, and a simulated scheduler places arriving pods as kube-scheduler
does, by calling this service's extender over HTTP. Explanations, reservations, and decisions therefore match those of a
real cluster, and a placed pod is part of the load that later decisions use.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp import web

from lab.fleet.cluster import SimulatedCluster
from lab.fleet.noise import key_of
from scorers.cluster.informer import OnNode, OnNodeMetric, OnPod
from scorers.extender.hosting import InProcessLoad
from scorers.extender.service import SchedulingService
from scorers.plugin_api import wire
from scorers.profiles.ranking import ProfileRunner
from watcher.core.kubernetes.errors import KubeError
from watcher.core.kubernetes.objects import Pod
from watcher.core.kubernetes.wire import key_of as name_of
from watcher.decoding.json_text import decode_json
from watcher.platform.http.settings import ServerSettings
from watcher.platform.modules import BuiltModule, ModuleHost
from watcher.platform.net.http_body import answer_bound, read_body
from watcher.platform.net.listening import host_port
from watcher.platform.net.loopback import is_loopback, reachable_host
from watcher.platform.net.session import client_session
from watcher.platform.net.tls import client_context

log = logging.getLogger(__name__)

Shape = TypeVar("Shape")

DEFAULT_SCHEDULER: Mapping[str, Any] = {
    # The example of docs/concepts/scheduling.md: pack nodes to a target that leaves capacity for bursts, and exclude
    # hot nodes.
    "default": {
        "plugins": [
            {
                "name": "TargetLoadPacking",
                "args": {
                    "targetUtilization": 50,
                    "resources": ["cpu", "memory"],
                    "podDemand": "effective",
                    "assignedPodSeconds": 300,
                    "assignedPodDecay": True,
                },
            },
            {"name": "HighLoadFilter", "args": {"usageThresholds": {"cpu": 85, "memory": 90}}},
        ],
        "precise_scores": True,
        "bind": True,  # accepted from loopback or with a verified client certificate
    },
    # Two alternatives, which place nothing: shadow mode reports where they would have placed the pods.
    "low-risk": {
        "plugins": [
            {"name": "LowRiskOverCommitment"},
            {"name": "HighLoadFilter", "args": {"usageThresholds": {"cpu": 85, "memory": 90}}},
        ],
        "precise_scores": True,
    },
    "spreading": {
        "plugins": [{"name": "LoadVariationRiskBalancing", "args": {"formula": "kep"}}],
        "precise_scores": True,
    },
    "shadow": ["default", "low-risk", "spreading"],
}
LARGE_IMAGES = ("inference", "search", "training")  # workloads with a large image
NODES_WITH_IMAGE = 3  # one node in this number has it already
IMAGE_SHARE = 0.3  # of the extender's highest score, as points of ImageLocality
LISTED_AT_ONCE = 50  # objects reported before other tasks run; some milliseconds
LOOK_EVERY_S = 1.0
SIMULATED = "X-Simulated"  # response header
AGAIN_AFTER_S = 5.0  # retry delay for pods that could not be placed
REQUEST_TIMEOUT_S = 5.0


class SimulatedApi:
    """The simulated cluster as a `scorers.cluster.informer.ClusterSource`. `now` returns unix seconds."""

    def __init__(self, cluster: SimulatedCluster, *, now: Callable[[], float]) -> None:
        self.synced = asyncio.Event()
        """Set when all objects that existed at the start were reported."""
        self._cluster = cluster
        self._now = now
        self._reported: dict[str, Pod] = {}
        self._on_pod: OnPod | None = None
        self._listing: asyncio.Task[None] | None = None
        cluster.subscribe(lambda key, _old, _new: self._report(key))

    async def start(self, *, on_node: OnNode, on_pod: OnPod, on_node_metric: OnNodeMetric | None) -> None:
        """Start to report nodes and pods; the simulated cluster has no NodeMetrics of Koordinator."""
        self._on_pod = on_pod
        self._listing = asyncio.create_task(self._list(on_node), name="demo-list")

    async def _list(self, on_node: OnNode) -> None:
        for number, (name, node) in enumerate(self._cluster.nodes.items()):
            on_node(name, None, node)
            if number % LISTED_AT_ONCE == 0:
                await asyncio.sleep(0)
        for number, key in enumerate(self._cluster.pods()):
            self._report(key)
            if number % LISTED_AT_ONCE == 0:
                await asyncio.sleep(0)
        self.synced.set()

    def _report(self, key: str) -> None:
        """Report the pod's current state if it changed since the last report."""
        old, new = self._reported.get(key), self._cluster.pod(key)
        if old is new or self._on_pod is None:
            return
        if new is None:
            del self._reported[key]
        else:
            self._reported[key] = new
        self._on_pod(key, old, new)

    def pod(self, key: str) -> Pod | None:
        return self._reported.get(key)

    def is_synced(self) -> bool:
        return self.synced.is_set()

    def is_current(self) -> bool:
        return True

    async def bind(self, key: str, *, node: str, uid: str) -> None:
        self._cluster.bind(key, node=node, uid=uid, now=self._now())

    async def close(self) -> None:
        self._on_pod = None
        if self._listing is not None:
            self._listing.cancel()
            await asyncio.gather(self._listing, return_exceptions=True)


class PlacementFailed(Exception):
    """The extender failed to filter, score, or bind a pod; the message is the reason."""


class SimulatedScheduler:
    """Places arriving pods: on the node where the pod's requests fit, that passes the extender's filters, and that has
    the highest score. `profiles` are the extender's current profiles; `default` is used if present, otherwise the first
    by name. Simulated time starts when the extender is `ready`, so that the first pods are placed with load data."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        api: SimulatedApi,
        *,
        profiles: Mapping[str, ProfileRunner],
        ready: Callable[[], bool],
        now: Callable[[], float],
        certificate: Path | None = None,
    ) -> None:
        self._cluster = cluster
        self._api = api
        self._profiles = profiles
        self._ready = ready
        self._begun = False
        self._now = now
        self._certificate = certificate
        self._address = ""
        self._listening = asyncio.Event()
        self._not_before: dict[str, float] = {}  # pod key -> unix seconds of the next attempt
        self._failing = False  # the failure is already logged

    def listening(self, address: str) -> None:
        """Set the extender's address; scheduling starts now."""
        self._address = reachable(address)
        self._listening.set()

    @asynccontextmanager
    async def life(self, _app: web.Application) -> AsyncIterator[None]:
        """Run the scheduler while the service runs."""
        working = asyncio.create_task(self._work(), name="demo-scheduler")
        try:
            yield
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def _work(self) -> None:
        await self._listening.wait()
        await self._api.synced.wait()
        tls = None if self._certificate is None else _trusting(self._certificate)
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        async with client_session(tls=tls, timeout=timeout) as session:
            while True:
                try:
                    await self._step(session)
                except Exception:  # an error must not stop the simulated time
                    log.exception("the simulated scheduler failed; retrying in the next step")
                await asyncio.sleep(LOOK_EVERY_S)

    async def _step(self, session: aiohttp.ClientSession) -> None:
        self._begun = self._begun or self._ready()
        if self._begun:
            self._cluster.advance(self._now())
            await self._place_all(session)

    async def _place_all(self, session: aiohttp.ClientSession) -> None:
        now, waiting = self._now(), self._cluster.waiting()
        self._not_before = {
            key: at for pod in waiting if (at := self._not_before.get(key := name_of(pod), 0.0)) > now
        }  # fmt: skip
        for pod in waiting:
            if name_of(pod) in self._not_before:
                continue
            try:
                if not await self._place(session, pod):
                    self._not_before[name_of(pod)] = now + AGAIN_AFTER_S
            except PlacementFailed as error:
                if not self._failing:
                    log.warning("the simulated scheduler cannot place pod %s: %s", name_of(pod), error)
                self._failing = True
                self._not_before[name_of(pod)] = now + AGAIN_AFTER_S
            else:
                self._failing = False

    @property
    def _profile(self) -> ProfileRunner:
        return self._profiles.get("default") or self._profiles[min(self._profiles)]

    @property
    def _most(self) -> int:
        return 100 if self._profile.settings.precise_scores else wire.MAX_EXTENDER_PRIORITY

    async def _place(self, session: aiohttp.ClientSession, pod: Pod) -> bool:
        """Try to place a pod; return whether it has a node now."""
        names: Sequence[str] = self._cluster.fitting_nodes(name_of(pod))
        if names:
            body = msgspec.json.encode(wire.ExtenderArgs(pod=pod, node_names=list(names)))
            result = await self._ask(session, "filter", body, wire.ExtenderFilterResult)
            if result.error:
                raise PlacementFailed(result.error)
            names = result.node_names or ()
        if not names:
            return False
        body = msgspec.json.encode(wire.ExtenderArgs(pod=pod, node_names=list(names)))
        scores = await self._ask(session, "prioritize", body, list[wire.HostPriority])
        points = image_points(scores, pod, most=round(IMAGE_SHARE * self._most))
        node, _ = chosen([wire.HostPriority(each.host, each.score + points[each.host]) for each in scores], pod)
        of_node = next(each.score for each in scores if each.host == node)
        await self._bind(session, pod, node)
        log.info("pod %s placed on node %s: extender score %d of %d", name_of(pod), node, of_node, self._most)
        return True

    async def _bind(self, session: aiohttp.ClientSession, pod: Pod, node: str) -> None:
        metadata = pod.metadata
        if not (self._profile.settings.bind and is_loopback(urlsplit(self._address).hostname or "")):
            try:
                await self._api.bind(name_of(pod), node=node, uid=metadata.uid)
            except KubeError as error:  # another client bound the pod first
                raise PlacementFailed(str(error)) from error
            return
        args = wire.ExtenderBindingArgs(metadata.name, metadata.namespace, metadata.uid, node)
        result = await self._ask(session, "bind", msgspec.json.encode(args), wire.ExtenderBindingResult)
        if result.error:
            raise PlacementFailed(result.error)

    async def _ask(self, session: aiohttp.ClientSession, verb: str, body: bytes, shape: type[Shape]) -> Shape:
        url = f"{self._address}/scheduler/{self._profile.settings.name}/{verb}"
        try:
            async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as response:
                answer, status = await read_body(response, answer_bound()), response.status
            if status != 200:
                raise PlacementFailed(f"{url} returned status {status}")
            return decode_json(answer, type=shape)
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            raise PlacementFailed(f"{url}: {str(error) or type(error).__name__}") from error


def chosen(scores: Sequence[wire.HostPriority], pod: Pod) -> tuple[str, int]:
    """Return the node with the highest score, and the score. Equal scores are decided at random, as in kube-scheduler,
    but reproducibly per pod uid."""
    highest = max(each.score for each in scores)
    best = sorted(each.host for each in scores if each.score == highest)
    return best[key_of(pod.metadata.uid) % len(best)], highest


def image_points(scores: Sequence[wire.HostPriority], pod: Pod, *, most: int) -> Mapping[str, int]:
    """Return the points by node of a plug-in like ImageLocality, which kube-scheduler adds to the extender's scores:
    `most` for the nodes that have the pod's image, if it is large. A pod may thus be bound to a node other than the
    extender's best."""
    workload = pod.metadata.name.split("-")[0]
    if workload not in LARGE_IMAGES:
        return {each.host: 0 for each in scores}
    return {each.host: 0 if key_of("image", workload, each.host) % NODES_WITH_IMAGE else most for each in scores}


def reachable(address: str) -> str:
    """Return a URL that reaches a listener at this address: a wildcard address becomes loopback."""
    parts = urlsplit(address)
    host = parts.hostname or ""
    if (found := reachable_host(host)) == host:
        return address
    return f"{parts.scheme}://{host_port(found, parts.port or 80)}"


def _trusting(certificate: Path) -> ssl.SSLContext:
    """Accept exactly this certificate, without a host name check, for requests to this service itself."""
    context = client_context(ca_file=certificate)
    context.check_hostname = False
    return context


class DemoSchedulerModule:
    """The module of the settings section [scheduler], over a simulated cluster."""

    section = "scheduler"

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster

    def build(self, table: Mapping[str, Any], serving: ModuleHost) -> BuiltModule:
        """Build the extender's routes and lifecycle, and the lifecycle of the simulated cluster."""
        api = SimulatedApi(self._cluster, now=serving.now)
        scheduling = SchedulingService(table, serving, InProcessLoad(serving), cluster=api)
        scheduler = SimulatedScheduler(
            self._cluster,
            api,
            profiles=scheduling.extender.profiles,
            ready=lambda: scheduling.table.load.columns is not None,
            now=serving.now,
            certificate=serving.settings[ServerSettings].tls_cert,
        )
        made = scheduling.build()
        lives = (*made.lives, scheduler.life, mark_responses_simulated)
        return replace(made, lives=lives, on_listening=(*made.on_listening, scheduler.listening))


@asynccontextmanager
async def mark_responses_simulated(app: web.Application) -> AsyncIterator[None]:
    """Add a header to every response that marks the data as simulated; not every document has a source field."""
    app.on_response_prepare.append(_say)
    yield


async def _say(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers[SIMULATED] = "load-watcher demo: all data is generated"
