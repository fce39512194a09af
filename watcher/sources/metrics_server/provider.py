"""Provider of node load from metrics-server, which exists in every cluster with `kubectl top` and has no history.

metrics-server scrapes the kubelets every 15 to 60 seconds and returns only the latest values. A background task
therefore polls it every `resolution` seconds and stores the responses; `fetch` returns the stored samples, from which
windows and deviations are computed as for any source. A value with an unchanged timestamp is not stored again.

metrics-server returns cores and bytes. Percentages refer to the node's `status.capacity`, as in the Go load-watcher. A
node informer, shared within the process, provides the capacities. Both operands of the division are integers.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from watcher.arrays import F64
from watcher.core.config.settings import Settings
from watcher.core.koordinator.report import Capacity
from watcher.core.kubernetes.errors import KubeError, KubeForbidden, KubeMalformed, KubeNotFound, KubeUnreachable
from watcher.core.kubernetes.node_facts import capacities_of
from watcher.core.kubernetes.objects import NODE_METRICS, NODES, Node, NodeMetrics, ObjectMetadata
from watcher.core.kubernetes.quantity import nano
from watcher.core.kubernetes.times import read_duration, read_time
from watcher.core.kubernetes.wire import key_of
from watcher.core.pods.coverage import PodGaps
from watcher.core.review.clocks import AHEAD_S
from watcher.core.windows.settings import RefreshSettings
from watcher.model import METRIC_BY_KEY, Finding, FindingKind, Remedy, SeriesBatch
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import AccessFinder, KubeAccess
from watcher.platform.kube.settings import KubernetesSettings
from watcher.platform.kube.shared_informer import SharedInformer
from watcher.platform.repeated_errors import RepeatedErrors
from watcher.sources.base import Fetch, PodFetch, QueryPlan
from watcher.sources.errors import ProviderError, ProviderMalformed, ProviderRefused, ProviderUnreachable
from watcher.sources.fetching import BEHIND_S
from watcher.sources.metrics_server.pods import PodReader
from watcher.sources.settings import ProviderSettings

log = logging.getLogger(__name__)

RESOURCES: Mapping[str, str] = {"CPU": "cpu", "Memory": "memory"}
"""Metric key -> Kubernetes resource name. metrics-server has no other node resources."""
LONGEST_WINDOW_S = 120.0
"""Sample interval in seconds above which no window has sufficient coverage."""
REASON = "usage over status.capacity; metrics-server has no other node metrics"


# --- response to samples ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeUsageReading:
    """Samples of one metrics-server response: `percent[key][i]` is the usage of node `names[i]` at `times[i]` (unix
    seconds) in percent of its capacity, NaN if unknown. `windows` are the averaging times of CPU in seconds."""

    names: tuple[str, ...]
    times: F64
    percent: Mapping[str, F64]
    windows: tuple[float, ...]
    findings: tuple[Finding, ...]


def read_usage(
    usage: Iterable[NodeMetrics], nodes: Mapping[str, Node], *, keys: Collection[str], now: float
) -> NodeUsageReading:
    """Usage in percent of capacity of each node known to both metrics-server and the API server. Pure.

    Missing or unreadable values become findings and affect their node or metric only. Negative and impossible
    percentages are returned; the review judges them.
    """
    findings: list[Finding] = []
    rows: dict[str, tuple[float, list[float]]] = {}
    windows = []
    message: dict[str, NodeMetrics] = {}
    for item in usage:
        if key_of(item) in message:
            reason = "metrics-server returned the node several times; the last entry is used"
            findings.append(Finding(FindingKind.DUPLICATE_SERIES, key_of(item), "", now, reason, Remedy.COMBINED))
        message[key_of(item)] = item
    for name, item in message.items():
        if name not in nodes:
            reason = "metrics-server returned the node, but the cluster has no node with this name"
            findings.append(Finding(FindingKind.UNKNOWN_NODE, name, "", now, reason, Remedy.DROPPED))
        elif (at := read_time(item.timestamp)) is None:
            reason = f"metrics-server returned the invalid time {item.timestamp[:40]!r}"
            findings.append(Finding(FindingKind.NON_FINITE, name, "", now, reason, Remedy.DROPPED))
        elif not now - BEHIND_S <= at <= now + AHEAD_S:
            kind = FindingKind.FUTURE_SAMPLE if at > now else FindingKind.STALE
            reason = (
                f"metrics-server returned the time {item.timestamp[:40]}, far from the local time: check the clocks"
            )
            findings.append(Finding(kind, name, "", now, reason, Remedy.DROPPED))
        else:
            rows[name] = at, [_share(item, nodes[name], key=key, now=now, findings=findings) for key in keys]
            windows.append(read_duration(item.window))
    for name in nodes.keys() - message.keys():
        reason = "metrics-server did not return the node: it may be new, or its kubelet unreachable"
        findings.append(Finding(FindingKind.MISSING, name, "", now, reason, Remedy.LEFT_OUT))
    names = tuple(rows)
    times = np.array([at for at, _ in rows.values()], dtype=np.float64)
    table = np.array([shares for _, shares in rows.values()], dtype=np.float64).reshape(len(names), len(keys))
    percent = {key: table[:, column] for column, key in enumerate(keys)}
    return NodeUsageReading(names, times, percent, tuple(each for each in windows if each is not None), tuple(findings))


def _share(item: NodeMetrics, node: Node, *, key: str, now: float, findings: list[Finding]) -> float:
    """Usage in percent of capacity; NaN and a finding if it cannot be computed."""
    name, resource, metric = key_of(item), RESOURCES[key], METRIC_BY_KEY[key].name
    try:
        used, capacity = nano(item.usage[resource]), nano(node.status.capacity[resource])
    except KeyError:
        missing = "usage" if resource not in item.usage else "status.capacity"
        findings.append(
            Finding(FindingKind.MISSING, name, metric, now, f"its {missing} has no {resource}", Remedy.LEFT_OUT)
        )
    except ValueError as error:
        findings.append(Finding(FindingKind.NON_FINITE, name, metric, now, f"{resource}: {error}", Remedy.DROPPED))
    else:
        if capacity > 0:
            return 100 * used / capacity  # both are integers: rounded only once
        reason = f"its capacity of {resource} is {node.status.capacity[resource]}, so no percentage can be computed"
        findings.append(Finding(FindingKind.OUT_OF_RANGE, name, metric, now, reason, Remedy.DROPPED))
    return float("nan")


# --- the provider ----------------------------------------------------------------------------------------------------


class MetricsServerProvider:
    """Provider with samples of all nodes, polled every `resolution` seconds and stored for `max_seconds`.

    `keys` are the metrics to return; only CPU and Memory are available. `access` returns the access to the cluster,
    `timeout` (seconds) limits each request to metrics-server, `clock` returns unix seconds.
    """

    source = "KubernetesMetricsServer"
    remembers = False

    def __init__(
        self,
        access: Callable[[], KubeAccess],
        *,
        resolution: float,
        max_seconds: float,
        keys: Sequence[str] = tuple(RESOURCES),
        timeout: float = 10.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.resolution = resolution
        self.max_seconds = max_seconds
        self.keys = tuple(keys)
        self._client = KubeClient(access, timeout=timeout)
        self._clock = clock
        self._nodes = SharedInformer(access, NODES)
        self._pods = PodReader(self._client, source=self.source)
        self._readings: deque[NodeUsageReading] = deque(maxlen=math.ceil(max_seconds / resolution) + 1)
        self._newest: Mapping[str, float] = {}
        self._findings: tuple[Finding, ...] = ()
        self._error: ProviderError | None = None
        self._errors = RepeatedErrors(log)
        self._answered = False  # since the previous fetch
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the node informer and the polling task."""
        await self._nodes.start()
        self._task = asyncio.create_task(self._ask_forever(), name="metrics-server-poller")

    async def close(self) -> None:
        """Stop polling and close all connections."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=0.5)
            self._task = None
        await self._nodes.close()
        await self._pods.close()
        await self._client.close()

    async def fetch(self, since: float, until: float, *, only: Collection[str] | None = None) -> Fetch:
        """Stored samples with since <= time <= until (unix seconds). Right after the start it waits for the first
        response.

        Raises ProviderError with the last error if no poll succeeded since the previous fetch.
        """
        if self._task is None:
            raise ProviderUnreachable("metrics-server is not being polled", hint="the provider was not started")
        await self._asked.wait()
        answered, self._answered = self._answered, False
        if self._error is not None and not answered:
            raise self._error.with_traceback(None)  # raised repeatedly: must not accumulate frames
        keys = [key for key in self._had() if only is None or METRIC_BY_KEY[key].name in only]
        readings = tuple(self._readings)
        batches = await asyncio.to_thread(_batches, readings, keys=keys, since=since, until=until)
        return Fetch(
            batches,
            plans={METRIC_BY_KEY[key].name: plan_of(key) for key in keys},
            findings=(*self._findings, *self._state_findings()),
        )

    async def fetch_pods(self, now: float) -> PodFetch:
        """Current pod usage at `now` (unix seconds). The first call also starts the pod informer, which takes a
        while in a large cluster and continues if the caller is cancelled."""
        try:
            return await self._pods.fetch(now)
        except KubeError as error:
            raise _translate(error) from error

    async def pod_gaps(self, now: float) -> PodGaps:
        """Why nodes have no pod usage, from the nodes of all pods."""
        return self._pods.gaps()

    async def capacities(self) -> Mapping[str, Capacity]:
        """CPU and memory capacity by node name."""
        return await asyncio.to_thread(capacities_of, dict(self._nodes.objects))

    def node_metadata(self, node: str) -> ObjectMetadata | None:
        """Object metadata of a node; None if the cluster has no such node."""
        known = self._nodes.objects.get(node)
        return None if known is None else known.metadata

    def node_names(self) -> Collection[str] | None:
        """Node names from the informer; None before the first list."""
        return self._nodes.objects.keys() if self._nodes.synced.is_set() else None

    def _had(self) -> list[str]:
        return [key for key in self.keys if key in RESOURCES]

    # --- polling task ------------------------------------------------------------------------------------------------

    async def _ask_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await self._ask()
            self._asked.set()
            await asyncio.sleep(max(0.0, began + self.resolution - loop.time()))

    async def _ask(self) -> None:
        """Poll once and store the result. Errors are stored for the next fetch."""
        try:
            usage = await self._client.list(NODE_METRICS)
            await self._nodes.wait()
            nodes = dict(self._nodes.objects)
            # Parsing 5,000 nodes takes tens of milliseconds, too long for the event loop.
            reading = await asyncio.to_thread(read_usage, usage.items, nodes, keys=self._had(), now=self._clock())
            self._take(reading)
        except KubeError as error:
            self._error = _translate(error)
        except Exception as error:  # an internal error: the next response may be readable
            self._errors.failed(error, "a response of metrics-server could not be read; its samples are missing")
            self._error = ProviderMalformed(f"the response could not be read: {type(error).__name__}")
        else:
            self._error, self._answered = None, True
            self._errors.succeeded()

    def _take(self, reading: NodeUsageReading) -> None:
        """Store the new values of a reading. A value with an unchanged timestamp is not new."""
        newest = dict(zip(reading.names, reading.times.tolist(), strict=True))
        fresh = np.array([self._newest.get(name) != at for name, at in newest.items()], dtype=np.bool_)
        self._newest = newest
        self._findings = reading.findings
        if fresh.any():
            names = tuple(name for name, new in zip(reading.names, fresh, strict=True) if new)
            percent = {key: values[fresh] for key, values in reading.percent.items()}
            self._readings.append(NodeUsageReading(names, reading.times[fresh], percent, reading.windows, ()))

    def _state_findings(self) -> Iterator[Finding]:
        """Findings about the source as a whole."""
        now = self._clock()
        for key in self.keys:
            if key not in RESOURCES:
                reason = "metrics-server provides only CPU and memory"
                yield Finding(FindingKind.NO_SERIES, "", METRIC_BY_KEY[key].name, now, reason, Remedy.LEFT_OUT)
        if not self._newest:
            reason = "metrics-server returned no node of the cluster; after its start it needs a minute"
            yield Finding(FindingKind.NO_SERIES, "", "", now, reason, Remedy.LEFT_OUT)
        if self._error is not None:
            reason = f"the last request failed: {self._error}"
            yield Finding(FindingKind.QUERY_FAILED, "", "", now, reason, Remedy.REPORTED)
        if self._nodes.error is not None:
            reason = f"capacities may be out of date: {self._nodes.error}. {self._nodes.error.hint}".strip()
            yield Finding(FindingKind.SOURCE, "", "", now, reason, Remedy.REPORTED)
        windows = self._readings[-1].windows if self._readings else ()
        if windows and median(windows) > LONGEST_WINDOW_S:
            reason = (
                f"metrics-server averages over {median(windows):.0f} s, too coarse for windows of 5 minutes:"
                " reduce its --metric-resolution"
            )
            yield Finding(FindingKind.SHORT_COVERAGE, "", "", now, reason, Remedy.REPORTED)


def _batches(
    readings: Sequence[NodeUsageReading], *, keys: Iterable[str], since: float, until: float
) -> tuple[SeriesBatch, ...]:
    """Samples of the readings with since <= time <= until (unix seconds), one batch per metric, one series per node."""
    index: dict[str, int] = {}
    if not readings:
        return ()
    series = np.array([index.setdefault(name, len(index)) for each in readings for name in each.names], dtype=np.int64)
    times = np.concatenate([each.times for each in readings])
    order = np.lexsort((times, series))
    series, times = series[order], times[order]
    batches = []
    for key in keys:
        values = np.concatenate([each.percent[key] for each in readings])[order]
        keep = (times >= since) & (times <= until) & ~np.isnan(values)
        if keep.any():
            batches.append(SeriesBatch(METRIC_BY_KEY[key], tuple(index), series[keep], times[keep], values[keep]))
    return tuple(batches)


def plan_of(key: str) -> QueryPlan:
    """Query plan of a metric, as shown in findings."""
    expression = f"{NODE_METRICS.group_version} {NODE_METRICS.plural} usage.{RESOURCES[key]}"
    return QueryPlan(METRIC_BY_KEY[key].name, expression, "percent", "metadata.name", 0.0, REASON)


def _translate(error: KubeError) -> ProviderError:
    """Convert an error of the Kubernetes API to a ProviderError with a hint."""
    hint = error.hint or "Check that the API server of this cluster is available and reachable."
    if isinstance(error, KubeForbidden):
        hint += " docs/tasks/metrics-server.md lists all required permissions."
    if isinstance(error, KubeNotFound):
        hint = "Check that metrics-server is installed: `kubectl get apiservice v1beta1.metrics.k8s.io`."
    if isinstance(error, KubeUnreachable):
        if error.status == 503:
            hint = "Check that metrics-server is running and ready: `kubectl -n kube-system get pods`."
        return ProviderUnreachable(str(error), hint=hint)
    if isinstance(error, KubeMalformed):
        return ProviderMalformed(str(error), hint=hint)
    return ProviderRefused(str(error), hint=hint)


def from_settings(settings: Settings) -> MetricsServerProvider:
    """Build the provider for the cluster of the configured kubeconfig, default: the cluster that this pod runs in.
    Provides CPU and Memory unless provider.metrics is set."""
    chosen = settings.origins.get("provider.metrics", "default") != "default"
    return MetricsServerProvider(
        AccessFinder.of(*settings[KubernetesSettings].access),
        resolution=settings[RefreshSettings].point_resolution,
        max_seconds=max(window.seconds for window in settings[RefreshSettings].windows),
        keys=[metric.key for metric in settings[ProviderSettings].wanted] if chosen else tuple(RESOURCES),
        timeout=settings[ProviderSettings].timeout,
    )
