"""Pod usage from metrics-server, as shown by `kubectl top pods`, with the node of each pod.

metrics-server knows pods and containers, but not their nodes. Full pod objects of the API server are large (4 to 10
kB), so they are listed once and then watched, reduced to name and node. The informer starts with the first fetch,
because most installations do not use pod usage.
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
from watcher.core.kubernetes.wire import MinimalMetadata, Resource, key_of
from watcher.core.pods.coverage import PodGaps
from watcher.core.pods.table import PODS, Pod, PodOrigin, PodUsage
from watcher.core.review.findings import some_of
from watcher.model import Finding, FindingKind, Remedy
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.informer import Informer
from watcher.sources.base import NoPodUsage, PodFetch

_NOT_MEASURED = "metrics-server has no metrics of its pods; see the log of metrics-server for errors of its kubelet"
PIECE = 64
BREATH_S = 50e-6
"""The parsing thread sleeps BREATH_S seconds after every PIECE pods to release Python's global lock: parsing 50,000
pods takes half a second of CPU time."""


class ContainerUsage(msgspec.Struct, frozen=True, gc=False):
    """Usage of a container by resource name, as Kubernetes quantities."""

    usage: dict[str, str | int | float] = {}


class PodMetrics(msgspec.Struct, frozen=True, gc=False):
    """Usage of a pod's containers over the `window` (a Go duration) that ended at `timestamp` (RFC 3339)."""

    metadata: MinimalMetadata = MinimalMetadata()
    timestamp: str = ""
    window: str = ""
    containers: tuple[ContainerUsage, ...] | None = None


class Placement(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Node of a pod, "" before it is bound."""

    node_name: str = ""


class PlacedPod(msgspec.Struct, frozen=True, gc=False):
    """A pod reduced to its metadata and node."""

    metadata: MinimalMetadata = MinimalMetadata()
    spec: Placement = Placement()


POD_METRICS: Resource[PodMetrics] = Resource("metrics.k8s.io", "v1beta1", "pods", PodMetrics)
PLACED_PODS: Resource[PlacedPod] = Resource("", "v1", "pods", PlacedPod)


class PodReader:
    """Reads pod usage from metrics-server and follows the pods' nodes with an informer."""

    def __init__(self, client: KubeClient, *, source: str) -> None:
        self._client = client
        self._source = source
        self._placed = Informer(client, PLACED_PODS)
        self._started = False

    async def close(self) -> None:
        """Stop the informer of pods."""
        await self._placed.close()

    async def fetch(self, now: float) -> PodFetch:
        """Current pod usage at `now` (unix seconds). Raises KubeError, and NoPodUsage if metrics-server returns no
        running pod."""
        if not self._started:
            self._started = True
            await self._placed.start()
        message = await self._client.list(POD_METRICS)
        await self._placed.wait()
        if not message.items:
            raise NoPodUsage("metrics-server returned no pods", hint="After its start, metrics-server needs a minute.")
        nodes = {key: item.spec.node_name for key, item in self._placed.objects.items()}
        fetch = await asyncio.to_thread(read_pods, _unhurried(message.items), nodes, source=self._source, now=now)
        if not fetch.usage.pods:
            raise NoPodUsage(
                f"metrics-server returned {len(message.items)} pods, but none of them is running in the cluster"
            )
        return replace(fetch, findings=(*fetch.findings, *self._state_findings(message.unread, now)))

    def gaps(self) -> PodGaps:
        """Why nodes without pod usage have none: of the nodes on which pods run, metrics-server lacks the kubelet."""
        nodes = (item.spec.node_name for item in self._placed.objects.values())
        return PodGaps(_NOT_MEASURED, hosting=frozenset(node for node in nodes if node))

    def _state_findings(self, unread: Mapping[str, str], now: float) -> Iterator[Finding]:
        """Findings about unreadable pod objects and about an informer with errors."""
        odd = {**self._placed.undecodable, **unread}
        if odd:
            first = min(odd)
            reason = f"unreadable pods: {len(odd)} ({some_of(odd)}); {first}: {odd[first]}"
            yield Finding(FindingKind.NON_FINITE, "", PODS, now, reason, Remedy.DROPPED)
        error = self._placed.error
        if error is not None:
            reason = f"the nodes of pods may be out of date: {error}. {error.hint}".strip()
            yield Finding(FindingKind.SOURCE, "", PODS, now, reason, Remedy.REPORTED)


def _unhurried(items: Sequence[PodMetrics]) -> Iterator[PodMetrics]:
    """The items, with short pauses that release Python's global lock to other threads."""
    for number, item in enumerate(items, start=1):
        if number % PIECE == 0:
            time.sleep(BREATH_S)
        yield item


def read_pods(items: Iterable[PodMetrics], nodes: Mapping[str, str], *, source: str, now: float) -> PodFetch:
    """Sum of each pod's containers. `nodes` maps NAMESPACE/NAME to the node, for the pods of the cluster.

    A pod without a node is ignored: it was deleted meanwhile or is not bound. An unreadable number affects that number
    only, an invalid time the whole pod; each is a finding.
    """
    unread = _UnreadablePods()
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
            unread.note("time", f"invalid time {item.timestamp[:40]!r}", key)
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
class _UnreadablePods:
    """Collects unreadable values: by kind, the first error text and the affected pods."""

    pods: dict[str, list[str]] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)

    def note(self, kind: str, words: str, pod: str) -> None:
        """Add a pod with an unreadable value of this kind."""
        self.words.setdefault(kind, words)
        self.pods.setdefault(kind, []).append(pod)

    def findings(self, now: float) -> Iterator[Finding]:
        """One finding for each kind of value."""
        for kind, names in self.pods.items():
            reason = f"pods with an unreadable {kind}: {len(names)} ({some_of(names)}); {self.words[kind]}"
            yield Finding(FindingKind.NON_FINITE, "", PODS, now, reason, Remedy.DROPPED)


def _total(item: PodMetrics, resource: str, unread: _UnreadablePods) -> float:
    """Cores or bytes of all containers together; NaN if a value is missing or unreadable."""
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
