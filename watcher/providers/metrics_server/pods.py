"""What pods use, from metrics-server: what `kubectl top pods` shows, and on which node.

metrics-server knows pods and their containers, but not the nodes they are on. The API server knows that, and its pods
are large (4 to 10 kB) and many: so they are listed once and watched from then on, cut down to a name and a node. That
begins with the first question, because most users never ask it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import msgspec
import numpy as np

from watcher.core.kubernetes.quantity import NANO, nano
from watcher.core.kubernetes.times import read_duration, read_time
from watcher.core.kubernetes.wire import Metadata, Resource, key_of
from watcher.core.pods.table import PODS, Pod, PodOrigin, PodUsage
from watcher.core.review.findings import some_of
from watcher.model import Finding, FindingKind, Remedy
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.informer import Informer
from watcher.providers.base import NoPodUsage, PodFetch

PIECE = 64
BREATH_S = 50e-6
"""After so many pods the thread that reads lets others run: reading 50,000 takes half a second of CPU."""


class Container(msgspec.Struct, frozen=True, gc=False):
    """What a container used, by resource name."""

    usage: dict[str, str | int | float] = {}


class PodMetrics(msgspec.Struct, frozen=True, gc=False):
    """What the containers of a pod used over the `window` (a Go duration) that ended at `timestamp` (RFC 3339)."""

    metadata: Metadata = Metadata()
    timestamp: str = ""
    window: str = ""
    containers: tuple[Container, ...] | None = None


class Placement(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Where a pod is, "" before it is bound."""

    node_name: str = ""


class PlacedPod(msgspec.Struct, frozen=True, gc=False):
    """A pod, cut down to where it is."""

    metadata: Metadata = Metadata()
    spec: Placement = Placement()


POD_METRICS: Resource[PodMetrics] = Resource("metrics.k8s.io", "v1beta1", "pods", PodMetrics)
PLACED_PODS: Resource[PlacedPod] = Resource("", "v1", "pods", PlacedPod)


class PodReader:
    """Asks metrics-server for pods, and keeps at hand where they are."""

    def __init__(self, client: KubeClient, *, source: str) -> None:
        self._client = client
        self._source = source
        self._placed = Informer(client, PLACED_PODS)
        self._started = False

    async def close(self) -> None:
        """Stop watching."""
        await self._placed.close()

    async def fetch(self, now: float) -> PodFetch:
        """What metrics-server knows at the moment. Raises KubeError, and NoPodUsage where it knows nothing."""
        if not self._started:
            self._started = True
            await self._placed.start()
        told = await self._client.list(POD_METRICS)
        await self._placed.wait()
        if not told.items:
            raise NoPodUsage("metrics-server tells of no pod", hint="It needs a minute after its start.")
        nodes = {key: item.spec.node_name for key, item in self._placed.objects.items()}
        fetch = await asyncio.to_thread(read_pods, _unhurried(told.items), nodes, source=self._source, now=now)
        if not fetch.usage.pods:
            raise NoPodUsage(
                f"metrics-server tells of {len(told.items)} pods, and the cluster has none of them running"
            )
        return replace(fetch, findings=(*fetch.findings, *self._state_findings(told.unread, now)))

    def _state_findings(self, unread: Mapping[str, str], now: float) -> Iterator[Finding]:
        """Of pods that are not what Kubernetes calls one, and of where they are not being kept up to date."""
        odd = {**self._placed.unread, **unread}
        if odd:
            first = min(odd)
            reason = f"pods that cannot be read: {len(odd)} ({some_of(odd)}); {first}: {odd[first]}"
            yield Finding(FindingKind.NON_FINITE, "", PODS, now, reason, Remedy.DROPPED)
        error = self._placed.error
        if error is not None:
            reason = f"the nodes of pods may be out of date: {error}. {error.hint}".strip()
            yield Finding(FindingKind.SOURCE, "", PODS, now, reason, Remedy.REPORTED)


def _unhurried(items: Sequence[PodMetrics]) -> Iterator[PodMetrics]:
    """The items, with a pause now and then in which another thread may have the global lock."""
    for number, item in enumerate(items, start=1):
        if number % PIECE == 0:
            time.sleep(BREATH_S)
        yield item


def read_pods(items: Iterable[PodMetrics], nodes: Mapping[str, str], *, source: str, now: float) -> PodFetch:
    """The sum of each pod's containers. `nodes` has the node of each pod that the cluster has, by NAMESPACE/NAME.

    A pod without a node is one that has gone since: left out without a word. A number that cannot be read costs that
    number of its pod, a time that is none the pod; each is a finding.
    """
    unread = _Unread()
    pods: list[Pod] = []
    places: list[str] = []
    columns: tuple[list[float], list[float], list[float]] = ([], [], [])
    windows: list[float] = []
    for item in items:
        key = key_of(item)
        node = nodes.get(key)
        if not node:
            continue
        at = read_time(item.timestamp)
        if at is None:
            unread.note("time", f"the time {item.timestamp[:40]!r} is none", key)
            continue
        pods.append((item.metadata.namespace, item.metadata.name))
        places.append(node)
        for column, value in zip(
            columns, (at, _total(item, "cpu", unread), _total(item, "memory", unread)), strict=True
        ):
            column.append(value)
        if (window := read_duration(item.window)) is not None:
            windows.append(window)
    time, cores, memory = (np.array(column, dtype=np.float64) for column in columns)
    usage = PodUsage(tuple(pods), tuple(places), time, cores, memory)
    return PodFetch(usage, _origin(source, median(windows) if windows else 0.0), tuple(unread.findings(now)))


@dataclass(slots=True)
class _Unread:
    """What could not be read: of each kind the first in words, and in which pods."""

    pods: dict[str, list[str]] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)

    def note(self, kind: str, words: str, pod: str) -> None:
        """One more that cannot be read."""
        self.words.setdefault(kind, words)
        self.pods.setdefault(kind, []).append(pod)

    def findings(self, now: float) -> Iterator[Finding]:
        """One finding a kind."""
        for kind, names in self.pods.items():
            reason = f"pods whose {kind} cannot be read: {len(names)} ({some_of(names)}); {self.words[kind]}"
            yield Finding(FindingKind.NON_FINITE, "", PODS, now, reason, Remedy.DROPPED)


def _total(item: PodMetrics, resource: str, unread: _Unread) -> float:
    """Cores or bytes of all containers together, NaN where one of them does not say."""
    try:
        total = sum(nano(container.usage[resource]) for container in item.containers or ())
    except KeyError:
        return math.nan
    except ValueError as error:
        unread.note(resource, str(error), key_of(item))
        return math.nan
    return total / NANO if item.containers else math.nan


def _origin(source: str, window_s: float) -> PodOrigin:
    asked = f"{POD_METRICS.group_version} {POD_METRICS.plural} containers.usage"
    return PodOrigin(source, f"{asked}.cpu", round(window_s, 3), f"{asked}.memory", "working_set")
